"""Trackers through Accelerate: what they recorded, read back from where they keep it, is what the log says."""

import json
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from pretraining_helpers import log_of, run_forked, run_here, run_program

RUN = {"max_steps": 4, "eval_steps": 2, "save_steps": 0}
NAMES = ("loss", "learning_rate", "grad_norm", "eval_loss", "eval_accuracy")


def logged(output_dir: Path, name: str) -> list[tuple[int, Any]]:
    found = [(entry["step"], entry[name]) for entry in log_of(output_dir) if name in entry]
    assert len(found) >= 2
    return found


def test_tensorboard_has_what_the_log_has(prepared: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_here(prepared, tmp_path / "run", report_to=["tensorboard"], **RUN)
    events = EventAccumulator(str(tmp_path / "run" / "clozebert"))
    events.Reload()
    for name in NAMES:
        expected = logged(tmp_path / "run", name)
        assert [point.step for point in events.Scalars(name)] == [step for step, _ in expected]
        # Stored in float32.
        assert [point.value for point in events.Scalars(name)] == pytest.approx(
            [value for _, value in expected], rel=1e-6
        )


def test_tensorboard_has_no_step_twice_after_a_kill(prepared: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = {"max_steps": 8, "save_steps": 3, "logging_steps": 1, "report_to": ["tensorboard"]}
    killed = run_forked(prepared, tmp_path / "run", die_at=11, **run)  # in step 6, after a checkpoint of step 3
    assert killed == [-signal.SIGKILL]
    time.sleep(1.1)  # TensorBoard reads files in the order of their names, which hold the second of their making
    run_here(prepared, tmp_path / "run", **run, resume_from_checkpoint="latest")
    events = EventAccumulator(str(tmp_path / "run" / "clozebert"))
    events.Reload()
    assert [point.step for point in events.Scalars("loss")] == list(range(1, 9))


def test_trackio_has_what_the_log_has(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio")
    # Read when trackio is imported, hence a process of its own.
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    run_program(prepared, tmp_path / "run", report_to=["trackio"], **RUN)
    with sqlite3.connect(tmp_path / "trackio" / "clozebert.db") as database:
        rows = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
    entries = [(step, json.loads(metrics)) for step, metrics in rows]
    for name in NAMES:
        recorded = [(step, values[name]) for step, values in entries if name in values]
        assert recorded == logged(tmp_path / "run", name)
