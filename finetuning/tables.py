"""Labelled tables in memory: their columns, which of them is text or label, and the line on which each row begins.

`corpus.readers.tables` reads them, as for pretraining. A row that cannot be read raises an error that names its line:
silently dropped rows would make the scores silently wrong.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..corpus.readers.columns import (
    LABEL_COLUMNS,
    PAIR_COLUMNS,
    PARTIAL_TEXT_COLUMNS,
    check_column,
    is_number,
    looks_like_text,
    other_separator,
    text_column_of,
    usual_column,
)
from ..corpus.readers.table_file import BadText, Row, TableFile, lone_surrogate
from ..corpus.readers.tables import open_table
from ..utils.errors import UserError

_REJECTED = ("reject", "ignore")  # answers in Prodigy's files


@dataclass(frozen=True)
class Table:
    """Columns of equal length. `lines[i]` is the line of the file on which row i begins (or its row number).

    Attributes:
        num_blank: how many rows of a CSV or TSV were left out because all their cells are blank.
        is_header_in_doubt: whether the first row of a CSV or TSV was taken for a header, and may be an example.
    """

    source: str
    columns: dict[str, list[Any]]
    lines: list[int]
    unit: str = "line"
    has_header: bool = True
    num_blank: int = 0
    is_header_in_doubt: bool = False

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """`train.csv, line 12`."""
        return f"{self.source}, {self.unit} {self.lines[row]}"

    def column(self, name: str, *, flag: str) -> list[Any]:
        """A column by name; an unknown name is an error that lists the columns and names `flag`."""
        return self.columns[check_column(list(self.columns), name, self.source, flag)]


def read_table(path: str, *, has_header: bool | None = None, wanted: Sequence[str | None] = ()) -> Table:
    """Read one file; its suffix tells the format.

    Args:
        path: a .csv, .tsv, .jsonl, .ndjson, .json or .parquet file, plain or compressed.
        has_header: whether the first row of a CSV or TSV names the columns; None to find out.
        wanted: the columns that flags name.

    Raises:
        UserError: the suffix is unknown, the content is broken (the message names the line), or there are no rows.
    """
    file = open_table(path, has_header=has_header, wanted=[name for name in wanted if name is not None])
    table = collect(file)
    if not len(table):
        raise UserError(f"{path} has a header and no rows" if file.columns else f"{path} is empty")
    return table


def collect(file: TableFile) -> Table:
    """All rows of a table except blank ones; a key that a JSON object lacks becomes None."""
    found = list(good_rows(file))
    rows = [row for row in found if not all(isinstance(x, str) and not x.strip() for x in row.values.values())]
    names = dict.fromkeys(chain(file.columns, chain.from_iterable(row.values for row in rows)))
    if bad := next(filter(lone_surrogate, names), None):
        raise UserError(f"{file.source}: the column name {bad!r} is not UTF-8: convert the file")
    columns = {name: [row.values.get(name) for row in rows] for name in names}
    return Table(
        file.source,
        columns,
        [row.line for row in rows],
        file.unit,
        file.has_header,
        num_blank=len(found) - len(rows),
        is_header_in_doubt=file.has_header and not file.is_sure_of_columns,
    )


def good_rows(file: TableFile) -> Iterator[Row]:
    """All rows of a table; one that cannot be read raises an error that names its line."""
    for row in file.rows():
        if isinstance(row, BadText):
            raise UserError(f"{file.where(row.line)}: {row.reason}")
        if character := _half_character(row.values):
            raise UserError(f"{file.where(row.line)}: {character!r} is half a character; fix the text")
        yield row


def refuse_rejected(answer: Any, where: str) -> None:
    """Raise if an annotator did not accept an example's labels."""
    if answer in _REJECTED:
        raise UserError(
            f"{where}: its answer is {answer!r}, so its labels are not known to be right: leave out such examples"
        )


