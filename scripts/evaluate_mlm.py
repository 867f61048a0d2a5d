#!/usr/bin/env python
"""Score a masked-LM model on held-out text and on minimal pairs.

    clozebert evaluate encoder --corpus corpus
    clozebert evaluate bert-base-cased --input held_out.txt

The scores are loss and accuracy on frozen masks, pseudo-perplexity, and the share of BLiMP's minimal pairs that the
model gets right. The model may be any that `AutoModelForMaskedLM` loads.
"""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clozebert.corpus.readers.reading_flags import ReadingFlags
from clozebert.scripts._program import check_output_file, open_input, parse, refuse_replacing, run, write_results
from clozebert.utils.command_line import flag
from clozebert.utils.errors import UserError, check_at_least
from clozebert.utils.files import temporary_disk_errors
from clozebert.utils.memory import memory_errors

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

    from clozebert.corpus import Corpus, Masking
    from clozebert.corpus.readers.inputs import Reader
    from clozebert.utils.progress_bar import StageBars


# What has no effect on the score of minimal pairs.
_OF_A_TEXT = (
    "eval_mlm_probability", "masking_unit", "mask_share", "random_share", "seed", "max_seq_length",
    "per_device_eval_batch_size", "max_eval_batches", "pseudo_perplexity_documents",
)  # fmt: skip
_POSITIONS = 64  # tokens of a document for pseudo-perplexity: each needs a forward pass


