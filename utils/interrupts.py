"""Ctrl-C, answered within a second whatever the program is doing.

Python runs a signal's handler between two of its own instructions. A long call into a library, such as the training of
a tokenizer, gives it none. So a thread is told of the signal too, by a pipe; when the program has not ended by itself
within `PATIENCE` seconds, the thread ends it. What was being written then lies under a temporary name (`utils/files`).
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

PATIENCE = 0.6

_lock = threading.Lock()
_interrupted_at: float | None = None
_announcement: Callable[[], str | None] | None = None


def is_interrupted() -> bool:
    """Whether Ctrl-C was pressed and nobody has taken it over."""
    return _interrupted_at is not None


@contextlib.contextmanager
def answering_interrupts() -> Iterator[None]:
    """End the program soon after SIGINT; in threads other than the main one, and on Windows, Python's own way stays."""
    global _interrupted_at
    _interrupted_at = None
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or os.name == "nt" or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    ended = threading.Event()
    threading.Thread(target=_watch, args=(reading, ended), name="interrupts", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(writing)


@contextlib.contextmanager
def announced(announcement: Callable[[], str | None]) -> Iterator[None]:
    """Within: Ctrl-C does not end the program, which handles the signal itself; a line is shown at once.

    Args:
        announcement: the line for a signal, or nothing to say; None: end the program now.
    """
    global _announcement
    _announcement = announcement
    try:
        yield
    finally:
        _announcement = None


def _watch(reading: int, ended: threading.Event) -> None:
    global _interrupted_at
    while numbers := os.read(reading, 64):
        if signal.SIGINT not in numbers and not (_announcement and signal.SIGTERM in numbers):
            continue
        with _lock:
            line = _announcement() if _announcement is not None else None
        if line is not None:
            if line:
                _say(line)
            continue
        _interrupted_at = time.monotonic()
        if not ended.wait(PATIENCE):
            _say("interrupted")
            os._exit(130)
    os.close(reading)


def _say(line: str) -> None:
    # Past Python's own files: the main thread may hold their locks. A bar may stand on this line.
    start = "\r\033[K" if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{start}{line}\n".encode())
