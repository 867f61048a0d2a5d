"""Tells the allocator of a CPU to keep freed memory for reuse."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of the GNU C library
_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have this process keep the memory that it frees, for its next tensors; whether that could be arranged.

    By default the GNU C library gives large blocks back to the system at once, and the system clears every page of the
    next one: a third of a training step goes into that (docs/LOG.md). The process' peak is what it was, but it
    stays there. Other systems and libraries are left alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # Before its version 2.35 the library took no more than half of a heap of 64 MiB.
    return any(mallopt(_M_MMAP_THRESHOLD, most) for most in (_MOST, 2**25)) and bool(mallopt(_M_TRIM_THRESHOLD, _MOST))
