"""Damaged corpora: every damage is found when the corpus is opened, and by `clozebert check`, which names the file."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozebert.corpus import Corpus, RowIndex
from clozebert.corpus.integrity import find_damaged_files
from clozebert.corpus.tokenizer import load_tokenizer
from clozebert.scripts import check
from clozebert.training.checks import check_tokenizer
from clozebert.utils.errors import UserError

KINDS = ("flip", "flip", "flip", "truncate", "extend", "zero", "missing", "empty", "swap")
LENGTH = 40


def damage(path: Path, kind: str, draws: random.Random) -> None:
    """Damage one file in one way; its size, or a bit of it, is another afterwards."""
    content = bytearray(path.read_bytes())
    if kind == "missing":
        path.unlink()
        return
    if kind == "flip":
        place = draws.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
    elif kind == "truncate":
        content = content[: draws.randrange(len(content))]
    elif kind == "extend":
        content += draws.randbytes(draws.randint(1, 9))
    elif kind == "zero":
        begin = draws.randrange(len(content))
        end = min(len(content), begin + draws.randint(1, 64))
        if not any(content[begin:end]):
            content[begin] = 1
        else:
            content[begin:end] = bytes(end - begin)
    elif kind == "empty":
        content = bytearray()
    else:  # swap: the content of another file of its kind
        others = [one for one in sorted(path.parent.parent.glob(f"*/{path.name[:6]}*")) if one.read_bytes() != content]
        content = bytearray(reversed(content)) + b"\n" if not others else bytearray(draws.choice(others).read_bytes())
    path.write_bytes(content)


def is_found_by_opening(corpus: Path) -> bool:
    try:
        for split in ("train", "validation"):
            Corpus(corpus, split)
    except UserError:
        return True
    return False


def count_silent(corpus_folder: Path, tmp_path: Path, number: int) -> Counter[str]:
    """Damage a corpus `number` times, in one file each time."""
    draws, found = random.Random(0), Counter()
    names = sorted(path.relative_to(corpus_folder).as_posix() for path in corpus_folder.rglob("*.*"))
    assert len(names) > 8
    for case in range(number):
        copy = tmp_path / str(case)
        shutil.copytree(corpus_folder, copy)
        name, kind = draws.choice(names), draws.choice(KINDS)
        damage(copy / name, kind, draws)
        opening = is_found_by_opening(copy)
        problems, _ = find_damaged_files(copy)
        found["damaged"] += 1
        found["found at opening"] += opening
        found["found by check"] += bool(problems)
        found["file named"] += any(str(copy / name) in problem for problem in problems)
        found["silent"] += not (opening and problems)
        shutil.rmtree(copy)
    return found


@pytest.mark.parametrize("number", [60, pytest.param(1500, marks=pytest.mark.faults)])
def test_no_damage_of_a_corpus_is_silent(
    corpus_folder: Path, tmp_path: Path, number: int, figure: Callable[[str, Any], None]
) -> None:
    found = count_silent(corpus_folder / "corpus", tmp_path, number)
    figure(
        "corpora",
        f"{found['silent']} of {number} silent: {found['found at opening']} found at opening, "
        f"{found['file named']} named by `clozebert check`",
    )
    assert found["silent"] == 0
    assert found["found at opening"] == found["file named"] == number


def test_the_check_of_a_whole_corpus_finds_nothing(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RowIndex(Corpus(corpus), max_seq_length=LENGTH)
    check.main([str(corpus)])
    files = list(corpus.rglob("*.bin"))
    assert f"{len(files)} files match their hashes" in capsys.readouterr().out


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_check_misses_a_split_and_knows_one(corpus: Path, split: str) -> None:
    with pytest.raises(UserError, match=f"{split} is one split of a corpus: give the folder that it lies in"):
        check.main([str(corpus / split)])
    shutil.rmtree(corpus / split)
    with pytest.raises(UserError, match=rf"{split}\S*manifest.json is missing"):
        check.main([str(corpus)])


def test_the_check_names_every_damaged_file(corpus: Path) -> None:
    """Also in a corpus that is too large to be hashed when it is opened."""
    names = ("train/tokens-00001.bin", "train/documents.bin", "validation/word_starts-00000.bin")
    for name in names:
        content = bytearray((corpus / name).read_bytes())
        content[-1] ^= 1
        (corpus / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        check.main(["--directory", str(corpus)])
    assert all(name in str(caught.value) for name in names)


def test_a_large_corpus_is_opened_by_size_and_checked_by_hash(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozebert.corpus.shards.HASHED_AT_ONCE", 0)
    path = corpus / "train" / "tokens-00001.bin"
    path.write_bytes(bytes(path.stat().st_size))
    Corpus(corpus)
    problems, _ = find_damaged_files(corpus)
    assert [str(path) in problem for problem in problems] == [True]
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"tokens-00001.bin has \d+ bytes instead of"):
        Corpus(corpus)


def test_a_file_that_changes_after_it_was_found_right_is_found(corpus: Path) -> None:
    Corpus(corpus)
    path = corpus / "train" / "tokens-00000.bin"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"tokens-00000.bin is not what the manifest says"):
        Corpus(corpus)


@pytest.mark.parametrize("number", [24, pytest.param(300, marks=pytest.mark.faults)])
def test_a_damaged_row_index_is_built_anew(
    corpus: Path, number: int, caplog: pytest.LogCaptureFixture, figure: Callable[[str, Any], None]
) -> None:
    draws = random.Random(1)
    right = RowIndex(Corpus(corpus), max_seq_length=LENGTH)
    segments, ends = np.array(right.segments), np.array(right.ends)
    folder = next((corpus / "train").glob("rows-*"))
    wrong = 0
    for _ in range(number):
        path = draws.choice(sorted(folder.iterdir()))
        damage(path, draws.choice([kind for kind in KINDS if kind != "swap"]), draws)
        problems, _ = find_damaged_files(corpus)
        index = RowIndex(Corpus(corpus), max_seq_length=LENGTH)
        wrong += not (np.array_equal(index.segments, segments) and np.array_equal(index.ends, ends))
        # A flip in the white space of the small file of hashes changes nothing.
        if problems:
            assert "built anew" in caplog.text
            assert str(folder) in problems[0]
        caplog.clear()
        assert find_damaged_files(corpus)[0] == []
    figure("row index", f"{wrong} of {number} damaged row indices used; all others built anew")
    assert wrong == 0


MANIFESTS = [
    "null", "[]", "7", '"text"', "{}", "", "{", "\x00", "[" * 100_000, '{"format_version": 2}', "NaN",
    '{"format_version": ' + "9" * 6000 + "}",
]  # fmt: skip


@pytest.mark.parametrize("content", MANIFESTS, ids=lambda text: text[:20])
def test_a_manifest_of_another_kind_is_one_line(corpus: Path, content: str) -> None:
    (corpus / "train" / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json"):
        Corpus(corpus)
    with pytest.raises(UserError, match=r"manifest\.json"):
        check.main([str(corpus)])


def test_values_of_another_kind_in_a_manifest_are_one_line(corpus: Path) -> None:
    """Whatever stands at any place, and also where the manifest's own hash fits it."""
    from test_names import hashed

    path = corpus / "train" / "manifest.json"
    right = json.loads(path.read_text())
    places = [(key,) for key in right] + [("tokenizer", key) for key in right["tokenizer"]]
    places += [("shards", 0), ("shards", 0, "tokens"), ("shards", 0, "files"), ("files", "documents.bin")]
    tried = refused = 0
    for place in places:
        for value in (None, True, -1, 0, 10**20, 1.5, "x", [], [None], {}, {"a": 1}, 10**5000):
            changed = json.loads(path.read_text())
            holder = changed
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = value
            copy = corpus.with_name("changed")
            shutil.copytree(corpus, copy, dirs_exist_ok=True)
            tried += 1
            try:
                (copy / "train" / "manifest.json").write_bytes(hashed(changed))
            except ValueError:  # the integer of 5,001 digits cannot be written by Python either
                continue
            try:
                Corpus(copy)
            except UserError:
                refused += 1
    assert refused > tried / 2


