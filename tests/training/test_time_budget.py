"""`--max_minutes`: how many steps it stands for, and that the run is then one of that many steps."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pretraining_helpers import assert_same_bits, model_config, run_forked, run_here, settings

from clozebert.corpus import Corpus, RowIndex
from clozebert.training import loop, pretrain
from clozebert.training.arguments import LENGTHS, PretrainingArguments
from clozebert.training.checkpoints.folders import list_checkpoints
from clozebert.training.checkpoints.training_state import read_training_state
from clozebert.training.checks import check_run
from clozebert.training.planning import calibration, time_budget
from clozebert.training.planning.time_budget import Deadline, StepTime, steps_in, time_run
from clozebert.training.reporting.curves import read_log
from clozebert.training.reporting.progress import LOG_NAME
from clozebert.training.run_settings import split_settings

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
    ("changes", "eval_places", "expected"),
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
def test_steps_that_fit(changes: dict[str, Any], eval_places: int, expected: int) -> None:
    world_size = changes.pop("world_size", 1)
    run = arguments(global_batch_size=8, per_device_train_batch_size=2, **changes)
    found = steps_in(100, StepTime(0.2, 0.17), arguments=run, world_size=world_size, eval_places=eval_places)
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


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_is_a_run_of_that_many_steps(prepared: Path, tmp_path: Path, processes: int) -> None:
    """40 steps, of which 16 decay, become 48 before step 24.

    The weights are those of a run that was given these numbers, and so are they after a kill and a resume.
    """

    def find_40_then_48_at_most(rank: int) -> None:
        calibration.steps_in = lambda *args, **others: min(40, steps_in(*args, **others))
        loop.Deadline = lambda ends, run, **others: Deadline(ends, run, **{**others, "most_steps": 48})

    run = {"config": write_recipe(tmp_path), "warmup_steps": 10, "optimizer": "muon", "max_minutes": 1}
    run |= {"eval_steps": 8, "save_steps": 8}
    timed = run_forked(prepared, tmp_path / "timed", processes=processes, prelude=find_40_then_48_at_most, **run)
    assert timed == [0] * processes
    events = [entry["event"] for entry in read_log(tmp_path / "timed" / LOG_NAME) if "event" in entry]
    assert events == ["max_minutes=1: 48 steps, not 40, at the pace so far"]
    state, _ = read_training_state(list_checkpoints(tmp_path / "timed")[-1])
    given = {"max_steps": 48, "warmup_steps": 4, "decay_steps": 24, "eval_steps": 8, "save_steps": 8}
    assert state.step == 48
    assert {name: state.arguments[name] for name in LENGTHS} == {
        "max_steps": 48, "warmup_steps": 4, "decay_steps": 24, "batch_warmup_steps": 0
    }  # fmt: skip

    given_run = {**RUN, "optimizer": "muon", **given}
    assert run_forked(prepared, tmp_path / "given", processes=processes, **given_run) == [0] * processes
    assert_same_bits(tmp_path / "given", tmp_path / "timed", step=48)

    # What is left of the run when it is killed after step 32.
    shutil.copytree(tmp_path / "timed", tmp_path / "resumed")
    for path in list_checkpoints(tmp_path / "resumed")[4:]:
        shutil.rmtree(path)
    (tmp_path / "resumed" / "model.safetensors").unlink()
    again = {**run, "resume_from_checkpoint": "latest", "max_minutes": 60}
    assert run_forked(prepared, tmp_path / "resumed", processes=processes, **again) == [0] * processes
    assert_same_bits(tmp_path / "given", tmp_path / "resumed", step=48)


def test_processes_whose_clocks_differ_take_the_same_steps(prepared: Path, tmp_path: Path) -> None:
    """`adapt` computes the minutes that are left, in each process by itself."""
    found = tmp_path / "seconds"
    found.mkdir()

    def differ(rank: int) -> None:
        count = calibration.choose_length

        def count_with_other_minutes(run: Any, **others: Any) -> Any:
            run.phases[0].arguments.max_minutes *= 1 + rank
            return count(run, **others)

        def take_two_seconds(run: Any, *, accelerator: Any, seconds: float) -> Any:
            (found / str(rank)).write_text(str(seconds))
            return StepTime(2.0, 0.0), 0.0

        loop.choose_length = count_with_other_minutes
        calibration._time_and_forget = take_two_seconds

    run = {"config": write_recipe(tmp_path), "lr_scheduler_type": "linear", "max_minutes": 0.5}
    assert run_forked(prepared, tmp_path / "run", processes=2, prelude=differ, **run) == [0, 0]
    assert [(found / name).read_text() for name in "01"] == ["45.0", "45.0"]


def count_again(
    monkeypatch: pytest.MonkeyPatch, run: PretrainingArguments, *, pace: float, ends: float, **limits: Any
) -> Any:
    """What `Deadline` makes of a run whose steps take `pace` seconds; it is asked before each."""
    now = [0.0]
    monkeypatch.setattr(time_budget.time, "monotonic", lambda: now[0])
    deadline = Deadline(ends, run, **{"most_steps": None, **limits})
    for step in range(run.num_steps):
        found = deadline.recount(run, step, agree=float)
        if found is not None:
            return found
        now[0] += pace
    return None


def test_the_steps_are_counted_again_where_the_decay_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    run = arguments(max_steps=100, warmup_steps=10, lr_scheduler_type="wsd", decay_steps=40)

    def lengths(pace: float, **limits: Any) -> tuple[int, int, int] | None:
        found = count_again(monkeypatch, run, pace=pace, ends=100.0, **limits)
        return found and (found.max_steps, int(found.warmup_steps), int(found.decay_steps))

    # 60 steps of 1.25 s; 97 % of the 25 s that are left are enough for 19.
    assert lengths(1.25) == (79, 10, 19)
    assert lengths(0.5) == (60 + 135, 10, 135)
    # The evaluation at the end takes 5 of them.
    assert lengths(1.25, evaluation=5.0) == (75, 10, 15)
    assert lengths(0.5, most_steps=110) == (110, 10, 50)
    assert lengths(0.5, most_steps=100) is None
    # A text that needs fewer steps does not shorten what was planned; nor does a slow machine all of the decay.
    assert lengths(0.5, most_steps=70) is None
    assert lengths(9.0) == (64, 10, 4)
    # As planned.
    assert count_again(monkeypatch, run, pace=1.0, ends=60 + 40.5 / 0.97) is None
    # Three steps show the pace if they take long: of 60 minutes, 30 are left, enough for two steps of ten.
    few = arguments(max_steps=12, warmup_steps=0, lr_scheduler_type="wsd", decay_steps=6)
    assert count_again(monkeypatch, few, pace=600.0, ends=5400.0).max_steps == 6 + 2
    assert count_again(monkeypatch, few, pace=6.0, ends=54.0) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"lr_scheduler_type": "cosine"},
        {"lr_scheduler_type": "wsd", "decay_steps": 100, "warmup_steps": 0},
        {"lr_scheduler_type": "wsd", "decay_steps": 97, "warmup_steps": 0},  # the first steps say little of the pace
        {"lr_scheduler_type": "wsd", "final_mlm_probability": 0.1},
        {"lr_scheduler_type": "wsd", "global_batch_size": 8, "initial_global_batch_size": 4, "batch_warmup_steps": 9},
    ],
)
def test_other_runs_keep_their_steps(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    assert count_again(monkeypatch, arguments(max_steps=100, **changes), pace=2.0, ends=100.0) is None


def test_what_is_said(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(prepared, tmp_path / "run", config=write_recipe(tmp_path), dry_run=True, max_minutes=0.05)
    assert "max_minutes=0.05: " in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_minutes": 0}, "max_minutes=0.0 must be above 0"),
        ({"max_minutes": "soon"}, "max_minutes='soon' must be a number"),
        ({"max_minutes": 5, "phases": [{"max_steps": 3}]}, "give max_steps for each of them instead"),
    ],
)
def test_mistakes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arguments(**changes)


def test_two_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="max_steps=5 and max_minutes=1 both say how long the run is"):
        split_settings("tiny", {"max_steps": 5, "max_minutes": 1})


def test_steps_and_epochs_are_refused_in_python_too(prepared: Path) -> None:
    both = arguments(**settings(prepared, output_dir="-", max_steps=9, num_train_epochs=3.0))
    with pytest.raises(ValueError, match=r"max_steps=9 and num_train_epochs=3\.0 both say how long the run is"):
        check_run(both, model_config())


def test_the_default_decay_is_what_the_warm_up_leaves() -> None:
    assert arguments(max_steps=100, warmup_steps=95, lr_scheduler_type="wsd").num_decay_steps == 5
    assert arguments(max_steps=100, warmup_steps=5, lr_scheduler_type="wsd").num_decay_steps == 20


def test_a_recipe_with_steps_and_epochs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("max_steps: 9\nnum_train_epochs: 2\n")
    with pytest.raises(ValueError, match=r"^recipe \S*mine.yaml: max_steps=9 and num_train_epochs=2 both say"):
        split_settings(str(tmp_path / "mine.yaml"), {})
    assert split_settings(str(tmp_path / "mine.yaml"), {"max_steps": 5})[0] == {"max_steps": 5}


def test_flags_for_what_a_run_does_not_have_are_refused() -> None:
    for name, value in (("embedding_init", "text"), ("position_init", "sinusoidal")):
        with pytest.raises(ValueError, match=f"{name}='{value}' is for new models: leave it out"):
            split_settings(None, {"model_name_or_path": "m", name: value})
    with pytest.raises(ValueError, match=r"muon_momentum=0\.9 needs optimizer='muon': leave it out"):
        split_settings("tiny", {"optimizer": "adamw", "muon_momentum": 0.9})
    split_settings("tiny", {"muon_momentum": 0.9})
    split_settings("tiny", {"optimizer": "adamw", "model_name_or_path": "m"})


def test_a_flag_for_the_steps_wins_over_the_minutes_of_a_recipe(tmp_path: Path) -> None:
    """Epochs do not contradict minutes: the shorter of the two ends the run, as where both are flags."""
    for written in ("max_minutes: 9", "max_minutes: 9\nmax_steps: 100"):
        (tmp_path / "mine.yaml").write_text(written)
        steps, _ = split_settings(str(tmp_path / "mine.yaml"), {"max_steps": 5})
        assert steps == {"max_steps": 5}
        epochs, _ = split_settings(str(tmp_path / "mine.yaml"), {"num_train_epochs": 2})
        assert epochs == {"max_minutes": 9, "num_train_epochs": 2}


def test_the_deadline_knows_the_time_of_an_evaluation(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch of at most 32 rows, forward; a micro-batch of 4 rows takes 0.3 s, forward and backward."""
    found: list[float] = []

    def note(*places: Any, evaluation: float, **others: Any) -> Deadline:
        found.append(evaluation)
        return Deadline(*places, evaluation=evaluation, **others)

    monkeypatch.setattr(loop, "Deadline", note)
    monkeypatch.setattr(calibration, "_time_and_forget", lambda *places, **others: (StepTime(0.3, 0.0), 0.0))
    monkeypatch.setattr(calibration, "steps_in", lambda *places, **others: 4)
    run_here(prepared, tmp_path / "run", config=write_recipe(tmp_path), max_minutes=9, dry_run=True)
    held_out = Corpus(prepared / "corpus", "validation")
    rows = min(32, RowIndex(held_out, max_seq_length=40).num_rows)
    assert found == [pytest.approx(0.1 * rows / 4)]


def test_steps_are_timed_at_the_mean_of_a_masking_rate_that_rises(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first steps predict few tokens, and so are quicker than the rest."""
    rates: list[tuple[float, float | None]] = []
    set_up = calibration.set_up_phase

    def noted(phase: Any, *places: Any, **others: Any) -> Any:
        rates.append((phase.arguments.mlm_probability, phase.arguments.final_mlm_probability))
        return set_up(phase, *places, **others)

    monkeypatch.setattr(calibration, "set_up_phase", noted)
    run = {"max_steps": None, "num_train_epochs": 2, "max_minutes": 1.0, "eval_steps": 0, "save_steps": 0}
    run |= {"mlm_probability": 0.1, "final_mlm_probability": 0.5, "output_dir": str(tmp_path / "run")}
    pretrain(PretrainingArguments(**settings(prepared, **run)), model_config())
    assert rates == [(pytest.approx(0.3), None)]
