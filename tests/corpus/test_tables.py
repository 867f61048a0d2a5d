"""Tables of awkward cells, written by other programs and by hand, come back row for row in both of our programs."""

import csv
import gzip
import io
import json
import lzma
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import assume, example, given
from hypothesis import strategies as st
from often import often

from clozebert.corpus.readers import json_records
from clozebert.corpus.readers.columns import find_text_column
from clozebert.corpus.readers.compression import bare_suffix, read_text
from clozebert.corpus.readers.inputs import Reader
from clozebert.corpus.readers.table_file import BadText, Row
from clozebert.corpus.readers.tables import open_table
from clozebert.finetuning.tables import find_columns, read_table
from clozebert.utils.errors import UserError

Rows = list[list[str]]
HEADERS = (["text"], ["text", "label"], ["id", "text", "label"])
SIGNS = ['"', '""', "'", "\t", ",", ";", "\n", "\r", "\r\n", "\u2028", "\x85", "\x0b", "\x0c", "\x1c", " ", "\xa0",
         "\ufeff", "\\", "a", "b c", "é", "漢", "🤗", "-", "1"]  # fmt: skip
CELLS = st.lists(st.sampled_from(SIGNS), max_size=5).map("".join)


@st.composite
def tables(draw: st.DrawFn, *, without: str = "") -> tuple[list[str], Rows]:
    """A header and some rows of awkward cells."""
    header = draw(st.sampled_from(HEADERS))
    cells = CELLS.map(lambda cell: "".join(sign for sign in cell if sign not in without))
    rows = draw(st.lists(st.lists(cells, min_size=len(header), max_size=len(header)), min_size=1, max_size=5))
    # Nothing tells a carriage return at a row's end from a part of the line's end.
    assume(not any(row[-1].endswith("\r") for row in rows))
    return header, rows


def pretraining_reads(path: Path) -> list[str]:
    reader = Reader([path], text_column="text")
    texts = list(reader.texts())
    assert [(source.documents, source.bad_text) for source in reader.sources] == [(len(texts), 0)]
    return texts


def finetuning_reads(path: Path) -> list[tuple[str, ...]]:
    table = read_table(str(path), wanted=["text"])
    return list(zip(*table.columns.values(), strict=True)) if table.columns else []


def check(path: Path, content: bytes, header: list[str], rows: Rows) -> None:
    """Both programs read the rows: pretraining all texts, fine-tuning all rows with a cell that is not blank."""
    path.write_bytes(content)
    assert pretraining_reads(path) == [row[header.index("text")] for row in rows]
    filled = [tuple(row) for row in rows if any(cell.strip() for cell in row)]
    if filled:
        assert finetuning_reads(path) == filled
    else:
        with pytest.raises(UserError, match="no rows"):
            finetuning_reads(path)


def check_refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    for read in (pretraining_reads, finetuning_reads):
        with pytest.raises(UserError, match=message):
            read(path)


def by_csv(header: list[str], rows: Rows, **options: Any) -> bytes:
    lines = io.StringIO(newline="")
    csv.writer(lines, **options).writerows([header, *rows])
    return lines.getvalue().encode()


def by_pandas(header: list[str], rows: Rows, separator: str) -> bytes:
    return pd.DataFrame(rows, columns=header).to_csv(None, index=False, sep=separator).encode()


