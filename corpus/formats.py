"""The texts in one file: plain text, JSON lines, CSV and TSV, also compressed by gzip or zstd, and Parquet."""

import csv
import gzip
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

SEPARATORS = ("blank_line", "line", "file")
TEXT_COLUMNS = ("text", "content", "document", "body", "sentence", "article", "passage", "abstract", "raw_content")
# What one document of a text file may hold; a longer run is cut at a line's end, or at a space, into several.
LARGEST_DOCUMENT = 1 << 24
_KINDS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}


@dataclass(frozen=True, slots=True)
class BadText:
    """A document that is not valid text: where, and why."""

    line: int
    reason: str


def check_file(path: Path, text_column: str | None) -> None:
    """Look at a file's first record.

    Raises:
        ValueError: there is no column of text, or the file is not what its suffix says.
    """
    kind = _kind(path)
    if kind == "parquet":
        _parquet_column(path, text_column)
    elif kind != "text" and path.stat().st_size:
        next(texts_of_file(path, separator="line", text_column=text_column), None)
    elif path.suffix in (".gz", ".zst", ".zstd"):
        next(texts_of_file(path, separator="line", text_column=None), None)


def texts_of_file(path: Path, *, separator: str, text_column: str | None) -> Iterator[tuple[str | BadText, int]]:
    """Each document, and how many bytes of the file have been read by then.

    A record without text gives the empty text. A byte order mark is dropped, and CR LF is a line end.
    """
    kind = _kind(path)
    if kind == "parquet":
        yield from _parquet_texts(path, _parquet_column(path, text_column))
        return
    with open(path, "rb") as raw, _decompressed(path, raw) as file:
        if kind == "text":
            texts = _plain_texts(file, separator)
        elif kind == "json":
            texts = _json_texts(path, file, text_column)
        else:
            texts = _csv_texts(path, file, text_column, delimiter="\t" if kind == "tsv" else ",")
        for text in texts:
            yield text, raw.tell()


def choose_text_column(columns: list[str], wanted: str | None, where: object) -> str:
    """The column that holds the text: the wanted one, or the first of `TEXT_COLUMNS` that there is."""
    if wanted is None:
        for column in TEXT_COLUMNS:
            if column in columns:
                return column
    elif wanted in columns:
        return wanted
    listed = ", ".join(map(repr, columns[:12])) or "none"
    asked = f"no column {wanted!r}" if wanted else "no column that is known to hold text"
    raise ValueError(f"{where} has {asked}; name the right one with --text_column (columns: {listed})")


def checked_text(text: Any, line: int) -> str | BadText:
    """`text` if it is valid text; the empty text where a record has none."""
    if text is None:
        return ""
    if not isinstance(text, str):
        return BadText(line, f"the text is {str(text)[:40]!r}, a {type(text).__name__} and not a string")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return BadText(line, f"{text[error.start]!r} is not UTF-8")
    return text


