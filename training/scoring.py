"""Scores a trained masked-LM model: fixed masks, pseudo-perplexity, minimal pairs (BLiMP).

Works on any `AutoModelForMaskedLM`. The masks are a function of (seed, document, position), so two models with one
tokenizer predict the same tokens, and their figures can be compared.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ..corpus import Corpus, Masking, ValidationBatches
from ..corpus.packing import NUM_SPECIAL_TOKENS
from ..corpus.readers.table_file import BadText
from ..corpus.readers.tables import open_table
from ..utils.answers import answer_by_name
from ..utils.errors import UserError, first_line
from ..utils.progress_bar import quiet
from ..utils.untrusted import check_model_folder
from .evaluation import evaluate_masked_lm, perplexity
from .initialization.initial_model import say_missing
from .pseudo_likelihood import masked_log_likelihoods

# The name of a set of minimal pairs, and its pairs (acceptable, unacceptable).
Paradigms = dict[str, list[tuple[str, str]]]
_Report = Callable[[int, int], object]


def score_frozen_masks(
    model: torch.nn.Module,
    corpus: Corpus,
    *,
    max_seq_length: int,
    batch_size: int = 32,
    masking: Masking | None = None,
    seed: int = 42,
    max_batches: int | None = None,
    report: _Report | None = None,
) -> dict[str, float]:
    """Masked-LM loss (nats), perplexity and accuracy over a prepared split; see `evaluate_masked_lm`.

    Args:
        report: called with (batches scored, batches in all).
    """
    batches = ValidationBatches(
        corpus,
        max_seq_length=max_seq_length,
        batch_size=batch_size,
        masking=masking or Masking(rate=0.15),
        seed=seed,
    )
    one_process = SimpleNamespace(process_index=0, num_processes=1, device=next(model.parameters()).device)
    return evaluate_masked_lm(model, batches, accelerator=one_process, max_batches=max_batches, report=report)


def score_pseudo_perplexity(
    model: torch.nn.Module,
    corpus: Corpus,
    *,
    max_seq_length: int,
    max_documents: int | None = None,
    positions_per_piece: int | None = None,
    report: _Report | None = None,
) -> dict[str, float]:
    """exp(-(1/N) sum_t log p(x_t | x without x_t)) over documents of a split.

    A document longer than a row is cut into pieces of `max_seq_length`, each with its special tokens.

    Args:
        max_documents: how many documents, evenly spaced over the split, and at most as many pieces of them, evenly
            spaced; None: all.
        positions_per_piece: at most this many tokens of each piece, evenly spaced; None: all.
        report: called with (tokens scored, tokens in all).

    Raises:
        ValueError: the corpus holds no token to score, or a row no token between its special ones.
    """
    if max_seq_length <= NUM_SPECIAL_TOKENS:
        raise UserError(f"max_seq_length={max_seq_length} must exceed {NUM_SPECIAL_TOKENS}: [CLS], a token, [SEP]")
    wanted = corpus.num_documents if max_documents is None else min(max_documents, corpus.num_documents)
    pieces = [
        piece
        for index in range(wanted)
        for piece in _pieces(corpus, index * corpus.num_documents // wanted, max_seq_length)
    ]
    if max_documents is not None and len(pieces) > max_documents:
        pieces = [pieces[index * len(pieces) // max_documents] for index in range(max_documents)]
    scores = masked_log_likelihoods(
        model,
        pieces,
        mask_token_id=corpus.mask_token_id,
        never_masked=corpus.special_token_ids,
        positions_per_document=positions_per_piece,
        report=report,
    )
    count = sum(map(len, scores))
    if count == 0:
        raise UserError(f"the corpus {corpus.folder} holds no token to score")
    loss = -sum(float(score.sum()) for score in scores) / count
    return {"pseudo_loss": loss, "pseudo_perplexity": perplexity(loss), "pseudo_tokens": count}


def _pieces(corpus: Corpus, document: int, max_seq_length: int) -> Iterator[list[int]]:
    ids, capacity = corpus.document(document).tolist(), max_seq_length - NUM_SPECIAL_TOKENS
    for first in range(0, len(ids), capacity):
        yield [corpus.cls_token_id, *ids[first : first + capacity], corpus.sep_token_id]


def files_of_pairs(paths: Sequence[str | Path]) -> list[Path]:
    """The JSON-lines files among `paths`, and those in the folders among them.

    Raises:
        UserError: a path does not exist, or a folder has none.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"--blimp: {path} does not exist")
        found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not found:
            raise UserError(f"--blimp: {path} holds no .jsonl file")
        files += found
    return files


