"""Progress bars, in a log file as a line per minute; and how to silence those of transformers."""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from .switch import Switch
from .wording import counted

SECONDS_BETWEEN_LINES = 60.0


class _Lines(tqdm):
    """Prints the bar's figures as a line of their own, at most once a minute."""

    @staticmethod
    def status_printer(file: Any) -> Any:
        def print_status(status: str) -> None:
            if status.strip():
                file.write(status.strip() + "\n")
                file.flush()

        return print_status

    def display(self, *arguments: Any, **options: Any) -> Any:
        """Print a line, unless the last one is less than a minute old: `set_postfix` calls this each time."""
        now = time.monotonic()
        if now - getattr(self, "_last_line", self._begun) < SECONDS_BETWEEN_LINES:
            return None
        self._last_line = now
        return super().display(*arguments, **options)

    def clear(self, *arguments: Any, **options: Any) -> None:
        """Nothing to do: a line is never drawn over."""

    def close(self) -> None:
        """End without a last line: the caller reports the result."""
        if not self.disable:
            self.disable = True
            self._decr_instances(self)  # type: ignore[attr-defined]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._begun = time.monotonic()
        super().__init__(*arguments, **options)


def progress_bar(
    iterable: Iterable[Any] | None = None, *, description: str, unit: str, total: float | None = None, **options: Any
) -> Any:
    """A tqdm bar, or lines if stderr is not a terminal; `options` are tqdm's.

    Without a terminal, a job that ends within a minute prints no line.

    Args:
        total: number of units; None if unknown.
    """
    shared: dict[str, Any] = {"desc": description, "unit": unit, "total": total, **options}
    if sys.stderr.isatty():
        return tqdm(iterable, dynamic_ncols=True, **shared)
    # The figures without a bar.
    lines = {
        "mininterval": SECONDS_BETWEEN_LINES,
        "maxinterval": SECONDS_BETWEEN_LINES,
        "bar_format": "{l_bar}{n_fmt}/{total_fmt} [{elapsed}, {remaining} left, {rate_fmt}{postfix}]",
    }
    return _Lines(iterable, **{**shared, **lines})


@contextmanager
def heartbeat(description: str) -> Iterator[None]:
    """Without a terminal, print a line per minute during the work of a library that shows its bar in terminals only."""
    ended = threading.Event()

    def beat() -> None:
        begun = time.monotonic()
        while not ended.wait(SECONDS_BETWEEN_LINES):
            minutes = counted(round((time.monotonic() - begun) / 60), "minute")
            print(f"{description}: {minutes} so far", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Turn off transformers' own bars for reading and writing shards."""
    with _BARS.changed():
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' reports and progress bars: our errors say what matters in them."""
    with _REPORTS.changed(), without_progress_bars():
        yield


def _hide_bars() -> bool:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    return shown


def _show_bars(shown: bool) -> None:
    from transformers.utils import logging

    if shown:
        logging.enable_progress_bar()


def _silence() -> int:
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    return level


def _speak(level: int) -> None:
    from transformers.utils import logging

    logging.set_verbosity(level)


_BARS, _REPORTS = Switch(_hide_bars, _show_bars), Switch(_silence, _speak)


class StageBars:
    """A bar for each of several stages; called with (done, total) of the current one."""

    def __init__(self, *, unit: str) -> None:
        self.unit = unit
        self._bar: Any = None

    def begin(self, description: str) -> "StageBars":
        """Start the bar of the next stage."""
        self.close()
        self._bar = progress_bar(description=description, unit=self.unit, leave=False)
        return self

    def __call__(self, done: int, total: int | None = None) -> None:
        if self._bar is not None:
            self._bar.total = total if total is not None else self._bar.total
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """End the current stage."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
