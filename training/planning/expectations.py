"""What to expect of a run, printed before it starts: epochs, hours, and warnings if these are many."""

import math
from collections.abc import Sequence
from typing import Any

from ...configuration import load_recipe
from ...utils.wording import counted
from ..arguments import Phase, PretrainingArguments
from ..checkpoints.training_state import TrainingState
from ..phase_setup import PhaseSetup
from ..reporting.run_facts import epochs_of
from ..runtime.processes import mean_over_processes
from .calibration import seconds_per_place
from .run_length import MOST_EPOCHS, epochs_by_text, row_fill

# The share of a plain matmul's speed that training usually reaches. A run that takes less than these hours at that
# speed is not timed beforehand.
_USUAL_SHARE, _SHORT_HOURS = 0.4, 1 / 60
# Fewer updates than these are too few for warm-up and decay to do their work.
_FEW_STEPS = 300
_SMALL_RECIPES = ("nano", "tiny", "small")
# From fewer tokens, a model with random weights learns little more than its vocabulary.
_LITTLE_TEXT = 20e6
_MOST_CPU_HOURS = 24.0


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
    """Lines for the user on the length of a run and the time that it takes.

    Args:
        setup: the first phase as it is set up; in a dry run, a small part of it.
        phases: of the run; in a dry run, those of the real one.
        given: the run as the user described it, perhaps without a number of steps.
        peak_flops: FLOP/s of plain matmuls, of all processes.
        measured: seconds of a step for each place of the rows of one process, if steps were timed already.
    """
    lines = []
    if state.step == 0:
        epochs, tokens = epochs_of(setup, phases[0]), setup.corpora.num_tokens
        lines = length_lines(phases[0].arguments, epochs=epochs, tokens=tokens, given=given)
    places, gone = _places(phases, phases[-1].last_step), _places(phases, state.step)
    fill = row_fill(setup.corpora, max_seq_length=setup.arguments.max_seq_length)
    # Each process measured its own peak. All must take the same branch, as they time steps together below.
    by_formula = mean_over_processes(fill * places * setup.flops_per_token / (_USUAL_SHARE * peak_flops), accelerator)
    if state.step and state.seconds:
        seconds, how = (places - gone) * state.seconds / gone, "for what is left, at the speed so far"
    elif measured is None and by_formula < 3600 * _SHORT_HOURS and not given.dry_run:
        seconds, how = by_formula, "from its FLOPs"
    else:
        of_one = seconds_per_place(setup, accelerator=accelerator) if measured is None else measured
        seconds, how = places * of_one / accelerator.num_processes, "a training step was timed"
    return lines + hours_lines(seconds / 3600, on_cpu=accelerator.device.type == "cpu", how=how)


def _places(phases: Sequence[Phase], step: int) -> int:
    """The places for tokens in the rows of the steps before `step`."""
    return sum(
        phase.arguments.batch_size.before(min(max(step - phase.first_step, 0), phase.num_steps))
        * phase.arguments.max_seq_length
        for phase in phases
    )


def length_lines(
    arguments: PretrainingArguments, *, epochs: float, tokens: int, given: PretrainingArguments
) -> list[str]:
    """Lines on why the run has this length, and what to expect of it.

    Args:
        arguments: the run, with its steps.
        epochs: in these steps.
        tokens: of the corpus.
        given: the run as the user described it, perhaps without steps.
    """
    lines = []
    if given.max_steps is None and given.num_train_epochs is None and given.max_minutes is None:
        default = epochs_by_text(tokens, continued=given.model_name_or_path is not None)
        lines.append(
            f"length: {epochs:.3g} epochs; the default for {_short(tokens)} tokens is {default} "
            f"(--num_train_epochs, --max_steps or --max_minutes change it)"
        )
    if epochs > MOST_EPOCHS:
        in_place = " in place of --max_minutes" if given.max_minutes is not None else ""
        lines.append(
            f"warning: the text is seen {epochs:,.0f} times; after {MOST_EPOCHS} passes a model mostly learns it by "
            f"heart: give --num_train_epochs {MOST_EPOCHS}{in_place}, or more text"
        )
    if arguments.num_steps < _FEW_STEPS and given.max_steps is None and given.max_minutes is None:
        rows = arguments.global_batch_size
        fitting = 1 << int(math.log2(max(8.0, rows * arguments.num_steps / 1000)))
        smaller = [name for name in _SMALL_RECIPES if load_recipe(name)["global_batch_size"] < rows][-2:]
        ways_out = [f"a smaller recipe (--config {' or '.join(smaller)})"] if smaller else []
        ways_out += [f"--global_batch_size {fitting} with a lower --learning_rate"] if fitting < rows else []
        lines.append(
            f"warning: {arguments.num_steps:,} steps are few for this recipe, which is made for more text: take "
            f"{', or '.join(ways_out) or 'more text'}"
        )
    if tokens < _LITTLE_TEXT and given.model_name_or_path is None:
        little = f"{_short(tokens)} tokens teach a new model little; " if tokens < _LITTLE_TEXT / 10 else ""
        lines.append(
            f"expect: {little}below about {_short(_LITTLE_TEXT)} tokens, adapting a published model of such text, if "
            f"there is one, is usually better: clozebert adapt --model_name_or_path MODEL --input TEXT"
        )
    return lines


def hours_lines(hours: float, *, on_cpu: bool, how: str) -> list[str]:
    """Lines on how long the run takes, with a warning if a CPU is too slow for it.

    Args:
        how: how the hours were estimated.
    """
    about = "" if hours < 1 / 60 else "about "
    lines = [f"time: {about}{_duration(hours)} ({how}), evaluations and checkpoints on top"]
    if on_cpu and hours > _MOST_CPU_HOURS:
        lines.append(
            f"warning: {_duration(hours)} on a CPU: give the run less time (--max_minutes), take a smaller model, or "
            f"a GPU"
        )
    return lines


def _short(tokens: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if tokens >= 0.9995 * size:  # numbers just below a unit would be shown as 1e+03 of the smaller one
            return f"{tokens / size:.3g} {letter}"
    return f"{tokens:.0f}"


def _duration(hours: float) -> str:
    if hours < 1 / 60:
        return "a minute or less"
    if hours < 1.5:
        return counted(round(60 * hours), "minute")
    return f"{hours:,.1f} hours" if hours < 48 else f"{hours / 24:,.1f} days"