def read_minimal_pairs(files: Iterable[Path]) -> Paradigms:
    """Minimal pairs from JSON-lines files in the form of BLiMP (Warstadt et al. 2020).

    Each line holds `sentence_good` and `sentence_bad`, and may name its paradigm under `UID`; else it is the file's.

    Raises:
        UserError: a file that holds no pairs, or a paradigm of another file; or a line that is not a pair.
    """
    paradigms: Paradigms = {}
    for file in files:
        table, of_file = open_table(file), defaultdict(list)
        for row in table.rows():
            if isinstance(row, BadText):
                raise UserError(f"{table.where(row.line)}: {row.reason}")
            of_file[str(row.values.get("UID") or file.stem)].append(_pair(row.values, where=table.where(row.line)))
        if not of_file:
            raise UserError(f"--blimp: {file} holds no pair")
        if again := sorted(of_file.keys() & paradigms.keys()):
            raise UserError(f"--blimp: {file} is a second file of the paradigm {again[0]!r}")
        paradigms |= of_file
    return paradigms


def _pair(values: dict[str, Any], *, where: str) -> tuple[str, str]:
    sentences = []
    for key in ("sentence_good", "sentence_bad"):
        sentence = values.get(key)
        if not isinstance(sentence, str) or not sentence.strip():
            raise UserError(f"{where} has no text under {key!r}")
        sentences.append(sentence)
    return sentences[0], sentences[1]


def score_minimal_pairs(
    model: torch.nn.Module,
    tokenizer: Any,
    paradigms: Paradigms,
    *,
    report: _Report | None = None,
) -> dict[str, Any]:
    """How often PLL(good) > PLL(bad), as in Salazar et al. 2020; a tie counts as wrong.

    All sentences of all paradigms are scored together, sorted by length, each different sentence once.

    Args:
        report: called with (tokens scored, tokens in all).

    Returns:
        blimp_accuracy (the mean over paradigms, as BLiMP reports it), blimp_pairs, blimp_same_tokens, and
        blimp_paradigms: by name, the accuracy, the number of pairs, that of pairs whose sentences are the same tokens,
        which no model could tell apart, and the share of tokens that are unknown to the tokenizer.
    """
    sentences = _sentences_of(paradigms)
    documents = tokenizer(sentences, add_special_tokens=True)["input_ids"]
    # The unknown token is scored, because it represents text: leaving it out would favour unknown words.
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    scores = masked_log_likelihoods(
        model, documents, mask_token_id=tokenizer.mask_token_id, never_masked=special, report=report
    )
    pll = {sentence: float(score.sum()) for sentence, score in zip(sentences, scores, strict=True)}
    ids_of = dict(zip(sentences, documents, strict=True))

    def score(pairs: list[tuple[str, str]]) -> dict[str, Any]:
        tokens = [token for pair in pairs for sentence in pair for token in ids_of[sentence]]
        return {
            "accuracy": sum(pll[good] > pll[bad] for good, bad in pairs) / len(pairs),
            "pairs": len(pairs),
            "same_tokens": sum(ids_of[good] == ids_of[bad] for good, bad in pairs),
            "unknown_share": tokens.count(tokenizer.unk_token_id) / len(tokens),
        }

    results = {name: score(pairs) for name, pairs in paradigms.items()}
    return {
        "blimp_accuracy": sum(result["accuracy"] for result in results.values()) / len(results),
        "blimp_pairs": sum(map(len, paradigms.values())),
        "blimp_same_tokens": sum(result["same_tokens"] for result in results.values()),
        "blimp_paradigms": results,
    }


def _sentences_of(paradigms: Paradigms) -> list[str]:
    return sorted({sentence for pairs in paradigms.values() for pair in pairs for sentence in pair})


def check_lengths(tokenizer: Any, paradigms: Paradigms, *, longest: int) -> None:
    """Check that the model can read each sentence as a whole.

    Raises:
        UserError: a sentence has more than `longest` tokens.
    """
    sentences = _sentences_of(paradigms)
    for sentence, ids in zip(sentences, tokenizer(sentences)["input_ids"] if sentences else [], strict=True):
        if len(ids) > longest:
            raise UserError(f"--blimp: a sentence has {len(ids)} tokens, more than {longest}: {sentence[:60]!r}")


def load_masked_lm(name_or_path: str, *, device: torch.device, trust_remote_code: bool = False) -> torch.nn.Module:
    """Any masked-LM model of transformers, in float32, ready to score.

    Raises:
        ValueError: it cannot be loaded, or is not a masked-LM model: weights are missing.
    """
    from transformers import AutoModelForMaskedLM

    check_model_folder(name_or_path)
    options = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
    try:
        with quiet():
            model, report = AutoModelForMaskedLM.from_pretrained(
                name_or_path, trust_remote_code=trust_remote_code, **options
            )
    except Exception as error:  # libraries raise all kinds of exceptions for malformed files
        raise UserError(f"model_name_or_path={name_or_path!r} cannot be loaded: {first_line(error)}") from None
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"model_name_or_path={name_or_path!r} {say_missing(model, missing)}. A fine-tuned model is scored by "
            f"clozebert predict --scores_file"
        )
    answer_by_name(model.config)
    return model.to(device).eval()


def autocast_to(device: torch.device, precision: str) -> torch.autocast:
    """Autocast to `bf16` or `fp16` (see `choose_precision`); with `no`, compute in the type of the weights."""
    dtype = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "no")
