"""The memory of this process: its peak, whether the C library keeps what is freed, and what to do where it is full."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import FullMemoryError, first_line

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of the GNU C library
_MOST = 2**31 - 1


def peak_memory() -> int | None:
    """The most bytes that this process has held in memory so far; None where the system does not say (Windows)."""
    status = Path("/proc/self/status")
    if status.is_file():  # on Linux, where `ru_maxrss` begins with the size of the program that started this one
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    # Kilobytes, but bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def keep_freed_memory() -> bool:
    """Make this process keep the memory that it frees, for its next tensors. Returns whether that succeeded.

    By default the GNU C library returns large blocks to the system at once, and the system clears every page of the
    next one, which takes a third of a training step (docs/LOG.md). The peak memory of the process does not change, but
    its memory stays at the peak. Does nothing on other systems and libraries.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # Before version 2.35 the library accepts at most half of a 64 MiB heap.
    return any(mallopt(_M_MMAP_THRESHOLD, most) for most in (_MOST, 2**25)) and bool(mallopt(_M_TRIM_THRESHOLD, _MOST))


def is_full_memory(error: BaseException) -> bool:
    """Whether PyTorch could not get the memory that it asked for."""
    # By name: torch may not be loaded. On a CPU and on MPS it raises a plain RuntimeError.
    signs = ("DefaultCPUAllocator", "MPS backend out of memory")
    return type(error).__name__ == "OutOfMemoryError" or any(sign in str(error) for sign in signs)


@contextmanager
def memory_errors(way_out: str) -> Iterator[None]:
    """Report a full memory, of a GPU or of the machine, as an error of the user.

    Args:
        way_out: the argument that takes the memory, its value, and what to do.

    Raises:
        FullMemoryError: PyTorch could not get the memory that it asked for.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_full_memory(error):
            raise
        raise FullMemoryError(f"the memory is full: {way_out} ({first_line(error)})") from error
