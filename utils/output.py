"""Output whose reader may go away while a program has to continue."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .switch import Switch

# A pipe that nobody reads (`| tee`, when Ctrl-C has ended `tee`), and a terminal that was closed.
_READER_IS_GONE = (errno.EPIPE, errno.EIO)


class _Outliving:
    """A text stream that discards what is written once its reader is gone."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except OSError as error:
            if error.errno not in _READER_IS_GONE:
                raise
            # What Python still holds of the text goes there, too.
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), self._stream.fileno())


@contextlib.contextmanager
def outliving_readers() -> Iterator[None]:
    """Within the block, a closed pipe or terminal is no error of standard output and standard error."""
    with _STREAMS.changed():
        yield


def _wrap() -> tuple[Any, Any]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Outliving(sys.stdout), _Outliving(sys.stderr)
    return before


def _unwrap(before: tuple[Any, Any]) -> None:
    # What another program has put in their place meanwhile stays.
    if isinstance(sys.stdout, _Outliving):
        sys.stdout = before[0]
    if isinstance(sys.stderr, _Outliving):
        sys.stderr = before[1]


_STREAMS = Switch(_wrap, _unwrap)
