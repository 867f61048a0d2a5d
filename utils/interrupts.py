"""Ctrl-C ends a program soon, whatever it is doing.

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

PATIENCE = 0.4

_interrupted = False


def is_interrupted() -> bool:
    """Whether Ctrl-C was pressed and is to end the program."""
    return _interrupted


@contextlib.contextmanager
def answering_interrupts() -> Iterator[None]:
    """End the program soon after SIGINT.

    In a thread other than the main one, on Windows, and where somebody handles SIGINT already, nothing is changed. Who
    handles it within, as pretraining does, takes over the pipe too.
    """
    global _interrupted
    _interrupted = False
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or os.name == "nt" or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    ended = threading.Event()

    def heard(number: int) -> None:
        global _interrupted
        if number == signal.SIGINT:
            _interrupted = True
            if not ended.wait(PATIENCE):
                _end()

    with hearing_signals(heard):
        try:
            yield
        finally:
            ended.set()


@contextlib.contextmanager
def hearing_signals(heard: Callable[[int], None]) -> Iterator[None]:
    """Call `heard` in a thread with the number of each signal, also while the main thread runs no Python.

    Only the main thread can ask for this. It hears the signals that have a handler in Python.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def listen() -> None:
        while number := os.read(reading, 1):
            heard(number[0])
        os.close(reading)

    threading.Thread(target=listen, name="signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)  # which ends the thread, unless a forked child holds it too


def end_after_patience() -> None:
    """From a thread: end the process, unless it ends by itself before."""
    time.sleep(PATIENCE)
    _end()


def _end() -> None:
    say_now("interrupted")
    os._exit(130)


def say_now(line: str) -> None:
    """Write a line to stderr past Python's own files, whose locks the main thread may hold."""
    # A bar may stand on this line.
    start = "\r\033[K" if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{start}{line}\n".encode())