# Tokenizers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [40, pytest.param(1000, marks=pytest.mark.faults)])
def test_a_damaged_tokenizer_is_an_error_or_tokenizes_alike(
    corpus_folder: Path, tmp_path: Path, number: int, figure: Callable[[str, Any], None]
) -> None:
    """Beside the corpus that it made: what is silent must not change what a text becomes."""
    draws, counts = random.Random(2), Counter()
    corpus = Corpus(corpus_folder / "corpus")
    texts = [" ".join(f"w{number}" for number in range(56)), "W1 w2, [MASK] w3.w4 [CLS] w5\n\tw6 é 你好 w55 w7w8"]
    right = load_tokenizer(str(corpus_folder / "tokenizer"))(texts)["input_ids"]
    for case in range(number):
        copy = Path(shutil.copytree(corpus_folder / "tokenizer", tmp_path / str(case)))
        damage(copy / "tokenizer.json", draws.choice([kind for kind in KINDS if kind != "swap"]), draws)
        try:
            tokenizer = load_tokenizer(str(copy))
            check_tokenizer(corpus, tokenizer)
        except UserError:
            counts["refused"] += 1
        else:
            counts["alike" if tokenizer(texts)["input_ids"] == right else "silent"] += 1
        shutil.rmtree(copy)
    figure(
        "tokenizers",
        f"{counts['silent']} of {number} silent: {counts['refused']} refused, {counts['alike']} tokenize alike",
    )
    assert counts["silent"] == 0
