"""train_tokenizer as a person runs it."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from clozebert.scripts import train_tokenizer
from clozebert.scripts._program import run

SCRIPT = Path(train_tokenizer.__file__)
TEXT = "\n\n".join(f"The {animal} number {i} sat on the {place}." for i in range(60) for animal, place in
                   [("cat", "mat"), ("dog", "log"), ("mouse", "house")])  # fmt: skip


def mistake(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr of a run that ends with status 2."""
    with pytest.raises(SystemExit) as stopped:
        run(lambda: train_tokenizer.main(arguments))
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert not printed.out
    return printed.err


def test_by_path_and_twice_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    contents = []
    for name in ("one", "two"):
        done = subprocess.run(
            [sys.executable, SCRIPT, "--input", tmp_path / "a.txt", "--output_dir", tmp_path / name,
             "--vocab_size", "400", "--model_max_length", "64"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "the text holds enough for" in done.stdout
        assert f"written to {tmp_path / name}" in done.stdout
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert tokenizer.model_max_length == 64
    assert tokenizer.tokenize("The cat sat on the mat.") == ["The", "cat", "sat", "on", "the", "mat", "."]


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_other_algorithms_and_skipped_text(algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT.encode() + b"\n\nbad \xff\n")
    train_tokenizer.main(
        ["--input", str(tmp_path), "--output_dir", str(tmp_path / "out"), "--algorithm", algorithm,
         "--vocab_size", "400", "--on_bad_text", "skip", "--lowercase"]
    )  # fmt: skip
    assert "1 document left out by --on_bad_text skip" in capsys.readouterr().out
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.decode(tokenizer("The Cat").input_ids, skip_special_tokens=True) == "the cat"


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "bad.txt").write_bytes(b"fine\nb\xe4d\n")
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    good = ["--input", str(tmp_path / "a.txt")]
    out = ["--output_dir", str(tmp_path / "out")]
    cases = [
        ([*out, "--input", str(tmp_path / "missing.txt")], "missing.txt does not exist"),
        ([*out, "--input", str(tmp_path / "bad.txt")], "bad.txt, line 2: byte 0xe4 is not UTF-8"),
        ([*out, "--input", str(tmp_path / "blank.txt")], "the input holds no text"),
        ([*out, *good, "--text_column", "foo"], "--text_column foo: no input has columns"),
        ([*out, *good, "--dataset_config_name", "foo"], "--dataset_config_name foo: no input is a dataset of the Hub"),
        ([*out, *good, "--algorithm", "wordpeice"], "did you mean 'wordpiece'"),
        ([*out, *good, "--vocab_size", "10"], "vocab_size=10 must be at least 128"),
        ([*good, "--output_dir", str(tmp_path / "full")], "is not empty; give --overwrite_output_dir"),
    ]
    for arguments, message in cases:
        error = mistake([*arguments, "--disable_tqdm"], capsys)
        assert message in error
        assert error.startswith("error: ")
        assert error.count("\n") == 1
    assert "did you mean --vocab_size" in mistake([*good, *out, "--vocab_sise", "9"], capsys)
    assert not (tmp_path / "out").exists()
