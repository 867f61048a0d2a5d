"""Hostile text: no traceback, file and line named, every document counted, memory bounded."""

import gzip
import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from often import often

from clozebert.corpus.encoding import LONGEST_PART, Encoder
from clozebert.corpus.preparation.prepare import prepare
from clozebert.corpus.readers.formats import LARGEST_DOCUMENT
from clozebert.corpus.readers.inputs import Reader
from clozebert.corpus.readers.table_file import BadText
from clozebert.corpus.readers.tables import open_table
from clozebert.corpus.tokenizer import load_tokenizer, train_tokenizer
from clozebert.utils.errors import UserError

DEEP = "[" * 100_000 + "]" * 100_000


def texts(*inputs: Path, **options: Any) -> list[str]:
    return list(Reader(inputs, **options).texts())


def test_a_link_is_read_once_and_one_that_leaves_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.txt").write_text("one")
    (folder / "b.txt").symlink_to("sub/a.txt")
    (folder / "loop").symlink_to(folder)
    (folder / "sub" / "up").symlink_to("..")
    assert texts(folder) == ["one"]
    assert texts(f"{folder}/**") == texts(f"{folder}/**/*.txt") == ["one"]
    (tmp_path / "secret").write_text("secret")
    for target in (tmp_path / "secret", tmp_path, "nowhere", "c.txt"):
        (folder / "c.txt").symlink_to(target)
        with pytest.raises(UserError, match=r"c.txt is a link that leads nowhere or out of"):
            texts(folder)
        (folder / "c.txt").unlink()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="changes the user of a process")
@pytest.mark.parametrize("given", ["", "closed", "closed/b.txt", "closed/sub", "closed/*.txt", "**/*.txt"])
def test_an_unreadable_folder_is_named(tmp_path: Path, given: str) -> None:
    """As the input, in it, above it, and in a pattern."""
    closed = tmp_path / "text" / "closed"
    (closed / "sub").mkdir(parents=True)
    (tmp_path / "text" / "a.txt").write_text("one")
    (closed / "b.txt").write_text("two")
    # Another user must come as far as the folder of this test.
    for parent in [tmp_path, *tmp_path.parents]:
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    closed.chmod(0)
    reading, writing = os.pipe()
    if os.fork() == 0:
        said = "nothing"
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            Reader([tmp_path / "text" / given])
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.wait()
    said = os.read(reading, 10_000).decode()
    closed.chmod(0o755)
    assert said.startswith("UserFileError")
    assert "closed" in said
    assert "cannot be read: " in said
    assert "Permission denied" in said


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("9" * 6000, "digits"),
        ("-" + "9" * 6000, "digits"),
        (DEEP, "nested too deep"),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, "nested too deep"),
        ("01", "not JSON"),
        ('"\x01"', "not JSON"),
        ('{"x": 1, "x": 2}', "occurs twice"),
    ],
    ids=["digits", "minus", "lists", "objects", "zero", "control", "twice"],
)
def test_json_that_is_none_is_named_with_its_line(tmp_path: Path, suffix: str, value: str, reason: str) -> None:
    path = tmp_path / f"a{suffix}"
    lines = ['{"text": "good"}', f'{{"text": "bad", "n": {value}}}', '{"text": "last"}']
    path.write_text("\n".join(lines) if suffix == ".jsonl" else "[\n" + ",\n".join(lines) + "]")
    line = 2 if suffix == ".jsonl" else 3
    with pytest.raises(UserError, match=rf"line {line}: .*{reason}"):
        texts(path)
    if suffix == ".jsonl":
        assert texts(path, on_bad_text="skip") == ["good", "last"]


@pytest.mark.skipif(sys.platform != "linux", reason="the file system takes any bytes as a name")
def test_a_name_that_is_not_utf8_is_written_out(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / os.fsdecode(b"a\xff\xfe.txt")).write_text("the river and the stone")
    tokenizer = train_tokenizer(["the river and the stone"] * 9, vocab_size=130)
    manifest = prepare(Reader([folder]), tokenizer=tokenizer, output_dir=tmp_path / "out", validation_fraction=0)
    assert manifest["train"]["sources"][0]["path"] == r"a\udcff\udcfe.txt"
    assert json.loads((tmp_path / "out" / "train" / "manifest.json").read_bytes()) == manifest["train"]


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
@pytest.mark.parametrize("quoted", [False, True])
def test_lines_of_a_csv_end_in_any_way(tmp_path: Path, end: str, quoted: bool) -> None:
    cells = [f'"text {number}"' if quoted else f"text {number}" for number in range(40)]
    (tmp_path / "a.csv").write_bytes(end.join(["text,label", *(f"{cell},{1}" for cell in cells), ""]).encode())
    assert texts(tmp_path / "a.csv") == [f"text {number}" for number in range(40)]


