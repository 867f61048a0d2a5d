"""Saved before evaluating; an evaluation never ends a run; a run that was killed between the two evaluates again."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from often import often
from pretraining_helpers import assert_same_bits, log_of, run_forked, run_here

from clozebert.training import evaluation, loop
from clozebert.utils.errors import UserError

RUN = {"max_steps": 12, "save_steps": 4, "eval_steps": 4, "resume_from_checkpoint": "latest"}


@pytest.mark.parametrize("processes", often([1, 2]))
def test_a_run_killed_in_an_evaluation_loses_no_step(prepared: Path, tmp_path: Path, processes: int) -> None:
    def prelude(rank: int) -> None:
        evaluate = loop.evaluate_mixture

        def killed(*args: Any, **options: Any) -> Any:
            if (tmp_path / "run" / "checkpoint-8").is_dir():
                os.kill(os.getpid(), signal.SIGKILL)
            return evaluate(*args, **options)

        loop.evaluate_mixture = killed

    assert -9 in run_forked(prepared, tmp_path / "run", processes=processes, prelude=prelude, **RUN)
    assert (tmp_path / "run" / "latest").read_text() == "checkpoint-8\n"
    assert run_forked(prepared, tmp_path / "run", processes=processes, **RUN) == [0] * processes
    assert run_forked(prepared, tmp_path / "whole", processes=processes, **RUN) == [0] * processes
    assert_same_bits(tmp_path / "whole", tmp_path / "run", step=12)


def test_a_run_killed_after_an_evaluation_logs_it_once(prepared: Path, tmp_path: Path) -> None:
    run_here(prepared, tmp_path / "whole", **RUN)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint-12")
    (tmp_path / "run" / "model.safetensors").unlink()
    run_here(prepared, tmp_path / "run", **RUN)
    assert_same_bits(tmp_path / "whole", tmp_path / "run", step=12)
    assert [entry["step"] for entry in log_of(tmp_path / "run") if "eval_loss" in entry] == [4, 8, 12]


@pytest.mark.parametrize("error", [UserError("no token to predict"), RuntimeError("a bug"), OSError("disk")])
def test_an_evaluation_that_fails_ends_no_run(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, error: Exception
) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(evaluation, "ValidationBatches", fails)
    run_here(prepared, tmp_path / "run", **RUN)
    events = [(entry["step"], entry["event"]) for entry in log_of(tmp_path / "run") if "event" in entry]
    said = f"the evaluation failed: {type(error).__name__}: {error}"
    assert events == [(step, said) for step in (4, 8, 12)]
    assert said in caplog.text
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_an_evaluation_that_fails_in_one_process_ends_no_run(prepared: Path, tmp_path: Path) -> None:
    def prelude(rank: int) -> None:
        inputs = evaluation.model_inputs

        def fails(*args: Any, **options: Any) -> Any:
            if rank == 1:
                raise RuntimeError("only here")
            return inputs(*args, **options)

        evaluation.model_inputs = fails

    assert run_forked(prepared, tmp_path / "run", processes=2, prelude=prelude, **RUN) == [0, 0]
    events = [entry["event"] for entry in log_of(tmp_path / "run") if "event" in entry]
    assert events == ["the evaluation failed: RuntimeError: it failed in another process"] * 3
