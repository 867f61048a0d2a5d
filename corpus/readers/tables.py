"""Reads rows of tables: CSV, TSV, JSON lines and arrays; `columnar.py` reads Parquet, Arrow and datasets.

Every row of a table is given once, with the line on which it begins, or as a `BadText` that says what is wrong with it.
If it is unclear where rows end, for example after a broken quote, an error names the file and line. Plain and
compressed files are read as a stream.
"""

import io
import re
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

from ...utils.errors import UserError
from . import json_records
from .columnar import ColumnarFile
from .columns import USUAL_COLUMNS, is_number, other_separator
from .compression import COLUMNAR_SUFFIXES, bare_suffix, open_decompressed
from .delimited import Dialect, find_dialect, read_records
from .table_file import HEAD_CELLS, HEAD_ROWS, BadText, Row, TableFile, bad_byte, not_utf8, refuse_repeated

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", *COLUMNAR_SUFFIXES)
_CLASS_SHARE = 0.05  # of the rows, at least, have the class of the first row


def open_table(path: str | Path, *, has_header: bool | None = None, wanted: Sequence[str] = ()) -> TableFile:
    """Open a table file; its suffix (without that of a compression) tells the format.

    Args:
        has_header: whether the first row of a CSV or TSV names the columns; None to find out.
        wanted: the columns that will be read. A number that is not in the first row means a column of a CSV or TSV
            without header.

    Raises:
        UserError: the suffix is not one of `TABLE_SUFFIXES`.
    """
    suffix = bare_suffix(path)
    if suffix in (".csv", ".tsv"):
        return _Delimited(str(path), tab=suffix == ".tsv", has_header=has_header, wanted=wanted)
    if suffix in (".jsonl", ".ndjson", ".json"):
        return _Json(str(path))
    if suffix in COLUMNAR_SUFFIXES:
        return ColumnarFile(str(path))
    raise UserError(
        f"{path}: cannot tell its format from the suffix {suffix!r}; use one of {', '.join(TABLE_SUFFIXES)}"
    )


# CSV and TSV ---------------------------------------------------------------------------------------------------------


class _Header(NamedTuple):
    """The column names; the first row and its line; whether that row is a header, and whether this is certain."""

    names: list[str]
    cells: list[str]
    line: int
    is_there: bool
    is_sure: bool


