"""The demonstration's two tasks: balanced, disjoint, and labelled as the standard library says."""

import csv
import io
import json
import keyword
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from clozebert.corpus.demo import tasks
from clozebert.corpus.demo.installed_python import Docstring


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_packages_are_balanced_and_no_docstring_is_in_two_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {f"package{index}": 40 + 10 * index for index in range(10)}
    docstrings = [
        Docstring(
            name, f"{name}.f{i}", f"Number {i} of the docstrings of {name}, long enough to be taken as an example."
        )
        for name, size in sizes.items()
        for i in range(size)
    ]
    monkeypatch.setattr(tasks, "read_installed_python", lambda: docstrings)
    tasks.write_package_task(tmp_path, examples=160)
    splits = {split: read_csv(tmp_path / f"{split}.csv") for split in tasks.SPLITS}
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 160, "validation": 20, "test": 20}
    everything = [row for rows in splits.values() for row in rows]
    assert len({row["text"] for row in everything}) == 200
    assert Counter(row["label"] for row in everything) == {f"package{index}": 25 for index in range(2, 10)}


def test_one_package_is_nothing_to_tell_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "read_installed_python", list)
    with pytest.raises(ValueError, match="fewer than two packages"):
        tasks.write_package_task(tmp_path, examples=10)


def test_token_kinds_are_what_tokenize_says(tmp_path: Path) -> None:
    tasks.write_token_kind_task(tmp_path, examples=120)
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert 60 <= len(lines) <= 120
    kinds = Counter()
    for line in lines:
        for token, tag in zip(line["tokens"], line["tags"], strict=True):
            kinds[tag] += 1
            if tag == "keyword":
                assert keyword.iskeyword(token)
            elif tag in ("name", "builtin"):
                assert token.isidentifier()
                assert not keyword.iskeyword(token)
            elif tag == "number":
                first = next(tokenize.generate_tokens(io.StringIO(token).readline))
                assert first.type == tokenize.NUMBER
    assert set(kinds) >= {"keyword", "name", "builtin", "operator", "string"}
    again = tmp_path / "again"
    tasks.write_token_kind_task(again, examples=120)
    assert (again / "test.jsonl").read_bytes() == (tmp_path / "test.jsonl").read_bytes()
