"""Runs that are disturbed at a file operation or at a time of one's choice, in forks, which import nothing anew."""

import errno
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pretraining_helpers import run_forked

from clozebert.training import loop

# Python tells of these before it does them; the first argument is a path, the last one maybe the folder it lies in.
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Watch:
    """What forks of this process tell it: the file operations that they began, and the last step of each."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * 4)  # shared with forks

    def _get(self, place: int) -> int:
        return int(struct.unpack_from("q", self._memory, 8 * place)[0])

    def _set(self, place: int, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * place, value)

    @property
    def operations(self) -> int:
        return self._get(0)

    @property
    def first_step_at(self) -> int:
        """When the process of rank 0 made its first step, in nanoseconds of the clock that all processes share."""
        return self._get(1)

    def step(self, rank: int = 0) -> int:
        """The last step that a process made, whether or not it was saved; 0: none."""
        return self._get(2 + rank)

    def forget(self) -> None:
        """Before another run."""
        for place in range(4):
            self._set(place, 0)

    def count_operations(self, output_dir: Path, before: Callable[[int, str], None]) -> None:
        """From here on, call `before` with the number and name of each file operation that changes OUTPUT_DIR.

        These are files opened to be written, pushed to the disk, renamed and removed, and folders made and removed. The
        first has number 1. What `before` raises, the operation raises.
        """
        self._set(0, 0)

        def begin(name: str) -> None:
            self._set(0, self.operations + 1)
            before(self.operations, name)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open":
                path, _, flags = arguments
                if isinstance(path, (str, bytes, os.PathLike)) and flags & _WRITING and is_inside(path):
                    begin(event)
            elif event in _CHANGES and (arguments[-1] not in (-1, None) or is_inside(arguments[0])):
                begin(event)

        def is_inside(path: Any) -> bool:
            return os.fsdecode(path).startswith(str(output_dir))

        fsync = os.fsync

        def counted(descriptor: int) -> None:
            begin("os.fsync")
            fsync(descriptor)

        os.fsync = counted
        sys.addaudithook(hook)

    def note_steps(self, rank: int = 0) -> None:
        """From here on, keep the last step that this process makes."""
        count = loop.Pretraining._count_skips

        def noted(run: Any, num_broken: int) -> None:
            if rank == 0 and not self.first_step_at:
                self._set(1, time.monotonic_ns())
            self._set(2 + rank, run.state.step + 1)
            count(run, num_broken)

        loop.Pretraining._count_skips = noted  # type: ignore[method-assign]


def signal_after(seconds: float, number: int, *, watch: Watch | None = None) -> None:
    """Send this process a signal after some time, from outside; nothing where it has ended by then.

    Args:
        watch: the time begins with the first step that it tells of; None: now.
    """
    target = os.getpid()
    if os.fork():
        return
    os.closerange(0, 256)  # whoever waits for the end of the target must not wait for this one
    begun = time.monotonic_ns()
    while os.getppid() == target:
        since = begun if watch is None else watch.first_step_at
        if since and time.monotonic_ns() > since + 1e9 * seconds:
            os.kill(target, number)
            break
        time.sleep(0.001)
    os._exit(0)


def run_killed(
    folder: Path, output_dir: Path, watch: Watch, *, operation: int = 0, seconds: float = 0.0, **run: Any
) -> list[int]:
    """The exit status of a run that is killed before its file operation of a number, or after some seconds."""

    def prelude(rank: int) -> None:
        def before(number: int, name: str) -> None:
            if number == operation:
                os.kill(os.getpid(), signal.SIGKILL)

        watch.note_steps()
        watch.count_operations(output_dir, before)
        if seconds:
            signal_after(seconds, signal.SIGKILL)

    watch.forget()
    return run_forked(folder, output_dir, prelude=prelude, **run)


def run_signalled(
    folder: Path, output_dir: Path, watch: Watch, *, ranks: tuple[int, ...], number: int, seconds: float, **run: Any
) -> list[int]:
    """The exit statuses of two processes, of which some get a signal, so many seconds after the first step."""

    def prelude(rank: int) -> None:
        watch.note_steps(rank)
        if rank in ranks:
            signal_after(seconds, number, watch=watch)

    watch.forget()
    return run_forked(folder, output_dir, processes=2, prelude=prelude, **run)


def break_disk(watch: Watch, folder: Path, *, operation: int, number: int) -> None:
    """In this process, from the file operation of a number on, let all that change FOLDER fail with an error number.

    A full disk still removes files, and a read-only one does not.
    """

    def before(counted: int, name: str) -> None:
        if counted >= operation > 0 and (number == errno.EROFS or name not in ("os.remove", "os.rmdir")):
            raise OSError(number, os.strerror(number))

    watch.count_operations(folder, before)
