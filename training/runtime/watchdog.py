"""A watchdog that ends a hung process: one that waits for another, for its launcher, or for its own last step."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator

from ...utils.processes import process_rank
from ...utils.stop_request import StopRequest

# After a signal, or when the launcher is gone, a process is ended after this many seconds without progress.
SECONDS_TO_STOP = 50.0
_INTERVAL = 1.0
# Compiling in the first step may take long, and so may writing a checkpoint to a network disk.
SECONDS_TO_COMPILE = 1800.0
SECONDS_TO_SAVE = 1800.0


class Watchdog:
    """Checks every second whether this process, one of several, makes progress. If it hangs, prints where, and ends it.

    Args:
        timeout: seconds without progress after which a process counts as hung.
        stop: requested by the watchdog when the launcher is gone.
    """

    def __init__(self, *, timeout: float, stop: StopRequest):
        self.timeout, self.stop = timeout, stop
        self._progress = time.monotonic()
        self._ended = threading.Event()

    def progress(self, *, allow: float = 0.0) -> None:
        """Note progress. What comes next may take `allow` seconds more than the timeout."""
        self._progress = time.monotonic() + allow

    @contextlib.contextmanager
    def watching(self) -> Iterator["Watchdog"]:
        self.progress()
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL):
            self.stop.request_without_launcher()
            waited = time.monotonic() - self._progress
            stopping = self.stop.seconds_since()
            if stopping is not None and min(stopping, waited) > SECONDS_TO_STOP:
                self._end(f"asked to stop, but for {waited:.0f} seconds nothing has moved", self.stop.status)
            if waited > self.timeout:
                self._end(f"for {waited:.0f} seconds (ddp_timeout) nothing has moved", 1)

    def _end(self, reason: str, status: int) -> None:
        faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        line = f"error: process {process_rank()}: {reason}: another process hangs, or this one; the stacks are above\n"
        os.write(2, line.encode())
        os._exit(status)
