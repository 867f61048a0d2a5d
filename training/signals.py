"""Signals that ask a run to stop."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from ..utils.interrupts import announced


class StopError(Exception):
    """The run was asked to stop, and what is under way can be left out."""


class StopRequest:
    """Whether SIGTERM or SIGINT came. A second SIGINT, two seconds or more later, interrupts at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._since = 0.0
        self._said_at: float | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def check(self, *_: object) -> None:
        """Raise `StopError` if the run was asked to stop."""
        if self:
            raise StopError

    def _note(self, number: int, frame: Any) -> None:
        # A launcher passes the terminal's SIGINT on once more, hence the two seconds.
        if number == signal.SIGINT and self.signal_number is not None and time.monotonic() - self._since > 2:
            raise KeyboardInterrupt
        if self.signal_number is None:
            self.signal_number, self._since = number, time.monotonic()

    def _announcement(self) -> str | None:
        """What is said at once, while the step is still at work; None: the program is to end now."""
        if self._said_at is not None and time.monotonic() - self._said_at > 2:
            return None
        if self._said_at is not None:
            return ""
        self._said_at = time.monotonic()
        return "stopping: a checkpoint is saved after this step; Ctrl-C once more ends the run without it"

    @contextlib.contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Take over both signals for a while; in a thread other than the main one, where Python cannot, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, self._note) for number in numbers]
        try:
            with announced(self._announcement):
                yield self
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
