"""The batch size of each step, with its warm-up: a pure function of the step."""

from dataclasses import dataclass

import numpy as np

from ..utils.errors import UserError


@dataclass(frozen=True)
class BatchSize:
    """`rows` in each step. With a warm-up, the size grows evenly from `initial_rows` to `rows` over `warmup_steps`:

        rows of step s = initial_rows (1 + floor((rows / initial_rows - 1) s / warmup_steps))

    So every batch is a whole multiple of the first one, which splits evenly over processes and micro-batches.

    Raises:
        ValueError: a value is out of range, or `rows` is not a multiple of `initial_rows`.
    """

    rows: int
    initial_rows: int | None = None
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UserError(f"global_batch_size={self.rows} must be at least 1 row")
        if (self.initial_rows is None) != (self.warmup_steps == 0):
            raise UserError(
                f"initial_global_batch_size={self.initial_rows} and batch_warmup_steps={self.warmup_steps} need each "
                f"other: give both or neither"
            )
        if self.initial_rows is not None and (self.initial_rows < 1 or self.rows % self.initial_rows):
            raise UserError(
                f"global_batch_size={self.rows} must be a multiple of initial_global_batch_size={self.initial_rows}"
            )

    @property
    def smallest(self) -> int:
        """The rows of the first step."""
        return self.rows if self.initial_rows is None else self.initial_rows

    def at(self, step: int) -> int:
        """The rows of a step."""
        if step >= self.warmup_steps:
            return self.rows
        return self.smallest * (1 + self._rises * step // self.warmup_steps)

    def before(self, step: int) -> int:
        """The rows of all steps before `step`."""
        rising = min(step, self.warmup_steps)
        # The j-th increase, by `smallest` rows, comes at step ceil(j warmup_steps / rises).
        since = -(-np.arange(1, self._rises + 1) * self.warmup_steps // max(self._rises, 1))
        risen = int(np.maximum(0, rising - since).sum())
        return self.smallest * (rising + risen) + self.rows * (step - rising)

    @property
    def _rises(self) -> int:
        return self.rows // self.smallest - 1
