"""Reads CSV and TSV: the cells of each record, and the line on which it begins.

CSV follows RFC 4180: a quoted cell may hold separators, line breaks and doubled quotes. The separator is a semicolon if
the first line holds semicolons and no comma. Excel writes and reads a line `sep=;` before the table, which names it.

In TSV each line is a record, and a quotation mark is an ordinary character. But some programs quote cells in TSV as in
CSV. So:

- A fully quoted cell loses its quotes, unless some cell of the file begins with a quotation mark without being fully
  quoted: then quotation marks are ordinary characters everywhere.
- If lines have unequal numbers of cells, and reading the file as CSV makes the numbers equal, it is read as CSV:
  quoted cells hold tabs and line breaks.

In a TSV of one column the numbers of cells tell nothing: a file that could be read in both ways raises an error.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, TextIO

from ...utils.errors import UserError

LARGEST_CELL = 1 << 24  # characters; in a longer one, a quotation mark was probably left open
_SEPARATOR_LINE = re.compile(r'("?)sep=([^\w\s"]|\t)\1\r?\n?')


class Dialect(NamedTuple):
    """How the cells of a file are written.

    Attributes:
        delimiter: the separator.
        is_quoted: whether cells are quoted as in CSV.
        takes_off_quotes: if not, whether the quotes of a cell are taken off.
        is_named: whether the first line names the separator, and is no record.
    """

    delimiter: str
    is_quoted: bool
    takes_off_quotes: bool = False
    is_named: bool = False


# Opens the text of a file from its beginning; only "\n" ends a line.
Opens = Callable[[], AbstractContextManager[TextIO]]


def find_dialect(opens: Opens, *, tab: bool, source: str) -> Dialect:
    """The dialect of a file; a TSV is read completely to find it.

    Raises:
        UserError: a TSV of one column that can be read in two ways.
    """
    if tab:
        return _tab_dialect(opens, source)
    with opens() as file:
        first = file.readline(LARGEST_CELL)
    if named := _SEPARATOR_LINE.fullmatch(first):
        return Dialect(named[2], is_quoted=True, is_named=True)
    return Dialect(";" if ";" in first and "," not in first else ",", is_quoted=True)


def read_records(file: TextIO, dialect: Dialect, source: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every record; empty lines are skipped.

    Raises:
        UserError: a broken quote, a carriage return within a row, or a line that is too long.
    """
    lines = lines_of(file, source)
    if dialect.is_quoted:
        if dialect.is_named:
            next(lines, None)
        yield from _quoted_records(lines, dialect.delimiter, source, skipped=int(dialect.is_named))
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
            raise UserError(
                f"{source}, line {number}: more than {LARGEST_CELL >> 20} Mi characters in one line: split it into "
                "several rows"
            )
        yield line


def without_end(line: str) -> str:
    """A line without its `\\n` or `\\r\\n`."""
    return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line


def _quoted_records(
    lines: Iterable[str], delimiter: str, source: str, *, skipped: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every record; `skipped`: how many lines of the file come before `lines`."""
    csv.field_size_limit(LARGEST_CELL)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        start = skipped + reader.line_num + 1
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
    """The dialect of a TSV, from the number of cells in each line and the cells that begin with a quotation mark."""
    by_lines = Dialect("\t", is_quoted=False)
    widths: set[int] = set()
    kinds: set[bool] = set()  # whether cells that begin with a quotation mark are fully quoted
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
    """Whether a cell is fully quoted: within quotation marks, with those inside doubled."""
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
    """Raise if a TSV of one column is also valid CSV with a cell that spans several lines."""
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
