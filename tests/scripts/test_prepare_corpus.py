"""prepare_corpus as a person runs it."""

import gzip
import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer
from warm_python import WarmPython

from clozebert.corpus import BatchStream, Corpus, Masking
from clozebert.corpus.demo import installed_python
from clozebert.corpus.tokenizer import train_tokenizer
from clozebert.scripts import prepare_corpus
from clozebert.scripts._program import run

SCRIPT = Path(prepare_corpus.__file__)
DOCUMENTS = [f"The {animal} number {i} sat on the {place}.\nIt was {i} o'clock." for i in range(80) for animal, place in
             [("cat", "mat"), ("dog", "log"), ("mouse", "house")]]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(DOCUMENTS, algorithm="wordpiece", vocab_size=200).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(DOCUMENTS[:100]))
    (folder / "b.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS[100:]).encode())
    )
    return folder


def test_by_path_from_text_to_batches(python: WarmPython, text: Path, tokenizer: str, tmp_path: Path) -> None:
    flags = ["--input", text, "--tokenizer_name", tokenizer, "--output_dir", tmp_path / "out"]
    done = python.run([SCRIPT, *flags, "--validation_fraction", "0.1", "--num_processes", "2"])
    assert done.returncode == 0, done.stderr
    train, validation = Corpus(tmp_path / "out"), Corpus(tmp_path / "out", "validation")
    assert f"{train.num_tokens:,} tokens" in done.stdout
    assert train.num_documents + validation.num_documents == 240
    assert validation.num_documents > 5
    assert done.stderr == "", "a short run leaves no bar in a log"
    assert "3 random documents, shortened, as the tokenizer gives them back:" in done.stdout
    shown = done.stdout.partition("gives them back:\n")[2].splitlines()[:3]
    for line in shown:
        number, _, beginning = line.strip().partition("  ")
        tokens = train.document(int(number.replace(",", "")) - 1).tolist()
        decoded = " ".join(AutoTokenizer.from_pretrained(tokenizer).decode(tokens).split()).replace(" ##", "")
        assert decoded.startswith(beginning.rstrip("…"))
        assert len(beginning) > 10
    assert [source["path"] for source in train.manifest["sources"]] == ["a.txt", "b.jsonl.gz"]
    stream = BatchStream(train, max_seq_length=64, global_batch_size=4, masking=Masking(), seed=0)
    assert stream.batch(10**9).input_ids.size > 200


def test_choices_and_what_is_left_out(
    text: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text / "c.txt").write_bytes("\n\n".join(DOCUMENTS[:7]).encode() + b"\n\n\xff\n\n\xfe\n")
    flags = ["--tokenizer_name", tokenizer, "--output_dir", str(tmp_path / "out"), "--disable_tqdm"]
    prepare_corpus.main(
        ["--input", str(text), *flags, "--on_bad_text", "skip", "--deduplicate", "exact", "--validation_fraction", "0"]
    )
    printed = capsys.readouterr().out
    assert "2 documents: bad text" in printed
    assert "7 documents: duplicate" in printed
    assert "no document is held out" in printed
    prepare_corpus.main(
        ["--input", str(text / "a.txt"), *flags, "--validation_input", str(text / "b.jsonl.gz"), "--document_separator",
         "line", "--overwrite_output_dir"]
    )  # fmt: skip
    assert Corpus(tmp_path / "out").num_documents == 200
    assert Corpus(tmp_path / "out", "validation").num_documents == 140


