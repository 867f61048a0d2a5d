"""Rows of labelled text from CSV, TSV, JSON lines and Parquet files or a Hub dataset, with the line each row began on.

Every reader refuses what it cannot read whole, and says where: a row silently lost is a score silently wrong.
"""

import csv
import difflib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# Names under which columns are found, best first; pairs before single texts.
PAIR_COLUMNS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("text", "text_pair"), ("question", "sentence"), ("question", "passage"),
    ("query", "passage"), ("query", "document"), ("s1", "s2"),
)  # fmt: skip
TEXT_COLUMNS = (
    "text", "sentence", "content", "review", "document", "body", "utterance", "comment", "tweet", "message", "question",
    "query", "abstract", "description", "title", "sentence1",
)  # fmt: skip
LABEL_COLUMNS = (
    "label", "labels", "category", "categories", "class", "target", "intent", "sentiment", "topic", "tag", "tags",
    "score", "rating", "stars", "similarity", "similarity_score", "y",
)  # fmt: skip

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")


@dataclass(frozen=True)
class Table:
    """Columns of equal length. `lines[i]` is the line of the file on which row i begins (or its row number)."""

    source: str
    columns: dict[str, list[Any]]
    lines: list[int]
    unit: str = "line"
    has_header: bool = True

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """`train.csv, line 12`."""
        return f"{self.source}, {self.unit} {self.lines[row]}"

    def column(self, name: str, *, flag: str) -> list[Any]:
        """A column by name; an unknown name is an error that lists the columns and names `flag`."""
        if name not in self.columns:
            nearest = difflib.get_close_matches(name, list(self.columns), n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(self.columns)}"
            raise ValueError(f"{flag} {name}: {self.source} has no such column; {hint}")
        return self.columns[name]


def read_table(path: str, *, has_header: bool | None = None) -> Table:
    """Read one file by its suffix.

    Args:
        path: a .csv, .tsv, .jsonl, .ndjson, .json or .parquet file.
        has_header: whether the first row of a CSV or TSV names the columns; None to find out.

    Raises:
        ValueError: the suffix is unknown, or the content is broken (the message names the line).
        OSError: there is no such file.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in TABLE_SUFFIXES:
        raise ValueError(f"{path}: cannot tell its format from the suffix {suffix!r}; use one of {TABLE_SUFFIXES}")
    if suffix == ".parquet":
        return _read_parquet(path)
    text = read_text(path)
    if not text.strip():
        raise ValueError(f"{path} is empty")
    if suffix in (".csv", ".tsv"):
        return _delimited_table(path, text, tab=suffix == ".tsv", has_header=has_header)
    return _table_of_records(path, json_records(path, text))


def read_text(path: str) -> str:
    """The text of a UTF-8 file (a byte-order mark is dropped); other bytes are an error with their line."""
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder; name a file in it")
    if not os.path.exists(path):
        raise FileNotFoundError(f"no such file: {path}")
    with open(path, "rb") as file:
        data = file.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); convert the file") from None


def json_records(path: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of JSON lines, or (number, object) of one JSON array of objects."""
    if text.lstrip().startswith("["):
        try:
            array = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
        numbered: Iterable[tuple[int, Any]] = enumerate(array, start=1)
    else:
        numbered = _parsed_lines(path, text)
    for number, record in numbered:
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object, found {type(record).__name__}")
        yield number, record


def _parsed_lines(path: str, text: str) -> Iterator[tuple[int, Any]]:
    # Not splitlines(): JSON strings may hold U+2028 and its like unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON: {error.msg}") from None


def _table_of_records(path: str, records: Iterable[tuple[int, dict[str, Any]]]) -> Table:
    """A table of the union of all keys; a key that a record lacks is None there."""
    numbered = list(records)
    names = list(dict.fromkeys(name for _, record in numbered for name in record))
    columns = {name: [record.get(name) for _, record in numbered] for name in names}
    return Table(path, columns, [number for number, _ in numbered])


def _read_parquet(path: str) -> Table:
    if not os.path.exists(path):
        raise FileNotFoundError(f"no such file: {path}")
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError("reading Parquet needs pyarrow: pip install 'clozebert[data]'") from None
    try:
        columns = pyarrow.parquet.read_table(path).to_pydict()
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a Parquet file: {error}") from None
    rows = len(next(iter(columns.values()), []))
    return Table(path, columns, list(range(1, rows + 1)), unit="row")