def test_a_doubled_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\ntext,label\none,1\n")
    with pytest.raises(UserError, match=r"a.csv, line 2: the header stands here again"):
        texts(tmp_path / "a.csv")


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\n" * 1000)
    reader = iter(Reader([path]))
    next(reader)
    with open(path, "a", encoding="utf-8") as file:
        file.write("two\n")
    with pytest.raises(UserError, match=r"a.txt was changed while it was read"):
        list(reader)


@pytest.mark.parametrize("separator", ["blank_line", "line", "file"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xef\xbb\xbfone\r\n\r\ntwo", ["one", "two"]),
        (b"one\n\n\n\n\n\ntwo\n", ["one", "two"]),
        (b"one\0\n\n" + b"two " * 500, ["one\0", "two " * 500]),
        (b"one\0\n\ntwo", "holds no text|is a binary file"),
        (b"\n\n \n\t\n", None),
        (b"\xff\xfeo\0n\0e\0", "UTF-16"),
        (b"\xff\xfe\0\0" + "one".encode("utf-32-le"), "UTF-32"),
        (b"\0\0\xfe\xff" + "one".encode("utf-32-be"), "UTF-32"),
        (b"one\n\n\xed\xa0\x80\n", "0xed is not UTF-8"),  # a lone surrogate in the bytes of UTF-8
        (b"one\n\ncaf\xe9\n", "line 3: byte 0xe9"),
    ],
    ids=["bom", "blank", "nul", "binary", "nothing", "utf16", "utf32", "utf32-be", "surrogate", "latin1"],
)
def test_bytes_of_text(tmp_path: Path, content: bytes, expected: Any, separator: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=rf"a.txt.*({expected})"):
            texts(tmp_path / "a.txt", document_separator=separator)
        return
    found = texts(tmp_path / "a.txt", document_separator=separator)
    if expected is None:
        assert found == []
    elif separator == "file":
        assert len(found) == 1
        assert all(text in found[0] for text in expected)
    else:
        assert found == expected


# Compressed files cut short ------------------------------------------------------------------------------------------


def compressions() -> dict[str, Callable[[bytes], bytes]]:
    zstandard = pytest.importorskip("zstandard")
    return {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_compressed_file_that_is_cut_short_anywhere_is_an_error(tmp_path: Path, suffix: str) -> None:
    text = "\n\n".join(f"document {number} of the text" for number in range(60))
    whole = compressions()[suffix](text.encode())
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(whole)
    assert len(texts(path)) == 60
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"is not a whole|no text in"):
            texts(path)
    # Two files one after another are one. Cut between them it is whole: nothing in it tells that more was there.
    path.write_bytes(whole + whole)
    assert len(texts(path)) in (119, 120)
    for length in range(len(whole) + 1, 2 * len(whole)):
        path.write_bytes((whole + whole)[:length])
        with pytest.raises(UserError, match="is not a whole"):
            texts(path)


def test_a_parquet_file_with_a_flipped_bit_is_an_error_or_the_same(tmp_path: Path) -> None:
    """With checksums of pages, which a writer has to ask for; without them a flip in a text is a text."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    right = [f"document {number} of the text" for number in range(50)]
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": right}), path, write_page_checksum=True)
    whole = path.read_bytes()
    silent = refused = 0
    for place in range(0, 8 * len(whole), 37):
        content = bytearray(whole)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            silent += texts(path, text_column="text") != right
        except UserError as error:
            refused += "a.parquet" in str(error)
            silent += "a.parquet" not in str(error)
    assert refused > 20
    assert silent == 0
    for length in range(0, len(whole), 29):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"a\.parquet"):
            texts(path)


# Memory --------------------------------------------------------------------------------------------------------------

MEASURE = """
import sys
from clozebert.corpus.preparation.prepare import prepare
from clozebert.corpus.readers.inputs import Reader
from clozebert.corpus.tokenizer import load_tokenizer
from clozebert.utils.errors import UserError
from clozebert.utils.memory import peak_memory
tokenizer = load_tokenizer(sys.argv[1])
tokenizer("warm up")
before, said = peak_memory(), ""
try:
    options = {"tokenizer": tokenizer, "output_dir": sys.argv[3], "num_processes": 1, "validation_fraction": 0}
    made = prepare(Reader([sys.argv[2]]), **options)
    said = str(made["train"]["tokens"])
