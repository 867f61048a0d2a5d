"""Output that cannot end a run: its reader may go away, and it may lack letters, or be closed."""

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
    """A text stream that discards what is written once its reader is gone, and escapes what its encoding lacks."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._attempt(lambda: self._stream.write(text))
        except UnicodeEncodeError:
            encoding = self._stream.encoding  # an error may call it `charmap`, which is none of a language
            shown = text.encode(encoding, "backslashreplace").decode(encoding)
            self._attempt(lambda: self._stream.write(shown))
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
    """Within the block, a closed pipe or terminal is no error of standard output and standard error.

    A letter that their encoding lacks is escaped. A program without them (a daemon's are None) writes to nowhere.
    """
    with _STREAMS.changed():
        yield


def _wrap() -> tuple[Any, Any]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        _Outliving(open(os.devnull, "w", encoding="utf-8") if stream is None else stream)  # noqa: SIM115
        for stream in before
    )
    return before


def _unwrap(before: tuple[Any, Any]) -> None:
    for name, stream in zip(("stdout", "stderr"), before, strict=True):
        wrapped = getattr(sys, name)
        if isinstance(wrapped, _Outliving):  # what another program has put in its place meanwhile stays
            setattr(sys, name, stream)
            if stream is None:
                wrapped.close()


_STREAMS = Switch(_wrap, _unwrap)
