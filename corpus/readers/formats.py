"""Reads the documents of one file, plain or compressed: text, XML, or a column of a table."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ...utils.errors import UserError
from .binary_files import WITHOUT_HTML
from .columns import find_text_column
from .compression import bare_suffix, open_decompressed
from .table_file import LARGEST_DOCUMENT, BadText, TableFile, bad_byte, lone_surrogate
from .tables import TABLE_SUFFIXES, open_table
from .xml_texts import XML_SUFFIXES, texts_of_xml

# (cell, line, "line" or "row") -> a text, or what is wrong with the cell.
ReadCell = Callable[[Any, int, str], str | BadText]
Separator = Literal["blank_line", "line", "file"]  # what ends a document in text files
BadTextRule = Literal["error", "skip"]  # what to do about documents that are not valid text
_HTML_SUFFIXES = (".html", ".htm", ".xhtml")


def texts_of_file(
    path: Path, *, separator: str, text_column: str | None, read_cell: ReadCell | None = None
) -> Iterator[tuple[str | BadText, int]]:
    """Each document, and how many bytes of the file have been read by then.

    A record without text gives an empty string. A byte order mark is dropped, and CR LF ends a line.

    Args:
        read_cell: turns a table's cell into text; None: `checked_text`.

    Raises:
        UserError: `read_cell` is given and the file is not a table, or the file holds tagged words or HTML.
    """
    if has_tagged_words(path):
        raise UserError(
            f"{path} holds a word and its tags on each line, by its name, and no running text: write each sentence on "
            f"a line of a .txt file"
        )
    if bare_suffix(path) in _HTML_SUFFIXES:
        raise UserError(f"{path} is an HTML page: {WITHOUT_HTML}")
    if bare_suffix(path) in TABLE_SUFFIXES:
        table = open_table(path, wanted=[] if text_column is None else [text_column])
        for text in texts_of_table(table, text_column, read_cell=read_cell):
            yield text, table.bytes_read
    elif read_cell is not None:
        raise UserError(f"{path}: ids are read from a column of a table: {', '.join(TABLE_SUFFIXES)}")
    else:
        is_xml = bare_suffix(path) in XML_SUFFIXES
        with open_decompressed(path) as (file, position):
            for text in texts_of_xml(file, path) if is_xml else _plain_texts(file, separator):
                yield text, position()


def has_tagged_words(path: str | Path) -> bool:
    """Whether a file is one of CoNLL columns, by its suffix."""
    suffix = bare_suffix(path)
    return suffix.startswith(".conll") or suffix in (".iob", ".iob2", ".bio")


def texts_of_table(
    table: TableFile, text_column: str | None, *, read_cell: ReadCell | None = None
) -> Iterator[str | BadText]:
    """The text of each row."""
    if not table.columns:  # no rows, or only empty ones
        for row in table.rows():
            yield row if isinstance(row, BadText) else BadText(row.line, "the record is empty", table.unit)
        return
    column = find_text_column(table, text_column, flag="--text_column" if read_cell is None else "--id_column")
    for row in table.rows([column]):
        if isinstance(row, BadText):
            yield row
        elif column in row.values:
            yield (read_cell or checked_text)(row.values[column], row.line, table.unit)
        else:
            yield BadText(row.line, f"the record has no {column!r}", table.unit)


def checked_text(text: Any, line: int, unit: str) -> str | BadText:
    """`text` if it is valid; an empty string if the record has none; else what is wrong with it."""
    if text is None:
        return ""
    if not isinstance(text, str):
        return BadText(line, f"the text is {str(text)[:40]!r}, a {type(text).__name__} and not a string", unit)
    if character := lone_surrogate(text):
        return BadText(line, f"{character!r} is not UTF-8", unit)
    return text


def id_reader(vocab_size: int) -> ReadCell:
    """A function that reads a cell of token ids below `vocab_size`: a list of numbers, or text such as `5 17 3`."""
    return partial(_read_ids, vocab_size=vocab_size)  # no closure, which could not be sent to another process


def _read_ids(cell: Any, line: int, unit: str, *, vocab_size: int) -> str | BadText:
    if isinstance(cell, bytes | dict):
        what = "bytes" if isinstance(cell, bytes) else "an object"
        return BadText(line, f"the cell holds {what}, and no list of numbers", unit)
    items = [] if cell is None else cell.split() if isinstance(cell, str) else cell
    if not hasattr(items, "__iter__"):
        items = [items]
    numbers = []
    for place, item in enumerate(items, start=1):
        number = int(item) if isinstance(item, str) and item.isdecimal() else item
        if isinstance(number, bool) or not isinstance(number, int):
            return BadText(line, f"{item!r}, the id at place {place}, is not a whole number", unit)
        if not 0 <= number < vocab_size:
            return BadText(
                line, f"{item!r}, the id at place {place}, is not between 0 and {vocab_size - 1} (--vocab_size)", unit
            )
        numbers.append(str(number))
    return " ".join(numbers)


def _plain_texts(file: BinaryIO, separator: str) -> Iterator[str | BadText]:
    for first_line, raw in _runs(file, separator):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            line = first_line + raw.count(b"\n", 0, error.start)
            yield BadText(line, bad_byte(raw[error.start]))
        else:
            if text.strip():
                yield text.replace("\r\n", "\n").strip("\n")


def _runs(file: BinaryIO, separator: str) -> Iterator[tuple[int, bytes]]:
    """The documents of a text file as (number of the first line, bytes); some may be blank."""
    run: list[bytes] = []
    first_line, size = 1, 0
    for number, line in _lines(file):
        ends_here = separator == "blank_line" and _is_blank(line)
        if not ends_here:
            if not run:
                first_line, size = number, 0
            run.append(line)
            size += len(line)
            ends_here = separator == "line" or size >= LARGEST_DOCUMENT or not line.endswith(b"\n")
        if ends_here and run:
            yield first_line, b"".join(run)
            run = []
    if run:
        yield first_line, b"".join(run)


def _is_blank(line: bytes) -> bool:
    """Whether a line holds only spaces of any kind; in Chinese and Japanese texts these may be wide spaces."""
    rest = line.lstrip()
    return not rest or (rest[0] > 0x7F and not rest.decode("utf-8", "replace").strip())


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number, line) of each line; one longer than `LARGEST_DOCUMENT` comes in pieces, cut at spaces."""
    number, rest, is_first = 1, b"", True
    while line := rest + file.readline(LARGEST_DOCUMENT - len(rest)):
        rest = b""
        is_too_long = len(line) == LARGEST_DOCUMENT and not line.endswith(b"\n")
        if is_first:
            line, is_first = line.removeprefix(b"\xef\xbb\xbf"), False
        if is_too_long:
            cut = line.rfind(b" ") + 1 or _whole_characters(line)
            line, rest = line[:cut], line[cut:]
        yield number, line
        number += line.endswith(b"\n")


def _whole_characters(line: bytes) -> int:
    """The length of `line` without an incomplete UTF-8 character at its end."""
    end = len(line) - 1
    while end > len(line) - 4 and line[end] & 0xC0 == 0x80:
        end -= 1
    return end
