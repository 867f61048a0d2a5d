"""`--max_minutes`: how many steps it stands for, and that the run is then one of that many steps."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pretraining_helpers import assert_same_bits, run_forked, run_here, settings

from clozebert.training import calibration
from clozebert.training.arguments import PretrainingArguments
from clozebert.training.checkpoints import list_checkpoints
from clozebert.training.run_settings import split_settings
from clozebert.training.time_budget import StepTime, steps_in, time_run
from clozebert.training.training_state import read_training_state

RUN: dict[str, Any] = {
    "max_steps": 100, "warmup_steps": 10, "lr_scheduler_type": "wsd", "decay_steps": 40, "logging_steps": 1,
    "eval_steps": 50, "save_steps": 50, "save_total_limit": 9, "max_eval_batches": 1,
}  # fmt: skip


def arguments(**changes: Any) -> PretrainingArguments:
    paths = {"corpus": "c", "tokenizer_name": "t", "output_dir": "o"}
    return PretrainingArguments(**{**paths, "max_seq_length": 10, "max_steps": 1000, **changes})


def write_recipe(folder: Path) -> Path:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RUN))
    return folder / "recipe.yaml"


def test_another_length_keeps_the_shape_of_the_run() -> None:
    run = arguments(
        max_steps=1000, warmup_steps=100, lr_scheduler_type="wsd", decay_steps=300, global_batch_size=8,
        initial_global_batch_size=2, batch_warmup_steps=200, eval_steps=70, save_steps=500,
    ).of_length(200)  # fmt: skip
    assert (run.max_steps, run.warmup_steps, run.decay_steps, run.batch_warmup_steps) == (200, 20, 60, 40)
    assert (run.eval_steps, run.save_steps) == (70, 50)
    short = arguments(warmup_steps=100, eval_steps=0, save_steps=0).of_length(1)
    assert (short.warmup_steps, short.decay_steps, short.eval_steps, short.save_steps) == (0, None, 0, 0)
    # The factor at a share of the run is the same.
    whole = arguments(max_steps=1000, warmup_steps=100, lr_scheduler_type="cosine")
    part = whole.of_length(500)
    assert part.learning_rate_factor(250) == pytest.approx(whole.learning_rate_factor(500), rel=1e-2)


@pytest.mark.parametrize(
    ("changes", "eval_tokens", "expected"),
    [
        # 97 of 100 seconds; 4 micro-batches of 0.2 s and an update of 0.17: 0.97 s a step. Never evaluated but at the
        # end, which takes nothing.
        ({"eval_steps": 0}, 0, 100),
        # Two processes take two micro-batches each, 0.57 s a step.
        ({"eval_steps": 0, "world_size": 2}, 0, 170),
        # An evaluation of 60 tokens is 3 micro-batches forward, 0.2 s, one every 2 steps: 1.07 s a step.
        ({"eval_steps": 2}, 60, 90),
        # One of 9,700 tokens would be 32 s: twice, in a run that is shorter than eval_steps.
        ({"eval_steps": 500}, 9_700, 33),
        # The batch has half of its size through the whole run.
        ({"eval_steps": 0, "initial_global_batch_size": 4, "batch_warmup_steps": 1000}, 0, 170),
    ],
)  # fmt: skip
def test_steps_that_fit(changes: dict[str, Any], eval_tokens: int, expected: int) -> None:
    world_size = changes.pop("world_size", 1)
    run = arguments(global_batch_size=8, per_device_train_batch_size=2, **changes)
    found = steps_in(100, StepTime(0.2, 0.17), arguments=run, world_size=world_size, eval_tokens=eval_tokens)
    assert found == pytest.approx(expected, abs=1)


def test_timing_takes_medians_after_a_warm_up_and_ends() -> None:
    durations = iter([9.0, 8.0, *[1.0, 5.0, 1.0, 1.0] * 50])
    taken: list[float] = []

    def step() -> StepTime:
        taken.append(next(durations))
        return StepTime(taken[-1], 2 * taken[-1])

    found = time_run(step, seconds=1e9, agree=lambda value: value)
    assert found == StepTime(1.0, 2.0)
    assert len(taken) == 200
    # Where one step takes a tenth of all the time there is, it is the only one.
    taken.clear()
    durations = iter([7.0])
    assert time_run(step, seconds=0, agree=lambda value: value) == StepTime(7.0, 14.0)
    assert len(taken) == 1


@pytest.mark.parametrize("processes", [1, 2])
def test_it_is_a_run_of_that_many_steps(prepared: Path, tmp_path: Path, processes: int) -> None:
    """The weights are those of a run that was given the number, and so are they after a kill and a resume."""

    def find_40_at_most(rank: int) -> None:
        calibration.steps_in = lambda *args, **others: min(40, steps_in(*args, **others))

    run = {"config": write_recipe(tmp_path), "warmup_steps": 10, "optimizer": "muon", "max_minutes": 0.3}
    timed = run_forked(prepared, tmp_path / "timed", processes=processes, prelude=find_40_at_most, **run)
    assert timed == [0] * processes
    last = list_checkpoints(tmp_path / "timed")[-1]
    state, _ = read_training_state(last)
    steps = state.arguments["max_steps"]
    assert state.step == steps > 3
    expected = PretrainingArguments(**settings(prepared, output_dir="o", **RUN)).of_length(steps)
    given = {
        name: getattr(expected, name)
        for name in ("max_steps", "warmup_steps", "decay_steps", "eval_steps", "save_steps")
    }
    assert {name: state.arguments[name] for name in ("warmup_steps", "decay_steps")} == {
        name: given[name] for name in ("warmup_steps", "decay_steps")
    }

    assert (
        run_forked(prepared, tmp_path / "given", processes=processes, **{**RUN, "optimizer": "muon", **given})
        == [0] * processes
    )
    assert_same_bits(tmp_path / "given", tmp_path / "timed", step=steps)

    # What is left of the run when it is killed after its first checkpoint.
    shutil.copytree(tmp_path / "timed", tmp_path / "resumed")
    for path in list_checkpoints(tmp_path / "resumed")[1:]:
        shutil.rmtree(path)
    (tmp_path / "resumed" / "model.safetensors").unlink()
    again = {**run, "resume_from_checkpoint": "latest", "max_minutes": 60}
    assert run_forked(prepared, tmp_path / "resumed", processes=processes, **again) == [0] * processes
    assert_same_bits(tmp_path / "given", tmp_path / "resumed", step=steps)


def test_what_is_said(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(prepared, tmp_path / "run", config=write_recipe(tmp_path), dry_run=True, max_minutes=0.05)
    assert "max_minutes=0.05: " in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_minutes": 0}, "max_minutes=0.0 must be above 0"),
        ({"max_minutes": "soon"}, "max_minutes='soon' must be a number"),
        ({"max_minutes": 5, "phases": [{"max_steps": 3}]}, "say max_steps of each instead"),
    ],
)
def test_mistakes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arguments(**changes)


def test_two_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="max_steps=5 and max_minutes=1 both say how long the run is"):
        split_settings("tiny", {"max_steps": 5, "max_minutes": 1})
