#!/usr/bin/env python
"""Tokenize text into memory-mapped shards, ready for pretraining.

    prepare_corpus.py --input text/ --tokenizer_name TOKENIZER --output_dir CORPUS

Reads text, JSON lines, CSV, TSV and Parquet, also compressed, folders, globs, `installed-python` and datasets of the
Hub. Writes CORPUS/train and CORPUS/validation, each with a manifest that accounts for every document.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from clozebert.scripts._program import parse, run

DESCRIPTION = "Tokenize text into memory-mapped shards, ready for pretraining."


@dataclass
class Arguments:
    """The flags."""

    input: list[str] = field(
        metadata={"help": "files, folders, glob patterns, `installed-python`, or owner/name of a dataset on the Hub"}
    )
    tokenizer_name: str = field(metadata={"help": "a folder that train_tokenizer wrote, or a tokenizer of the Hub"})
    output_dir: str = field(metadata={"help": "where the corpus goes"})
    validation_input: list[str] | None = field(
        default=None, metadata={"help": "inputs to validate on; without them, some of --input is held out"}
    )
    validation_fraction: float | None = field(
        default=None,
        metadata={
            "help": "the share of documents to hold out; default 0.01, and 0.05 for installed-python, by package"
        },
    )
    deduplicate: str = field(
        default="none", metadata={"help": "none, exact (each text once) or near (MinHash over runs of five words)"}
    )
    text_column: str | None = field(
        default=None, metadata={"help": "the column of the text; default: text, content, … whichever there is"}
    )
    document_separator: str = field(
        default="blank_line", metadata={"help": "what ends a document in text files: blank_line, line or file"}
    )
    on_bad_text: str = field(
        default="error", metadata={"help": "error, or skip documents that are not valid UTF-8 and count them"}
    )
    dataset_config_name: str | None = field(
        default=None, metadata={"help": "the configuration of a dataset on the Hub"}
    )
    num_processes: int | None = field(default=None, metadata={"help": "default: one for each processor"})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "replace the corpus in the output folder"})
    disable_tqdm: bool = field(default=False, metadata={"help": "show no progress bar"})


def main(argv: Sequence[str] | None = None) -> None:
    """Read, tokenize, write, and say what came of it."""
    arguments = parse(Arguments, argv, prog="prepare_corpus", description=DESCRIPTION)

    from pathlib import Path

    from tqdm import tqdm

    from clozebert.corpus.prepare import check_output_dir, prepare
    from clozebert.corpus.readers import INSTALLED_PYTHON, Reader
    from clozebert.corpus.tokenizer import load_tokenizer

    fraction = arguments.validation_fraction
    if fraction is None:
        fraction = 0.05 if INSTALLED_PYTHON in arguments.input else 0.01
    check_output_dir(Path(arguments.output_dir), overwrite=arguments.overwrite_output_dir)

    def reader(inputs: list[str], held_out_fraction: float) -> Reader:
        return Reader(
            inputs,
            text_column=arguments.text_column,
            document_separator=arguments.document_separator,
            on_bad_text=arguments.on_bad_text,
            dataset_config_name=arguments.dataset_config_name,
            held_out_fraction=held_out_fraction,
        )

    validation = reader(arguments.validation_input, 0.0) if arguments.validation_input else None
    train = reader(arguments.input, 0.0 if validation else fraction)
    sizes = [each.total_bytes for each in (train, validation) if each is not None]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    with tqdm(total=total, unit="B", unit_scale=True, desc="reading", disable=arguments.disable_tqdm) as bar:

        def report(tokens: int, bytes_read: int) -> None:
            bar.update(bytes_read - bar.n)
            bar.set_postfix_str(f"{tokens / 1e6:.2f} M tokens")

        manifests = prepare(
            train,
            tokenizer=load_tokenizer(arguments.tokenizer_name),
            output_dir=arguments.output_dir,
            validation_reader=validation,
            validation_fraction=fraction,
            deduplicate=arguments.deduplicate,
            num_processes=arguments.num_processes,
            overwrite=arguments.overwrite_output_dir,
            report=report,
        )
    for split, manifest in manifests.items():
        print(
            f"{split:10} {manifest['documents']:>12,} documents {manifest['tokens']:>14,} tokens "
            f"{manifest['text_bytes']:>14,} bytes of text"
        )
    for reason in ("bad_text", "empty", "duplicate", "near_duplicate"):
        count = sum(source.get(reason, 0) for source in manifests["train"]["sources"])
        if count:
            print(f"left out   {count:>12,} documents: {reason.replace('_', ' ')}")
    if not manifests["validation"]["documents"]:
        print("no document is held out: give --validation_input, a --validation_fraction, or, where the text is one "
              "document, --document_separator line")  # fmt: skip
    unknown, tokens = manifests["train"]["unknown_tokens"], manifests["train"]["tokens"]
    if unknown > 0.01 * tokens:
        print(f"warning: {unknown / tokens:.1%} of the tokens are unknown to the tokenizer; train one on this text")
    print(f"written to {arguments.output_dir}")


if __name__ == "__main__":
    run(main)
