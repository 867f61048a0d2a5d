"""The doctor: each finding where it should be, none where a run is healthy, and each said once by the loop."""

import dataclasses
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretraining_helpers import (
    VOCAB_SIZE,
    log_of,
    make_corpus,
    make_tokenizer,
    model_config,
    run_forked,
    run_here,
    settings,
)

from clozebert.corpus import Corpus, ShardWriter
from clozebert.corpus.tokenizer import tokenizer_facts
from clozebert.training import PretrainingArguments, pretrain
from clozebert.training.reporting import doctor
from clozebert.utils import device as devices
from clozebert.utils.device import measure_matmul_flops

SURVEY = doctor.Survey(unigram_entropy=6.0, unknown_share=0.004, repeated_share=0.01)
HEALTHY = doctor.Vitals(
    step=5000, max_steps=10_000, warmup_steps=500, train_loss=3.2, eval_loss=3.0, epochs=5.0, gradient_norm=0.5,
    most_norm=1.0, skipped_steps=0, precision="bf16", survey=SURVEY,
)  # fmt: skip
STUCK = {"eval_loss": 5.9, "train_loss": 5.9}


def test_entropy_is_the_formula() -> None:
    assert doctor.unigram_entropy(np.array([5, 5, 0, 5, 5])) == pytest.approx(math.log(4))
    assert doctor.unigram_entropy(np.array([3, 1])) == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert doctor.unigram_entropy(np.array([7, 0])) == 0


@pytest.mark.parametrize(
    ("finding", "changes", "cause"),
    [
        (doctor.plateau, {}, None),
        (doctor.plateau, STUCK, "learning_rate is too low"),
        (doctor.plateau, STUCK | {"step": 900}, None),
        (doctor.plateau, STUCK | {"gradient_norm": 9.0}, "updates are too large"),
        (doctor.plateau, STUCK | {"gradient_norm": 9.0, "most_norm": 0.0}, "learning_rate is too low"),
        (doctor.plateau, {"eval_loss": 7.0, "train_loss": 5.5}, "updates are too large"),
        (doctor.plateau, {"eval_loss": 7.0, "train_loss": None}, "updates are too large"),
        (doctor.plateau, {"eval_loss": 7.0, "train_loss": 5.0}, None),
        (doctor.plateau, {"eval_loss": 7.0, "train_loss": 5.0, "epochs": 2.0}, "of different kinds"),
        (doctor.repetition, {}, None),
        (doctor.repetition, {"survey": dataclasses.replace(SURVEY, repeated_share=0.2)}, "20% of the documents"),
        (doctor.repetition, {"train_loss": 2.0}, "by heart"),
        (doctor.repetition, {"train_loss": 2.0, "epochs": 0.7}, None),
        (doctor.gradients, {}, None),
        (doctor.gradients, {"skipped_steps": 2}, "accident of the hardware"),
        (doctor.gradients, {"skipped_steps": 200}, "lower learning_rate"),
        (doctor.gradients, {"skipped_steps": 9, "precision": "fp16"}, None),
        (doctor.gradients, {"skipped_steps": 90, "precision": "fp16"}, "fp16 overflows"),
        (doctor.unknowns, {}, None),
        (doctor.unknowns, {"survey": dataclasses.replace(SURVEY, unknown_share=0.12)}, "12.0% of the tokens are unkn"),
    ],
)
def test_findings(finding: Callable[..., str | None], changes: dict[str, Any], cause: str | None) -> None:
    found = finding(dataclasses.replace(HEALTHY, **changes))
    assert found is None if cause is None else cause in str(found)


def write_sick_corpus(folder: Path) -> Path:
    """Random words, a tenth of them unknown, every document twice: nothing to learn but frequencies."""
    tokenizer = make_tokenizer(VOCAB_SIZE - 5)
    tokenizer.save_pretrained(folder / "tokenizer")
    draws = np.random.default_rng(0)
    for split, count in (("train", 60), ("validation", 12)):
        writer = ShardWriter(folder / "corpus" / split, vocab_size=VOCAB_SIZE)
        for _ in range(count):
            ids = draws.integers(5, VOCAB_SIZE, size=30)
            ids[draws.choice(30, size=3, replace=False)] = tokenizer.unk_token_id
            for _ in range(2):
                writer.append(ids, np.ones(30, dtype=bool))
        writer.close({"tokenizer": tokenizer_facts(tokenizer)})
    return folder


def test_survey(tmp_path: Path) -> None:
    sick = doctor.survey([Corpus(write_sick_corpus(tmp_path / "sick") / "corpus")], shares=[1.0], unk_token_id=1)
    assert sick.unknown_share == pytest.approx(0.1)
    assert sick.repeated_share == pytest.approx(0.5)
    assert sick.unigram_entropy == pytest.approx(math.log(56), abs=0.03)
    well = doctor.survey([Corpus(make_corpus(tmp_path / "well") / "corpus")], shares=[1.0], unk_token_id=1)
    assert well.unknown_share == 0
    assert well.repeated_share < 0.3, "7 beginnings of 87 lengths, drawn 150 times"


def test_the_survey_looks_at_all_of_a_corpus_of_long_documents(tmp_path: Path) -> None:
    """Sorted by kind, with more tokens than are looked at: the first 2 M tokens are of one kind."""
    writer = ShardWriter(tmp_path / "train", vocab_size=64)
    for number in range(1000):
        ids = np.full(4000, 5) if number < 500 else np.arange(4000) % 50 + 6
        writer.append(ids, np.ones(4000, dtype=bool))
    writer.close({"tokenizer": tokenizer_facts(make_tokenizer(56))})
    found = doctor.survey([Corpus(tmp_path)], shares=[1.0], unk_token_id=1)
    assert found.unigram_entropy == pytest.approx(math.log(2) + 0.5 * math.log(50), abs=1e-3)


