"""Signals at random times to any one or both of two processes: no hang, one step, saved; kill -9 of one ends both."""

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disturbances import Watch, run_signalled
from pretraining_helpers import assert_same_bits, run_forked

from clozebert.training.checkpoints.damage import step_of
from clozebert.training.checkpoints.folders import newest_valid

STEPS, SAVE_STEPS = 16, 6
RUN = {
    "max_steps": STEPS, "save_steps": SAVE_STEPS, "eval_steps": 5, "save_total_limit": 2, "logging_steps": 1,
    "resume_from_checkpoint": "latest", "per_device_train_batch_size": 2,
}  # fmt: skip


def signal_and_resume(
    folder: Path, tmp_path: Path, *, signals: int, numbers: tuple[int, ...], seed: int, keep: Callable[[Any], None]
) -> None:
    """Disturb runs until so many signals have hit, and let each go on to its end.

    Args:
        keep: told after each what came of all, so that a test that is cut short has said how far it came.
    """
    watch, draws, whole = Watch(), np.random.default_rng(seed), tmp_path / "whole"
    assert run_signalled(folder, whole, watch, ranks=(), number=0, seconds=0, **RUN) == [0, 0]
    duration = (time.monotonic_ns() - watch.first_step_at) / 1e9
    found = {"signals": 0, "to both": 0, "slowest end": 0.0}
    while found["signals"] < signals:
        output_dir = tmp_path / "run"
        shutil.rmtree(output_dir, ignore_errors=True)
        ranks = ((0,), (1,), (0, 1))[draws.integers(3 if signal.SIGKILL not in numbers else 2)]
        number, seconds = int(draws.choice(numbers)), float(draws.uniform(0, duration))
        how = f"signal {number} to {ranks} {seconds:.3f} seconds after the first step"
        statuses = run_signalled(folder, output_dir, watch, ranks=ranks, number=number, seconds=seconds, **RUN)
        ended = (time.monotonic_ns() - watch.first_step_at) / 1e9 - seconds
        if (output_dir / "all_results.json").exists():  # it was at its end before
            continue
        saved = newest_valid(output_dir)
        step = 0 if saved is None else step_of(saved)
        if number == signal.SIGKILL:
            assert statuses[ranks[0]] == -9, how
            assert statuses[1 - ranks[0]] != 0, how
            assert max(watch.step(rank) for rank in range(2)) - step <= SAVE_STEPS, how
        else:
            # Who heard nothing stops because the other did, as after SIGTERM.
            assert set(statuses) <= {128 + number, 128 + signal.SIGTERM}, (how, statuses)
            assert step == watch.step(0) == watch.step(1), how
        found["signals"] += 1
        found["to both"] += len(ranks) == 2
        found["slowest end"] = max(found["slowest end"], ended)
        assert ended < 60, how
        assert run_forked(folder, output_dir, processes=2, **RUN) == [0, 0], how
        assert_same_bits(whole, output_dir, step=STEPS)
        keep(found)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_fifty_signals(prepared: Path, tmp_path: Path, number: int, figure: Callable[[str, Any], None]) -> None:
    def keep(found: dict[str, Any]) -> None:
        figure(
            signal.Signals(number).name,
            f"{found['signals']} signals, {found['to both']} of them to both: 0 hangs, the same step in both, saved, "
            f"and the same end bits after resuming; the slowest ended after {found['slowest end']:.1f} s",
        )

    signal_and_resume(prepared, tmp_path, signals=25, numbers=(number,), seed=number, keep=keep)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_ten_kills_of_one_of_two(prepared: Path, tmp_path: Path, figure: Callable[[str, Any], None]) -> None:
    def keep(found: dict[str, Any]) -> None:
        figure(
            "kills of one of two",
            f"{found['signals']} kills: the other ended with an error after {found['slowest end']:.1f} s at most, and "
            f"all resumed with the same end bits",
        )

    signal_and_resume(prepared, tmp_path, signals=10, numbers=(signal.SIGKILL,), seed=4, keep=keep)
