"""Corpora of random documents, small enough to check token by token."""

import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from clozebert.corpus import Corpus, ShardWriter
from clozebert.corpus.demo import installed_python
from clozebert.corpus.tokenizer import ALGORITHMS, train_tokenizer

VOCAB_SIZE = 97
FACTS = {
    "tokenizer": {
        "vocab_size": VOCAB_SIZE,
        "pad_token_id": 0,
        "unk_token_id": 1,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "mask_token_id": 4,
        "special_token_ids": [0, 1, 2, 3, 4],
    }
}


@dataclass
class Written:
    """A corpus on disk, and what was written into it."""

    directory: Path
    documents: list[np.ndarray]
    starts: list[np.ndarray]

    @property
    def corpus(self) -> Corpus:
        return Corpus(self.directory)


def write_corpus(
    directory: Path,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    smallest_id: int = 5,
    shard_tokens: int = 997,
    word_length: float = 1.6,
) -> Written:
    """Write random documents of these lengths; a word holds `word_length` tokens on average."""
    rng = np.random.default_rng(seed)
    writer = ShardWriter(directory / "train", vocab_size=VOCAB_SIZE, shard_tokens=shard_tokens)
    documents, starts = [], []
    for length in lengths:
        documents.append(rng.integers(smallest_id, VOCAB_SIZE, size=length))
        starts.append(rng.random(length) < 1 / word_length)
        starts[-1][0] = True
        writer.append(documents[-1], starts[-1])
    writer.close(FACTS)
    return Written(directory, documents, starts)


@pytest.fixture
def make_corpus(tmp_path: Path) -> Callable[..., Written]:
    """`write_corpus` into folders of their own."""
    numbers = iter(range(1000))
    return lambda lengths, **options: write_corpus(tmp_path / str(next(numbers)), lengths, **options)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """300 documents of 1 to some 400 tokens, in many shards."""
    lengths = np.random.default_rng(7).geometric(1 / 60, size=300)
    return write_corpus(tmp_path_factory.mktemp("corpus"), lengths.tolist())


@pytest.fixture(scope="session")
def english() -> list[str]:
    """Real English, on every machine: the docstrings of some modules of the standard library."""
    modules = (
        "argparse",
        "csv",
        "datetime",
        "decimal",
        "functools",
        "inspect",
        "logging",
        "pathlib",
        "random",
        "typing",
    )
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [(name, name, folder / f"{name}.py") for name in modules if (folder / f"{name}.py").is_file()]
    return list(dict.fromkeys(docstring.text for docstring in installed_python._docstrings_of_files(files)))


@pytest.fixture(scope="session")
def tokenizers(english: list[str]) -> dict[str, PreTrainedTokenizerFast]:
    """A tokenizer of each kind."""
    return {name: train_tokenizer(english, algorithm=name, vocab_size=900) for name in ALGORITHMS}
