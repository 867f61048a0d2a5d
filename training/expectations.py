"""What to expect of a run, printed before it starts: epochs, hours, and warnings where those are many."""

from collections.abc import Sequence
from typing import Any

from .arguments import Phase, PretrainingArguments
from .calibration import seconds_per_token
from .phase_setup import PhaseSetup
from .processes import mean_over_processes
from .reporting import epochs_of
from .run_length import hours_lines, length_lines
from .training_state import TrainingState

# The share of a plain matmul's speed that training usually reaches. A run that takes less than these hours at that
# speed is not timed beforehand.
_USUAL_SHARE, _SHORT_HOURS = 0.4, 1 / 60


def what_to_expect(
    setup: PhaseSetup,
    phases: Sequence[Phase],
    given: PretrainingArguments,
    *,
    state: TrainingState,
    accelerator: Any,
    peak_flops: float,
    measured: float | None = None,
) -> list[str]:
    """Lines for a person.

    Args:
        setup: the first phase in memory; of a dry run, a small part of it.
        phases: of the run; of a dry run, those of the real one.
        given: the run as a person described it, maybe without a number of steps.
        peak_flops: FLOP/s of plain matmuls, of all processes.
        measured: seconds of a step for each token of one process, where steps were timed already.
    """
    lines = []
    if state.step == 0:
        epochs, tokens = epochs_of(setup, phases[0]), setup.corpora.num_tokens
        lines = length_lines(phases[0].arguments, epochs=epochs, tokens=tokens, given=given)
    hours, how = _hours(
        setup,
        phases,
        dry=given.dry_run,
        state=state,
        accelerator=accelerator,
        peak_flops=peak_flops,
        measured=measured,
    )
    return lines + hours_lines(hours, on_cpu=accelerator.device.type == "cpu", how=how)


def _hours(
    setup: PhaseSetup,
    phases: Sequence[Phase],
    *,
    dry: bool,
    state: TrainingState,
    accelerator: Any,
    peak_flops: float,
    measured: float | None,
) -> tuple[float, str]:
    """How long what is left of the run takes, and how that was found."""
    sizes = [(phase, phase.arguments.max_seq_length) for phase in phases]
    tokens = sum(phase.arguments.batch_size.before(phase.num_steps) * length for phase, length in sizes)
    if state.step and state.seconds:
        left = (tokens - state.tokens_seen) * state.seconds / max(1, state.tokens_seen)
        return max(0.0, left) / 3600, "for what is left, at the speed so far"
    # Each process measured its own peak. All must choose the same way, as the timing below is done together.
    by_formula = mean_over_processes(tokens * setup.flops_per_token / (_USUAL_SHARE * peak_flops) / 3600, accelerator)
    if measured is None and by_formula < _SHORT_HOURS and not dry:
        return by_formula, "from its FLOPs"
    of_one = seconds_per_token(setup, accelerator=accelerator) if measured is None else measured
    return tokens * of_one / accelerator.num_processes / 3600, "a training step was timed"