def refuse_rejected_rows(table: Table, label: str) -> None:
    """Raise if a column `answer` holds the annotators' decisions, as in Prodigy's files, and rejects a row.

    Rows without a decision may come from another file.
    """
    answers = table.columns.get("answer", [])
    decided = [answer for answer in answers if not is_missing(answer)]
    if label != "answer" and all(answer in ("accept", *_REJECTED) for answer in decided):
        for row, answer in enumerate(answers):
            refuse_rejected(answer, table.where(row))


def is_missing(value: Any) -> bool:
    """Whether a cell is empty, blank, or the NaN that pandas writes for it."""
    return value is None or str(value).strip().lower() in ("", "nan")


def _half_character(value: Any) -> str | None:
    """The first `lone_surrogate` of the texts in a value."""
    if isinstance(value, str):
        return lone_surrogate(value)
    if isinstance(value, (list, tuple, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return next(filter(None, map(_half_character, inner)), None)
    return None


# Columns --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequenceColumns:
    """The columns of the text, of the second text of a pair (if any) and of the label (None for prediction)."""

    text: str
    pair: str | None
    label: str | None


def find_columns(
    table: Table,
    *,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    with_label: bool = True,
) -> SequenceColumns:
    """The columns to use: those given, else those with a common name, else those that are clear from their content.

    Raises:
        UserError: a given column is missing, or it is not clear which columns to use (the message lists them).
    """
    flags: dict[str, str] = {}
    for name, flag in (
        (text_column, "--text_column"),
        (text_pair_column, "--text_pair_column"),
        (label_column, "--label_column"),
    ):
        if name is not None:
            table.column(name, flag=flag)
            if name in flags:
                raise UserError(f"{flag} {name}: {flags[name]} names this column already; name another")
            flags[name] = flag
    if text_pair_column is not None and text_column is None:
        raise UserError("--text_pair_column needs --text_column beside it")
    if with_label and (said := other_separator(list(table.columns), table.source)):
        raise UserError(f"{table.source}: {said}")
    label = label_column or usual_column(list(table.columns), LABEL_COLUMNS, taken=(text_column, text_pair_column))
    if text_column is not None:
        text, pair = text_column, text_pair_column
    else:
        text, pair = _find_texts(table, taken=label)
    if with_label and label is None:
        label = _label_by_content(table, taken=(text, pair))
    return SequenceColumns(text, pair, label if with_label else None)


def _find_texts(table: Table, *, taken: str | None) -> tuple[str, str | None]:
    free = [column for column in table.columns if column != taken]
    for names in PAIR_COLUMNS:
        first, second = (usual_column(free, [name]) for name in names)
        if first is not None and second is not None:
            return first, second
    named = text_column_of(free, table.columns.__getitem__)
    if named is not None:
        return named, None
    texts = [column for column in free if looks_like_text(table.columns[column])]
    if len(texts) == 2 and usual_column(free, PARTIAL_TEXT_COLUMNS) is None:
        return texts[0], texts[1]
    raise UserError(
        f"{table.source}: cannot tell which column is the text; "
        f"give --text_column (columns: {', '.join(table.columns)})"
        + (", or its number if the first row is no header" if table.is_header_in_doubt else "")
    )


def _label_by_content(table: Table, *, taken: Sequence[str | None]) -> str:
    """The only column of fractions, or else the only one with few values (2 to a tenth of the rows)."""
    rest = [column for column in table.columns if column not in taken]
    fractions = [column for column in rest if are_fractions(table.columns[column])]
    if len(fractions) == 1:
        return fractions[0]
    few = [column for column in rest if 2 <= len({str(value) for value in table.columns[column]}) <= len(table) / 10]
    for candidates in (rest, few):
        if len(candidates) == 1:
            return candidates[0]
    flags = [column for column in rest if {str(value) for value in table.columns[column]} <= {"0", "1"}]
    lists = f', or write the names as lists, such as ["{flags[0]}", "{flags[1]}"]' if len(flags) > 1 else ""
    raise UserError(
        f"{table.source}: cannot tell which column is the label; "
        f"give --label_column{lists} (columns: {', '.join(table.columns)})"
    )


def are_fractions(values: Sequence[Any]) -> bool:
    """Whether all values are numbers and some are not integers."""
    return all(is_number(value) for value in values) and any(float(value) != int(float(value)) for value in values)
