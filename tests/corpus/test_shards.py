"""Shards hold what was written, in one file or in many."""

import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozebert.corpus import Corpus, ShardWriter
from clozebert.corpus.packing import RowIndex
from clozebert.corpus.shards import token_dtype
from clozebert.utils.errors import UserError

from .conftest import FACTS, Written, write_corpus


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 300), st.integers(0, 99))
def test_documents_come_back(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shard_tokens: int, seed: int
) -> None:
    written = write_corpus(tmp_path_factory.mktemp("shards"), lengths, shard_tokens=shard_tokens, seed=seed)
    corpus = written.corpus
    assert (corpus.num_documents, corpus.num_tokens) == (len(lengths), sum(lengths))
    for number, document in enumerate(written.documents):
        assert corpus.document(number).tolist() == document.tolist()
    starts = corpus.gather(corpus.offsets[:-1], np.diff(corpus.offsets))[1]
    assert starts.tolist() == np.concatenate(written.starts).tolist()
    assert corpus.manifest["words"] == starts.sum()
    shards = corpus.manifest["shards"]
    assert all(shard["tokens"] >= shard_tokens for shard in shards[:-1])
    assert sum(shard["tokens"] for shard in shards) == sum(lengths)


@pytest.mark.slow
def test_many_short_documents_are_written_in_bounded_memory(tmp_path: Path) -> None:
    """150,000 of one token. Measured: 12 MB at most; 26 MB when they waited for as many tokens as long ones do."""
    writer, ids, starts = ShardWriter(tmp_path / "train", vocab_size=100), np.arange(100), np.ones(1, dtype=bool)
    tracemalloc.start()
    for number in range(150_000):
        writer.append(ids[number % 97 :][:1], starts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    writer.close(FACTS)
    assert peak < 18e6
    corpus = Corpus(tmp_path)
    assert corpus.num_documents == 150_000
    assert all(corpus.document(number).tolist() == [number % 97] for number in range(0, 150_000, 1009))


def test_tokens_take_two_bytes_where_they_fit() -> None:
    assert np.dtype(token_dtype(65_536)).itemsize == 2
    assert np.dtype(token_dtype(65_537)).itemsize == 4


def test_large_ids_come_back(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "train", vocab_size=250_002)
    writer.append(np.array([250_001, 7]), np.array([True, False]))
    facts = {"tokenizer": {**FACTS["tokenizer"], "vocab_size": 250_002}}
    writer.close(facts)
    assert Corpus(tmp_path).document(0).tolist() == [250_001, 7]


def test_a_pickled_corpus_maps_its_files_again(written: Written) -> None:
    content = pickle.dumps(written.corpus)
    assert len(content) < 1000
    assert pickle.loads(content).document(3).tolist() == written.documents[3].tolist()


def test_the_fingerprint_tells_corpora_apart(make_corpus: Callable[..., Written]) -> None:
    one, same, other = (make_corpus([9, 11], seed=seed).corpus.fingerprint for seed in (0, 0, 1))
    assert one == same != other


def test_what_is_wrong_with_a_folder_is_said(make_corpus: Callable[..., Written], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no prepared corpus"):
        Corpus(tmp_path / "nowhere")
    written = make_corpus([30, 40])
    with pytest.raises(ValueError, match=r"split='test' is not in the corpus.*it has train"):
        Corpus(written.directory, "test")
    with pytest.raises(IndexError, match="document 2 of 2"):
        written.corpus.document(2)
    tokens = written.directory / "train" / "tokens-00000.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(ValueError, match="has 138 bytes instead of 140"):
        Corpus(written.directory)
    manifest = written.directory / "train" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format_version": 99}))
    with pytest.raises(ValueError, match="format_version=99"):
        Corpus(written.directory)


def test_the_folder_of_a_split_is_no_corpus(make_corpus: Callable[..., Written]) -> None:
    corpus = make_corpus([3, 5]).corpus
    RowIndex(corpus, max_seq_length=8)  # a folder with a manifest of its own
    with pytest.raises(UserError, match="train is one split of a corpus: give the folder that it lies in"):
        Corpus(corpus.folder, "validation")


def test_a_user_without_a_home_folder_needs_a_cache_only_where_it_is_used(
    make_corpus: Callable[..., Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    corpus = make_corpus([3, 5]).corpus
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with monkeypatch.context() as closed:
        closed.setattr(os, "access", lambda *of: False)
        with pytest.raises(UserError, match="no home folder for a cache: set XDG_CACHE_HOME"):
            RowIndex(corpus, max_seq_length=8)
    assert RowIndex(corpus, max_seq_length=8).num_rows == 1 + (3 + 5 + 4 > 8)


@pytest.mark.parametrize("ids", [[70, 400], [-1, 3]])
def test_ids_outside_of_the_vocabulary_are_refused(ids: list[int], tmp_path: Path) -> None:
    """Two bytes would hold others in their place."""
    writer = ShardWriter(str(tmp_path / "train"), vocab_size=400)
    with pytest.raises(ValueError, match=rf"token id {400 if 400 in ids else -1} is not between 0 and 399"):
        writer.append(np.array(ids), np.array([True, False]))


def test_a_split_needs_the_facts_of_its_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="facts has no 'tokenizer'"):
        ShardWriter(tmp_path / "train", vocab_size=400).close({})
