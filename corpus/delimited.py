"""Reads CSV and TSV: the cells of each record, and the line on which it begins.

CSV follows RFC 4180: a quoted cell may hold separators, line breaks and doubled quotes. Semicolons separate where the
first line holds some and no comma.

In TSV a record is a line, and a quotation mark is a character. Programs that write CSV quote cells in TSV too, so

- a cell that is quoted as a whole loses its quotes, unless some cell of the file begins with a quotation mark and is
  not quoted as a whole: then quotation marks are characters everywhere;
- where lines have unequal numbers of cells, and reading the file as CSV makes them equal, it is read so: quoted cells
  hold tabs and line breaks.

In a TSV of one column there are no numbers of cells to tell by: one that could be read in both ways is refused.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, TextIO

from ..utils.errors import UserError

LARGEST_CELL = 1 << 24  # characters; beyond, a quotation mark was likely left open


class Dialect(NamedTuple):
    """How cells are separated, whether quoted cells may hold anything, and whether quotes are taken off otherwise."""

    delimiter: str
    is_quoted: bool
    takes_off_quotes: bool = False


# Opens a file's text again from its beginning, its lines ended by "\n" alone.
Opens = Callable[[], AbstractContextManager[TextIO]]


def find_dialect(opens: Opens, *, tab: bool, source: str) -> Dialect:
    """The dialect of a file; to find that of a TSV, all of it is read.

    Raises:
        UserError: a TSV of one column that can be read in two ways.
    """
    if tab:
        return _tab_dialect(opens, source)
    with opens() as file:
        first = file.readline(LARGEST_CELL)
    return Dialect(";" if ";" in first and "," not in first else ",", is_quoted=True)


def read_records(file: TextIO, dialect: Dialect, source: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every record; an empty line is none.

    Raises:
        UserError: a broken quote, a carriage return within a row, or a line that is too long.
    """
    lines = lines_of(file, source)
    if dialect.is_quoted:
        yield from _quoted_records(lines, dialect.delimiter, source)
        return
    for number, line in enumerate(lines, start=1):
        line = without_end(line)
        if line:
            cells = line.split(dialect.delimiter)
            yield number, [_unquoted(cell) for cell in cells] if dialect.takes_off_quotes else cells


def lines_of(file: TextIO, source: str) -> Iterator[str]:
    """The lines of a text, with their ends, in bounded memory."""
    for number, line in enumerate(iter(partial(file.readline, LARGEST_CELL), ""), start=1):
        if len(line) == LARGEST_CELL:
            raise UserError(f"{source}, line {number}: more than {LARGEST_CELL >> 20} Mi characters in one line")
        yield line


def without_end(line: str) -> str:
    """A line without its `\\n` or `\\r\\n`."""
    return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line


def _quoted_records(lines: Iterable[str], delimiter: str, source: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LARGEST_CELL)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{source}, line {start}: {_explain(str(error))}") from None
        if cells:
            yield start, cells


def _explain(said: str) -> str:
    if "field larger" in said:
        return f"a cell of more than {LARGEST_CELL >> 20} Mi characters: is a quotation mark left open?"
    if "new-line character" in said:
        return "a carriage return within the row that begins here; write the file with one kind of line end"
    return f"broken quote in the row that begins here ({said})"


# TSV -----------------------------------------------------------------------------------------------------------------


def _tab_dialect(opens: Opens, source: str) -> Dialect:
    """By the numbers of cells in its lines and the cells that begin with a quotation mark; see above."""
    by_lines = Dialect("\t", is_quoted=False)
    widths: set[int] = set()
    kinds: set[bool] = set()  # whether cells that begin with a quotation mark are quoted as a whole
    with opens() as file:
        for line in map(without_end, lines_of(file, source)):
            if not _is_blank(line):
                widths.add(line.count("\t") + 1)
                if '"' in line:
                    kinds.update(_is_quoted(cell) for cell in line.split("\t") if cell.startswith('"'))
    if not kinds:
        return by_lines
    if kinds == {True} and len(widths) == 1:
        return by_lines._replace(takes_off_quotes=True)
    if widths == {1}:
        _refuse_two_readings(opens, source)
    return Dialect("\t", is_quoted=True) if len(widths) > 1 and _agrees_as_csv(opens) else by_lines


def _is_blank(line: str) -> bool:
    return "\t" not in line and not line.strip()


def _is_quoted(cell: str) -> bool:
    """Whether all of a cell stands between quotation marks, those within doubled."""
    return len(cell) >= 2 and cell[0] == cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "")


def _unquoted(cell: str) -> str:
    """`"a ""b"" c"` -> `a "b" c`; anything else stays as it is."""
    return cell[1:-1].replace('""', '"') if _is_quoted(cell) else cell


def _agrees_as_csv(opens: Opens) -> bool:
    """Whether all records have the same number of cells if quoted cells may hold tabs and line breaks."""
    with opens() as file:
        try:
            widths = {len(cells) for _, cells in _quoted_records(lines_of(file, ""), "\t", "") if _counts(cells)}
        except UserError:
            return False
    return len(widths) == 1


def _counts(cells: list[str]) -> bool:
    return len(cells) > 1 or bool(cells[0].strip())


def _refuse_two_readings(opens: Opens, source: str) -> None:
    """Raise where a TSV of one column is a CSV too, in which some cell goes over several lines."""
    first_line = last_line = 0
    with opens() as file:
        try:
            for line, cells in _quoted_records(lines_of(file, source), "\t", source):
                breaks = cells[0].count("\n")
                if breaks and not first_line:
                    first_line, last_line = line, line + breaks
        except UserError:
            return
    if first_line:
        raise UserError(
            f"{source}: a quotation mark opens line {first_line} and one closes line {last_line}, which may be one row "
            f"or {last_line - first_line + 1}: save the file as .csv if it is one row, as .txt if each line is a text"
        )
