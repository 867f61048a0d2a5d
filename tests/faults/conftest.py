"""Folders to damage, and where the measured figures of `make faults` go."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# So that `pretraining_helpers` and `saved_models` are importable, whichever way pytest is started.
TESTS = Path(__file__).resolve().parents[1]
for folder in (TESTS / "faults", TESTS / "hub", TESTS):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from pretraining_helpers import make_corpus, make_tokenizer  # noqa: E402
from saved_models import save  # noqa: E402

from clozebert.corpus import ShardWriter  # noqa: E402
from clozebert.corpus.tokenizer import tokenizer_facts  # noqa: E402

# Where figures are kept for docs/reliability.md: {row: figure}.
FIGURES = "CLOZEBERT_FAULT_FIGURES"


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `corpus` (train in three shards, validation) and the `tokenizer` that made it."""
    folder = tmp_path_factory.mktemp("text")
    tokenizer = make_tokenizer(56)
    tokenizer.save_pretrained(folder / "tokenizer")
    draws = np.random.default_rng(0)
    for split, documents in (("train", 60), ("validation", 9)):
        writer = ShardWriter(folder / "corpus" / split, vocab_size=61, shard_tokens=700)
        for _ in range(documents):
            length = int(draws.integers(3, 60))
            writer.append(draws.integers(5, 61, size=length), draws.random(length) < 0.6)
        writer.close({"tokenizer": tokenizer_facts(tokenizer), "split": split})
    return folder


@pytest.fixture
def corpus(corpus_folder: Path, tmp_path: Path) -> Path:
    """A corpus of one's own to damage."""
    shutil.copytree(corpus_folder / "corpus", tmp_path / "corpus")
    return tmp_path / "corpus"


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked-LM model with its tokenizer."""
    return save(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def model(saved_model: Path, tmp_path: Path) -> Path:
    """A model's folder of one's own to damage."""
    return Path(shutil.copytree(saved_model, tmp_path / "model"))


@pytest.fixture
def figure() -> Callable[[str, Any], None]:
    """Keep a measured figure under the name that docs/reliability.md gives it."""

    def keep(name: str, value: Any) -> None:
        place = os.environ.get(FIGURES)
        if place:
            with open(place, "a", encoding="utf-8") as file:
                file.write(json.dumps({name: str(value)}) + "\n")

    return keep


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a corpus prepared with it."""
    return make_corpus(tmp_path_factory.mktemp("prepared"))