def _kind(path: Path) -> str:
    """`text`, `json`, `csv`, `tsv` or `parquet`, by the suffix before that of a compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst", ".zstd"):
        suffixes.pop()
    return _KINDS.get(suffixes[-1] if suffixes else "", "text")


@contextmanager
def _decompressed(path: Path, raw: BinaryIO) -> Iterator[BinaryIO]:
    """The content of a file as a stream of bytes; a damaged compression is a `ValueError` that names the file."""
    suffix = path.suffix.lower()
    if suffix not in (".gz", ".zst", ".zstd"):
        yield raw
        return
    try:
        if suffix == ".gz":
            with gzip.open(raw) as file:
                yield io.BufferedReader(file)
        else:
            try:
                import zstandard
            except ImportError:
                raise ImportError(f"reading {path.name} needs zstandard: pip install 'clozebert[data]'") from None
            with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as file:
                yield io.BufferedReader(file)
    except (ValueError, ImportError):
        raise
    except Exception as error:  # each library has its own errors, which have no common type
        raise ValueError(f"{path} is not a whole {suffix} file: {error}") from None


def _plain_texts(file: BinaryIO, separator: str) -> Iterator[str | BadText]:
    for first_line, raw in _runs(file, separator):
        try:
            yield raw.decode("utf-8").replace("\r\n", "\n").strip("\n")
        except UnicodeDecodeError as error:
            line = first_line + raw.count(b"\n", 0, error.start)
            yield BadText(line, f"byte 0x{raw[error.start]:02x} is not UTF-8")


def _runs(file: BinaryIO, separator: str) -> Iterator[tuple[int, bytes]]:
    """The documents of a text file as (number of the first line, bytes)."""
    run: list[bytes] = []
    first_line, size = 1, 0
    for number, line in _lines(file):
        ends_here = separator == "blank_line" and not line.strip()
        if not ends_here:
            if not run:
                first_line, size = number, 0
            run.append(line)
            size += len(line)
            ends_here = separator == "line" or size >= LARGEST_DOCUMENT
        if ends_here and run:
            if separator != "line" or b"".join(run).strip():
                yield first_line, b"".join(run)
            run = []
    if b"".join(run).strip():
        yield first_line, b"".join(run)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number, line); a line longer than `LARGEST_DOCUMENT` comes in pieces, cut at spaces."""
    number, rest = 1, b""
    while line := rest + file.readline(LARGEST_DOCUMENT - len(rest)):
        rest = b""
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if len(line) == LARGEST_DOCUMENT and not line.endswith(b"\n"):
            cut = line.rfind(b" ") + 1 or _whole_characters(line)
            line, rest = line[:cut], line[cut:]
        yield number, line
        number += line.endswith(b"\n")


def _whole_characters(line: bytes) -> int:
    """The length of `line` without a last character that UTF-8 may go on with."""
    end = len(line) - 1
    while end > len(line) - 4 and line[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _json_texts(path: Path, file: BinaryIO, text_column: str | None) -> Iterator[str | BadText]:
    column: str | None = None
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            yield BadText(number, f"byte 0x{line[error.start]:02x} is not UTF-8")
            continue
        except json.JSONDecodeError as error:
            yield BadText(number, f"not a line of JSON ({error.msg})")
            continue
        if not isinstance(record, dict):
            yield BadText(number, f"a {type(record).__name__} where JSON lines hold one object each")
            continue
        column = column or choose_text_column(list(record), text_column, f"{path}, line {number},")
        if column in record:
            yield checked_text(record[column], number)
        else:
            yield BadText(number, f"the record has no {column!r}")


def _csv_texts(path: Path, file: BinaryIO, text_column: str | None, *, delimiter: str) -> Iterator[str | BadText]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the limit of 128 KB is short for a document
    # Bytes that are not UTF-8 become lone surrogates, which `checked_text` finds in their own record.
    lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(lines, delimiter=delimiter)
    header = next(rows, None)
    if header is None:
        return
    place = header.index(choose_text_column(header, text_column, path))
    for row in rows:
        if row:
            yield checked_text(row[place] if place < len(row) else None, rows.line_num)


def _parquet_texts(path: Path, column: str) -> Iterator[tuple[str | BadText, int]]:
    parquet = _open_parquet(path)
    rows, size = 0, path.stat().st_size
    for batch in parquet.iter_batches(columns=[column], batch_size=1024):
        for text in batch.column(0).to_pylist():
            rows += 1
            yield checked_text(text, rows), size * rows // parquet.metadata.num_rows


def _parquet_column(path: Path, text_column: str | None) -> str:
    return choose_text_column(_open_parquet(path).schema_arrow.names, text_column, path)


def _open_parquet(path: Path) -> Any:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise ImportError(f"reading {path.name} needs pyarrow: pip install 'clozebert[data]'") from None
    try:
        return parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from None
