"""Runs at the edge of what can be trained on, and resuming with other settings: a clear refusal, or finite numbers."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pretraining_helpers import VOCAB_SIZE, log_of, make_corpus, make_tokenizer, model_config, run_here, settings
from safetensors.torch import load_file

from clozebert import ClozeBertForMaskedLM
from clozebert.corpus import ShardWriter
from clozebert.corpus.tokenizer import tokenizer_facts
from clozebert.training import PretrainingArguments, checks, pretrain
from clozebert.utils.errors import UserError

SAME = {"save_steps": 2, "eval_steps": 0, "warmup_steps": 0}
RUN: dict[str, Any] = {"max_steps": 3, "eval_steps": 2, "save_steps": 0}


def corpus_of(folder: Path, **splits: list[int]) -> Path:
    """FOLDER/tokenizer and FOLDER/corpus, whose splits have documents of these lengths."""
    tokenizer = make_tokenizer(VOCAB_SIZE - 5)
    tokenizer.save_pretrained(folder / "tokenizer")
    for split, lengths in splits.items():
        writer = ShardWriter(folder / "corpus" / split, vocab_size=VOCAB_SIZE)
        for length in lengths:
            writer.append(5 + np.arange(length) % 9, np.ones(length, dtype=bool))
        writer.close({"tokenizer": tokenizer_facts(tokenizer)})
    return folder


@pytest.fixture(scope="module")
def begun(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint at step 2."""
    output_dir = tmp_path_factory.mktemp("begun") / "run"
    run_here(prepared, output_dir, **{**SAME, "max_steps": 2})
    return output_dir


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "batch size": ({"global_batch_size": 16}, "global_batch_size=8 there, global_batch_size=16 here"),
    "length": ({"max_seq_length": 32}, "max_seq_length=40 there, max_seq_length=32 here"),
    "mask rate": ({"mlm_probability": 0.2}, "mlm_probability=0.3 there, mlm_probability=0.2 here"),
    "share of mask tokens": ({"mask_share": 0.5}, "mask_share=0.8 there, mask_share=0.5 here"),
    "unit": ({"masking_unit": "word"}, "masking_unit='token' there, masking_unit='word' here"),
    "seed": ({"seed": 7}, "seed=42 there, seed=7 here"),
    "optimizer": ({"optimizer": "muon"}, "optimizer='adamw' there, optimizer='muon' here"),
    "width": ({"hidden_size": 48}, "hidden_size=36 there, hidden_size=48 here"),
}


@pytest.mark.parametrize(("changes", "message"), OTHERS.values(), ids=OTHERS.keys())
def test_resuming_with_another_setting_is_refused(
    prepared: Path, begun: Path, changes: dict[str, Any], message: str
) -> None:
    before = sorted(begun.rglob("*"))
    with pytest.raises(UserError, match=message):
        run_here(prepared, begun, **{**SAME, "max_steps": 4, "resume_from_checkpoint": "latest", **changes})
    assert sorted(begun.rglob("*")) == before


def test_resuming_with_another_corpus_or_tokenizer_is_refused(prepared: Path, begun: Path, tmp_path: Path) -> None:
    again = {**SAME, "max_steps": 4, "resume_from_checkpoint": "latest"}
    other = make_corpus(tmp_path / "other", seed=1)
    with pytest.raises(UserError, match=r"corpus fingerprint .* there, .* here"):
        run_here(other, begun, **again)
    make_tokenizer(70).save_pretrained(tmp_path / "larger")
    with pytest.raises(UserError, match="was tokenized with another tokenizer"):
        run_here(prepared, begun, tokenizer_name=tmp_path / "larger", **again)


def test_another_tokenizer_is_found_before_rows_are_packed(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packing a large text takes minutes."""
    make_tokenizer(70).save_pretrained(tmp_path / "larger")
    monkeypatch.setattr(checks, "length_by_text", None)
    with pytest.raises(UserError, match="was tokenized with another tokenizer"):
        run_here(prepared, tmp_path / "out", tokenizer_name=tmp_path / "larger", num_train_epochs=1)


@pytest.mark.parametrize("flag", ["model_name_or_path", "teacher_name_or_path"])
def test_weights_that_are_cut_or_missing_are_a_mistake_of_the_user(prepared: Path, tmp_path: Path, flag: str) -> None:
    """As after a download that was stopped."""
    model = tmp_path / "model"
    ClozeBertForMaskedLM(model_config()).save_pretrained(model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    for name in ("cut", "missing"):
        values = settings(prepared, output_dir=str(tmp_path / name), **{**RUN, flag: str(model)})
        with pytest.raises(UserError, match=f"the weights of {model}: "):
            pretrain(PretrainingArguments(**values), model_config())
        weights.unlink(missing_ok=True)


def losses(output_dir: Path) -> list[float]:
    found = [entry["loss"] for entry in log_of(output_dir) if "loss" in entry]
    assert len(found) == 3
    assert all(map(math.isfinite, found))
    return found


def test_batches_with_nothing_masked_give_zero_loss_and_change_no_weight(tmp_path: Path) -> None:
    """One masked token in a hundred thousand, and 200 tokens."""
    folder = corpus_of(tmp_path, train=[1] * 200, validation=[60] * 9)
    run_here(
        folder,
        tmp_path / "run",
        mlm_probability=1e-5,
        weight_decay=0.0,
        **{**RUN, "save_steps": 1, "save_total_limit": 3},
    )
    first, last = (load_file(tmp_path / "run" / f"checkpoint-{step}" / "model.safetensors") for step in (1, 3))
    assert all(first[name].equal(last[name]) for name in first)
    assert losses(tmp_path / "run") == [0.0] * 3
    assert [entry["grad_norm"] for entry in log_of(tmp_path / "run") if "loss" in entry] == [0.0] * 3


@pytest.mark.parametrize("lengths", [[1], [1, 1], [50]], ids=["one word", "two words", "fewer rows than a batch"])
def test_a_corpus_smaller_than_a_batch_is_repeated(tmp_path: Path, lengths: list[int]) -> None:
    folder = corpus_of(tmp_path, train=lengths, validation=[60] * 9)
    run_here(folder, tmp_path / "run", mlm_probability=0.9, **RUN)
    assert max(losses(tmp_path / "run")) > 0


@pytest.mark.parametrize("validation", [[], [1], None], ids=["no document", "nothing to predict", "no split"])
def test_a_run_without_validation_goes_to_its_end(tmp_path: Path, validation: list[int] | None) -> None:
    splits = {"train": [40] * 30} | ({} if validation is None else {"validation": validation})
    folder = corpus_of(tmp_path, **splits)
    run_here(folder, tmp_path / "run", **RUN)
    losses(tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").is_file()
