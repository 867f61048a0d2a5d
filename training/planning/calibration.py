"""Times the steps of a run on this machine: for `plan --calibrate`, and for `--max_minutes`."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule

from ...configuration import ClozeBertConfig
from ...corpus import Mixture
from ...corpus.vocabulary_sample import VocabularySampler
from ...modeling.packed import Packed
from ...utils.device import wait_for
from ...utils.errors import UserError
from ...utils.memory import peak_memory
from ...utils.progress_bar import progress_bar
from ...utils.wording import counted
from ..arguments import PretrainingArguments
from ..batches import make_stream
from ..checkpoints.training_state import TrainingState
from ..checks import CheckedRun
from ..evaluation import evaluate_mixture
from ..phase_setup import PhaseSetup, few_rows, set_up_model, set_up_phase
from ..prefetch import ModelInputs, count_predicted, inputs_maker, model_inputs
from ..runtime.machine import begins_slowly, make_accelerator
from ..runtime.processes import mean_over_processes
from ..step import accumulate_gradient, timed_step
from .memory_and_time import Calibration
from .run_length import rows_of_text
from .time_budget import FORWARD_SHARE, MOST_TIMED, StepTime, steps_in, time_run, time_steps

_LONG_SECONDS = 3.0  # of a step in `seconds_per_place`, after which no other is timed


def calibrate(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    *,
    device: torch.device,
    precision: str,
    seconds: float = 20.0,
    corpora: Mixture | None = None,
    num_devices: int = 1,
) -> Calibration:
    """Train for some seconds, with one micro-batch of a run on `num_devices` per update, and time both.

    The batches are those of the run itself if its corpora are given, else random tokens with one document per row.
    """
    accelerator = make_accelerator(mixed_precision=precision, use_cpu=device.type == "cpu")
    rows = arguments.rows_at_once(num_devices)
    before = _peak_bytes(device, reset=True)
    core, model, optimizer = set_up_model(arguments, config, accelerator=accelerator)
    batches = micro_batches(arguments, config, corpora, rows=rows, make_inputs=inputs_maker(core.config, accelerator))
    with progress_bar(description="timing steps", unit=" s", total=round(seconds), leave=False) as bar:
        begun = time.monotonic()

        def step() -> StepTime:
            taken = timed_step(
                model, optimizer, next(batches), max_grad_norm=arguments.max_grad_norm, accelerator=accelerator
            )
            bar.update(min(round(time.monotonic() - begun), bar.total) - bar.n)
            return taken

        slow = begins_slowly(arguments.torch_compile, device)
        timing = time_steps(step, seconds=seconds, begins_slowly=slow)
    after = _peak_bytes(device, reset=False)
    accelerator.free_memory()
    peak = None if before is None or after is None else after - before
    return Calibration(timing, peak)


def micro_batches(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    corpora: Mixture | None,
    *,
    rows: int,
    make_inputs: Callable[[Any], ModelInputs] = model_inputs,
) -> Iterator[ModelInputs]:
    """Yield micro-batches of the run or, without corpora, the same random one each time; on the CPU."""
    timed = _at_mean_rate(arguments.of_one_micro_batch(rows, 1))
    if corpora is None:
        yield from itertools.repeat(_random_batch(timed, config, rows=rows))
        return
    stream = make_stream(timed.split_phases()[0], corpora, vocab_size=config.vocab_size)
    for step in itertools.count():
        yield make_inputs(stream.batch(step))


def _at_mean_rate(arguments: PretrainingArguments) -> PretrainingArguments:
    """The run at the mean of a masking rate that changes: its first steps have the initial one."""
    return dataclasses.replace(arguments, mlm_probability=arguments.mean_mlm_probability, final_mlm_probability=None)


def _random_batch(arguments: PretrainingArguments, config: ClozeBertConfig, *, rows: int) -> ModelInputs:
    length = arguments.max_seq_length
    predicted = math.ceil(rows * length * arguments.mlm_probability)
    size, sample = arguments.vocabulary_sample, {}
    if 0 < size < config.vocab_size:
        drawn = VocabularySampler(np.ones(config.vocab_size), size=size, seed=arguments.seed).draw(0)
        sample = {"sampled_ids": torch.from_numpy(drawn.ids), "sampled_log_rates": torch.from_numpy(drawn.log_rates)}
    return {
        "input_ids": torch.randint(config.vocab_size, (1, rows * length)),
        "packed": Packed.from_lengths([length] * rows),
        "masked_positions": torch.randperm(rows * length)[:predicted].sort().values,
        "labels": torch.randint(config.vocab_size, (predicted,)),
        **sample,
    }


def _peak_bytes(device: torch.device, *, reset: bool) -> float | None:
    """The peak memory in bytes: on the GPU since `reset`, or of this process on a CPU; None if it is unknown."""
    if device.type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return float(torch.cuda.max_memory_allocated(device))
    return peak_memory()


@dataclasses.dataclass(frozen=True)
class ChosenLength:
    """The length that `max_minutes` gives a run, and what was measured for it.

    Attributes:
        arguments: the run with its steps.
        said: a line for the user.
        seconds_per_place: of a step, without its update, for each place in the rows of one process.
        evaluation_seconds: of one evaluation.
    """

    arguments: PretrainingArguments
    said: str
    seconds_per_place: float
    evaluation_seconds: float


def choose_length(run: CheckedRun, *, accelerator: Any, begun: float) -> ChosenLength:
    """The run with as many steps as fit into its `max_minutes`.

    If the text set the length of the run, it gets no more steps than that. A `max_steps` that was given together with
    `max_minutes` only says what warm-ups and decay are shares of.

    Args:
        begun: when the run began, by `time.monotonic`.
    """
    arguments, given, mixture = run.phases[0].arguments, run.given, run.mixtures[0]
    assert arguments.max_minutes is not None
    processes = accelerator.num_processes
    # `adapt` computes its minutes from the clock, so each process may have a slightly different number.
    seconds = mean_over_processes(60 * arguments.max_minutes, accelerator)
    timing, again = _time_and_forget(run, accelerator=accelerator, seconds=seconds)
    gone = mean_over_processes(time.monotonic() - begun + again, accelerator)
    evaluated = evaluated_places(arguments, mixture) / processes
    steps = steps_in(seconds - gone, timing, arguments=arguments, world_size=processes, eval_places=evaluated)
    said = (
        f"max_minutes={arguments.max_minutes:g}: time for {counted(steps, 'step')}; a micro-batch took "
        f"{timing.micro_batch:.3g} s and an update {timing.update:.3g} s; setting up took {gone:.0f} s"
    )
    if steps >= arguments.num_steps and given.max_steps is None:
        fitting, said = arguments, f"{said}; the run needs {arguments.num_steps:,}"
    else:
        try:
            fitting = (arguments if given.max_steps is not None else given).of_length(steps)
        except UserError as error:
            raise UserError(
                f"max_minutes={arguments.max_minutes:g} is enough for {counted(steps, 'step')}, too few: {error}"
            ) from None
    of_place = timing.micro_batch / (arguments.rows_at_once(processes) * arguments.max_seq_length)
    return ChosenLength(fitting, said, of_place, FORWARD_SHARE * of_place * evaluated)


def evaluated_places(arguments: PretrainingArguments, mixture: Mixture) -> int:
    """The places for tokens in the rows of an evaluation, of all processes."""
    length, most = arguments.max_seq_length, arguments.max_eval_batches
    rows = [rows_of_text([split], max_seq_length=length) for split in mixture.validation.values()]
    if most is not None:
        rows = [min(of_split, most * arguments.per_device_eval_batch_size) for of_split in rows]
    return sum(rows) * length


def seconds_per_place(setup: PhaseSetup, *, accelerator: Any) -> float:
    """Seconds of a forward and backward pass for each place in the rows of one process, on the run's own rows.

    A row has `max_seq_length` places, and its documents seldom fill all of them.

    It has no side effects: no weight changes, and each training step seeds its own random numbers.
    """
    arguments, device = setup.arguments, accelerator.device
    rows = arguments.rows_at_once(accelerator.num_processes)
    if device.type == "cpu":
        rows = few_rows(rows, arguments.max_seq_length)
    batch = inputs_maker(setup.core.config, accelerator)(setup.stream.rows(0, rows, step=0))
    # The first step compiles kernels and allocates memory. On a CPU without compilation this takes little time.
    needed = 2 if begins_slowly(arguments.torch_compile, device) else 1
    seconds: list[float] = []
    while len(seconds) < needed or (len(seconds) < 3 and mean_over_processes(seconds[-1], accelerator) < _LONG_SECONDS):
        begun = time.perf_counter()
        # Processes do not exchange this gradient. FSDP would keep what is not exchanged where `zero_grad` cannot reach.
        is_sharded = isinstance(setup.model, FSDPModule)
        with contextlib.nullcontext() if is_sharded else accelerator.no_sync(setup.model):
            accumulate_gradient(setup.model, [batch], num_predicted=count_predicted(batch), accelerator=accelerator)
        wait_for(device)
        seconds.append(time.perf_counter() - begun)
        setup.optimizer.zero_grad()
    return mean_over_processes(min(seconds[needed - 1 :]), accelerator) / (rows * arguments.max_seq_length)


def _time_and_forget(run: CheckedRun, *, accelerator: Any, seconds: float) -> tuple[StepTime, float]:
    """Time steps of one micro-batch on the run's own batches, and discard everything that they changed.

    Returns:
        The times, and the seconds that setting up the phase took; the run itself will set it up again.
    """
    scaler = None if accelerator.scaler is None else accelerator.scaler.state_dict()
    found = _time_steps_of(run, accelerator=accelerator, seconds=seconds)
    accelerator.free_memory()
    if scaler is not None:
        accelerator.scaler.load_state_dict(scaler)
    return found


def _time_steps_of(run: CheckedRun, *, accelerator: Any, seconds: float) -> tuple[StepTime, float]:
    arguments, processes = run.phases[0].arguments, accelerator.num_processes
    timed = _at_mean_rate(arguments.of_one_micro_batch(arguments.rows_at_once(processes), processes))
    timed = timed.of_length(MOST_TIMED)
    begun = time.monotonic()
    setup = set_up_phase(
        dataclasses.replace(run.phases[0], num_steps=MOST_TIMED, arguments=timed),
        run.mixtures[0],
        run.configs[0],
        accelerator=accelerator,
        state=TrainingState(step=0),
        weights=None,
    )
    setting_up = time.monotonic() - begun
    setup.optimizer.optimizer.set_learning_rate(0.0)
    batches = (batch for of_step, _ in setup.loader for batch in of_step)

    def step() -> StepTime:
        return timed_step(
            setup.model, setup.optimizer, next(batches), max_grad_norm=timed.max_grad_norm, accelerator=accelerator
        )

    def agree(value: float) -> float:
        return mean_over_processes(value, accelerator)

    slow = begins_slowly(timed.torch_compile, accelerator.device)
    timing = time_run(step, seconds=seconds, agree=agree, begins_slowly=slow)
    setup.loader.close()
    if slow:
        # The run's own model reuses what this compiles, so that this time has passed before the steps are counted. An
        # evaluation that fails here also fails in the run, which reports it and continues.
        with contextlib.suppress(Exception):
            once = dataclasses.replace(timed, max_eval_batches=1)
            evaluate_mixture(setup.model, run.mixtures[0], once, accelerator=accelerator)
    return timing, setting_up
