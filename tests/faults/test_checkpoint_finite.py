"""Weights and updates that are not finite: nothing of them is saved, and all processes leave the same update out."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_helpers import log_of, run_forked, run_here
from safetensors.torch import load_file

from clozebert.training import loop
from clozebert.training.checkpoints.damage import find_damage, first_not_finite
from clozebert.training.checkpoints.folders import list_checkpoints

RUN = {"max_steps": 12, "save_steps": 4, "eval_steps": 0}


def break_weights_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update of that step leaves a weight that is not finite, though the gradient was."""
    update, done = loop.update_weights, [0]

    def broken(optimizer: Any, **options: Any) -> None:
        update(optimizer, **options)
        done[0] += 1
        if done[0] == step:
            with torch.no_grad():
                optimizer.param_groups[0]["params"][0].view(-1)[0] = math.nan

    monkeypatch.setattr(loop, "update_weights", broken)


@pytest.mark.parametrize("step", [4, 12])
def test_weights_that_are_not_finite_are_never_saved(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """At the first checkpoint, and at the end: the run ends with an error, and the checkpoints before stay."""
    break_weights_at(step, monkeypatch)
    with pytest.raises(ValueError, match=f"is not finite at step {step}: this step is not saved"):
        run_here(prepared, tmp_path / "run", save_total_limit=1, **RUN)
    found = list_checkpoints(tmp_path / "run")
    assert [path.name for path in found] == ([] if step == 4 else ["checkpoint-8"])
    assert all(find_damage(path) is None for path in found)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_an_update_is_left_out_by_all_processes_when_one_cannot_make_it(prepared: Path, tmp_path: Path) -> None:
    """Process 1 alone meets infinity in step 6, after the gradients were summed; both end with the same weights."""

    def prelude(rank: int) -> None:
        clip, done = loop.clip_gradient, [0]
        update = loop.update_weights

        def broken(model: torch.nn.Module, **options: Any) -> float:
            norm = clip(model, **options)
            done[0] += 1
            return math.inf if done[0] == 6 and rank == 1 else norm

        def noted(optimizer: Any, **options: Any) -> None:
            before = [p.clone() for group in optimizer.param_groups for p in group["params"]]
            update(optimizer, **options)
            after = [p for group in optimizer.param_groups for p in group["params"]]
            if done[0] == 6:
                same = all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
                (tmp_path / f"unchanged-{rank}").write_text(str(same))

        loop.clip_gradient, loop.update_weights = broken, noted

    assert run_forked(prepared, tmp_path / "run", processes=2, prelude=prelude, **RUN) == [0, 0]
    assert [(tmp_path / f"unchanged-{rank}").read_text() for rank in range(2)] == ["True", "True"]
    events = [entry for entry in log_of(tmp_path / "run") if "event" in entry]
    assert [(entry["step"], entry["event"]) for entry in events] == [
        (6, "skipped: the gradient is not finite in 1 of 2 processes")
    ]
    assert first_not_finite(load_file(tmp_path / "run" / "model.safetensors")) is None


def test_a_checkpoint_that_is_due_at_a_skipped_step_comes_one_step_later(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fp16's loss scale overflows now and then; each time on a step that is due for saving would lose all of them."""
    clip, done = loop.clip_gradient, [0]

    def broken(model: torch.nn.Module, **options: Any) -> float:
        norm = clip(model, **options)
        done[0] += 1
        return math.inf if done[0] in (4, 5) else norm

    monkeypatch.setattr(loop, "clip_gradient", broken)
    run_here(prepared, tmp_path / "run", save_total_limit=3, **RUN)
    steps = sorted(int(path.name.removeprefix("checkpoint-")) for path in list_checkpoints(tmp_path / "run"))
    assert steps == [6, 8, 12]
