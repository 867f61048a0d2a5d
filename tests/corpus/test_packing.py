"""Rows: best fit, nothing lost, cached once."""

import errno
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozebert.corpus import RowIndex, packing
from clozebert.corpus.integrity import find_damaged_files
from clozebert.corpus.packing import pack_lengths
from clozebert.utils.errors import UserError
from clozebert.utils.files import disk_errors

from .conftest import Written


def best_fit_decreasing(lengths: list[int], row_length: int) -> list[int]:
    """The textbook algorithm, one item at a time: how full the rows are. Equally full rows may be taken either way."""
    rows: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in range(len(rows)) if rows[row] + length <= row_length]
        if fitting:
            rows[max(fitting, key=rows.__getitem__)] += length
        else:
            rows.append(length)
    return sorted(rows)


@settings(deadline=None)
@given(st.integers(1, 40).flatmap(lambda room: st.tuples(st.just(room), st.lists(st.integers(1, room), max_size=120))))
def test_rows_are_as_full_as_those_of_the_textbook(case: tuple[int, list[int]]) -> None:
    row_length, lengths = case
    items, ends = pack_lengths(np.array(lengths, dtype=np.int64), row_length=row_length)
    assert sorted(items.tolist()) == list(range(len(lengths)))
    rows = [sum(lengths[item] for item in row) for row in np.split(items, ends)[:-1]]
    assert sorted(rows) == best_fit_decreasing(lengths, row_length)


def segments_of(index: RowIndex) -> list[tuple[int, int, int]]:
    documents, firsts, lengths, counts = index.read(np.arange(index.num_rows))
    assert counts.sum() == len(documents)
    rows = np.repeat(np.arange(index.num_rows), counts)
    used = np.bincount(rows, weights=lengths + packing.NUM_SPECIAL_TOKENS)
    assert used.max() <= index.max_seq_length
    return sorted(zip(documents.tolist(), firsts.tolist(), lengths.tolist(), strict=True))


@pytest.mark.parametrize("block", [1, 50, 1 << 21])
@pytest.mark.parametrize("max_seq_length", [3, 17, 130, 1000])
def test_every_token_is_in_one_segment(
    written: Written, max_seq_length: int, block: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(packing, "_BLOCK_SEGMENTS", block)
    shutil.copytree(written.directory, tmp_path / "corpus")  # without an index of another block size
    shutil.rmtree(next((tmp_path / "corpus" / "train").glob("rows-*"), tmp_path / "none"), ignore_errors=True)
    index = RowIndex(Written(tmp_path / "corpus", [], []).corpus, max_seq_length=max_seq_length)
    capacity = max_seq_length - 2
    expected = [
        (number, first, min(capacity, len(document) - first))
        for number, document in enumerate(written.documents)
        for first in range(0, len(document), capacity)
    ]
    assert segments_of(index) == sorted(expected)


def test_the_index_is_built_once(make_corpus: Callable[..., Written], monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus([20, 30, 40]).corpus
    index = RowIndex(corpus, max_seq_length=50)
    monkeypatch.setattr(packing, "_build", lambda *_, **__: pytest.fail("built again"))
    again = RowIndex(corpus, max_seq_length=50)
    assert again.segments.tolist() == index.segments.tolist()
    assert len(pickle.dumps(index)) < 1000
    with pytest.raises(pytest.fail.Exception):
        RowIndex(corpus, max_seq_length=51)


def test_a_read_only_corpus_keeps_its_index_in_the_cache(
    make_corpus: Callable[..., Written], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packing.os, "access", lambda *_: False)
    corpus = make_corpus([20, 30, 40]).corpus
    assert RowIndex(corpus, max_seq_length=50).num_rows == 3
    assert list((tmp_path / "cache" / "clozebert").glob("rows-50-*/ends.bin"))
    assert not list(corpus.folder.glob("rows-*"))


def test_a_read_only_corpus_and_a_closed_cache(
    make_corpus: Callable[..., Written], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def closed(folder: Path, **options: object) -> None:
        raise OSError(errno.EROFS, "as the system says", str(tmp_path))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packing.os, "access", lambda *_: False)
    monkeypatch.setattr(packing, "whole_folder", closed)
    corpus = make_corpus([20, 30, 40]).corpus
    with (
        pytest.raises(UserError, match=r"the rows of .* are listed there, as it is closed: set XDG_CACHE_HOME"),
        disk_errors(tmp_path, way_out="free some space, then --resume_from_checkpoint latest"),
    ):
        RowIndex(corpus, max_seq_length=50)


def test_a_damaged_index_is_built_anew_and_no_corpus_is_blamed(
    make_corpus: Callable[..., Written], caplog: pytest.LogCaptureFixture
) -> None:
    written = make_corpus([20, 30, 40])
    RowIndex(written.corpus, max_seq_length=50)
    (ends,) = written.corpus.folder.glob("rows-50-*/ends.bin")
    ends.write_bytes(ends.read_bytes()[:-8])
    (problem,) = (found for found in find_damaged_files(written.directory)[0] if "rows-50" in found)
    assert problem.endswith(f"bytes instead of {8 * 3}: delete {ends.parent}, and it is built anew")
    assert RowIndex(written.corpus, max_seq_length=50).num_rows == 3
    assert caplog.text.count("the row index is built anew: ") == 1
    assert "prepare it again" not in caplog.text


def test_a_row_needs_room_for_a_token(written: Written) -> None:
    with pytest.raises(ValueError, match="max_seq_length=2 must exceed 2"):
        RowIndex(written.corpus, max_seq_length=2)


def test_rows_are_full(make_corpus: Callable[..., Written]) -> None:
    lengths = np.random.default_rng(0).lognormal(5, 1.3, size=3000).astype(int) + 1
    corpus = make_corpus(lengths.tolist(), shard_tokens=1 << 20).corpus
    index = RowIndex(corpus, max_seq_length=512)
    held = corpus.num_tokens + 2 * len(index.segments)
    assert held / (index.num_rows * 512) > 0.999  # 0.9995 measured
