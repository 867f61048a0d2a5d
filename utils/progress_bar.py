"""Progress: in a terminal a bar with a total and an estimate; elsewhere, such as in a log file, a line a minute."""

import sys
import time
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 60.0


class _Lines(tqdm):
    """The same figures as a line of their own, now and then."""

    @staticmethod
    def status_printer(file: Any) -> Any:
        def print_status(status: str) -> None:
            if status.strip():
                file.write(status.strip() + "\n")
                file.flush()

        return print_status

    def display(self, *arguments: Any, **options: Any) -> Any:
        """A line, unless one was written a moment ago: `set_postfix` and the like ask for one each time."""
        now = time.monotonic()
        if now - getattr(self, "_last_line", self._begun) < SECONDS_BETWEEN_LINES:
            return None
        self._last_line = now
        return super().display(*arguments, **options)

    def close(self) -> None:
        """End without a last line: whoever asked for the work says what came of it."""
        if not self.disable:
            self.disable = True
            self._decr_instances(self)  # type: ignore[attr-defined]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._begun = time.monotonic()
        super().__init__(*arguments, **options)


def progress_bar(
    iterable: Iterable[Any] | None = None, *, description: str, unit: str, total: float | None = None, **options: Any
) -> Any:
    """tqdm's bar, or its lines where stderr is no terminal; options as tqdm's.

    A job that ends within a minute leaves no line.

    Args:
        total: of the units; None where nobody knows.
    """
    shared: dict[str, Any] = {"desc": description, "unit": unit, "total": total, **options}
    if sys.stderr.isatty():
        return tqdm(iterable, dynamic_ncols=True, **shared)
    # A bar of no width: the figures alone.
    lines = {
        "mininterval": SECONDS_BETWEEN_LINES,
        "maxinterval": SECONDS_BETWEEN_LINES,
        "bar_format": "{l_bar}{n_fmt}/{total_fmt} [{elapsed}, {remaining} left, {rate_fmt}{postfix}]",
    }
    return _Lines(iterable, **{**shared, **lines})
