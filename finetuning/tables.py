"""Labelled tables in memory: columns of equal length, and the line of the file on which each row begins.

They are read by `corpus.tables`, as pretraining's are. A row that cannot be read is an error that names its line: a row
silently lost is a score silently wrong.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..corpus.columns import check_column
from ..corpus.tables import BadText, Row, TableFile, open_table
from ..utils.errors import UserError


@dataclass(frozen=True)
class Table:
    """Columns of equal length. `lines[i]` is the line of the file on which row i begins (or its row number).

    Attributes:
        num_blank: how many rows of a CSV or TSV were left out because every cell of them is blank.
    """

    source: str
    columns: dict[str, list[Any]]
    lines: list[int]
    unit: str = "line"
    has_header: bool = True
    num_blank: int = 0

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """`train.csv, line 12`."""
        return f"{self.source}, {self.unit} {self.lines[row]}"

    def column(self, name: str, *, flag: str) -> list[Any]:
        """A column by name; an unknown name is an error that lists the columns and names `flag`."""
        return self.columns[check_column(list(self.columns), name, self.source, flag)]


def read_table(path: str, *, has_header: bool | None = None, wanted: Sequence[str | None] = ()) -> Table:
    """Read one file by its suffix.

    Args:
        path: a .csv, .tsv, .jsonl, .ndjson, .json or .parquet file, also compressed.
        has_header: whether the first row of a CSV or TSV names the columns; None to find out.
        wanted: the columns that flags name.

    Raises:
        UserError: the suffix is unknown, the content is broken (the message names the line), or there is no row.
    """
    file = open_table(path, has_header=has_header, wanted=[name for name in wanted if name is not None])
    table = collect(file)
    if not len(table):
        raise UserError(f"{path} has a header and no rows" if file.columns else f"{path} is empty")
    return table


def collect(file: TableFile) -> Table:
    """All rows of a table; a key that an object of JSON lacks is None there."""
    columns: dict[str, list[Any]] = {name: [] for name in file.columns}
    lines: list[int] = []
    num_blank = 0
    for row in good_rows(file):
        if all(isinstance(value, str) and not value.strip() for value in row.values.values()):
            num_blank += 1
            continue
        for name in row.values.keys() - columns.keys():
            columns[name] = [None] * len(lines)
        for name, values in columns.items():
            values.append(row.values.get(name))
        lines.append(row.line)
    return Table(file.source, columns, lines, file.unit, file.has_header, num_blank)


def good_rows(file: TableFile) -> Iterator[Row]:
    """All rows of a table; one that cannot be read is an error with its line."""
    for row in file.rows():
        if isinstance(row, BadText):
            raise UserError(f"{file.source}, {row.unit} {row.line}: {row.reason}")
        yield row