def by_hand(header: list[str], rows: Rows) -> bytes:
    return "".join("\t".join(row) + "\n" for row in [header, *rows]).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@given(tables(), st.sampled_from([",", ";"]), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_csv_by_the_csv_module(folder: Path, table: tuple[list[str], Rows], delimiter: str, quoting: int) -> None:
    header, rows = table
    assume(delimiter == "," or len(header) > 1)
    check(folder / "a.csv", by_csv(header, rows, delimiter=delimiter, quoting=quoting), header, rows)


@given(tables())
@example((["text"], [["\r'"]]))
def test_csv_by_pandas(folder: Path, table: tuple[list[str], Rows]) -> None:
    header, rows = table
    content = by_pandas(header, rows, ",")
    # Before Python 3.13, pandas does not quote a cell for a carriage return alone, which then might end a row.
    quoted = set('\n",') if sys.version_info < (3, 13) else set('\r\n",')
    if any("\r" in cell and not set(cell) & quoted for row in rows for cell in row):
        check_refused(folder / "a.csv", content, r"a\.csv, line \d+: a carriage return within the row")
    else:
        check(folder / "a.csv", content, header, rows)


@given(tables(), st.sampled_from(["csv", "pandas"]))
@example((["text", "label"], [["a\nb", "x"], ["c\td", "y"]]), "csv")
@example((["text", "label"], [["p\tq\nr", "x"]]), "csv")
@example((["text"], [["a\nb"]]), "pandas")
def test_tsv_by_programs_that_quote(folder: Path, table: tuple[list[str], Rows], writer: str) -> None:
    header, rows = table
    content = by_csv(header, rows, delimiter="\t") if writer == "csv" else by_pandas(header, rows, "\t")
    lines = [line for line in content.decode().replace("\r\n", "\n").split("\n") if line]
    path = folder / "a.tsv"
    assume(not any("\r" in cell.replace("\r\n", "") for row in rows for cell in row))  # they have tests of their own
    if not any("\n" in cell for row in rows for cell in row) or len({line.count("\t") for line in lines}) > 1:
        check(path, content, header, rows)
    elif len(header) == 1:
        check_refused(path, content, "which may be one row or [0-9]+")
    else:
        # Tabs in cells can make it look like one row a line; then it is read so: rows are never merged.
        path.write_bytes(content)
        assert len(pretraining_reads(path)) == len(lines) - 1


@given(tables(without="\t\n\r"))
@example((["text", "label"], [['"Hello', "x"], ['bye"', "y"]]))
@example((["text", "label"], [['"Hello"', "x"], ['"a', "y"]]))
def test_tsv_by_hand(folder: Path, table: tuple[list[str], Rows]) -> None:
    """A quotation mark is a character; only where all cells that begin with one look quoted, they are."""
    header, rows = table
    assume(len(header) > 1)
    opened = [cell for row in rows for cell in row if cell.startswith('"')]
    quoted = {'"' + inner.replace('"', '""') + '"': inner for cell in opened if (inner := unquote(cell)) is not None}
    if opened and all(cell in quoted for cell in opened):
        expected = [[quoted.get(cell, cell) for cell in row] for row in rows]
    else:
        expected = rows
    check(folder / "a.tsv", by_hand(header, rows), header, expected)


def unquote(cell: str) -> str | None:
    """What a writer of CSV would have written as `cell`, or None."""
    inner = cell[1:-1].replace('""', '"')
    return inner if len(cell) > 1 and '"' + inner.replace('"', '""') + '"' == cell else None


@given(tables(), st.booleans())
def test_json_parquet_and_arrow(folder: Path, table: tuple[list[str], Rows], escaped: bool) -> None:
    header, rows = table
    records = [dict(zip(header, row, strict=True)) for row in rows]
    lines = "".join(json.dumps(record, ensure_ascii=escaped) + "\n" for record in records)
    array = json.dumps(records, ensure_ascii=escaped, indent=1)
    parquet, stream, feather = io.BytesIO(), io.BytesIO(), io.BytesIO()
    columns = pa.table({name: [record[name] for record in records] for name in header})
    pyarrow.parquet.write_table(columns, parquet)
    pyarrow.feather.write_feather(columns, feather, compression="lz4")
    with pa.ipc.new_stream(stream, columns.schema) as writer:
        writer.write_table(columns)
    check(folder / "a.jsonl", lines.encode(), header, rows)
    check(folder / "a.json", array.encode(), header, rows)
    for name, content in (("a.parquet", parquet), ("a.arrow", stream), ("a.feather", feather)):
        check(folder / name, content.getvalue(), header, rows)


# Places where rows could be merged or lost ----------------------------------------------------------------------------


def test_a_quotation_mark_that_opens_a_tsv_cell_is_a_character(folder: Path) -> None:
    rows = [['"Well, he said', "a"], ["and left", "b"], ['"so" it was', "a"], ["the end", "b"]]
    check(folder / "a.tsv", by_hand(["text", "label"], rows), ["text", "label"], rows)
    for closed in ('he left"', '"'):
        rows[1][0] = closed
        check(folder / "a.tsv", by_hand(["text", "label"], rows), ["text", "label"], rows)


@pytest.mark.parametrize("line", ["sep=;\n", '"sep=;"\r\n', "\ufeffsep=;\n", "sep=,\n", "sep=|\n", "sep=\t\n"])
def test_a_line_that_names_the_separator(folder: Path, line: str) -> None:
    """Excel knows such a line before a table."""
    sign = line.strip('\ufeff"\r\n')[-1]
    path, rows = folder / "a.csv", [["a, b; c", "x"], ["d\te | f", "y"]]
    check(path, line.encode() + by_csv(["text", "label"], rows, delimiter=sign), ["text", "label"], rows)
    assert [row.line for row in open_table(path).rows()] == [3, 4]
    check_refused(path, line.encode() + f"text{sign}label\na\n".encode(), "line 3: 1 columns where the first row has 2")


def test_a_carriage_return_in_a_tsv(folder: Path) -> None:
    rows = [["a\rb", "x"], ["c", "y"]]
    check(folder / "a.tsv", by_hand(["text", "label"], rows), ["text", "label"], rows)
    check_refused(
        folder / "a.tsv", b"text\tlabel\na\tx\rb\ty\n", r"a\.tsv, line 2: 3 columns where the first row has 2"
    )


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("has_last", [True, False])
def test_every_kind_of_line_end(folder: Path, end: str, has_last: bool) -> None:
    rows = [["one", "x"], ["two, 2", "y"], ["three", "x"]]
    for name, separator in (("a.csv", ","), ("a.tsv", "\t")):
        content = by_csv(["text", "label"], rows, delimiter=separator, lineterminator=end)
        check(folder / name, content if has_last else content.removesuffix(end.encode()), ["text", "label"], rows)
    lines = end.join(json.dumps({"text": row[0], "label": row[1]}) for row in rows) + (end if has_last else "")
    check(folder / "a.jsonl", lines.encode(), ["text", "label"], rows)


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress, ".zstd": zstandard.compress
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a.csv.1", ".csv"), ("A.CSV.2.gz", ".csv"), ("a.jsonl-20260101", ".jsonl"), ("a.xml-p1p41.bz2", ".xml"),
     ("mail.txt.1", ".txt"), ("my-notes.txt", ".txt"), ("a.b-c/my-notes", ""), ("report.2026", ""), (".1", ""),
     ("a.jsonl.2026-01-01", ".jsonl"), ("a.csv.2026-01-01_12.gz", ".csv")],
)  # fmt: skip
def test_a_number_or_a_date_behind_the_suffix_does_not_count(name: str, suffix: str) -> None:
    assert bare_suffix(name) == suffix


