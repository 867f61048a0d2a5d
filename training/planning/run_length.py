"""The number of steps of a run if no flag sets it: epochs by the size of the text.

    epochs(T) = 40 (10 M / T)^(1/3), rounded, from 1 to 40; T: tokens of the corpus

BERT saw its 3.3 billion words about 40 times (Devlin et al. 2018). The masks differ in each pass, so a masked-LM model
profits from more passes than a model that predicts the next token, for which repeated text is worth little after about
16 passes (Muennighoff et al. 2023). With the power 1/3 a model sees more tokens when its text is larger, as T^(2/3):
40 passes over 10 M tokens, 19 over 100 M, 9 over 1 B, 4 over 10 B. A model that continues from other weights knows the
language already: it takes half as many passes, and 10 at most.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...utils.errors import UserError
from ..arguments import PretrainingArguments

if TYPE_CHECKING:
    from ...corpus import Corpus, Mixture

MOST_EPOCHS = 40
_MOST_EPOCHS_CONTINUED = 10
_TOKENS_OF_MOST_EPOCHS = 10e6


def epochs_by_text(tokens: int, *, continued: bool = False) -> int:
    """The default number of passes over `tokens` tokens; `continued`: from the weights of another model."""
    epochs = MOST_EPOCHS * (_TOKENS_OF_MOST_EPOCHS / max(tokens, 1)) ** (1 / 3)
    if continued:
        return max(1, min(_MOST_EPOCHS_CONTINUED, round(epochs / 2)))
    return max(1, min(MOST_EPOCHS, round(epochs)))


def rows_of_text(corpora: "Iterable[Corpus]", *, max_seq_length: int) -> int:
    """The number of rows that hold every document of these corpora once."""
    from ...corpus.packing import RowIndex

    return sum(RowIndex(corpus, max_seq_length=max_seq_length).num_rows for corpus in corpora if corpus.num_documents)


def row_fill(mixture: "Mixture", *, max_seq_length: int) -> float:
    """The share of a row's places that holds tokens, on average: documents seldom fill rows to the last place.

    Special tokens around the later pieces of long documents are not counted.
    """
    from ...corpus.packing import NUM_SPECIAL_TOKENS

    fills = []
    for corpus in mixture.corpora:
        tokens = corpus.num_tokens + NUM_SPECIAL_TOKENS * corpus.num_documents
        rows = max(1, rows_of_text([corpus], max_seq_length=max_seq_length))
        fills.append(min(1.0, tokens / (rows * max_seq_length)))
    return sum(share * fill for share, fill in zip(mixture.shares, fills, strict=True))


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
    rows = epochs * rows_of_text(corpora.corpora, max_seq_length=arguments.max_seq_length)
    steps = max(1, int(rows / arguments.global_batch_size))
    try:
        if arguments.initial_global_batch_size is not None:
            # While the batch size warms up, a step takes fewer rows. Find the most steps that do not exceed `rows`. The
            # shorter runs on the way are too short for a warm-up or decay of a given length.
            bare = replace(arguments, warmup_steps=0, decay_steps=None)
            most = max(steps, int(rows / arguments.initial_global_batch_size))
            steps = bisect_right(
                range(most + 1), rows, lo=steps + 1, key=lambda n: bare.of_length(n).batch_size.before(n)
            )
            steps -= 1
        return arguments.of_length(steps)
    except UserError as error:
        raise UserError(f"the run has {steps:,} steps, {epochs:g} epochs of the text: {error}") from None