def read_hub_dataset(name: str, configuration: str | None) -> dict[str, Table]:
    """The splits of a dataset on the Hub (or a folder `datasets` can load); class numbers become class names."""
    try:
        import datasets
    except ImportError:
        raise ImportError("--dataset_name needs datasets: pip install 'clozebert[data]'") from None
    try:
        splits = datasets.load_dataset(name, configuration)
    except Exception as error:
        raise ValueError(f"--dataset_name {name}: {str(error).splitlines()[0]}") from error
    tables = {}
    for split, dataset in splits.items():
        columns = {
            column: [_class_names(value, dataset.features[column]) for value in dataset[column]]
            for column in dataset.column_names
        }
        tables[split] = Table(f"{name} ({split})", columns, list(range(1, len(dataset) + 1)), unit="row")
    return tables


def _class_names(value: Any, feature: Any) -> Any:
    """Replace class numbers by their names, also inside lists (`ner_tags`)."""
    if isinstance(value, list):
        inner = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
        return [_class_names(item, inner) for item in value]
    if hasattr(feature, "int2str") and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None  # -1 marks the hidden labels of a test split
    return value


# CSV and TSV ---------------------------------------------------------------------------------------------------------


def _delimited_table(path: str, text: str, *, tab: bool, has_header: bool | None) -> Table:
    rows, lines = _tab_rows(path, text) if tab else _comma_rows(path, text)
    width = _common_width(path, rows, lines)
    if has_header is None:
        has_header = _first_row_is_header(rows)
    names = rows[0] if has_header else [str(number) for number in range(1, width + 1)]
    names = [name.strip() for name in names]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{path}, line {lines[0]}: two columns are named {repeated[0]!r}")
    first = 1 if has_header else 0
    if len(rows) == first:
        raise ValueError(f"{path} has a header and no rows")
    columns = {name: [row[index] for row in rows[first:]] for index, name in enumerate(names)}
    return Table(path, columns, lines[first:], has_header=has_header)


def _comma_rows(path: str, text: str) -> tuple[list[list[str]], list[int]]:
    header = text.split("\n", 1)[0]
    delimiter = ";" if ";" in header and "," not in header else ","
    return _quoted_rows(path, text, delimiter)


def _tab_rows(path: str, text: str) -> tuple[list[list[str]], list[int]]:
    """Rows of a TSV: quotes are ordinary characters, unless only reading them as quotes makes the rows equal."""
    lines = text.replace("\r\n", "\n").split("\n")
    kept = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    rows = [[_unquoted(cell) for cell in line.split("\t")] for _, line in kept]
    if len(set(map(len, rows))) > 1:
        try:
            quoted, starts = _quoted_rows(path, text, "\t")
        except ValueError:
            return rows, [number for number, _ in kept]
        if len(set(map(len, quoted))) == 1:
            return quoted, starts
    return rows, [number for number, _ in kept]


def _unquoted(cell: str) -> str:
    """`"a ""b"" c"` -> `a "b" c`, as spreadsheet programs write it; anything else stays as it is."""
    if len(cell) >= 2 and cell[0] == cell[-1] == '"':
        inner = cell[1:-1].replace('""', "")
        if '"' not in inner:
            return cell[1:-1].replace('""', '"')
    return cell


def _quoted_rows(path: str, text: str, delimiter: str) -> tuple[list[list[str]], list[int]]:
    """Rows by the rules of RFC 4180, with the line each begins on: a quoted cell may hold line breaks."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    starts: list[int] = []
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return rows, starts
        except csv.Error as error:
            raise ValueError(f"{path}, line {start}: broken quote in the row that begins here ({error})") from None
        if any(cell.strip() for cell in row):
            rows.append(row)
            starts.append(start)


def _common_width(path: str, rows: list[list[str]], lines: list[int]) -> int:
    width = len(rows[0])
    for row, line in zip(rows, lines, strict=True):
        if len(row) != width:
            raise ValueError(
                f"{path}, line {line}: {len(row)} columns where the first row has {width}; "
                "quote a cell that holds the separator"
            )
    return width


def _first_row_is_header(rows: list[list[str]]) -> bool:
    """A first row without a usual name is data when a cell is a number or comes again further down in its column."""
    if {cell.strip().lower() for cell in rows[0]} & {*TEXT_COLUMNS, *LABEL_COLUMNS, *sum(PAIR_COLUMNS, ())}:
        return True
    if any(is_number(cell) for cell in rows[0]):
        return False
    below = [set(column) for column in zip(*rows[1:], strict=True)]
    return not any(cell in values for cell, values in zip(rows[0], below, strict=False))


def is_number(value: Any) -> bool:
    """Whether a cell is a finite number, written as one or as text. Booleans are not numbers."""
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, (int, float)):
        return value == value and abs(value) != float("inf")
    try:
        number = float(value)
    except (TypeError, ValueError):
        return False
    # float() also takes "nan", "infinity" and "1_000", which no data file means as a number
    return number == number and abs(number) != float("inf") and "_" not in str(value)