def test_in_parts(text: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--input", str(text), "--tokenizer_name", tokenizer, "--disable_tqdm", "--output_dir"]
    for part in ("1", "0"):
        prepare_corpus.main([*flags, str(tmp_path / "parted"), "--num_parts", "2", "--part", part])
        assert f"written to {tmp_path / 'parted.parts' / f'0000{part}-of-00002'}" in capsys.readouterr().out
    prepare_corpus.main([*flags, str(tmp_path / "parted"), "--num_parts", "2", "--part", "1"])
    assert "00001-of-00002, which was there already" in capsys.readouterr().out
    for output, parts in (("parted", ["--num_parts", "2"]), ("whole", [])):
        prepare_corpus.main([*flags, str(tmp_path / output), *parts])
    assert Corpus(tmp_path / "parted").fingerprint == Corpus(tmp_path / "whole").fingerprint
    with pytest.raises(ValueError, match="--part 1 needs --num_parts"):
        prepare_corpus.main([*flags, str(tmp_path / "third"), "--part", "1"])


@pytest.mark.parametrize("parts", [[], ["--num_parts", "1"]])
def test_texts_that_are_trained_on_and_validated_on_are_counted(
    text: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: list[str]
) -> None:
    held_out = tmp_path / "held_out.txt"
    held_out.write_text("\n\n".join([*DOCUMENTS[:7], "A text of its own."]))
    flags = ["--input", str(text), "--validation_input", str(held_out), "--tokenizer_name", tokenizer, "--disable_tqdm"]
    output = ["--output_dir", str(tmp_path / "out")]
    if parts:
        prepare_corpus.main([*flags, *output, *parts, "--part", "0"])
    prepare_corpus.main([*flags, *output, *parts])
    assert "warning: 7 documents of --input are in --validation_input, too" in capsys.readouterr().out
    prepare_corpus.main([*flags, "--output_dir", str(tmp_path / "exact"), "--deduplicate", "exact"])
    assert "are in --validation_input" not in capsys.readouterr().out


@pytest.mark.parametrize("parts", [[], ["--num_parts", "1"]])
def test_text_that_few_unknown_tokens_stand_for_is_said(
    tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: list[str]
) -> None:
    """WordPiece makes a word of more than 100 letters one token."""
    path = tmp_path / "mixed.txt"
    path.write_text("\n\n".join(DOCUMENTS * 4) + "\n\n" + " ".join(["ก" * 120] * 50))
    flags = ["--input", str(path), "--tokenizer_name", tokenizer, "--disable_tqdm", "--validation_fraction", "0"]
    output = ["--output_dir", str(tmp_path / "out")]
    if parts:
        prepare_corpus.main([*flags, *output, *parts, "--part", "0"])
    prepare_corpus.main([*flags, *output, *parts])
    manifest = Corpus(tmp_path / "out").manifest
    assert (manifest["unknown_tokens"], manifest["unknown_bytes"]) == (50, 18_000)
    share = manifest["unknown_bytes"] / manifest["text_bytes"]
    printed = capsys.readouterr().out
    assert (
        f"warning: 0.3% of the tokens are unknown to the tokenizer, and stand for {share:.1%} of the bytes" in printed
    )


def test_the_installed_packages(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chosen = [entry for entry in installed_python._source_files() if entry[0] in ("json", "email", "logging", "csv")]
    monkeypatch.setattr(installed_python, "_source_files", lambda: iter(chosen))
    prepare_corpus.main(
        ["--input", "installed-python", "--tokenizer_name", tokenizer, "--output_dir", str(tmp_path / "out"),
         "--validation_fraction", "0.2", "--disable_tqdm"]
    )  # fmt: skip
    sources = Corpus(tmp_path / "out").manifest["sources"]
    assert {source["path"] for source in sources} == {
        f"installed-python:{name}" for name in ("csv", "email", "json", "logging")
    }
    assert all(0 in (source["train"], source["validation"]) for source in sources)  # whole packages
    assert Corpus(tmp_path / "out", "validation").num_documents > 0
    assert "of the tokens are unknown to the tokenizer" in capsys.readouterr().out


def test_mistakes_are_one_line(text: Path, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine\n\nb\xe4d\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "table.csv").write_text("heading,words\nx,y\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    good = ["--input", str(text), "--tokenizer_name", tokenizer]
    out = ["--output_dir", str(tmp_path / "out")]
    named = [*out, "--tokenizer_name", tokenizer]
    cases = [
        ([*named, "--input", str(tmp_path / "missing")], "missing does not exist"),
        ([*named, "--input", str(tmp_path / "empty.txt")], "the corpus is empty"),
        ([*named, "--input", str(tmp_path / "bad.txt")], "bad.txt, line 3: byte 0xe4 is not UTF-8"),
        ([*named, "--input", str(tmp_path / "table.csv")], "give --text_column (columns: heading, words)"),
        ([*out, "--input", str(text), "--tokenizer_name", str(text)], "holds no tokenizer.json"),
        ([*out, "--input", str(text), "--tokenizer_name", str(text / "a.txt")], "is a file: give its folder"),
        ([*good, "--output_dir", str(tmp_path / "full")], "is not empty; give --overwrite_output_dir"),
        ([*named, "--input", str(text / "a.txt"), "--text_column", "foo"], "--text_column foo: no input has columns"),
        ([*good, *out, "--dataset_config_name", "foo"], "--dataset_config_name foo: no input is a dataset of the Hub"),
        ([*good, *out, "--deduplicate", "exactly"], "--deduplicate: invalid choice: 'exactly'"),
        ([*good, *out, "--document_separator", "lines"], "--document_separator: invalid choice: 'lines'"),
        ([*good, *out, "--validation_fraction", "2"], "validation_fraction=2.0"),
        ([*good, *out, "--validation_input", str(text / "a.txt")], "a.txt is in input and in validation_input"),
        ([*good, *out, "--validation_input", str(text / "a.txt"), "--validation_fraction", "0.5"], "give one of them"),
    ]
    for arguments, message in cases:
        with pytest.raises(SystemExit) as stopped:
            run(lambda arguments=arguments: prepare_corpus.main([*arguments, "--disable_tqdm"]))
        printed = capsys.readouterr()
        assert stopped.value.code == 2
        assert message in printed.err
        assert printed.err.startswith("error: ")
        assert printed.err.count("\n") == 1
        assert not printed.out
    assert not (tmp_path / "out").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_mistake_by_path_has_no_traceback(python: WarmPython, tokenizer: str, tmp_path: Path) -> None:
    flags = ["--input", tmp_path / "missing.txt", "--tokenizer_name", tokenizer, "--output_dir", tmp_path / "out"]
    done = python.run([SCRIPT, *flags])
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path / 'missing.txt'} does not exist\n")


def test_a_split_of_two_documents_is_a_warning(
    tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two files of one text on each line: half of the text would be held out without a word."""
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} line {number} of the text\n" for number in range(50)))
    flags = ["--input", str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "--tokenizer_name", tokenizer]
    prepare_corpus.main([*flags, "--output_dir", str(tmp_path / "out"), "--disable_tqdm"])
    printed = capsys.readouterr().out
    assert "warning: 50% of the text is held out, as it is 2 documents: if each line is a text" in printed
    prepare_corpus.main(
        [*flags, "--output_dir", str(tmp_path / "lines"), "--document_separator", "line", "--disable_tqdm"]
    )
    assert "is held out, as" not in capsys.readouterr().out
    (tmp_path / "two.txt").write_text("a line of text\na line of text again\n")
    flags = ["--input", str(tmp_path / "two.txt"), "--tokenizer_name", tokenizer, "--document_separator", "line"]
    prepare_corpus.main([*flags, "--output_dir", str(tmp_path / "two"), "--disable_tqdm"])
    assert "--document_separator" not in capsys.readouterr().out


def test_a_file_without_blank_lines_is_a_warning(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare_corpus, "_LONG_DOCUMENT", 1000)
    lines = [f"line {number} of the text\n" for number in range(200)]
    (tmp_path / "a.log").write_text("".join(lines))
    (tmp_path / "b.txt").write_text("\n".join(lines))
    (tmp_path / "c.jsonl.1").write_text(json.dumps({"text": "word " * 999}) + "\n")
    flags = ["--tokenizer_name", tokenizer, "--validation_fraction", "0", "--disable_tqdm", "--input"]
    files = [str(tmp_path / name) for name in ("a.log", "b.txt", "c.jsonl.1")]
    prepare_corpus.main([*flags, *files, "--output_dir", str(tmp_path / "out")])
    assert "few blank lines are in a.log, so a document has 0.0 MiB: if each line is a text" in capsys.readouterr().out
    for name, more in (("b", []), ("a", ["--document_separator", "line"])):
        files = files[1:] if name == "b" else files
        prepare_corpus.main([*flags, *files, *more, "--output_dir", str(tmp_path / name)])
        assert "few blank lines" not in capsys.readouterr().out