except UserError as error:
    said = str(error)
print(f"{(peak_memory() - before) / 2**20:.0f}|{said}")
"""


def measure(tokenizer: Path, path: Path, tmp_path: Path) -> tuple[float, str]:
    """MB above what the tokenizer takes, and what was said."""
    command = [sys.executable, "-c", MEASURE, str(tokenizer), str(path), str(tmp_path / f"{path.name}.out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    used, said = done.stdout.strip().splitlines()[-1].split("|", 1)
    return float(used), said


def write_bomb(path: Path, unit: bytes, megabytes: int, *, head: bytes = b"", tail: bytes = b"") -> None:
    block = unit * ((1 << 20) // len(unit))
    with gzip.open(path, "wb") if path.suffix == ".gz" else open(path, "wb") as file:
        file.write(head)
        for _ in range(megabytes):
            file.write(block)
        file.write(tail)


@pytest.mark.faults
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_a_line_of_a_gigabyte(tmp_path: Path, algorithm: str, figure: Callable[[str, Any], None]) -> None:
    train_tokenizer(["the quick brown fox aaa"] * 50, algorithm=algorithm, vocab_size=600).save_pretrained(
        tmp_path / "t"
    )
    for name, unit, megabytes in (("words", b"the quick brown fox ", 300), ("one word", b"a", 1024)):
        write_bomb(tmp_path / f"{name}.txt", unit, megabytes)
        used, said = measure(tmp_path / "t", tmp_path / f"{name}.txt", tmp_path)
        figure(f"a line of {megabytes} MiB, {name}, {algorithm}", f"{used:.0f} MB")
        assert used < 512
        assert int(said) > 0
        (tmp_path / f"{name}.txt").unlink()


BOMBS = {
    "a.txt.gz": (b"a", b"", b""),
    "a.jsonl.gz": (b"a", b'{"text": "', b'"}'),
    "lists.jsonl.gz": (b"[],", b'{"text": "x", "n": [', b"0]}\n"),
    "deep.jsonl.gz": (b"[", b"", b""),
    "array.json.gz": (b"[],", b'[{"text": "x", "n": [', b"0]}]"),
    "many.json.gz": (b'{"text": "x"},', b"[", b'{"text": "x"}]'),
    "a.csv.gz": (b"a", b"text,label\n", b",1\n"),
    "quote.csv.gz": (b"a\n", b'text,label\n"', b""),
    "a.tsv.gz": (b"a", b"text\tlabel\n", b"\t1\n"),
    "cells.csv.gz": (b",", b"text,label\n", b"\n"),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.faults
def test_a_bomb_is_refused_or_read_in_bounded_memory(
    corpus_folder: Path, tmp_path: Path, name: str, figure: Callable[[str, Any], None]
) -> None:
    unit, head, tail = BOMBS[name]
    # 512 MiB of documents of one letter would be 38 million of them, and take most of an hour.
    megabytes = 32 if name == "many.json.gz" else 512
    write_bomb(tmp_path / name, unit, megabytes, head=head, tail=tail)
    used, said = measure(corpus_folder / "tokenizer", tmp_path / name, tmp_path)
    figure(
        f"bomb {name}",
        f"{used:.0f} MB: {said.replace(str(tmp_path), '')[:60]}",
    )
    assert used < 1024
    assert said.isdigit() or name in said


def test_long_texts_are_encoded_in_parts_as_whole(corpus_folder: Path) -> None:
    words = " ".join(f"word{number} one.two\n\n, three" for number in range(30_000))
    for algorithm in ("wordpiece", "bpe", "unigram"):
        tokenizer = train_tokenizer([words[:20_000]], algorithm=algorithm, vocab_size=600)
        encoder = Encoder(tokenizer.backend_tokenizer.to_str())
        assert len(words) > 2 * LONGEST_PART
        parts = encoder.encode_counting([words, "short"])
        assert parts == [encoder._encode_short([words])[0], encoder._encode_short(["short"])[0]]
    assert LARGEST_DOCUMENT > 4 * LONGEST_PART


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv"])
def test_a_long_line_is_read_in_pieces(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    size = LARGEST_DOCUMENT * 5 // 2
    head, tail = {".txt": ("", ""), ".jsonl": ('{"text": "', '"}'), ".csv": ("text,label\n", ",1\n")}[suffix]
    path.write_text(head + "a" * size + tail)
    found = texts(path)
    assert sum(map(len, found)) == size
    assert all(len(text) <= LARGEST_DOCUMENT for text in found) or suffix != ".txt"


# Preparation that is killed ------------------------------------------------------------------------------------------

SLOW = """
import sys, time
from clozebert.corpus.preparation import prepare
from clozebert.corpus.readers.inputs import Reader
from clozebert.corpus.tokenizer import load_tokenizer
class Slow(Reader):
    def __iter__(self):
        for document in super().__iter__():
            print("reading", flush=True)
            yield document
            time.sleep(60)
