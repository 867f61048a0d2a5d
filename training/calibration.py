"""Times the steps of a run on this machine: for `plan --calibrate`, and for `--max_minutes`."""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import torch

from ..configuration import ClozeBertConfig
from ..corpus import BatchStream, Mixture
from ..modeling.packed import Packed
from .arguments import LENGTHS, PretrainingArguments
from .batches import make_masking
from .machine import make_accelerator
from .phase_setup import set_up_model, set_up_phase
from .planning import Calibration
from .prefetch import ModelInputs, model_inputs
from .processes import mean_over_processes
from .step import timed_step
from .time_budget import MOST_TIMED, StepTime, steps_in, time_run, time_steps
from .training_state import TrainingState


def calibrate(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    *,
    device: torch.device,
    precision: str,
    seconds: float = 20.0,
    corpora: Mixture | None = None,
) -> Calibration:
    """Train for some seconds, one micro-batch to an update, and time both.

    The batches are those of the run itself where its corpora are given; else random tokens, a document to each row.
    """
    accelerator = make_accelerator(mixed_precision=precision, use_cpu=device.type == "cpu", report_to=[], output_dir="")
    rows = min(arguments.per_device_train_batch_size, arguments.global_batch_size)
    before = _peak_bytes(device, reset=True)
    core, model, optimizer = set_up_model(arguments, config, accelerator=accelerator)
    plan_for = core.config if device.type == "cpu" else None
    batches = _batches(arguments, config, corpora, rows=rows, plan_for=plan_for)

    def step() -> StepTime:
        batch = next(batches)
        return timed_step(
            model,
            optimizer,
            batch,
            num_predicted=len(batch["labels"]),
            max_grad_norm=arguments.max_grad_norm,
            accelerator=accelerator,
        )

    timing = time_steps(step, seconds=seconds, agree=lambda value: value)
    after = _peak_bytes(device, reset=False)
    accelerator.free_memory()
    peak = None if before is None or after is None else after - before
    return Calibration(timing.micro_batch, timing.update, peak)


def _batches(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    corpora: Mixture | None,
    *,
    rows: int,
    plan_for: ClozeBertConfig | None = None,
) -> Iterator[ModelInputs]:
    """Micro-batches of the run, or the same random one again and again; on the CPU."""
    if corpora is None:
        yield from itertools.repeat(_random_batch(arguments, config, rows=rows))
        return
    stream = BatchStream(
        corpora.corpora,
        max_seq_length=arguments.max_seq_length,
        global_batch_size=rows,
        masking=make_masking(arguments, rate=arguments.mean_mlm_probability),
        seed=arguments.seed,
        weights=corpora.shares,
    )
    for step in itertools.count():
        yield model_inputs(stream.batch(step), plan_for=plan_for)


def _random_batch(arguments: PretrainingArguments, config: ClozeBertConfig, *, rows: int) -> ModelInputs:
    length = arguments.max_seq_length
    predicted = math.ceil(rows * length * arguments.mlm_probability)
    return {
        "input_ids": torch.randint(config.vocab_size, (1, rows * length)),
        "packed": Packed.from_lengths([length] * rows, torch.device("cpu")),
        "masked_positions": torch.randperm(rows * length)[:predicted].sort().values,
        "labels": torch.randint(config.vocab_size, (predicted,)),
    }


def _peak_bytes(device: torch.device, *, reset: bool) -> float | None:
    """The most memory used so far: of the GPU's since `reset`, of this process on a CPU; None where nobody says."""
    if device.type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return float(torch.cuda.max_memory_allocated(device))
    try:
        import resource
        import sys
    except ImportError:  # Windows
        return None
    # Kilobytes, but bytes on macOS.
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def choose_length(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    mixture: Mixture,
    *,
    accelerator: Any,
    begun: float,
    state: TrainingState,
) -> tuple[PretrainingArguments, str]:
    """The arguments of a run with as many steps as fit into `max_minutes`.

    Args:
        begun: when the run began, by `time.monotonic`.
        state: a run that is resumed keeps the number of steps that it began with.

    Returns:
        And what a person should know of it.
    """
    assert arguments.max_minutes is not None
    if state.step:
        saved = {name: state.arguments[name] for name in LENGTHS}
        resumed = dataclasses.replace(arguments.of_length(saved["max_steps"]), **saved)
        return resumed, f"max_minutes: {saved['max_steps']:,} steps, as when the run began"
    seconds = 60 * arguments.max_minutes
    timing = _time_phase(arguments, config, mixture, accelerator=accelerator, seconds=seconds)
    evaluated = sum(split.num_tokens for split in mixture.validation.values())
    if arguments.max_eval_batches is not None:
        of_batch = arguments.per_device_eval_batch_size * arguments.max_seq_length
        evaluated = min(evaluated, arguments.max_eval_batches * of_batch * len(mixture.validation))
    processes = accelerator.num_processes
    steps = steps_in(
        mean_over_processes(seconds - (time.monotonic() - begun), accelerator),
        timing,
        arguments=arguments,
        world_size=processes,
        eval_tokens=evaluated / processes,
    )
    said = (
        f"max_minutes={arguments.max_minutes:g}: {steps:,} steps; a micro-batch took {timing.micro_batch:.3g} s "
        f"and an update {timing.update:.3g} s"
    )
    return arguments.of_length(steps), said


def _time_phase(
    arguments: PretrainingArguments, config: ClozeBertConfig, mixture: Mixture, *, accelerator: Any, seconds: float
) -> StepTime:
    """Take steps of one micro-batch from the run's own batches, time them, and forget all that they did."""
    processes = accelerator.num_processes
    rows = arguments.global_batch_size // processes // arguments.micro_batches(processes)
    timed = dataclasses.replace(
        arguments,
        max_minutes=None,
        global_batch_size=rows * processes,
        initial_global_batch_size=None,
        batch_warmup_steps=0,
    ).of_length(MOST_TIMED)
    scaler = None if accelerator.scaler is None else accelerator.scaler.state_dict()
    timing = _time_steps_of(timed, config, mixture, accelerator=accelerator, seconds=seconds)
    accelerator.free_memory()
    if scaler is not None:
        accelerator.scaler.load_state_dict(scaler)
    return timing


def _time_steps_of(
    arguments: PretrainingArguments, config: ClozeBertConfig, mixture: Mixture, *, accelerator: Any, seconds: float
) -> StepTime:
    setup = set_up_phase(
        arguments.split_phases()[0], mixture, config, accelerator=accelerator, state=TrainingState(step=0), weights=None
    )
    setup.optimizer.optimizer.set_learning_rate(0.0)

    def step() -> StepTime:
        (batch,), num_predicted = next(setup.loader)
        return timed_step(
            setup.model,
            setup.optimizer,
            batch,
            num_predicted=num_predicted,
            max_grad_norm=arguments.max_grad_norm,
            accelerator=accelerator,
        )

    timing = time_run(step, seconds=seconds, agree=lambda value: mean_over_processes(value, accelerator))
    setup.loader.close()
    return timing