def test_of_a_long_document_only_the_beginning_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of hundreds of millions of tokens would not fit into the memory."""
    writer = ShardWriter(tmp_path / "train", vocab_size=64)
    for length in (4000, 4000, 5000):
        ids = np.where(np.arange(length) < 300, np.arange(length) % 3 + 10, 7)
        writer.append(ids, np.ones(length, dtype=bool))
    writer.close({"tokenizer": tokenizer_facts(make_tokenizer(56))})
    monkeypatch.setattr(doctor, "_OF_A_DOCUMENT", 300)
    found = doctor.survey([Corpus(tmp_path)], shares=[1.0], unk_token_id=1)
    assert found.unigram_entropy == pytest.approx(math.log(3))
    assert found.repeated_share == pytest.approx(1 / 3)


def test_the_loop_says_each_finding_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sick_corpus(tmp_path)
    arguments = PretrainingArguments(
        **settings(folder, output_dir=str(tmp_path / "run"), full_determinism=False, max_steps=120, eval_steps=110,
                   save_steps=0, learning_rate=1e-5, logging_steps=40)
    )  # fmt: skip
    results = pretrain(arguments, model_config())
    shown = capsys.readouterr().out
    for words in ("no better than guessing by frequency", "50% of the documents", "10.0% of the tokens are unknown"):
        assert shown.count(words) == 1, words
    assert "not finite" not in shown
    assert results["model_flops_share"] > 0
    entries = [
        line for line in (tmp_path / "run" / "training_log.jsonl").read_text().splitlines() if "grad_norm" in line
    ]
    assert all('"model_flops_share"' in line for line in entries)
    assert len(log_of(tmp_path / "run")) == 5


def test_a_look_that_fails_is_no_failed_evaluation_and_the_next_one_looks_again(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey, calls = doctor.survey, []

    def fails_once(*corpora: Any, **options: Any) -> doctor.Survey:
        calls.append(options)
        if len(calls) == 1:
            raise OSError("the disk is away")
        return survey(*corpora, **options)

    monkeypatch.setattr(doctor, "survey", fails_once)
    run_here(prepared, tmp_path / "run", max_steps=6, eval_steps=2)
    events = [(entry["step"], entry["event"]) for entry in log_of(tmp_path / "run") if "event" in entry]
    assert events == [
        (2, "the model card, or the search for what is wrong with the run, failed: OSError: the disk is away")
    ]
    assert len(calls) == 2


@pytest.mark.parametrize(("most", "way_out"), [(1, "raise max_eval_batches"), (None, "hold out more text")])
def test_a_loss_of_few_predicted_tokens_is_said_to_say_little(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], most: int | None, way_out: str
) -> None:
    more = {"max_eval_batches": most, "per_device_eval_batch_size": 1, "max_seq_length": 24} if most else {}
    run_here(prepared, tmp_path / "run", max_steps=1, warmup_steps=0, **more)
    assert f"predicted tokens, and says little: {way_out}\n" in capsys.readouterr().out


@pytest.mark.parametrize("splits", [1, 2])
def test_losses_of_different_text_are_not_compared(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: int
) -> None:
    """Where easy text has no validation split, the training loss is below that of the validation of hard text."""
    compared: list[float | None] = []
    monkeypatch.setattr(doctor, "repetition", lambda vitals: compared.append(vitals.train_loss))
    shutil.copytree(prepared / "corpus", tmp_path / "easy")
    if splits == 1:
        shutil.rmtree(tmp_path / "easy" / "validation")
    run_here(prepared, tmp_path / "run", corpus=[prepared / "corpus", tmp_path / "easy"], max_steps=3)
    assert [loss is None for loss in compared] == [splits == 1]


def test_measuring_the_peak_leaves_the_seed_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert measure_matmul_flops(torch.device("cpu"), "no", size=64) > 1e6
    assert torch.equal(torch.rand(3), expected)


def test_a_slow_product_is_not_timed_eight_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of half precision which a CPU emulates."""
    waits = []

    def wait(device: torch.device) -> None:
        waits.append(device)
        time.sleep(0.2)

    monkeypatch.setattr(devices, "wait_for", wait)
    assert measure_matmul_flops(torch.device("cpu"), "no", size=64) < 2 * 64**3 / 0.2
    assert len(waits) == 2 * 3


@pytest.mark.slow
def test_the_other_processes_wait_for_a_long_look_at_the_documents(prepared: Path, tmp_path: Path) -> None:
    """20,000 documents here and there on a slow disk may take longer than the watchdog waits.

    As on CUDA, no process waits for the sum of the predicted tokens, with which a step begins.
    """

    def prelude(rank: int) -> None:
        all_reduce, sums = torch.distributed.all_reduce, []

        def slow(*corpora: Any, **options: Any) -> doctor.Survey:
            time.sleep(4)
            return SURVEY

        def without_waiting(tensor: torch.Tensor, *inputs: Any, **options: Any) -> Any:
            if tensor.dim():
                return all_reduce(tensor, *inputs, **options)
            sums.append(all_reduce(tensor, async_op=True))
            return None

        doctor.survey = slow
        torch.distributed.all_reduce = without_waiting

    run = {"max_steps": 4, "eval_steps": 2, "ddp_timeout": 2}
    run |= {"global_batch_size": 24, "per_device_train_batch_size": 2}
    assert run_forked(prepared, tmp_path / "run", processes=2, prelude=prelude, **run) == [0, 0]
