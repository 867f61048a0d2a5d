"""Reads JSON Lines and JSON arrays, one value at a time with its line number, in bounded memory."""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, TextIO

from ...utils.errors import UserError
from .table_file import bad_byte, not_utf8

LARGEST_OBJECT = 1 << 24  # bytes or characters; as Python objects it takes up to thirty times as much
_CHUNK = 1 << 18
_LONGEST_TOKEN = 4096  # at the end of what was read, a number or a word may go on
_BLANK = re.compile(r"[ \t\n\r]*")


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg}"
    return f"not JSON: {str(error).split(';')[0]}"  # an integer of thousands of digits


class RecordError(Exception):
    """What is wrong with a record; the records after it can still be read."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RecordError(f"the key {twice!r} occurs twice in one object")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def begins_array(file: BinaryIO) -> bool:
    """Whether the first non-blank character of a file is `[`; this reads the lines up to it."""
    while line := file.readline(_CHUNK):
        if start := line.removeprefix(b"\xef\xbb\xbf").lstrip():
            return start.startswith(b"[")
    return False


def read_lines(file: BinaryIO, source: str) -> Iterator[tuple[int, Any]]:
    """(line, value or `RecordError`) of each line that is not blank.

    Raises:
        UserError: a line that is too long.
    """
    number = 0
    while line := file.readline(LARGEST_OBJECT):
        number += 1
        if len(line) == LARGEST_OBJECT:
            raise UserError(
                f"{source}, line {number}: more than {LARGEST_OBJECT >> 20} MiB in one line: split the text into "
                "several records, or write it into a .txt file"
            )
        if not line.strip():
            continue
        try:
            yield number, _DECODER.decode(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            yield number, RecordError(bad_byte(error.object[error.start]))
        except RecordError as error:
            yield number, error
        except (ValueError, RecursionError) as error:
            form = " (each line holds a whole object, or the file one array of objects)" if number == 1 else ""
            yield number, RecordError(_reason(error) + form)


def read_array(file: TextIO, source: str) -> Iterator[tuple[int, Any]]:
    """(line, value or `RecordError`) of each item of one array; `file` gives bytes that are not UTF-8 as surrogates.

    Raises:
        UserError: the array or a value in it is incomplete or invalid, or a value is too long.
    """
    text = _Text(file, source)
    text.expect("[")
    if text.peek() != "]":
        while True:
            text.peek()
            yield text.line, text.value()
            if text.peek() != ",":
                break
            text.expect(",")
    text.expect("]")
    if text.peek():
        text.fail("something stands behind the array")


class _Text:
    """A text that is read in chunks, and the position in it."""

    def __init__(self, file: TextIO, source: str) -> None:
        self._file, self._source = file, source
        self._buffer, self._place, self._is_whole = "", 0, False
        self.line = 1

    def peek(self) -> str:
        """The next character that is not blank; the empty string at the end."""
        while True:
            match = _BLANK.match(self._buffer, self._place)
            assert match is not None
            self._go_to(match.end())
            if self._place < len(self._buffer) or not self._read_on():
                return self._buffer[self._place : self._place + 1]

    def expect(self, sign: str) -> None:
        found = self.peek()
        if found != sign:
            self.fail(f"not JSON: expected {sign} and found {found or 'the end'}")
        self._go_to(self._place + 1)

    def value(self) -> Any:
        """The next value, or a `RecordError` if bytes of it are not UTF-8."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._buffer, self._place)
            except json.JSONDecodeError as error:
                behind = error.pos - self._place
                if self._is_final(error) or not self._read_on():
                    self._go_to(self._place + behind)
                    self.fail(_reason(error))
                continue
            except RecordError as error:
                self.fail(str(error))
            except (ValueError, RecursionError) as error:
                self.fail(_reason(error))
            # A number at the end of the buffer may continue in the next chunk.
            if end < len(self._buffer) or not self._read_on():
                # As it is written: in the value, an escape such as `\ud83d` is a surrogate, too.
                byte = not_utf8(self._buffer[self._place : end])
                self._go_to(end)
                return value if byte is None else RecordError(bad_byte(byte))

    def _is_final(self, error: json.JSONDecodeError) -> bool:
        """Whether more of the text cannot mend an error: it lies well before the end of what was read."""
        is_open = error.msg.startswith("Unterminated string")  # its place is where the string begins
        return not is_open and error.pos + _LONGEST_TOKEN < len(self._buffer)

    def fail(self, reason: str) -> None:
        raise UserError(f"{self._source}, line {self.line}: {reason}")

    def _go_to(self, place: int) -> None:
        self.line += self._buffer.count("\n", self._place, place)
        self._place = place

    def _read_on(self) -> bool:
        """Read about as much again as the buffer holds; False at the end of the file."""
        waiting = len(self._buffer) - self._place
        if waiting > LARGEST_OBJECT:
            self.fail(f"a value of more than {LARGEST_OBJECT >> 20} Mi characters begins here, or is not closed")
        more = "" if self._is_whole else self._file.read(max(_CHUNK, waiting))
        self._is_whole = not more
        self._buffer, self._place = self._buffer[self._place :] + more, 0
        return bool(more)
