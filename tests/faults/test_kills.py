"""kill -9 anywhere, between any two file operations too: the same command goes on, and ends with the same bits."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disturbances import Watch, run_killed
from pretraining_helpers import assert_same_bits

from clozebert.training.checkpoints.damage import step_of
from clozebert.training.checkpoints.folders import newest_valid

SAVE_STEPS, STEPS, KILLS_OF_A_RUN = 2, 6, 4
RUN = {
    "max_steps": STEPS, "save_steps": SAVE_STEPS, "eval_steps": 3, "save_total_limit": 2, "logging_steps": 1,
    "resume_from_checkpoint": "latest",
}  # fmt: skip


def kill_and_resume(folder: Path, tmp_path: Path, *, kills: int, seed: int) -> dict[str, int]:
    """Kill runs until so many kills have hit, each run up to four times; what came of them."""
    watch, draws = Watch(), np.random.default_rng(seed)
    begun = time.monotonic()
    assert run_killed(folder, tmp_path / "whole", watch, **RUN) == [0]
    seconds, operations = time.monotonic() - begun, watch.operations
    found = dict.fromkeys(("kills", "in a save", "runs", "most steps lost"), 0)
    found["operations"] = operations
    while found["kills"] < kills:
        output_dir = tmp_path / "run"
        for _ in range(KILLS_OF_A_RUN):
            how: dict[str, Any] = {"operation": int(draws.integers(1, operations + 1))}
            if draws.random() < 0.5:
                how = {"seconds": float(draws.uniform(0, seconds))}
            statuses = run_killed(folder, output_dir, watch, **how, **RUN)
            if statuses == [0]:  # it was at its end before
                break
            assert statuses == [-9], how
            found["kills"] += 1
            found["in a save"] += bool(list(output_dir.glob(".incomplete-*")))
            saved = newest_valid(output_dir)
            lost = watch.step() - (0 if saved is None else step_of(saved))
            assert lost <= SAVE_STEPS, how
            found["most steps lost"] = max(found["most steps lost"], lost)
        else:
            assert run_killed(folder, output_dir, watch, **RUN) == [0]
        assert_same_bits(tmp_path / "whole", output_dir, step=STEPS)
        found["runs"] += 1
        shutil.rmtree(output_dir)
    return found


def test_a_run_that_is_killed_anywhere_goes_on(prepared: Path, tmp_path: Path) -> None:
    found = kill_and_resume(prepared, tmp_path, kills=3, seed=1)
    print(found)
    assert found["operations"] > 100


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_two_hundred_kills(prepared: Path, tmp_path: Path, figure: Callable[[str, Any], None]) -> None:
    found = kill_and_resume(prepared, tmp_path, kills=200, seed=2)
    assert found["in a save"] > 20
    figure(
        "kills",
        f"{found['kills']} kills ({found['in a save']} in the writing of a folder) of {found['runs']} runs: all "
        f"resumed by the same command with the same end bits; at most {found['most steps lost']} steps lost, with "
        f"{SAVE_STEPS} between two checkpoints",
    )
