"""Two labelled data sets for the demonstration's fine-tuning, made from the Python packages of this machine.

Sequences: which package does this docstring document? The name of the package is removed from the text.
Tokens: what kind is each token of Python source? Labels from the standard library's `tokenize`.
"""

import builtins
import csv
import io
import json
import keyword
import random
import sysconfig
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ...utils.errors import UserError
from .installed_python import read_installed_python

SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
_PACKAGES = 8
_LONGEST_TOKEN = 30
_TOKENS_OF_AN_EXAMPLE = range(6, 41)
_BUILTINS = frozenset(dir(builtins))
_KINDS = {
    tokenize.NUMBER: "number",
    tokenize.STRING: "string",
    tokenize.OP: "operator",
    tokenize.COMMENT: "comment",
}


def write_package_task(folder: Path, *, examples: int) -> None:
    """Write train.csv, validation.csv and test.csv (`text,label`) of the packages with the most docstrings.

    Args:
        examples: the largest number of training examples; all packages get the same number.
    """
    texts: dict[str, list[str]] = defaultdict(list)
    for record in read_installed_python():
        text = " ".join(record.text.split())
        if 60 <= len(text) <= 400:
            texts[record.package].append(text)
    largest = sorted(texts, key=lambda package: (-len(texts[package]), package))[:_PACKAGES]
    if len(largest) < 2:
        raise UserError("fewer than two packages with docstrings are installed: nothing to tell apart")
    per_package = min(int(examples / SPLITS["train"]) // len(largest), min(len(texts[name]) for name in largest))
    rng = random.Random(0)
    rows = [(text, name) for name in largest for text in rng.sample(texts[name], per_package)]
    for split, part in _cut(rows, rng).items():
        with _open(folder, f"{split}.csv") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows(part)


def write_token_kind_task(folder: Path, *, examples: int) -> None:
    """Write train.jsonl, validation.jsonl and test.jsonl (`tokens`, `tags`). The splits share no source file."""
    rng = random.Random(0)
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    rng.shuffle(files)
    for split, part in _cut(files, rng).items():
        wanted = int(examples * SPLITS[split] / SPLITS["train"])
        per_file = max(1, -(-wanted // len(part)))
        lines = []
        for path in part:
            found = list(_lines_of_source(path))
            lines += rng.sample(found, min(per_file, len(found)))
        with _open(folder, f"{split}.jsonl") as file:
            for tokens, tags in lines[:wanted]:
                file.write(json.dumps({"tokens": tokens, "tags": tags}) + "\n")


def _lines_of_source(path: Path) -> Iterator[tuple[list[str], list[str]]]:
    """The logical lines of a source file, as tokens and their kinds."""
    tokens: list[str] = []
    tags: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.NEWLINE:
                if len(tokens) in _TOKENS_OF_AN_EXAMPLE and max(map(len, tokens)) <= _LONGEST_TOKEN:
                    yield tokens, tags
                tokens, tags = [], []
            elif token.string.strip():
                tokens.append(token.string)
                tags.append(_kind(token))
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        return  # some files of the standard library are invalid on purpose, for its own tests


def _kind(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        if keyword.iskeyword(token.string):
            return "keyword"
        return "builtin" if token.string in _BUILTINS else "name"
    return _KINDS.get(token.type, "string")  # the remaining types are the parts of an f-string


def _cut(items: list, rng: random.Random) -> dict[str, list]:
    """Shuffle and cut into train, validation and test."""
    items = list(items)
    rng.shuffle(items)
    parts, begin, share = {}, 0, 0.0
    for split, size in SPLITS.items():
        share += size
        end = round(len(items) * share)
        parts[split] = items[begin:end]
        begin = end
    return parts


def _open(folder: Path, name: str) -> io.TextIOWrapper:
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / name).open("w", encoding="utf-8", newline="")
