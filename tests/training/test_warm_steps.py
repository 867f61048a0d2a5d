"""Steps are timed warm: what compilation takes is no part of the hours, and is taken from the minutes of a run."""

import contextlib
import functools
import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_helpers import model_config, run_here, settings

from clozebert.corpus import Mixture
from clozebert.training.arguments import PretrainingArguments
from clozebert.training.batches import make_stream
from clozebert.training.planning import calibration, time_budget
from clozebert.training.planning.time_budget import StepTime, time_run
from clozebert.training.runtime import machine

COMPILATION, WARM = 60.0, 2.0


class Clock:
    """Stands in for the module `time`: seconds pass where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter


@pytest.fixture
def slow_start(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that `seconds_per_place` times take 60 s at first, then 2 s; how many tokens each has had."""
    clock, tokens = Clock(), list[int]()

    def step(model: Any, batches: Any, **others: Any) -> None:
        clock.now += WARM if tokens else COMPILATION
        tokens.append(batches[0]["input_ids"].numel())

    monkeypatch.setattr(calibration, "time", clock)
    monkeypatch.setattr(calibration, "accumulate_gradient", step)
    monkeypatch.setattr(calibration, "wait_for", lambda device: None)
    return tokens


def test_compilation_is_not_in_the_hours(
    slow_start: list[int], prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Of a dry run, whose two steps of its own are not the ones that are timed."""
    monkeypatch.setattr("clozebert.training.phase_setup.compile_model", lambda model, device: None)
    run_here(prepared, tmp_path / "run", dry_run=True, max_steps=90, torch_compile=True)
    assert slow_start[0] <= 4 * 40  # a micro-batch; some of its places may hold no token
    assert f"time: about {90 * 2 * WARM / 60:.0f} minutes (a training step was timed)" in capsys.readouterr().out
    assert len(slow_start) == 3


@pytest.mark.parametrize(("device", "expected"), [("cpu", 102), ("cuda", 128)])
def test_a_gpu_is_timed_on_whole_micro_batches(
    slow_start: list[int], prepared: Path, device: str, expected: int
) -> None:
    """With few rows it waits for its kernels to be launched; a CPU takes at most 4,096 tokens, for the time's sake."""
    values = settings(prepared, output_dir="o", max_steps=5, global_batch_size=256, per_device_train_batch_size=128)
    arguments = PretrainingArguments(**values)
    stream = make_stream(arguments.split_phases()[0], Mixture(arguments.corpus), vocab_size=512)
    setup: Any = types.SimpleNamespace(
        arguments=arguments, stream=stream, model=None, core=types.SimpleNamespace(config=model_config()),
        optimizer=types.SimpleNamespace(zero_grad=lambda: None),
    )  # fmt: skip
    accelerator = types.SimpleNamespace(
        device=torch.device(device), num_processes=1, mixed_precision="no",
        no_sync=lambda model: contextlib.nullcontext(),
    )  # fmt: skip
    found = calibration.seconds_per_place(setup, accelerator=accelerator)
    assert set(slow_start) == {len(stream.rows(0, expected, step=0).input_ids[0])}
    # On a CPU that does not compile, one long step is enough.
    assert found == (COMPILATION if device == "cpu" else WARM) / (expected * 40)


@pytest.mark.parametrize("seconds", [300.0, 60.0])
def test_a_warm_up_that_compiles_ends_no_timing(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slow steps, however long the run may be: the others are timed for a fiftieth of it, and are four at least."""
    clock, durations = Clock(), iter([COMPILATION, 9.0, *[0.5] * 100])
    monkeypatch.setattr(time_budget, "time", clock)
    taken = []

    def step() -> StepTime:
        taken.append(next(durations))
        clock.now += taken[-1]
        return StepTime(taken[-1], 0.25 * taken[-1])

    found = time_run(step, seconds=seconds, agree=lambda value: value, begins_slowly=True)
    assert found == StepTime(0.5, 0.125)
    assert len(taken) == 2 + max(4, int(seconds / 50 / 0.5))


@pytest.mark.slow
def test_a_run_of_some_minutes_compiles_before_its_steps_are_counted(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model that trains takes over the graphs of the one that was timed, for training and for evaluation."""
    from clozebert.training import loop

    graphs: list[bool] = []
    counted: list[int] = []

    def backend(graph: Any, examples: Any) -> Any:
        graphs.append(torch.is_grad_enabled())
        return graph.forward

    def choose_length(*args: Any, **others: Any) -> Any:
        found = calibration.choose_length(*args, **others)
        counted.append(len(graphs))
        return found

    torch._dynamo.reset()
    steps_in = calibration.steps_in
    monkeypatch.setattr(calibration, "steps_in", lambda *args, **others: min(40, steps_in(*args, **others)))
    monkeypatch.setattr(loop, "choose_length", choose_length)
    monkeypatch.setattr(
        "clozebert.training.phase_setup.compile_model", functools.partial(machine.compile_model, backend=backend)
    )
    run_here(
        prepared,
        tmp_path / "run",
        max_minutes=0.2,
        torch_compile=True,
        warmup_steps=0,
        logging_steps=100,
        eval_steps=0,
        num_hidden_layers=1,
    )
    said = capsys.readouterr().out
    assert graphs[: counted[0]].count(True) > 2
    assert graphs[: counted[0]].count(False) > 2
    assert len(graphs) == counted[0]
    assert re.search(r"max_minutes=0.2: time for [\d,]+ steps?; .*; setting up took \d+ s", said)
    assert "training is compiled" in said
    torch._dynamo.reset()
