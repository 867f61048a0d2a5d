"""Fine-tuning in several processes: each window once in an epoch, the weights of one process, and lost processes."""

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from accelerate.state import AcceleratorState
from finetuning_helpers import arguments_of, write_sentiment
from hypothesis import given
from hypothesis import strategies as st
from pretraining_helpers import in_forks, launcher_environments
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from clozebert.finetuning import batches
from clozebert.finetuning.batches import PackedCollator, PaddedCollator, SharedBatches, predict_logits
from clozebert.finetuning.run import finetune
from clozebert.finetuning.trainer import FinetuningTrainer
from clozebert.finetuning.windows import Window
from clozebert.scripts._program import run as run_program


@given(windows=st.integers(1, 200), batch_size=st.integers(1, 9), processes=st.integers(2, 5))
def test_each_window_comes_once_and_each_process_has_as_many_batches(
    windows: int, batch_size: int, processes: int
) -> None:
    windows = max(windows, processes)
    batches = SharedBatches(list(range(windows)), batch_size, processes)
    shards = [
        BatchSamplerShard(batches, num_processes=processes, process_index=rank, even_batches=False)
        for rank in range(processes)
    ]
    rounds = list(zip(*map(list, shards), strict=True))
    assert [len(shard) for shard in shards] == [len(rounds)] * processes
    assert [index for one in rounds for batch in one for index in batch] == list(range(windows))
    sizes = [[len(batch) for batch in one] for one in rounds]
    assert all(max(one) - min(one) <= 1 <= min(one) for one in sizes)
    assert all(sum(one) == batch_size * processes for one in sizes[:-1])
    assert max(sizes[-1]) <= batch_size + 1


def train(
    files: tuple[str, str],
    model: str,
    output: Path,
    processes: int,
    prelude: Callable[[int], None] = lambda rank: None,
    **flags: Any,
) -> list[int]:
    arguments = arguments_of("single", files, model, output, dropout=0.0, **flags)

    def work(rank: int) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        prelude(rank)
        run_program(lambda: finetune(arguments))

    return in_forks(work, launcher_environments(processes))


@pytest.mark.parametrize("kind", ["clozebert", "bert"])
def test_two_processes_learn_what_one_learns(
    models: dict[str, str], tmp_path: Path, files: tuple[str, str], kind: str
) -> None:
    """A batch of 16, of which 20 examples leave 4 for the last step of an epoch.

    Measured: the weights differ by 1e-5 at most; by 1.6e-2 where that step was filled up with other examples.
    """
    flags = {"num_train_epochs": 2.0, "gradient_accumulation_steps": 1, "per_device_eval_batch_size": 10}

    def count_scored(rank: int) -> None:
        split = PaddedCollator.split if kind == "bert" else PackedCollator.split
        scored = tmp_path / f"scored-{rank}"

        def counting(self: Any, logits: Any, windows: Any) -> Any:
            scored.write_text(f"{len(windows)}\n" + (scored.read_text() if scored.exists() else ""))
            return split(self, logits, windows)

        (PaddedCollator if kind == "bert" else PackedCollator).split = counting

    for processes in (1, 2):
        output, batch = tmp_path / str(processes), 16 // processes
        flags["per_device_train_batch_size"] = batch
        assert not any(train(files, models[kind], output, processes, count_scored, **flags))
        # 20 windows after each of two epochs and at the end, in batches of ten.
        for rank in range(processes):
            assert (tmp_path / f"scored-{rank}").read_text().split() == ["10"] * (6 // processes)
            (tmp_path / f"scored-{rank}").unlink()
    scores = [json.loads((tmp_path / str(number) / "all_results.json").read_text())["eval_loss"] for number in (1, 2)]
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)
    one, two = (load_file(tmp_path / str(processes) / "model.safetensors") for processes in (1, 2))
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, rtol=0, atol=2e-4)


