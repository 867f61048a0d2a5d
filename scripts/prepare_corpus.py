#!/usr/bin/env python
"""Tokenize text into memory-mapped shards, ready for pretraining.

    clozebert prepare-corpus --input my_text/ --tokenizer_name tokenizer --output_dir corpus

    … --input ids.jsonl --id_column ids --vocab_size 1000    no tokenizer
    … --num_parts 16 --part 3      one part of the files, on any of several machines; and when all are there,
    … --num_parts 16               the corpus: the same bytes as without parts

The input may be text, XML (PubMed, JATS, plain), JSON lines, CSV, TSV and Parquet, also compressed. You can name files,
folders, globs, datasets on the Hub, or `installed-python`: the docstrings of the installed Python packages. The program
writes CORPUS/train and CORPUS/validation. Each has a manifest that accounts for every document.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from clozebert.corpus.readers.reading_flags import ReadingFlags
from clozebert.scripts._program import parse, run
from clozebert.utils.command_line import flag
from clozebert.utils.errors import UserError
from clozebert.utils.wording import counted

_SHOWN_DOCUMENTS, _SHOWN_CHARACTERS = 3, 160
_MANY_UNKNOWN, _MUCH_HELD_OUT = 0.01, 0.2
_LONG_DOCUMENT = 1 << 20  # bytes


@dataclass
class Arguments(ReadingFlags):
    input: list[str] = flag(
        "files, folders, glob patterns, `installed-python`, or owner/name of a dataset on the Hub", ...
    )
    output_dir: str = flag("where the corpus goes", ...)
    tokenizer_name: str | None = flag("a folder that train-tokenizer wrote, or a tokenizer on the Hub")
    id_column: str | None = flag("without a tokenizer: the column of a table that holds token ids already")
    vocab_size: int | None = flag(
        "with --id_column: the ids are below this number; special tokens get the ids from it on"
    )
    validation_input: list[str] | None = flag("inputs to validate on; without them, some of --input is held out")
    validation_fraction: float | None = flag(
        "the share of documents to hold out (default: 0.01; for installed-python 0.05, by whole packages)"
    )
    deduplicate: Literal["none", "exact", "near"] = flag(
        "none, exact (each text once) or near (MinHash over runs of five words)", "none"
    )
    dataset_config_name: str | None = flag("the configuration of a dataset on the Hub")
    num_processes: int | None = flag("processes that tokenize (default: one for each processor)")
    num_parts: int | None = flag("split the files into this many parts; without --part: merge them")
    part: int | None = flag("prepare this part only, counted from 0")
    overwrite_output_dir: bool = flag("write into a folder that is not empty; replace the corpus in it", False)
    disable_tqdm: bool = flag("show no progress bar", False)


def main(argv: Sequence[str] | None = None) -> None:
    """Read, tokenize, write, and print a summary."""
    arguments = parse(Arguments, argv, doc=__doc__, verb="prepare-corpus")

    from clozebert.corpus.preparation.pipeline import Preparation
    from clozebert.utils.progress_bar import progress_bar

    part, num_parts = arguments.part, arguments.num_parts
    if part is not None and num_parts is None:
        raise UserError(f"--part {part} needs --num_parts: of how many?")
    preparation = Preparation(**{item.name: getattr(arguments, item.name) for item in fields(Preparation)})
    preparation.check(part, num_parts)
    with progress_bar(description="reading", unit="B", unit_scale=True, disable=arguments.disable_tqdm) as bar:

        def report(tokens: int, bytes_read: int, total_bytes: int | None) -> None:
            bar.total = total_bytes
            bar.update(bytes_read - bar.n)
            bar.set_postfix_str(f"{tokens / 1e6:.2f} M tokens")

        if part is not None and num_parts is not None:
            was_there = not arguments.overwrite_output_dir and preparation.has_part(part, num_parts)
            folder = preparation.run_part(part, num_parts, report)
            bar.write(f"kept {folder}, which was there already" if was_there else f"written to {folder}")
            return
        manifests = preparation.write(report, num_parts=num_parts)
    by_line = arguments.document_separator == "line"
    print_account(manifests, by_line=by_line, wants_none=arguments.validation_fraction == 0)
    by_default = arguments.validation_input is None and arguments.validation_fraction is None
    are_few = by_default and _warn_of_few_documents(manifests, by_line=by_line)
    if not are_few and arguments.document_separator == "blank_line":
        _warn_of_long_documents(manifests["train"]["sources"])
    print("\n".join(sample_documents(arguments.output_dir, preparation.tokenizer_folder)))
    print(f"written to {arguments.output_dir}")


def print_account(manifests: dict[str, dict[str, Any]], *, by_line: bool, wants_none: bool = False) -> None:
    """Print how many documents each split holds, how many were left out, and what is probably wrong.

    Args:
        by_line: each line of a text file is a document already.
        wants_none: the user wants no document to be held out.
    """
    for split, manifest in manifests.items():
        print(
            f"{split:10} {manifest['documents']:>12,} documents {manifest['tokens']:>14,} tokens "
            f"{manifest['text_bytes']:>14,} bytes of text"
        )
    for reason in ("bad_text", "empty", "duplicate", "near_duplicate"):
        count = sum(source.get(reason, 0) for source in manifests["train"]["sources"])
        if count:
            print(f"left out   {count:>12,} documents: {reason.replace('_', ' ')}")
    if not manifests["validation"]["documents"] and wants_none:
        print("no document is held out")
    elif not manifests["validation"]["documents"]:
        is_one = manifests["train"]["documents"] <= 1 and not by_line
        print("no document is held out: give --validation_input, a larger --validation_fraction" + (
              ", or, where the text is one document, --document_separator line" if is_one
              else "; copies of a text are all on one side"))  # fmt: skip
    if not manifests["train"]["documents"]:
        print("warning: no document is left to train on, as all are held out")
    shared = manifests["train"].get("also_in_validation", 0)
    if shared:
        print(f"warning: {shared:,} documents of --input are in --validation_input, too, and will be trained on; "
              "--deduplicate exact leaves them out")  # fmt: skip
    train = manifests["train"]
    unknown = train["unknown_tokens"] / max(1, train["tokens"])
    # One token may stand for a word of hundreds of letters.
    covered = train.get("unknown_bytes", 0) / max(1, train["text_bytes"])
    if max(unknown, covered) > _MANY_UNKNOWN:
        print(f"warning: {unknown:.1%} of the tokens are unknown to the tokenizer, and stand for {covered:.1%} of the "
              "bytes; train one on this text, with --algorithm bpe or unigram if WordPiece is unsuitable")  # fmt: skip


def _warn_of_few_documents(manifests: dict[str, dict[str, Any]], *, by_line: bool) -> bool:
    """Whole documents are held out, so of a few long ones it may be most of the text; return whether that is said."""
    held_out, trained_on = (manifests[split] for split in ("validation", "train"))
    share = held_out["tokens"] / max(1, held_out["tokens"] + trained_on["tokens"])
    if not trained_on["documents"] or share <= _MUCH_HELD_OUT:
        return False
    count = held_out["documents"] + trained_on["documents"]
    may_split = _texts(trained_on["sources"]) and not by_line
    lines = "if each line is a text, give --document_separator line; else " if may_split else ""
    print(f"warning: {share:.0%} of the text is held out, as it is {count} documents: {lines}give "
          "--validation_fraction 0")  # fmt: skip
    return True


def _warn_of_long_documents(sources: list[dict[str, Any]]) -> None:
    """A text file with hardly a blank line becomes documents of many lines that may have nothing to do with another."""
    filled = [source for source in _texts(sources) if source["documents"]]
    long = [source for source in filled if source["bytes"] > _LONG_DOCUMENT * source["documents"]]
    if long:
        size = sum(source["bytes"] for source in long) / sum(source["documents"] for source in long)
        others = f" and {counted(len(long) - 1, 'other file')}" if len(long) > 1 else ""
        print(f"warning: few blank lines are in {long[0]['path']}{others}, so a document has {size / 2**20:.1f} MiB: "
              "if each line is a text, give --document_separator line")  # fmt: skip


def _texts(sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sources that are text files, in which `--document_separator` counts."""
    from clozebert.corpus.readers.compression import bare_suffix
    from clozebert.corpus.readers.inputs import INSTALLED_PYTHON
    from clozebert.corpus.readers.tables import TABLE_SUFFIXES
    from clozebert.corpus.readers.xml_texts import XML_SUFFIXES

    others = (*TABLE_SUFFIXES, *XML_SUFFIXES)
    return [
        source
        for source in sources
        if bare_suffix(source["path"]) not in others and not source["path"].startswith((INSTALLED_PYTHON, "hub:"))
    ]


def sample_documents(corpus_folder: str, tokenizer_name: str) -> list[str]:
    """Lines with the beginnings of some random training documents as the model sees them, decoded from their tokens."""
    import random

    from clozebert.corpus import Corpus
    from clozebert.corpus.tokenizer import load_tokenizer

    corpus, tokenizer = Corpus(corpus_folder, "train"), load_tokenizer(tokenizer_name)
    count = min(_SHOWN_DOCUMENTS, corpus.num_documents)
    # A fixed seed shows the same documents each time.
    chosen = sorted(random.Random(0).sample(range(corpus.num_documents), count))
    lines = [f"{count} random documents, shortened, as the tokenizer gives them back:"] if count else []
    for number in chosen:
        decoded = str(tokenizer.decode(corpus.document(number)[:_SHOWN_CHARACTERS].tolist()))
        text = " ".join(decoded.split())
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
        lines.append(f"  {number + 1:>10,}  {shown}")
    return lines


if __name__ == "__main__":
    run(main)
