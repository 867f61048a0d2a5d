"""Readers: one set of documents out of every format, and errors that name the place."""

import bz2
import csv
import errno
import glob
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from clozebert.corpus.readers import compression, delimited, formats, json_records
from clozebert.corpus.readers.columnar import open_dataset
from clozebert.corpus.readers.input_files import files_below, files_matching
from clozebert.corpus.readers.inputs import Reader, refuse_unused
from clozebert.utils.errors import UserError

DOCUMENTS = [
    "First line.\nSecond “line”.",
    "Ein zweites, kürzeres; Dokument",
    'With "quotes", commas\tand tabs',
    "漢字",
]


def as_text(documents: list[str]) -> bytes:
    return "\n\n".join(documents).encode()


def as_json(documents: list[str]) -> bytes:
    return "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(documents)).encode()


def as_csv(documents: list[str], delimiter: str = ",") -> bytes:
    lines = io.StringIO()
    csv.writer(lines, delimiter=delimiter).writerows([["id", "text"], *enumerate(documents)])
    return lines.getvalue().encode()


def as_parquet(documents: list[str]) -> bytes:
    content = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"id": range(len(documents)), "text": documents}), content)
    return content.getvalue()


FORMATS: dict[str, Callable[[list[str]], bytes]] = {
    "a.txt": as_text,
    "a.unknown": as_text,
    "a": as_text,
    "a.jsonl": as_json,
    "a.csv": as_csv,
    "a.tsv": lambda documents: as_csv(documents, "\t"),
    "a.parquet": as_parquet,
    "a.txt.gz": lambda documents: gzip.compress(as_text(documents)),
    "a.jsonl.gz": lambda documents: gzip.compress(as_json(documents)),
    "a.jsonl.zst": lambda documents: zstandard.compress(as_json(documents)),
    "a.csv.zst": lambda documents: zstandard.compress(as_csv(documents)),
}


def read(*inputs: Path | str, **options: Any) -> list[str]:
    return list(Reader(list(inputs), **options).texts())


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_documents(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FORMATS[name](DOCUMENTS))
    reader = Reader([tmp_path / name])
    assert list(reader.texts()) == DOCUMENTS
    assert list(reader.texts()) == DOCUMENTS  # and again
    assert reader.bytes_read == reader.total_bytes == (tmp_path / name).stat().st_size
    assert [(source.path, source.documents, source.bad_text) for source in reader.sources] == [(name, 4, 0)]


def test_a_byte_order_mark_does_not_hide_that_a_line_is_too_long(tmp_path: Path) -> None:
    words = "word " * 1_000_000  # 5 MB
    for mark in ("", "\ufeff"):
        (tmp_path / "a.txt").write_text(mark + words + "\nnext\n", encoding="utf-8")
        assert "".join(read(tmp_path / "a.txt")).split() == [*words.split(), "next"]


def test_patterns_find_what_glob_finds_through_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("de/v2/a.txt", "fr/latest/a.txt", ".old/b.txt", "de/.v1/c.txt", "de/x/latest.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    links = {"de/latest": "v2", "de/first": ".v1", "de/x/up": "..", "kept": ".old"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    patterns = [
        "**",
        "**/*",
        "**/*.txt",
        "**/latest/*.txt",
        "de/**/a.txt",
        "*/**",
        "**/.v1/*",
        "**/**/c.txt",
        "**/up/**/a*",
        "de/*/*.txt",
        "de/[vx]*/a.txt",
    ]
    for pattern in patterns:
        expected = {os.path.realpath(name) for name in glob.glob(pattern, recursive=True) if os.path.isfile(name)}
        assert {os.path.realpath(path) for path in files_matching(pattern)} == expected
        assert expected
    assert {path.read_text() for path in files_below(tmp_path)} == {
        "de/v2/a.txt", "fr/latest/a.txt", ".old/b.txt", "de/.v1/c.txt", "de/x/latest.txt",
    }  # fmt: skip


