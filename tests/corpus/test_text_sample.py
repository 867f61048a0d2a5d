"""What is counted of a large text: rows spread evenly, each corpus by its share."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clozebert.corpus import Mixture, ShardWriter, text_sample

from .conftest import FACTS, VOCAB_SIZE


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, list[list[int]]], Path]:
    def write_corpus(name: str, documents: list[list[int]]) -> Path:
        writer = ShardWriter(tmp_path / name / "train", vocab_size=VOCAB_SIZE)
        for document in documents:
            writer.append(np.array(document), np.ones(len(document), dtype=bool))
        writer.close(FACTS)
        return tmp_path / name

    return write_corpus


def test_a_large_text_is_sampled_evenly_and_by_the_corpora_s_shares(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_sample, "_COUNTED", 640)
    monkeypatch.setattr(text_sample, "_BLOCK", 128)
    mixture = Mixture([write("a", [[10] * 62] * 300), write("b", [[11] * 62] * 300)], [0.75, 0.25])
    blocks = list(text_sample.sample_text(mixture, max_seq_length=64))
    assert len(blocks) == 5
    assert all(len(ids) == lengths.sum() for ids, lengths in blocks)
    counts = text_sample.count_tokens(mixture, max_seq_length=64, vocab_size=VOCAB_SIZE)
    assert (counts[10], counts[11], counts.sum()) == (7 * 62, 2 * 62, 9 * 62)


def test_of_a_small_text_every_token_counts(write: Callable[..., Path]) -> None:
    draws = np.random.default_rng(0)
    documents = [draws.integers(5, VOCAB_SIZE, draws.integers(1, 200)).tolist() for _ in range(40)]
    counts = text_sample.count_tokens(Mixture(write("a", documents)), max_seq_length=64, vocab_size=VOCAB_SIZE)
    assert counts.tolist() == np.bincount(np.concatenate(documents), minlength=VOCAB_SIZE).tolist()


def test_a_small_corpus_with_a_large_share_counts_as_often_as_it_is_trained_on(write: Callable[..., Path]) -> None:
    mixture = Mixture([write("a", [[10] * 62] * 10), write("b", [[11] * 62] * 300)], [0.5, 0.5])
    counts = text_sample.count_tokens(mixture, max_seq_length=64, vocab_size=VOCAB_SIZE)
    assert counts[10] == counts[11] == 300 * 62
