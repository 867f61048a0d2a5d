"""Files that hold no plain text are named and refused before anything is read; text is never taken for one."""

import gzip
import io
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozebert.corpus.readers.binary_files import what_it_is
from clozebert.corpus.readers.inputs import Reader
from clozebert.utils.errors import UserError


def a_zip() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("word/document.xml", "<w/>")
    return content.getvalue()


def a_tar() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return content.getvalue()


def a_database(folder: Path) -> bytes:
    path = folder / "made.db"
    with sqlite3.connect(path) as database:
        database.execute("create table t (text)")
    database.close()
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.pdf", "is a PDF: take the text out first, for example with pdftotext"),
        ("a.docx", "is a ZIP archive .*save the document as plain text"),
        ("a.txt", r"is a gzip file: give its name the suffix \.gz"),
        ("a.tar", "is a tar archive: unpack it first"),
        ("a.db", "is an SQLite database: export the text"),
        ("a.html", "is an HTML page: take the text out"),
        ("a.htm", "is an HTML page: take the text out"),
        ("a.npy", r"is a binary file: leave it out, .*; tr -d '\\0' takes zero bytes out of text"),
        ("a.csv", "is a ZIP archive"),
        ("a.bin", r"is an Arrow stream: give its name the suffix \.arrow"),
        ("a.arrow", "is not an Arrow file: its end is missing"),
        ("a.parquet.gz", "is a Parquet file: unpack it first"),
    ],
)
def test_a_folder_with_such_a_file_is_refused(tmp_path: Path, name: str, message: str) -> None:
    contents = {
        "a.pdf": b"%PDF-1.7\n%\xe2\xe3\n", "a.docx": a_zip(), "a.txt": gzip.compress(b"text"), "a.tar": a_tar(),
        "a.db": a_database(tmp_path), "a.html": b"\n<!-- x -->\n<!DOCTYPE html>\n<html></html>",
        "a.htm": b"<p>a fragment</p>", "a.npy": b"\x93NUMPY" + bytes(range(256)) * 4, "a.csv": a_zip(),
        **dict.fromkeys(("a.arrow", "a.bin"), b"\xff\xff\xff\xff\x88\0\0\0"),
        "a.parquet.gz": gzip.compress(b"PAR1\x15\0"),
    }  # fmt: skip
    (tmp_path / "good.txt").write_text("some text\n")
    (tmp_path / name).write_bytes(contents[name])
    with pytest.raises(UserError, match=rf"{name} {message}"):
        Reader([tmp_path])


def test_a_stray_zero_in_a_long_text_is_no_binary_file() -> None:
    assert what_it_is(b"word " * 1000 + b"\0") is None


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE"])
@pytest.mark.parametrize("text", ["abc", "Some text, in lines.\r\n" * 9, "文字と\n文章。\n" * 9 + "😀 a"])
def test_utf_16_without_a_mark_is_no_binary_file(tmp_path: Path, encoding: str, text: str) -> None:
    """Taking the zeros out would destroy the text."""
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match=rf"text in {encoding}: convert it: iconv -f {encoding} -t UTF-8"):
        Reader([tmp_path / "a.txt"])


def test_comments_before_the_page_and_before_text() -> None:
    comments = b"<!-- a > b -->\n" * 200  # an expression that tries all ways to cut them would never end
    assert what_it_is(comments + b"# text") is None
    assert what_it_is(b"<!-- never closed " + comments[:20]) is None
    assert what_it_is(b'<?xml version="1.0"?>\n<docs/>') is None
    for page in (
        b"\xef\xbb\xbf \n" + comments + b"<!DOCTYPE html>",
        b'<?xml version="1.0"?>\n<!-- --><html lang="en">',
    ):
        found = what_it_is(page)
        assert found is not None
        assert found[0] == "an HTML page"


@pytest.mark.parametrize("word", ["PAR1 (a receptor)", "Rar!", "BZhang", "GIF89a", "ARROW1,text"])
def test_a_text_may_begin_with_the_word_that_a_format_begins_with(word: str) -> None:
    assert what_it_is(f"{word} is the first word\nof a text, caf\u00e9.\n".encode()) is None


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=600))
def test_text_is_text(text: str) -> None:
    content = text.encode()
    found = what_it_is(content)
    assert found is None or found[0] != "a binary file"