def test_the_rotated_file_of_a_table_is_a_table(folder: Path) -> None:
    rows = [[f"text {number}", "x"] for number in range(5)]
    check(folder / "a.csv.1", by_csv(["text", "label"], rows), ["text", "label"], rows)
    pyarrow.parquet.write_table(pa.table({"text": ["a", "b"]}), folder / "a.parquet-20260101")
    assert [row.values for row in open_table(folder / "a.parquet-20260101").rows()] == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json"])
def test_compressed_tables(folder: Path, name: str, suffix: str) -> None:
    rows = [[f"text {number}", "x"] for number in range(500)]
    records = [{"text": text, "label": label} for text, label in rows]
    content = {
        "a.csv": by_csv(["text", "label"], rows),
        "a.tsv": by_hand(["text", "label"], rows),
        "a.jsonl": "\n".join(map(json.dumps, records)).encode(),
        "a.json": json.dumps(records).encode(),
    }[name]
    whole = COMPRESSED[suffix](content)
    check(folder / f"{name}{suffix}", whole, ["text", "label"], rows)
    for cut in (1, 5, len(whole) // 2, len(whole) - 5, len(whole) - 1):
        check_refused(folder / f"{name}{suffix}", whole[:-cut], f"is not a whole {suffix} file")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\na,x\ntext,label\nb,y\n", r"a\.csv, line 3: the header stands here again"),
        ("a.csv", "text,text\na,b\n", r"a\.csv, line 1: two columns are named 'text'"),
        ("a.csv", 'text,label\n"a,x\nb,y\n', r"a\.csv, line 2: broken quote in the row that begins here"),
        ("a.csv", "text,label\na\n", r"a\.csv, line 2: 1 columns where the first row has 2"),
        ("a.csv", "text,label\na, b,x\n", r"a\.csv, line 2: 3 columns .* quote a cell that holds the separator"),
        ("a.csv", "text\tlabel\na\tx\n", r"a\.csv, line 1: cells of a \.csv .* has tabs: .* suffix \.tsv"),
        ("a.csv", "id | Text\n1 | a\n", r"a\.csv, line 1: cells of a \.csv .* has \|: write it with commas"),
        ("a.tsv", "text,label\na,x\n", r"a\.tsv, line 1: cells of a \.tsv .* has commas: .* suffix \.csv"),
        ("a.csv", "words\tkind\na, b\tx\n", r"a\.csv(, line 2:| has no such column;) cells of a \.csv .* has tabs"),
        ("a.csv", "text,label\na,x\n".encode("utf-16"), r"a\.csv is in UTF-16"),
        ("a.json", '[{"text": "a"}\n {"text": "b"}]', r"a\.json, line 2: not JSON: expected ]"),
        ("a.json", '[{"text": "a"},\n\n {"text": "b}]', r"a\.json, line 3: not JSON"),
        ("a.json", '[{"text": "a"}]\n[]', r"a\.json, line 2: something stands behind the array"),
        ("a.json", '[{"text": "a"},\n7]', r"a\.json, line 2: expected a JSON object, found int"),
        ("a.jsonl", '{"text": "a", "text": "b"}\n', r"a\.jsonl, line 1: the key 'text' occurs twice"),
        ("a.jsonl", '{"text": "a"} {"text": "b"}\n', r"a\.jsonl, line 1: not JSON"),
    ],
)
def test_what_would_merge_or_lose_rows_is_refused(folder: Path, name: str, content: str | bytes, message: str) -> None:
    check_refused(folder / name, content if isinstance(content, bytes) else content.encode(), message)