prepare.prepare(Slow([sys.argv[2]]), tokenizer=load_tokenizer(sys.argv[1]), output_dir=sys.argv[3], num_processes=1)
"""


@pytest.mark.parametrize("is_there", often([True, False]))
def test_what_a_killed_preparation_left_is_removed_by_the_next(
    corpus_folder: Path, tmp_path: Path, is_there: bool
) -> None:
    (tmp_path / "a.txt").write_text("w1 w2 w3\n\nw4 w5\n\nw6 w7")
    out = tmp_path / "out"
    if is_there:
        out.mkdir()
    tokenizer = corpus_folder / "tokenizer"
    command = [sys.executable, "-c", SLOW, str(tokenizer), str(tmp_path / "a.txt"), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"

    def again() -> None:
        prepare(Reader([tmp_path / "a.txt"]), tokenizer=load_tokenizer(str(tokenizer)), output_dir=out, num_processes=1)

    half = list(tmp_path.rglob(".incomplete-*"))
    assert len(half) == 1, "one is being written"
    with pytest.raises(UserError, match="is being written by another program"):
        again()
    process.kill()
    process.wait()
    again()
    assert list(tmp_path.rglob(".incomplete-*")) == []
    assert sorted(path.name for path in out.iterdir()) == ["train", "validation"]


def test_preparation_flushes_every_file_before_its_name(
    corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and folder is pushed to the disk while it still has its temporary name, and the names after."""
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename

    def noted(number: int) -> None:
        events.append(("fsync", os.readlink(f"/proc/self/fd/{number}")))
        fsync(number)

    def renamed(path: Path, target: Path) -> Path:
        events.append(("rename", str(target)))
        return rename(path, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("reads the names of open files as Linux tells them")
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", renamed)
    (tmp_path / "a.txt").write_text("w1 w2 w3\n\nw4 w5\n\nw6 w7")
    out = tmp_path / "out"
    prepare(Reader([tmp_path / "a.txt"]), tokenizer=load_tokenizer(str(corpus_folder / "tokenizer")), output_dir=out)
    commit = events.index(("rename", str(out)))
    flushed = [name for kind, name in events[:commit] if kind == "fsync"]
    for path in out.rglob("*"):
        name = path.relative_to(out).as_posix()
        assert any(one.endswith(f"/{name}") and ".incomplete-" in one for one in flushed), name
    assert ("fsync", str(tmp_path)) in events[commit:]


def test_a_table_row_that_is_bad_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n{"text": 5}\nnull\n{"text": "\xff"}\n{"text": "two"}\n')
    rows = list(open_table(tmp_path / "a.jsonl").rows())
    assert [row.line for row in rows] == [1, 2, 3, 4, 5]
    assert [isinstance(row, BadText) for row in rows] == [False, False, True, True, False]
    reader = Reader([tmp_path / "a.jsonl"], on_bad_text="skip")
    assert list(reader.texts()) == ["one", "two"]
    assert (reader.sources[0].documents, reader.sources[0].bad_text) == (5, 3)