@dataclasses.dataclass
class EvaluationArguments(ReadingFlags):
    model_name_or_path: str = flag("folder or Hub name of a masked-LM model; can come first, without the flag", ...)
    tokenizer_name: str | None = flag("tokenizer (default: the one in the model's folder)")
    corpus: str | None = flag("folder that prepare-corpus wrote")
    split: Literal["train", "validation"] = flag("which part of the corpus: train or validation", "validation")
    input: list[str] = flag("text files or folders to score, instead of a prepared corpus", [])
    blimp: list[str] = flag("JSON lines with sentence_good and sentence_bad, or folders of them", [])
    eval_mlm_probability: float = flag("share of the tokens that is predicted; the masks are always the same", 0.15)
    masking_unit: Literal["token", "word", "span"] = flag("what is masked as a whole", "token")
    mask_share: float = flag("share of the predicted tokens shown as [MASK]", 0.8)
    random_share: float = flag("share of the predicted tokens shown as a random token", 0.1)
    seed: int = flag("seed of the masks; take a pretraining run's seed to compare with its figures", 42)
    max_seq_length: int | None = flag("tokens in a row (default: 512, or what the model takes if less)")
    per_device_eval_batch_size: int = flag("rows in one batch", 32)
    max_eval_batches: int | None = flag("use this many batches only, a fair sample")
    pseudo_perplexity_documents: int = flag(
        "documents for pseudo-perplexity, evenly spaced, with 64 tokens of each masked in turn; 0: leave it out", 100
    )
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = flag(
        "no, bf16, fp16, or auto: bf16 where it is fast, and no for --blimp", "auto"
    )
    use_cpu: bool = flag("stay on the CPU even if there is a GPU", False)
    trust_remote_code: bool = flag("run the code that comes with the model", False)
    output_file: str | None = flag("write the results here, as JSON")

    def __post_init__(self) -> None:
        if not (self.corpus or self.input or self.blimp):
            raise UserError("nothing to score on: give --corpus DIR, --input FILE… or --blimp DIR")
        if self.corpus and self.input:
            raise UserError("--corpus and --input are two texts: give one of them")
        if not (self.corpus or self.input):
            defaults = {field.name: field.default for field in dataclasses.fields(self)}
            for name in _OF_A_TEXT:
                if getattr(self, name) != defaults[name]:
                    raise UserError(f"--{name} says how to score a text: give --corpus or --input, or leave it out")
        if not self.corpus and self.split != "validation":
            raise UserError(f"--split {self.split} is a part of a corpus: give --corpus, or leave it out")
        read_as = (self.text_column, self.document_separator, self.on_bad_text)
        if not self.input and read_as != (None, "blank_line", "error"):
            raise UserError("--text_column, --document_separator and --on_bad_text say how to read --input: give one")
        if not 0 < self.eval_mlm_probability < 1:
            raise UserError(
                f"--eval_mlm_probability={self.eval_mlm_probability} must lie between 0 and 1, both excluded"
            )
        check_at_least(
            self, per_device_eval_batch_size=1, max_eval_batches=1, max_seq_length=8, pseudo_perplexity_documents=0
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Score, print a table, write JSON."""
    arguments = parse(EvaluationArguments, argv, doc=__doc__, verb="evaluate", first="model_name_or_path")
    check_output_file(arguments.output_file)
    with memory_errors(f"lower per_device_eval_batch_size={arguments.per_device_eval_batch_size}"):
        results = evaluate(arguments)
    print("\n".join(score_table(results)))
    if arguments.output_file is not None:
        write_results(arguments.output_file, results)
        print(f"results in {arguments.output_file}")


def evaluate(arguments: EvaluationArguments) -> dict[str, Any]:
    """Measure everything that was asked for: name -> value."""
    from clozebert.corpus import Masking
    from clozebert.training.scoring import (
        autocast_to,
        check_lengths,
        files_of_pairs,
        load_masked_lm,
        read_minimal_pairs,
        score_minimal_pairs,
    )
    from clozebert.utils.device import choose_precision, find_device
    from clozebert.utils.input_length import longest_input
    from clozebert.utils.progress_bar import StageBars

    # Most user errors are found before the model is loaded.
    masking = Masking(
        rate=arguments.eval_mlm_probability,
        unit=arguments.masking_unit,
        mask_share=arguments.mask_share,
        random_share=arguments.random_share,
    )
    pair_files = files_of_pairs(arguments.blimp)
    paradigms = read_minimal_pairs(pair_files)
    tokenizer = _find_tokenizer(arguments.tokenizer_name, arguments.model_name_or_path)
    corpus = None if arguments.corpus is None else _open(arguments.corpus, arguments.split, tokenizer)
    reader = open_input(arguments) if arguments.input else None
    refuse_replacing(arguments.output_file, [*(reader.files if reader else []), *pair_files])
    device = find_device(use_cpu=arguments.use_cpu)
    precision = choose_precision(arguments.mixed_precision, device)
    model = load_masked_lm(arguments.model_name_or_path, device=device, trust_remote_code=arguments.trust_remote_code)
    longest = longest_input(model, tokenizer)
    length = _row_length(arguments.max_seq_length, longest)
    check_lengths(tokenizer, paradigms, longest=longest)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:  # type: ignore[operator]
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens, more than the model: give the model's own tokenizer"
        )
    results: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    begun = time.perf_counter()
    bars = StageBars(unit="")
    with contextlib.nullcontext(corpus) if reader is None else _prepared(reader, tokenizer) as corpus:
        if reader is not None and reader.bad_texts:
            results["documents_left_out"] = reader.bad_texts
        if corpus is not None:
            results["precision"] = precision
            with autocast_to(device, precision):
                results |= _score_corpus(model, tokenizer, corpus, masking, arguments, max_seq_length=length, bars=bars)
            del corpus  # Windows does not delete files that are still mapped
    if paradigms:
        # The difference between the two sentences of a pair is too small for bf16.
        results["blimp_precision"] = "no" if arguments.mixed_precision == "auto" else precision
        with autocast_to(device, results["blimp_precision"]):
            report = bars.begin("tokens of minimal pairs")
            results |= score_minimal_pairs(model, tokenizer, paradigms, report=report)
    bars.close()
    return {**results, "seconds": time.perf_counter() - begun}


def _find_tokenizer(name: str | None, model_name_or_path: str) -> "PreTrainedTokenizerFast":
    """The tokenizer of that name, if it has the entries of the model's own; without a name, the model's own."""
    from clozebert.corpus.tokenizer import load_tokenizer
    from clozebert.training.checks import differing_entries

    if name is None:
        return load_tokenizer(model_name_or_path, flag="model_name_or_path")
    tokenizer = load_tokenizer(name)
    for number, theirs, mine in differing_entries(model_name_or_path, tokenizer):
        raise UserError(
            f"tokenizer_name={name!r} has {mine!r} as token {number}, and the model's own {theirs!r}: the scores would "
            f"mean nothing; leave it out"
        )
    return tokenizer


def _row_length(given: int | None, longest: int) -> int:
    if given is not None and given > longest:
        raise UserError(
            f"--max_seq_length={given} exceeds the {longest} tokens that the model, or its tokenizer by "
            f"model_max_length, takes"
        )
    return given or min(512, longest)


def _score_corpus(
    model: "torch.nn.Module",
    tokenizer: "PreTrainedTokenizerFast",
    corpus: "Corpus",
    masking: "Masking",
    arguments: EvaluationArguments,
    *,
    max_seq_length: int,
    bars: "StageBars",
) -> dict[str, Any]:
    """The share of unknown tokens, the loss with fixed masks and, unless it is left out, the pseudo-perplexity."""
    from clozebert.training.reporting.doctor import survey
    from clozebert.training.scoring import score_frozen_masks, score_pseudo_perplexity

    results: dict[str, Any] = {
        # Unknown tokens are never masked, so a tokenizer that does not know the hard words gets a lower loss.
        "unknown_share": survey([corpus], shares=[1.0], unk_token_id=tokenizer.unk_token_id).unknown_share,
        "documents": corpus.num_documents,
        "tokens": corpus.num_tokens,
        "max_seq_length": max_seq_length,
    }
    results |= score_frozen_masks(
        model,
        corpus,
        max_seq_length=max_seq_length,
        batch_size=arguments.per_device_eval_batch_size,
        masking=masking,
        seed=arguments.seed,
        max_batches=arguments.max_eval_batches,
        report=bars.begin("batches of frozen masks"),
    )
    if arguments.pseudo_perplexity_documents:
        results |= score_pseudo_perplexity(
            model,
            corpus,
            max_seq_length=max_seq_length,
            max_documents=arguments.pseudo_perplexity_documents,
            positions_per_piece=_POSITIONS,
            report=bars.begin("tokens masked in turn"),
        )
    return results


def _open(folder: str, split: str, tokenizer: Any) -> "Corpus":
    from clozebert.corpus import Corpus
    from clozebert.training.checks import check_tokenizer

    corpus = Corpus(folder, split)
    check_tokenizer(corpus, tokenizer)
    if corpus.num_documents == 0:
        raise UserError(f"the {split} split of {folder} is empty: name another --split")
    return corpus


@contextlib.contextmanager
def _prepared(reader: "Reader", tokenizer: "PreTrainedTokenizerFast") -> "Iterator[Corpus]":
    """The texts of a reader as a corpus, in a temporary folder."""
    from clozebert.corpus import Corpus
    from clozebert.corpus.preparation.prepare import prepare

    # An error while the folder is deleted would hide the one that came before.
    with contextlib.ExitStack() as temporary:
        with temporary_disk_errors():
            folder = temporary.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            prepare(reader, tokenizer=tokenizer, output_dir=Path(folder) / "text", validation_fraction=0.0)
        yield Corpus(Path(folder) / "text")


def score_table(results: dict[str, Any]) -> list[str]:
    """The results as text, one per line."""
    rows = []
    for name, value in results.items():
        if name == "blimp_paradigms":
            rows += [(f"  {paradigm}", f"{figures['accuracy']:.1%}") for paradigm, figures in value.items()]
        elif name.endswith("accuracy"):
            rows.append((name, f"{value:.1%}"))
        else:
            rows.append((name, f"{value:,.4f}" if isinstance(value, float) else str(value)))
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {value:>14}" for name, value in rows]


if __name__ == "__main__":
    run(main)
