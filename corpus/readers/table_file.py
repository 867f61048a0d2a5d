"""What every reader of a table gives: its columns, and its rows, each with its place in the file."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ...utils.errors import UserError

HEAD_ROWS, HEAD_CELLS = 10_000, 1 << 22  # rows and characters that are read to find out what the columns hold
# Bytes of a document of a text file, and characters of one in XML; a longer one is cut into several, at the end of a
# line or at a space.
LARGEST_DOCUMENT = 1 << 22


class Row(NamedTuple):
    """One row: the line on which it begins (or its number, if the table has no lines), and its cells by column."""

    line: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadText:
    """A row or document that is not valid: where, and why."""

    line: int
    reason: str
    unit: str = "line"


class TableFile:
    """A table that is read as a stream and can be read repeatedly.

    Attributes:
        source: its name for messages; for a file, its path.
        unit: what `Row.line` counts: `line` or `row`.
        bytes_read: how many bytes of the file the current reading has read.
    """

    unit = "line"

    def __init__(self, source: str) -> None:
        self.source = source
        self.bytes_read = 0

    @property
    def columns(self) -> list[str]:
        """The names of the columns; for JSON, those of the first object that has any."""
        raise NotImplementedError

    @property
    def all_columns(self) -> list[str]:
        """The names of the columns; for JSON, those of many objects."""
        return self.columns

    @property
    def has_header(self) -> bool:
        """Whether the file names its columns; otherwise they are called 1, 2, 3 …"""
        return True

    @property
    def is_sure_of_columns(self) -> bool:
        """Whether the column names are certain: the first row of a CSV or TSV may be data."""
        return True

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[Row | BadText]:
        """All rows, with a `BadText` for each invalid one; `columns`: which cells to return at least (None: all)."""
        raise NotImplementedError

    @cached_property
    def head(self) -> list[Row]:
        """The first valid rows, which show what the columns hold."""
        found, size = [], 0
        for row in self.rows():
            if isinstance(row, Row):
                found.append(row)
                size += sum(len(value) for value in row.values.values() if isinstance(value, str))
            if len(found) >= HEAD_ROWS or size >= HEAD_CELLS:
                break
        return found

    def where(self, line: int) -> str:
        """`train.csv, line 12`."""
        return f"{self.source}, {self.unit} {line}"


def refuse_repeated(names: list[str], where: str) -> None:
    """Raise if two columns have one name."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(f"{where}: two columns are named {name!r}")


def not_utf8(text: str) -> int | None:
    """The first byte of a text that was not UTF-8, if such bytes were read as lone surrogates; None: all of it was."""
    character = lone_surrogate(text)
    return None if character is None else ord(character) - 0xDC00


def lone_surrogate(text: str) -> str | None:
    """The first lone surrogate of a text; JSON holds one if a text was cut within an emoji."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return text[error.start]
    return None


def bad_byte(byte: int) -> str:
    """What is wrong with a record that holds this byte."""
    return f"byte 0x{byte:02x} is not UTF-8: convert the file"
