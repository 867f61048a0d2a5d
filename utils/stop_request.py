"""Hears the signals that ask a run to stop. Pretraining and fine-tuning then save a checkpoint and end."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from .interrupts import end_after_patience, hearing_signals, say_now
from .processes import process_rank

# SIGHUP comes when a terminal is closed; Windows has none.
STOP_SIGNALS = tuple(number for name in ("SIGTERM", "SIGINT", "SIGHUP") if (number := getattr(signal, name, None)))


class StopRequest:
    """Whether a signal came. A second SIGINT, two seconds or more later, interrupts at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._since = self._noted = 0.0
        self._is_answered = False
        self._parent = os.getppid()

    def __bool__(self) -> bool:
        return self.signal_number is not None

    @property
    def reason(self) -> int:
        """The number of the signal; SIGTERM in a process that stops because another one was asked to."""
        return int(self.signal_number or signal.SIGTERM)

    @property
    def status(self) -> int:
        """The exit status of a process that stops for this, as a shell reports a signal."""
        return 128 + self.reason

    def request(self, number: int = signal.SIGTERM) -> None:
        """Ask for a stop, as a signal does."""
        if self.signal_number is None:
            self._since, self.signal_number = time.monotonic(), number  # in this order, for other threads

    def request_without_launcher(self) -> None:
        """Ask for a stop if the launcher of this process is gone."""
        if os.getppid() != self._parent:
            self.request()

    def seconds_since(self) -> float | None:
        """How long ago the stop was asked for; None: it was not."""
        return time.monotonic() - self._since if self else None

    def _note(self, number: int, frame: Any) -> None:
        # A launcher passes the terminal's SIGINT on once more, hence the two seconds.
        now = time.monotonic()
        if number == signal.SIGINT and self._noted and now - self._noted > 2:
            raise KeyboardInterrupt
        self._noted = self._noted or now
        self.request(number)

    def _hear(self, number: int) -> None:
        """Print at once what will happen, while a step is still running; a second SIGINT ends the process."""
        if number not in STOP_SIGNALS:
            return
        begun = self.seconds_since()  # not None where the main thread has noted this very signal already
        if not self._is_answered and process_rank() == 0:
            say_now("stopping: a checkpoint is saved first; Ctrl-C once more, after two seconds, ends the run")
        self._is_answered = True
        if begun is not None and begun > 2 and number == signal.SIGINT:
            end_after_patience()
        self.request(number)

    @contextlib.contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Handle the signals within the block. In a thread other than the main one, where Python cannot, do nothing.

        A signal that is ignored, such as SIGHUP under nohup, stays ignored. So does that of a host program.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        # Python could not put back a handler that is not its own (None), of a program that hosts it.
        taken = [number for number in STOP_SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
        before = {number: signal.signal(number, self._note) for number in taken}
        try:
            with hearing_signals(self._hear):
                yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
