"""Finds the columns of a labelled table: the text, the second text of a pair, and the label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..corpus.columns import (
    LABEL_COLUMNS,
    PAIR_COLUMNS,
    PARTIAL_TEXT_COLUMNS,
    is_number,
    looks_like_text,
    text_column_of,
    usual_column,
)
from ..utils.errors import UserError
from .tables import Table


@dataclass(frozen=True)
class SequenceColumns:
    """Which columns hold the text, its partner (if any) and the label (None when only predicting)."""

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
    """The columns to use: those given; else those with a usual name; else those whose content leaves no doubt.

    Raises:
        UserError: a given column is missing, or nothing tells the columns apart (the message lists them).
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
    raise UserError(
        f"{table.source}: cannot tell which column is the label; "
        f"give --label_column (columns: {', '.join(table.columns)})"
    )


def are_fractions(values: Sequence[Any]) -> bool:
    """Whether all values are numbers, and some of them not whole."""
    return all(is_number(value) for value in values) and any(float(value) != int(float(value)) for value in values)
