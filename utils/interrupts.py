"""Makes Ctrl-C end a program soon, whatever it is doing.

Python runs signal handlers only between bytecode instructions, so not during a long call into a library, such as the
training of a tokenizer. Therefore a pipe also reports the signal to a thread. If the program has not ended within
`PATIENCE` seconds, the thread ends it. Files being written then stay under temporary names (`utils/files`).
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
    """Whether Ctrl-C was pressed and should end the program."""
    return _interrupted


@contextlib.contextmanager
def answering_interrupts() -> Iterator[None]:
    """End the program soon after SIGINT.

    Does nothing in a thread other than the main one, on Windows, or if SIGINT already has a handler. Code inside that
    installs its own handler, such as pretraining, takes over the pipe too.
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
    """Call `heard` in a thread with the number of each signal, even while the main thread runs no Python code.

    Only the main thread can use this. It covers the signals that have a handler in Python.
    """
    reading, writing = os.pipe()
    if hasattr(os, "set_blocking"):  # Windows has it since Python 3.12, and does without
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
        os.close(writing)  # ends the thread, unless a forked child has the pipe open too


def end_after_patience() -> None:
    """Called in a thread: end the process, unless it ends by itself within `PATIENCE` seconds."""
    time.sleep(PATIENCE)
    _end()


def _end() -> None:
    say_now("interrupted")
    os._exit(130)


def say_now(line: str) -> None:
    """Write a line to stderr without Python's file objects, whose locks the main thread may hold."""
    # Overwrites a progress bar on this line.
    start = "\r\033[K" if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{start}{line}\n".encode())
