"""How many steps a run has where no flag says so: epochs by the size of the text.

    epochs(T) = 40 (10 M / T)^(1/3), rounded, from 1 to 40; T: tokens of the corpus

BERT saw its 3.3 billion words about 40 times (Devlin et al. 2018). The masks differ in each pass, so a masked-LM model
profits from more passes than a model that predicts the next token, for which repeated text is worth little after about
16 passes (Muennighoff et al. 2023). With the power 1/3 a model sees more tokens when its text is larger, as T^(2/3):
40 passes over 10 M tokens, 19 over 100 M, 9 over 1 B, 4 over 10 B. A model that continues from other weights knows the
language already: it takes half as many passes, and 10 at most.
"""

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from ..utils.errors import UserError
from .arguments import PretrainingArguments

if TYPE_CHECKING:
    from ..corpus import Mixture

MOST_EPOCHS = 40
_MOST_EPOCHS_CONTINUED = 10
_TOKENS_OF_MOST_EPOCHS = 10e6
# Fewer updates than these are too few for warm-up and decay to do their work.
_FEW_STEPS = 300
# From fewer tokens, a model with random weights learns little more than its vocabulary.
_LITTLE_TEXT = 20e6
MOST_CPU_HOURS = 24.0


def epochs_by_text(tokens: int, *, continued: bool = False) -> int:
    """Passes over a corpus of `tokens` tokens; `continued`: from the weights of another model."""
    epochs = MOST_EPOCHS * (_TOKENS_OF_MOST_EPOCHS / max(tokens, 1)) ** (1 / 3)
    if continued:
        return max(1, min(_MOST_EPOCHS_CONTINUED, round(epochs / 2)))
    return max(1, min(MOST_EPOCHS, round(epochs)))


def rows_of_text(corpora: "Mixture", *, max_seq_length: int) -> int:
    """Rows in which all documents come once."""
    from ..corpus.packing import RowIndex

    return sum(RowIndex(corpus, max_seq_length=max_seq_length).num_rows for corpus in corpora.corpora)


def length_by_text(arguments: PretrainingArguments, corpora: "Mixture") -> PretrainingArguments:
    """The run with a number of steps: `max_steps` if it was given, else by `num_train_epochs`, else by the text.

    Steps are rounded down, so that no default exceeds its epochs; there is at least one.

    Raises:
        UserError: warm-ups and decay do not fit into these steps.
    """
    if arguments.max_steps is not None:
        return arguments
    epochs = arguments.num_train_epochs
    if epochs is None:
        epochs = epochs_by_text(corpora.num_tokens, continued=arguments.model_name_or_path is not None)
    rows = epochs * rows_of_text(corpora, max_seq_length=arguments.max_seq_length)
    steps = max(1, int(rows / arguments.global_batch_size))
    try:
        if arguments.initial_global_batch_size is not None:
            # While the batch warms up a step takes fewer rows: the most steps that take no more than there are.
            most = max(steps, int(rows / arguments.initial_global_batch_size))
            steps = bisect_right(
                range(most + 1), rows, lo=steps + 1, key=lambda n: arguments.of_length(n).batch_size.before(n)
            )
            steps -= 1
        return arguments.of_length(steps)
    except UserError as error:
        raise UserError(f"the run has {steps:,} steps, {epochs:g} epochs of the text: {error}") from None


def length_lines(
    arguments: PretrainingArguments, *, epochs: float, tokens: int, given: PretrainingArguments
) -> list[str]:
    """Why the run has this length, and what is likely to come of it.

    Args:
        arguments: the run, with its steps.
        epochs: in these steps.
        tokens: of the corpus.
        given: the run as a person described it, maybe without steps.
    """
    lines = []
    if given.max_steps is None and given.num_train_epochs is None and given.max_minutes is None:
        default = epochs_by_text(tokens, continued=given.model_name_or_path is not None)
        lines.append(
            f"length: {epochs:.3g} epochs; the default for {_short(tokens)} tokens is {default} "
            f"(--num_train_epochs, --max_steps or --max_minutes change it)"
        )
    if epochs > MOST_EPOCHS:
        lines.append(
            f"warning: the text is seen {epochs:,.0f} times; after {MOST_EPOCHS} passes a model mostly learns it by "
            f"heart: give --num_train_epochs {MOST_EPOCHS}, or more text"
        )
    if arguments.num_steps < _FEW_STEPS and given.max_steps is None and given.max_minutes is None:
        fitting = 1 << max(3, int(math.log2(max(8.0, arguments.global_batch_size * arguments.num_steps / 1000))))
        lines.append(
            f"warning: {arguments.num_steps:,} steps are few, as the recipe is made for more text: take a smaller one "
            f"(--config tiny or small), or --global_batch_size {fitting} with a lower --learning_rate"
        )
    if tokens < _LITTLE_TEXT and given.model_name_or_path is None:
        lines.append(
            f"expect: {_short(tokens)} tokens teach a new model little of a language; to go on from a published model "
            f"(--model_name_or_path) is usually better for less than about {_short(_LITTLE_TEXT)}"
        )
    return lines


def hours_lines(hours: float, *, on_cpu: bool, how: str) -> list[str]:
    """How long the run takes, and a warning where a CPU is the wrong machine for it.

    Args:
        how: how the hours were found.
    """
    lines = [f"time: about {_duration(hours)} ({how}), evaluations and checkpoints on top"]
    if on_cpu and hours > MOST_CPU_HOURS:
        lines.append(
            f"warning: {_duration(hours)} on a CPU: take a GPU, a smaller recipe (--config tiny), or less time "
            f"(--max_minutes)"
        )
    return lines


def _short(tokens: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if tokens >= 0.9995 * size:  # three digits of what is just below are 1, and not 1e+03
            return f"{tokens / size:.3g} {letter}"
    return f"{tokens:.0f}"


def _duration(hours: float) -> str:
    if hours < 1 / 60:
        return "a minute or less"
    if hours < 1.5:
        return f"{60 * hours:.0f} minutes"
    return f"{hours:,.1f} hours" if hours < 48 else f"{hours / 24:,.1f} days"


__all__ = ["epochs_by_text", "hours_lines", "length_by_text", "length_lines", "rows_of_text"]