def test_processes_share_the_windows_that_are_scored(models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(models["bert"], num_labels=2)
    windows = [Window(np.array([2, *[5] * length, 3]), None, number) for number, length in enumerate((3, 9, 4, 1, 7))]
    collator = PaddedCollator(0, per_token=False)
    whole = predict_logits(model, windows, collator, batch_size=1)
    scored: dict[int, Any] = {}

    def gather(part: list[dict[int, Any]]) -> list[dict[int, Any]]:
        assert len(part[0]) == (2, 2, 1)[rank]
        assert scored.keys().isdisjoint(part[0])
        scored.update(part[0])
        return [dict(enumerate(whole))]

    monkeypatch.setattr(batches, "gather_object", gather)
    for rank in range(3):
        process: Any = SimpleNamespace(process_index=rank, num_processes=3)
        found = predict_logits(model, windows, collator, batch_size=1, accelerator=process)
        np.testing.assert_array_equal(found, whole)
    np.testing.assert_array_equal([scored[index] for index in range(5)], whole)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return write_sentiment(tmp_path / "a.csv", rows=20), write_sentiment(tmp_path / "b.csv", rows=20, seed=1)


@pytest.mark.parametrize("name", ["data", "per_device_eval_batch_size"])
def test_processes_that_differ_are_refused(
    models: dict[str, str], tmp_path: Path, files: tuple[str, str], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a machine with a stale copy, or with flags of its own."""
    stale = write_sentiment(tmp_path / "stale.csv", rows=20, seed=2), files[1]

    def work(rank: int) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        data = stale if name == "data" and rank else files
        flags = {} if name == "data" else {name: 4 + rank}
        arguments = arguments_of("single", data, models["bert"], tmp_path / "o", max_steps=1, **flags)
        run_program(lambda: finetune(arguments))

    assert in_forks(work, launcher_environments(2)) == [2, 2]
    assert f"error: process 1 was given another {name} than process 0: give all" in capfd.readouterr().err


def test_another_number_of_processes_is_no_going_on(
    models: dict[str, str], tmp_path: Path, files: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Trainer would take the step of its checkpoint for one of larger batches, and skip examples."""
    assert train(files, models["bert"], tmp_path / "o", 1, max_steps=2) == [0]
    assert train(files, models["bert"], tmp_path / "o", 2, max_steps=2, resume_from_checkpoint="latest") == [2, 2]
    assert "had num_processes=1, now it is 2; give the same flags and data" in capfd.readouterr().err


def test_a_warm_up_is_as_long_as_the_run_at_most(
    models: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """17 examples in batches of 16 leave one, which two processes do not take as a step of its own."""
    files = write_sentiment(tmp_path / "a.csv", rows=17), write_sentiment(tmp_path / "b.csv", rows=20, seed=1)
    batch = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_train_epochs": 4.0}
    assert train(files, models["bert"], tmp_path / "o", 2, warmup_steps=7, **batch) == [2, 2]
    assert "--warmup_steps 7: the run has 4 steps" in capfd.readouterr().err


def test_a_process_that_is_killed_is_one_line_of_the_other(
    models: dict[str, str], tmp_path: Path, files: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    def die_in_step_2(rank: int) -> None:
        step, calls = FinetuningTrainer.training_step, itertools.count(1)

        def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if rank == 1 and next(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(self, *args, **kwargs)

        FinetuningTrainer.training_step = training_step

    assert train(files, models["bert"], tmp_path / "o", 2, die_in_step_2, max_steps=4) == [2, -9]
    errors = capfd.readouterr().err
    assert "error: process 0: another process of the run has ended or does not answer; see its message" in errors
    assert "Traceback" not in errors


def test_processes_stop_when_their_launcher_is_gone(
    models: dict[str, str], tmp_path: Path, files: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    def lose_the_launcher(rank: int) -> None:
        parent, calls = os.getppid(), itertools.count()
        os.getppid = lambda: parent if next(calls) < 3 else 1

    assert train(files, models["bert"], tmp_path / "o", 2, lose_the_launcher, max_steps=10) == [0, 0]
    assert "stopped at step 3;" in capfd.readouterr().out


def test_more_processes_than_windows_are_refused(
    models: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\ngreat film,pos\nsad end,neg\n")
    assert train((str(path), str(path)), models["bert"], tmp_path / "o", 3) == [2, 2, 2]
    assert "error: 3 processes share 2 training windows: start fewer processes\n" in capfd.readouterr().err


@pytest.mark.slow
def test_a_search_of_several_processes_ends(models: dict[str, str], tmp_path: Path, files: tuple[str, str]) -> None:
    """After five trials optuna would end a bad one early, in the first process alone; the other waited for it."""
    pytest.importorskip("optuna")
    assert train(files, models["bert"], tmp_path / "o", 2, hyperparameter_search=9, num_train_epochs=3.0) == [0, 0]
