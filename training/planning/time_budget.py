"""How many steps fit into `--max_minutes`, from the time that steps take on this machine."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..arguments import LENGTHS, PretrainingArguments

# Steps are timed for this share of the run's time, but at least this many, and for at most so many seconds.
_SHARE_FOR_TIMING, _LEAST_TIMED, _MOST_SECONDS = 0.02, 4, 60.0
# The first steps, which compile kernels and allocate memory.
_WARM_UP = 2
# At least this share of the planned decay is kept, however little time is left.
_LEAST_DECAY = 0.1
# The share of the time kept free for checkpoints, the plot, and a machine that slows down a little.
_RESERVE = 0.03
# The time of a forward pass, as a share of forward and backward.
FORWARD_SHARE = 1 / 3

MOST_TIMED = 200


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of a micro-batch, forward and backward, and of an update of the weights."""

    micro_batch: float
    update: float


def time_steps(
    step: Callable[[], StepTime],
    *,
    seconds: float,
    agree: Callable[[float], float] = float,
    longest: float = math.inf,
    begins_slowly: bool = False,
) -> StepTime:
    """Time training steps: the medians after a warm-up.

    Args:
        step: takes a step and returns the time of each part.
        seconds: how long to time; some steps are taken in any case, and no more than `MOST_TIMED`.
        agree: returns the mean of a number over all processes, so that all take the same number of steps; for a single
            process, the number itself.
        longest: seconds after which no further step is timed, even if there were few; a single step may take long.
        begins_slowly: the steps of the warm-up are always taken, and do not count in `seconds` or `longest`.
    """
    times: list[StepTime] = []
    begun = time.perf_counter()
    while len(times) < MOST_TIMED:
        times.append(step())
        if begins_slowly and len(times) <= _WARM_UP:
            begun = time.perf_counter()
            continue
        gone = agree(time.perf_counter() - begun)
        enough = len(times) >= _WARM_UP + _LEAST_TIMED and gone >= seconds
        if enough or gone >= longest:
            break
    warm = times[min(_WARM_UP, len(times) - 1) :]
    return StepTime(
        agree(statistics.median(one.micro_batch for one in warm)), agree(statistics.median(one.update for one in warm))
    )


def time_run(
    step: Callable[[], StepTime], *, seconds: float, agree: Callable[[float], float], begins_slowly: bool = False
) -> StepTime:
    """`time_steps` for a small part of the `seconds` that a run has."""
    enough = min(_SHARE_FOR_TIMING * seconds, _MOST_SECONDS)
    return time_steps(step, seconds=enough, agree=agree, longest=seconds / 10, begins_slowly=begins_slowly)


def steps_in(
    seconds: float, step: StepTime, *, arguments: PretrainingArguments, world_size: int, eval_places: float
) -> int:
    """How many steps of a run, with their evaluations, fit into `seconds`; at least one.

    Args:
        eval_places: places for tokens in the rows of one process in each evaluation.
    """
    size, micro_batches = arguments.batch_size, arguments.micro_batches(world_size)
    # While the batch size warms up, steps have fewer micro-batches.
    mean_share = size.before(arguments.num_steps) / size.rows / arguments.num_steps
    places = arguments.tokens_per_step / world_size / micro_batches
    evaluation = step.micro_batch * FORWARD_SHARE * eval_places / places
    of_step = mean_share * micro_batches * step.micro_batch + step.update
    left = seconds * (1 - _RESERVE)
    # Evaluations are every `eval_steps` or, in a short run, two; see PretrainingArguments.of_length.
    often = int((left - evaluation) / (of_step + evaluation / (arguments.eval_steps or math.inf)))
    twice = int((left - 2 * evaluation) / of_step)
    return max(1, min(often, twice) if arguments.eval_steps else often)


def with_lengths(arguments: PretrainingArguments, lengths: Mapping[str, Any]) -> PretrainingArguments:
    """The run with these numbers of steps: in all, and of its warm-ups and, with `wsd`, of its decay."""
    names = [name for name in LENGTHS if name != "decay_steps" or arguments.lr_scheduler_type == "wsd"]
    return dataclasses.replace(arguments.of_length(lengths["max_steps"]), **{name: lengths[name] for name in names})


class Deadline:
    """The time at which a run has to end. It recounts the steps when the decay of the learning rate (`wsd`) begins.

    The first seconds of a run do not show the speed of a machine that throttles or is shared with others.

    Args:
        ends: when, by `time.monotonic`.
        run: as it was before its steps were counted.
        most_steps: the most that the run needs, even if there is more time; None: as many as fit.
        evaluation: seconds of one evaluation, for the last one; the same in each process.
    """

    def __init__(self, ends: float, run: PretrainingArguments, *, most_steps: int | None, evaluation: float = 0.0):
        self.ends, self.run, self.most_steps, self.evaluation = ends, run, most_steps, evaluation
        self._timed_from: tuple[int, float] | None = None

    def recount(
        self, arguments: PretrainingArguments, step: int, *, agree: Callable[[float], float]
    ) -> PretrainingArguments | None:
        """The run with the number of steps that still fit, or None if it does not change. Called before each step.

        The pace is that of the second half of the steps so far, evaluations and checkpoints included. Other schedules,
        and runs whose early steps depend on the number of steps, keep their number.
        """
        begins = arguments.num_steps - arguments.num_decay_steps
        if arguments.lr_scheduler_type != "wsd" or arguments.final_mlm_probability or arguments.batch_warmup_steps:
            return None
        if (arguments.warmup_steps or 0) > begins:  # a shorter decay would not fit behind the warm-up
            return None
        if step == begins // 2:
            self._timed_from = step, time.monotonic()
        if step != begins or self._timed_from is None or self._timed_from[0] == step:
            return None
        timed_from, then = self._timed_from
        gone = agree(time.monotonic() - then)
        if step - timed_from < _LEAST_TIMED and gone < _MOST_SECONDS:  # a short wait would decide alone
            return None
        pace = gone / (step - timed_from)
        left = agree(self.ends - time.monotonic())
        planned = arguments.num_steps - step
        fitting = max(1, math.ceil(_LEAST_DECAY * planned), int((left * (1 - _RESERVE) - self.evaluation) / pace))
        if self.most_steps is not None:
            fitting = min(fitting, max(planned, self.most_steps - step))
        if fitting == planned:
            return None
        kept = {name: getattr(arguments, name) for name in LENGTHS}
        return with_lengths(self.run, {**kept, "max_steps": step + fitting, "decay_steps": fitting})