class _Delimited(TableFile):
    """CSV and TSV."""

    def __init__(self, path: str, *, tab: bool, has_header: bool | None, wanted: Sequence[str]) -> None:
        super().__init__(path)
        self._tab, self._wanted = tab, wanted
        self._given_header = has_header

    @property
    def columns(self) -> list[str]:
        return self._header.names

    @property
    def has_header(self) -> bool:
        return self._header.is_there

    @property
    def is_sure_of_columns(self) -> bool:
        return self._header.is_sure

    @contextmanager
    def _opened(self) -> Iterator[TextIO]:
        with open_decompressed(self.source) as (file, position):
            self._position = position
            # Bytes that are not UTF-8 become lone surrogates, which are detected in their row.
            yield io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="\n")

    @cached_property
    def _dialect(self) -> Dialect:
        return find_dialect(self._opened, tab=self._tab, source=self.source)

    def _records(self) -> Generator[tuple[int, list[str]], None, None]:
        """(line, cells) of all records; blank lines are skipped, unless the file has one column."""
        dialect = self._dialect
        with self._opened() as file:
            width = 0
            for line, cells in read_records(file, dialect, self.source):
                if len(cells) == 1 and width != 1 and not cells[0].strip():
                    continue
                width = width or len(cells)
                self.bytes_read = self._position()
                yield line, cells

    @cached_property
    def _header(self) -> _Header:
        records = self._records()
        line, first = next(records, (0, []))
        self._refuse_other_separator(first, line)
        is_there, is_sure = self._given_header, True
        if is_there is None:
            is_there, is_sure = self._find_header(first, records)
        records.close()
        if not is_there:
            self._refuse_numbers_for_names(first, line)
            return _Header(_numbers(len(first)), first, line, False, is_sure)
        names = [name.strip() or str(number) for number, name in enumerate(first, start=1)]
        refuse_repeated(names, self.where(line))
        return _Header(names, first, line, True, is_sure)

    def _refuse_other_separator(self, first: list[str], line: int) -> None:
        """Refuse a table with another separator between the usual or wanted names: each row would be one long text."""
        if said := other_separator(first, self.source):
            names = {name.strip() for name in re.split(r"[\t|,;]", first[0])}
            if not names.isdisjoint(self._wanted) or {name.lower() for name in names} & USUAL_COLUMNS:
                raise UserError(f"{self.where(line)}: {said}")

    def _refuse_numbers_for_names(self, first: list[str], line: int) -> None:
        """Refuse columns wanted by number if the first row names columns: the names would become an example."""
        names = [cell.strip() for cell in first if cell.strip().lower() in USUAL_COLUMNS]
        if self._wanted and self._given_header is None and len(set(names)) > 1:
            raise UserError(
                f"{self.where(line)}: the first row names columns ({', '.join(names)}); give names, not numbers"
            )

    def _find_header(self, first: list[str], records: Iterator[tuple[int, list[str]]]) -> tuple[bool, bool]:
        """Whether the first row is a header, and whether that is certain.

        It is a header if it holds a wanted column name, or a usual one that does not stand in many rows of its column,
        as the name of a class does. If columns are wanted by number, it is data, unless it holds such a number that
        does not occur again further down in its column. Otherwise it is data if a cell is a number or occurs again.
        """
        wanted = {place for place, cell in enumerate(first) if cell.strip() in self._wanted}
        by_number = bool(self._wanted) and set(self._wanted) <= set(_numbers(len(first)))
        if bool(wanted) != by_number:
            return not by_number, True
        usual = {place for place, cell in enumerate(first) if cell.strip().lower() in USUAL_COLUMNS}
        again, rows = _come_again(first, records)
        if by_number:
            return not wanted <= set(again), True
        # A text may be one word; the name of a class stands in many rows.
        classes = {place for place, count in again.items() if count >= max(2, _CLASS_SHARE * rows)}
        if usual - classes:
            return True, True
        if any(is_number(cell) for cell in first) or again:
            return False, True
        return True, False

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[Row | BadText]:
        header = self._header
        names, width = header.names, len(header.names)
        checked = [(name, names.index(name)) for name in (names if columns is None else columns)]
        for line, cells in self._records():
            if len(cells) != width:
                reason = f"{len(cells)} columns where the first row has {width}; quote a cell that holds the separator"
                yield BadText(line, other_separator(header.cells, self.source) or reason)
            elif header.is_there and cells == header.cells:
                if line != header.line:
                    yield BadText(line, "the header stands here again: two tables were joined; remove this line")
            else:
                bad = next((byte for _, place in checked if (byte := not_utf8(cells[place])) is not None), None)
                values = {name: cells[place] for name, place in checked}
                reason = "" if bad is None else bad_byte(bad)
                yield BadText(line, reason) if reason else Row(line, values)


def _come_again(first: list[str], records: Iterator[tuple[int, list[str]]]) -> tuple[Counter[int], int]:
    """Which cells of the first row occur again in their columns within the first thousands of rows.

    Returns:
        how often, by their places, and the number of the rows. Copies of the whole first row count only once, as a
        header may be repeated where tables were joined.
    """
    again: Counter[int] = Counter()
    has_copy, size, rows = False, 0, 0
    for rows, (_, cells) in enumerate(records, start=1):
        if cells == first:
            has_copy = True
        elif len(cells) == len(first):
            again.update(place for place, cell in enumerate(cells) if cell == first[place])
        size += sum(map(len, cells))
        if rows > HEAD_ROWS or size >= HEAD_CELLS:
            break
    again.update(range(len(first)) if has_copy else ())
    return again, rows


def _numbers(width: int) -> list[str]:
    return [str(number) for number in range(1, width + 1)]


# JSON -----------------------------------------------------------------------------------------------------------------


class _Json(TableFile):
    """JSON lines, or one JSON array of objects."""

    @cached_property
    def columns(self) -> list[str]:
        return next((list(row.values) for row in self.rows() if isinstance(row, Row) and row.values), [])

    @cached_property
    def all_columns(self) -> list[str]:
        return list(dict.fromkeys(chain.from_iterable(row.values for row in self.head)))

    @cached_property
    def _is_array(self) -> bool:
        with open_decompressed(self.source) as (file, _):
            return json_records.begins_array(file)

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[Row | BadText]:
        is_array = self._is_array
        with open_decompressed(self.source) as (file, position):
            if is_array:
                text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="\n")
                records = json_records.read_array(text, self.source)
            else:
                records = json_records.read_lines(file, self.source)
            for line, record in records:
                self.bytes_read = position()
                if isinstance(record, dict):
                    yield Row(line, record)
                elif isinstance(record, json_records.RecordError):
                    yield BadText(line, str(record))
                else:
                    yield BadText(line, f"expected a JSON object, found {type(record).__name__}")
