"""Finds the text column of a table by common column names and by content; all programs share this rule."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...utils.errors import UserError
from ..encoding import UNSPACED_SCRIPTS
from .compression import bare_suffix

if TYPE_CHECKING:
    from .table_file import TableFile

# Names of columns, best first, case-insensitive.
TEXT_COLUMNS = (
    "text", "content", "document", "body", "sentence", "article", "passage", "raw_content", "review", "utterance",
    "comment", "tweet", "message",
)  # fmt: skip
# Columns with these names often accompany a longer text.
PARTIAL_TEXT_COLUMNS = ("question", "query", "abstract", "description", "title")
PAIR_COLUMNS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("text", "text_pair"), ("question", "sentence"), ("question", "passage"),
    ("query", "passage"), ("query", "document"), ("s1", "s2"),
)  # fmt: skip
LABEL_COLUMNS = (
    "label", "labels", "category", "categories", "class", "target", "intent", "sentiment", "topic", "tag", "tags",
    "score", "rating", "stars", "similarity", "similarity_score", "y",
)  # fmt: skip
# By suffix: the separators that are read, and what other programs write instead, with the way out.
_OTHER_SEPARATORS = {
    ".csv": (
        "commas or semicolons",
        {"\t": ("tabs", "give its name the suffix .tsv"), "|": ("|", "write it with commas")},
    ),
    ".tsv": (
        "tabs",
        {
            ",": ("commas", "give its name the suffix .csv"),
            ";": ("semicolons", "give its name the suffix .csv"),
            "|": ("|", "write it with tabs"),
        },
    ),
}
USUAL_COLUMNS = frozenset((*TEXT_COLUMNS, *PARTIAL_TEXT_COLUMNS, *LABEL_COLUMNS, *sum(PAIR_COLUMNS, ())))


def find_text_column(table: "TableFile", wanted: str | None, *, flag: str = "--text_column") -> str:
    """The text column: `wanted`, which the user gave with `flag`, else the one that `text_column_of` finds.

    Raises:
        UserError: there is none, or it is not clear which one it is (the message lists the columns).
    """
    if wanted is not None:
        columns = table.columns if wanted in table.columns else table.all_columns
        return check_column(columns, wanted, table.source, flag)
    found = usual_column(table.columns, TEXT_COLUMNS)
    if found is not None:
        return found
    columns = table.all_columns
    found = text_column_of(
        columns if table.is_sure_of_columns else [], lambda name: [row.values.get(name) for row in table.head]
    )
    if found is not None:
        return found
    separator = other_separator(columns, table.source)
    numbered = "" if table.is_sure_of_columns else ", or its number if the first row is no header"
    raise UserError(
        f"{table.source}: cannot tell which column is the text; give --text_column (columns: {', '.join(columns)})"
        f"{numbered}{separator and '; '}{separator}"
    )


def text_column_of(columns: Sequence[str], values_of: Callable[[str], Sequence[Any]]) -> str | None:
    """The first of `TEXT_COLUMNS` that the table has; else the first of `PARTIAL_TEXT_COLUMNS`, if no other column
    looks like text; else the only column that looks like text. None if there is no such column.

    Args:
        values_of: gives the cells of a column, all or the first few thousand.
    """
    found = usual_column(columns, TEXT_COLUMNS)
    if found is not None:
        return found
    free = [name for name in columns if name.lower() not in PARTIAL_TEXT_COLUMNS]
    texts = [name for name in free if looks_like_text(values_of(name))]
    partial = usual_column(columns, PARTIAL_TEXT_COLUMNS)
    if partial is not None:
        return None if texts else partial
    return texts[0] if len(texts) == 1 else None


def check_column(columns: Sequence[str], name: str, source: str, flag: str) -> str:
    """`name`, if the table has that column; else an error that names the flag and the columns."""
    if name not in columns:
        hint = other_separator(columns, source) or f"it has {', '.join(columns)}"
        raise UserError(f"{flag} {name}: {source} has no such column; {hint}")
    return name


def other_separator(first_row: Sequence[str], source: str) -> str:
    """What is wrong with a table whose first row is one cell that holds another separator; else an empty string."""
    suffix = bare_suffix(source)
    if len(first_row) == 1 and suffix in _OTHER_SEPARATORS:
        expected, others = _OTHER_SEPARATORS[suffix]
        for separator, (name, way_out) in others.items():
            if separator in first_row[0]:
                return f"cells of a {suffix} are separated by {expected}; the first row has {name}: {way_out}"
    return ""


def usual_column(columns: Sequence[str], names: Sequence[str], *, taken: Sequence[str | None] = ()) -> str | None:
    """The first of `names` that is a column, case-insensitive; None if there is none."""
    free = [column for column in columns if column not in taken]
    by_lower_case = {column.lower(): column for column in reversed(free)} | {column: column for column in free}
    return next((by_lower_case[name] for name in names if name in by_lower_case), None)


def looks_like_text(values: Sequence[Any]) -> bool:
    """Whether these are strings of at least two words on average, most of them different; dates are no texts.

    In scripts without spaces, each character counts as a word.
    """
    if not values or not all(isinstance(value, str) for value in values):
        return False
    if not any(any(map(str.isalpha, value)) for value in values):
        return False
    words = sum(len(UNSPACED_SCRIPTS.sub(" x ", value).split()) for value in values) / len(values)
    return words >= 2 and len(set(values)) > len(values) / 2


def is_number(value: Any) -> bool:
    """Whether a cell is a finite number or the text of one. Booleans are not numbers."""
    if isinstance(value, bool) or value is None:
        return False
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    # float() also accepts "nan", "infinity" and "1_000", which are not meant as numbers in data files
    return number == number and abs(number) != float("inf") and "_" not in str(value)