def test_a_csv_with_tabs_under_other_names(folder: Path) -> None:
    path, said = folder / "a.csv", r"cells of a \.csv are separated by commas or semicolons; the first row has tabs"
    path.write_text("words\tkind\na b\tx\nb c\ty\n")
    with pytest.raises(UserError, match=said):
        find_columns(read_table(str(path)))
    with pytest.raises(UserError, match=rf"--label_column klass: .*no such column; {said}"):
        find_columns(read_table(str(path)), label_column="klass")
    with pytest.raises(UserError, match=rf"line 1: {said}"):
        read_table(str(path), wanted=["kind"])
    path.write_text("words\ta|b\n7\n8\n")
    with pytest.raises(UserError, match=said):
        list(Reader([path]).texts())
    # One column of texts in which tabs or bars occur is a table like any other.
    path.write_text("a\tb c\nd | e f\ng h\n")
    assert list(Reader([path], text_column="1").texts()) == ["a\tb c", "d | e f", "g h"]
    path.write_text('text\n"a\tb"\nc | d\n')
    assert list(Reader([path]).texts()) == ["a\tb", "c | d"]


def test_lines_are_those_of_the_file(folder: Path) -> None:
    path = folder / "a.csv"
    path.write_text('text,label\n\n"a\n\nb",x\n,\nc,y\n')
    assert [row.line for row in open_table(path).rows()] == [3, 6, 7]
    path = folder / "a.json"
    path.write_text('\n[\n {"text": "a"}, {"text": "b",\n  "x": 1},\n\n {"text": "c"}\n]\n')
    assert [row.line for row in open_table(path).rows()] == [3, 3, 6]
    assert read_table(str(path)).columns == {"text": ["a", "b", "c"], "x": [None, 1, None]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\\n[]{},é漢🤗', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(JSON, max_size=5), st.integers(1, 9), st.sampled_from([None, 1]))
def test_arrays_are_read_in_pieces_of_any_size(values: list[Any], chunk: int, indent: int | None) -> None:
    text = json.dumps(values, indent=indent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_records, "_CHUNK", chunk)
        found = list(json_records.read_array(io.StringIO(text), "a.json"))
    assert [value for _, value in found] == values
    lines = [line for line, _ in found]
    assert lines == sorted(lines)
    if indent is not None:
        assert len(set(lines)) == len(lines)


def test_what_is_no_json_is_named_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though much of the file comes behind it, in which an unclosed value might end."""
    monkeypatch.setattr(json_records, "_CHUNK", 64)
    monkeypatch.setattr(json_records, "LARGEST_OBJECT", 20_000)
    text = json.dumps([{"text": "a"}] * 3)[:-1] + ',\n{"text": nope},' + '{"text": "b"},' * 9000
    with pytest.raises(UserError, match=r"a\.json, line 2: not JSON: Expecting value"):
        list(json_records.read_array(io.StringIO(text), "a.json"))
    with pytest.raises(UserError, match="begins here, or is not closed"):
        list(json_records.read_array(io.StringIO('["' + "a" * 90_000), "a.json"))


@pytest.mark.parametrize("name", often(["a.csv", "a.json", "a.parquet", "a.tsv", "a.jsonl.zst"], 3))
def test_memory_is_bounded(folder: Path, name: str) -> None:
    rows = [[f'"text" {number:6} ' * 20, "x"] for number in range(30_000)]
    records = [{"text": text, "label": label} for text, label in rows]
    path = folder / name
    if name == "a.parquet":
        table = pa.table({"text": [row[0] for row in rows], "label": [row[1] for row in rows]})
        pyarrow.parquet.write_table(table, path, row_group_size=1000)
    else:
        content = {
            "a.csv": lambda: by_csv(["text", "label"], rows),
            "a.tsv": lambda: by_hand(["text", "label"], rows),
            "a.json": lambda: json.dumps(records).encode(),
            "a.jsonl.zst": lambda: zstandard.compress("\n".join(map(json.dumps, records)).encode()),
        }[name]()
        path.write_bytes(content)
    size = sum(len(row[0]) for row in rows)
    tracemalloc.start()
    assert sum(1 for _ in Reader([path]).texts()) == len(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Measured: 1.1 to 2.1 MB, 2 MB of which is the hash of the file; 3.3 MB with Python 3.10, of 8.4 MB.
    assert peak < size / 2


# Columns -------------------------------------------------------------------------------------------------------------


def text_column(folder: Path, records: list[dict[str, Any]], wanted: str | None = None) -> str:
    (folder / "c.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return find_text_column(open_table(folder / "c.jsonl"), wanted)


LONG = [f"some text of several words, number {number}" for number in range(9)]


def test_a_value_that_python_does_not_have_is_no_damage(folder: Path) -> None:
    born = pa.array([4_000_000], type=pa.date32())  # in the year 12921
    pyarrow.parquet.write_table(pa.table({"text": ["a b"], "born": born}), folder / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet holds a value that cannot be read in or after row 1: date value"):
        read_table(str(folder / "a.parquet"))
    assert [row.values for row in open_table(folder / "a.parquet").rows(["text"])] == [{"text": "a b"}]


def test_an_arrow_stream_that_was_cut_is_damaged(folder: Path) -> None:
    """Without its end mark, pyarrow takes a stream that ends between two batches for whole."""
    rows, whole = pa.table({"text": ["a", "b", "c", "d"]}), io.BytesIO()
    with pa.ipc.new_stream(whole, rows.schema) as writer:
        for batch in rows.to_batches(max_chunksize=1):
            writer.write_batch(batch)
    content, path = whole.getvalue(), folder / "a.arrow"
    for end in range(len(content)):
        path.write_bytes(content[:end])
        with pytest.raises(UserError, match=r"is not an Arrow file"):
            list(open_table(path).rows())


def test_texts_without_spaces_are_texts_and_times_are_not(folder: Path) -> None:
    text = ["我们今天去北京", "电影很好看", "回家的路上下雨了"]
    times = [{"正文": text[n % 3] + str(n), "time": f"2024-01-{n + 1:02d} 12:00:{n:02d}"} for n in range(9)]
    assert text_column(folder, times) == "正文"
    titles = [{"标题": text[n % 3] + str(n), "正文": text[n % 3] * 5 + str(n)} for n in range(9)]
    with pytest.raises(UserError, match="cannot tell which column"):
        text_column(folder, titles)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["id", "text", "title"], "text"),
        (["Title", "Content"], "Content"),
        (["sentence", "document"], "document"),
        (["title", "description"], "description"),
        (["id", "title"], "title"),
        (["markdown"], "markdown"),
        (["title", "markdown"], None),
        (["markdown", "summary"], None),
    ],
)
def test_one_rule_finds_the_text(folder: Path, names: list[str], expected: str | None) -> None:
    records = [{name: number if name == "id" else f"{name}: {LONG[number]}" for name in names} for number in range(9)]
    if expected is None:
        with pytest.raises(UserError, match=r"cannot tell which column is the text; give --text_column \(columns: "):
            text_column(folder, records)
    else:
        assert text_column(folder, records) == expected
    assert text_column(folder, records, names[0]) == names[0]


def test_a_first_row_that_may_be_a_text_is_not_taken_for_a_header(folder: Path) -> None:
    path = folder / "h.csv"
    path.write_text("\n".join(["well begun is half done", *LONG]).replace(",", ""))
    with pytest.raises(UserError, match="or its number if the first row is no header"):
        Reader([path])
    assert len(list(Reader([path], text_column="1").texts())) == len(LONG) + 1
    numbered = "".join(f"{number},{text.replace(',', '')}\n" for number, text in enumerate(LONG))
    path.write_text(numbered)  # numbers are no names
    assert len(list(Reader([path]).texts())) == len(LONG)


def test_a_class_with_the_name_of_a_usual_column_is_no_header(folder: Path) -> None:
    path = folder / "u.csv"
    rows = "".join(f"text number {number},{('comment', 'question')[number % 2]}\n" for number in range(6))
    path.write_text(f"nice one here,comment\n{rows}")
    table = read_table(str(path))
    assert (table.has_header, len(table), list(table.columns)) == (False, 7, ["1", "2"])
    path.write_text(f"text,comment\n{rows}")  # the other name tells
    table = read_table(str(path))
    assert (table.has_header, len(table), list(table.columns)) == (True, 6, ["text", "comment"])
    ordinary = "".join(f"text number {number},{('yes', 'no')[number % 2]}\n" for number in range(60))
    path.write_text(f"message,spam\n{ordinary}message,no\n")  # a text that is one word, by chance that of the column
    table = read_table(str(path))
    assert (table.has_header, len(table), list(table.columns)) == (True, 61, ["message", "spam"])
    path.write_text(f"name,comment\n{rows.replace('comment', 'remark')}name,comment\n")
    with pytest.raises(UserError, match="line 8: the header stands here again"):
        read_table(str(path))


def test_bad_rows_are_counted_or_named(folder: Path) -> None:
    path = folder / "b.csv"
    path.write_bytes(b"text,label\na,x\nb\nc\xe4,y\nd,\xe4\n,\n")
    rows = list(open_table(path).rows(["text"]))
    assert [(type(row), row.line) for row in rows] == [(Row, 2), (BadText, 3), (BadText, 4), (Row, 5), (Row, 6)]
    reader = Reader([path], on_bad_text="skip")
    assert list(reader.texts()) == ["a", "d", ""]
    assert (reader.sources[0].documents, reader.sources[0].bad_text) == (5, 2)


def test_behind_a_byte_order_mark_a_bad_byte_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_bytes(b"\xef\xbb\xbfa O\n\xff O\n")
    with pytest.raises(UserError, match=r"a\.conll, line 2: not UTF-8 \(byte 0xff\)"):
        read_text(tmp_path / "a.conll")