@pytest.mark.parametrize("target", ["self.txt", "fetched/later"])
def test_a_link_that_leads_nowhere_is_refused_where_it_matches(tmp_path: Path, target: str) -> None:
    """As git-annex and DVC leave it for a file that is not here: part of the text would be missing."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "self.txt").symlink_to(target)
    for pattern in (tmp_path, tmp_path / "*.txt", tmp_path / "**" / "*.txt"):
        with pytest.raises(UserError, match=r"self\.txt is a link that leads nowhere"):
            read(pattern)
    assert read(tmp_path / "a*") == ["a"]


def test_a_closed_folder_is_refused_only_where_files_in_it_may_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.txt", "open/b.txt", "closed/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert read(str(tmp_path / "*")) == ["a.txt"]
    assert read(str(tmp_path / "o*" / "*")) == ["open/b.txt"]
    for pattern in ("*/b.txt", "**/b.txt"):
        with pytest.raises(UserError, match="closed cannot be read: Permission denied"):
            read(str(tmp_path / pattern))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network disk that is away: else the message blames the folder that is written."""
    path = tmp_path / "a.txt"
    path.write_text("a\n" * 100_000)

    class Away(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 1 << 16:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    with open(path, "rb") as file:
        reader = compression._reader(path, Away(file.read()))
    with pytest.raises(UserError, match=r"a\.txt cannot be read: Input/output error"):
        [reader(1 << 14) for _ in range(99)]


def test_folders_and_patterns_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/10.txt", "a.txt", ".hidden/x.txt", "b/.y.txt", "c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(tmp_path) == ["a.txt", "b/10.txt", "b/2.txt", "c.md"]
    assert read(str(tmp_path / "**/*.txt")) == ["a.txt", "b/10.txt", "b/2.txt"]
    assert read(str(tmp_path / "**/b/*.txt")) == ["b/10.txt", "b/2.txt"]
    assert read(str(tmp_path / "**/?.txt")) == read(str(tmp_path / "**/[!x].txt")) == ["a.txt", "b/2.txt"]
    assert not files_matching(str(tmp_path / "**/b?2.txt"))  # no sign stands for a slash
    assert not files_matching(str(tmp_path / "**/b[!x]2.txt"))
    assert read(tmp_path / "c.md", tmp_path / "b") == ["c.md", "b/10.txt", "b/2.txt"]
    reader = Reader([tmp_path])
    list(reader)
    assert [source.path for source in reader.sources] == ["a.txt", "b/10.txt", "b/2.txt", "c.md"]


@pytest.mark.parametrize(
    ("separator", "expected"),
    [
        ("blank_line", ["one\ntwo", "three\n  four"]),
        ("line", ["one", "two", "three", "  four"]),
        ("file", ["one\ntwo\n \t\n\nthree\n  four"]),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_what_ends_a_document(tmp_path: Path, separator: str, expected: list[str], newline: str, mark: str) -> None:
    lines = mark + "one\ntwo\n \t\n\nthree\n  four\n\n"
    (tmp_path / "a.txt").write_bytes(lines.replace("\n", newline).encode())
    assert read(tmp_path / "a.txt", document_separator=separator) == expected


@pytest.mark.parametrize("blank", ["\u3000", " \u3000\u3000\r", "\u00a0", "\u2003 \t"])
def test_a_line_of_wide_spaces_is_blank(tmp_path: Path, blank: str) -> None:
    (tmp_path / "a.txt").write_bytes(f"\u3000一\n二\n{blank}\n三\n{blank}".encode())
    assert read(tmp_path / "a.txt") == ["\u3000一\n二", "三"]
    assert read(tmp_path / "a.txt", document_separator="line") == ["\u3000一", "二", "三"]
    (tmp_path / "b.txt").write_bytes(b"one\n\xff\n")  # not UTF-8, and not blank
    with pytest.raises(ValueError, match="line 2: byte 0xff"):
        read(tmp_path / "b.txt")


def test_no_document_is_blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a piece of a long one; spaces are those of Unicode, as in a blank line."""
    monkeypatch.setattr(formats, "LARGEST_DOCUMENT", 16)
    (tmp_path / "a.txt").write_bytes(("一\n" + "\n" * 60 + "\u3000" * 10 + "\n二\n").encode())
    assert read(tmp_path / "a.txt", document_separator="file") == ["一", "二"]


@given(st.text(alphabet="\ufeffaé漢🤗 \n", max_size=400), st.sampled_from(["blank_line", "line", "file"]))
def test_what_is_too_long_is_cut_and_not_lost(text: str, separator: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "LARGEST_DOCUMENT", 16)
        found = list(formats._plain_texts(io.BytesIO(text.encode()), separator))
    assert all(isinstance(document, str) and document.strip() for document in found)
    assert "".join("".join(map(str, found)).split()) == "".join(text.removeprefix("\ufeff").split())
    assert all(len(str(document).encode()) < 32 for document in found)


def test_the_column_is_found_or_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("title,content\nx,hello there\n")
    assert read(path) == ["hello there"]
    assert read(path, text_column="title") == ["x"]
    with pytest.raises(ValueError, match=r"--text_column body: .*a\.csv has no such column; it has title, content"):
        Reader([path], text_column="body")
    path.write_text("title,words\nx,hello there\n")
    with pytest.raises(ValueError, match=r"cannot tell which .* give --text_column \(columns: title, words\)"):
        Reader([path])
    path.write_text("words\nhello there\n")
    with pytest.raises(ValueError, match=r"\(columns: words\), or its number if the first row is no header"):
        Reader([path])
    assert read(path, text_column="words") == ["hello there"]
    assert read(path, text_column="1") == ["words", "hello there"]
    (tmp_path / "b.jsonl").write_text('{"label": 1}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl: cannot tell .* \(columns: label\)$"):
        Reader([tmp_path / "b.jsonl"])
    (tmp_path / "c.parquet").write_bytes(as_parquet(DOCUMENTS))
    with pytest.raises(ValueError, match=r"--text_column body: .*c\.parquet has no such column"):
        Reader([tmp_path / "c.parquet"], text_column="body")


def test_a_text_column_is_used_by_one_of_several_inputs(tmp_path: Path) -> None:
    """`adapt` reads several kinds of text with one flag."""
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id,words\n1,hello there\n"))
    (tmp_path / "b.txt").write_text("hello there\n")
    table, text = (Reader([tmp_path / name], text_column="words") for name in ("a.csv.gz", "b.txt"))
    refuse_unused([table, text], text_column="words")
    with pytest.raises(UserError, match="--text_column words: no input has columns"):
        refuse_unused([text], text_column="words")


def test_a_long_first_line_with_returns_does_not_make_an_old_mac_of_a_file(tmp_path: Path) -> None:
    """Such as the progress bars of a log: the lines after it, with `\\r\\n`, are not parted by blank ones."""
    progress = b"\r".join(b"step %d of 9000" % step for step in range(6000))
    (tmp_path / "log.txt").write_bytes(progress + b"\r\nA line\r\nand its next.\r\n\r\nA document.\r\n")
    first, second = Reader([tmp_path / "log.txt"]).texts()
    assert (first.split("\n")[-3:], second) == (["step 5999 of 9000", "A line", "and its next."], "A document.")
    for letters in range(65_530, 65_540):  # the first `\r\n` stands at, before and behind the end of 64 KiB
        (tmp_path / "long.txt").write_bytes(b"x" * letters + b"\r\nA line\r\nand its next.\r\n")
        assert list(Reader([tmp_path / "long.txt"]).texts()) == ["x" * letters + "\nA line\nand its next."]
    (tmp_path / "mac.txt").write_bytes(progress.replace(b"9000", b"9000\r") + b"\r")
    assert len(list(Reader([tmp_path / "mac.txt"]).texts())) == 6000


BAD = {
    "a.txt": (
        b"fine\n\ngood\nb\xe4d\nmore\n\nfine too\n",
        r"a\.txt, line 4: byte 0xe4 is not UTF-8",
        ["fine", "fine too"],
    ),
    "a.jsonl": (
        b'{"text": "fine"}\n{"text": "b\xe4d"}\n{"text": "fine too"}\n',
        r"line 2: byte 0xe4",
        ["fine", "fine too"],
    ),
    "bom.jsonl": (b'\xef\xbb\xbf{"text": "b\xe4d"}\n{"text": "fine"}\n', r"line 1: byte 0xe4", ["fine"]),
    "b.jsonl": (b'{"text": "fine"}\n{"text": \n', r"line 2: not JSON", ["fine"]),
    "c.jsonl": (b'{"text": "fine"}\n{"body": "x"}\n', r"line 2: the record has no 'text'", ["fine"]),
    "d.jsonl": (b'{"text": "fine"}\n{"text": 5}\n', r"line 2: the text is '5', a int", ["fine"]),
    "e.jsonl": (b'{"text": "fine"}\n["x"]\n', r"line 2: expected a JSON object, found list", ["fine"]),
    "f.jsonl": (b'{"text": "fine"}\n{"text": "\\ud800"}\n', r"line 2: '\\ud800' is not UTF-8", ["fine"]),
    "g.jsonl": (b'{}\n{"text": "fine"}\n', r"line 1: the record has no 'text'", ["fine"]),
    "g.json": (b'[{}, {"text": "fine"}]', r"line 1: the record has no 'text'", ["fine"]),
    "i.json": (b'[{"text": "fine"},\n{"text": "b\xe4d"}]', r"line 2: byte 0xe4", ["fine"]),
    "h.jsonl": (b"{}\n", r"line 1: the record is empty", []),
    "h.json": (b'{"data":\n', r"line 1: not JSON: .* \(each line holds a whole object, or", []),
    "a.csv": (b'id,text\n1,fine\n2,"b\xe4d"\n3,fine too\n', r"line 3: byte 0xe4 is not UTF-8", ["fine", "fine too"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_text_is_an_error_or_counted(tmp_path: Path, name: str) -> None:
    content, message, rest = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)
    reader = Reader([tmp_path / name], on_bad_text="skip")
    assert list(reader.texts()) == rest
    assert reader.sources[0].bad_text == 1
    assert reader.sources[0].documents == len(rest) + 1


def test_a_line_that_is_too_long_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_records, "LARGEST_OBJECT", 1 << 8)
    monkeypatch.setattr(delimited, "LARGEST_CELL", 1 << 8)
    long = "x " * 200
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "short"}) + "\n" + json.dumps({"text": long}) + "\n")
    (tmp_path / "a.csv").write_text(f"id,text\n1,{long}\n")
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: .* in one line: split the text .* into a \.txt"):
        read(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match=r"a\.csv, line 2: .* in one line: split it into several rows"):
        read(tmp_path / "a.csv")


def test_a_missing_text_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": null}\n\n{"text": "x"}\n')
    (tmp_path / "b.csv").write_text("id,text\n1,\n\n2,x\n")
    assert read(tmp_path) == ["", "x", "", "x"]


def test_inputs_may_come_from_a_generator(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    assert [document.text for document in Reader(tmp_path / name for name in ("a.txt", "b.txt"))] == ["a.txt", "b.txt"]


def test_a_file_is_not_read_twice(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    inputs = ([tmp_path, tmp_path / "a.txt"], [tmp_path / "a.txt", tmp_path / "link.txt"], [f"{tmp_path}/a*"] * 2)
    for named in inputs:
        with pytest.raises(ValueError, match=r"input names the file .*\.txt twice"):
            Reader(named)


def test_what_is_wrong_with_inputs_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.txt does not exist"):
        Reader([tmp_path / "missing.txt"])
    with pytest.raises(FileNotFoundError, match="no file matches"):
        Reader([str(tmp_path / "*.txt")])
    with pytest.raises(ValueError, match="input is empty"):
        Reader([])
    with pytest.raises(ValueError, match="an input is empty: name files or folders"):
        Reader([""])
    with pytest.raises(ValueError, match="holds no file"):
        Reader([tmp_path])
    with pytest.raises(ValueError, match="null is a pipe or a device, and texts are read more than once"):
        Reader(["/dev/null"])
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="the corpus is empty"):
        Reader([tmp_path])
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="document_separator='lines' must be one of blank_line, line, file"):
        Reader([tmp_path], document_separator="lines")
    for name in ("b.txt.gz", "b.txt.zst", "b.parquet"):
        (tmp_path / name).write_bytes(b"this is none")
        with pytest.raises(ValueError, match=f"{name} is not a"):
            Reader([tmp_path / name])
    for suffix in ("gz", "bz2", "xz", "zst"):
        (tmp_path / f"e.txt.{suffix}").touch()
        with pytest.raises(UserError, match=rf"is not a whole \.{suffix} file"):
            Reader([tmp_path / f"e.txt.{suffix}"])
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"word " * 10_000)[:-20])
    with pytest.raises(ValueError, match=r"not a whole \.gz file"):
        read(tmp_path / "c.txt.gz")


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_a_file_of_several_compressed_streams(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    one, two = compress(b"First.\n\n" * 1000), compress(b"Second.\n\n" * 20_000)
    path.write_bytes(one + two + bytes(8) + one)
    assert read(path) == ["First."] * 1000 + ["Second."] * 20_000 + ["First."] * 1000
    # Neither a damaged stream nor those behind it are left out in silence.
    damaged = bytearray(two)
    damaged[len(damaged) // 2] ^= 4
    for wrong in (one + damaged + one, one + b"something else", one + two[:-3], one + two[:20]):
        path.write_bytes(wrong)
        with pytest.raises(UserError, match=rf"a\.txt\.{suffix} is not a whole \.{suffix} file"):
            read(path)


def test_a_dataset_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets
    import huggingface_hub

    asked: list[Any] = []

    def load(name: str, config: str | None, **options: Any) -> list[dict[str, str]]:
        asked.append((name, config, options["split"]))
        if name != "owner/poems":
            raise ConnectionError("no such dataset\nmore")
        return [{"content": text} for text in DOCUMENTS]

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    reader = Reader(["owner/poems"], dataset_config_name="english")
    assert list(reader.texts()) == DOCUMENTS
    assert asked == [("owner/poems", "english", "train")]
    assert reader.total_bytes is None
    refuse_unused([reader], text_column="content", dataset_config_name="english")
    assert (reader.sources[0].path, reader.sources[0].documents) == ("hub:owner/poems", 4)
    with pytest.raises(FileNotFoundError, match="owner/none is neither a file or folder here nor a dataset"):
        Reader(["owner/none"])
    (tmp_path / "data").mkdir()
    with pytest.raises(FileNotFoundError, match="data/none does not exist"):
        Reader(["data/none"])


def test_a_dataset_that_was_saved_in_a_folder(tmp_path: Path) -> None:
    import datasets

    saved = datasets.Dataset.from_dict({"content": DOCUMENTS})
    saved.save_to_disk(str(tmp_path / "one"), num_shards=2)
    splits = {"train": saved, "test": datasets.Dataset.from_dict({"content": ["left out"]})}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "splits"))
    one, of_splits = Reader([tmp_path / "one"]), Reader([tmp_path / "splits"])
    assert list(one.texts()) == list(of_splits.texts()) == DOCUMENTS
    assert [source.path for source in one.sources] == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    assert one.bytes_read == one.total_bytes
    for name in ("one", "splits"):
        table = open_dataset(str(tmp_path / name), None)["train"]
        assert [row.values["content"] for row in table.rows()] == DOCUMENTS
    with pytest.raises(UserError, match="has no configuration 'english'; leave it out"):
        open_dataset(str(tmp_path / "one"), "english")
    del splits["train"]
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "test"))
    with pytest.raises(UserError, match="is a saved dataset without a train split: name the folder of one split"):
        Reader([tmp_path / "test"])
    assert list(Reader([tmp_path / "test" / "test"]).texts()) == ["left out"]
    (tmp_path / "one" / "state.json").write_text('{"_data_files": [{"filename": "../splits/train/x.arrow"}]}')
    with pytest.raises(UserError, match="which is not a file of its folder"):
        Reader([tmp_path / "one"])
