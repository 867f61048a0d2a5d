"""The stream: nothing lost in an epoch, the same for every split, found in O(1)."""

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, SupportsIndex

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from often import often

from clozebert.corpus import Batch, BatchStream, Masking, ValidationBatches

from .conftest import Written


def stream_of(written: Written, *, rows: SupportsIndex = 6, max_seq_length: int = 80, **options: Any) -> BatchStream:
    options = {"masking": Masking(), "seed": 3, **options}
    return BatchStream(written.corpus, max_seq_length=max_seq_length, global_batch_size=rows, **options)


def originals(batch: Batch) -> np.ndarray:
    ids = batch.input_ids[0].copy()
    ids[batch.masked_positions] = batch.labels
    return ids


def segments(batch: Batch) -> list[list[int]]:
    """The uncorrupted content of each segment; checks the frame on the way."""
    ids = originals(batch)
    found = []
    assert batch.cu_seq_lens.dtype == np.int32
    assert batch.cu_seq_lens[0] == 0
    assert batch.cu_seq_lens[-1] == ids.size
    assert batch.max_length == np.diff(batch.cu_seq_lens).max()
    for begin, end in zip(batch.cu_seq_lens, batch.cu_seq_lens[1:], strict=False):
        assert ids[begin] == 2
        assert ids[end - 1] == 3
        assert batch.position_ids[0, begin:end].tolist() == list(range(end - begin))
        found.append(ids[begin + 1 : end - 1].tolist())
    return found


def segments_of_all(batches: Sequence[Batch]) -> list[list[int]]:
    return [segment for batch in batches for segment in segments(batch)]


def joined(batches: Sequence[Batch]) -> dict[str, list[Any]]:
    """The batches one after another, field by field."""
    shifts = np.cumsum([0, *(batch.input_ids.size for batch in batches)])
    return {
        "input_ids": np.concatenate([batch.input_ids[0] for batch in batches]).tolist(),
        "position_ids": np.concatenate([batch.position_ids[0] for batch in batches]).tolist(),
        "masked": np.concatenate([b.masked_positions + s for b, s in zip(batches, shifts, strict=False)]).tolist(),
        "labels": np.concatenate([batch.labels for batch in batches]).tolist(),
        "sample_ids": np.concatenate([batch.sample_ids for batch in batches]).tolist(),
    }


def assert_equal(one: Batch, other: Batch) -> None:
    for each in fields(Batch):
        np.testing.assert_array_equal(getattr(one, each.name), getattr(other, each.name))


@pytest.mark.parametrize("max_seq_length", often([80, 600, 9], 2))
def test_an_epoch_holds_every_token_of_every_document_once(written: Written, max_seq_length: int) -> None:
    stream = stream_of(written, rows=1, max_seq_length=max_seq_length)
    expected = Counter(
        tuple(document[first : first + max_seq_length - 2].tolist())
        for document in written.documents
        for first in range(0, len(document), max_seq_length - 2)
    )
    for epoch in (0, 3):
        found: Counter[tuple[int, ...]] = Counter()
        for place in range(stream.rows_per_epoch):
            found.update(map(tuple, segments(stream.batch(epoch * stream.rows_per_epoch + place))))
        assert found == expected


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 400), st.integers(1, 4), st.integers(1, 3), st.sampled_from(["token", "word", "span"]),
    st.integers(0, 5),
)  # fmt: skip
def test_every_split_of_a_batch_is_the_batch(
    written: Written, step: int, world_size: int, micro_batches: int, unit: str, seed: int
) -> None:
    stream = stream_of(written, rows=13, masking=Masking(unit=unit), seed=seed)
    whole = stream.batch(step)
    chunks = [
        stream.batch(step, rank=rank, world_size=world_size, micro_batch=micro_batch, micro_batches=micro_batches)
        for micro_batch in range(micro_batches)
        for rank in range(world_size)
    ]
    assert joined(chunks) == joined([whole])
    assert segments_of_all(chunks) == segments(whole)
    assert whole.sample_ids.size == 13


def test_a_batch_needs_no_history(written: Written) -> None:
    one = stream_of(written)
    for step in range(7):
        one.batch(step)
    assert_equal(one.batch(7), stream_of(written).batch(7))
    assert_equal(one.batch(7), pickle.loads(pickle.dumps(one)).batch(7))


def test_batches_cross_the_edge_of_an_epoch(written: Written) -> None:
    stream = stream_of(written, rows=7)
    assert stream.rows_per_epoch % 7
    steps = -(-2 * stream.rows_per_epoch // 7)
    ids = np.concatenate([stream.batch(step).sample_ids for step in range(steps)])
    first, second = ids[: stream.rows_per_epoch], ids[stream.rows_per_epoch : 2 * stream.rows_per_epoch]
    assert sorted(first) == sorted(second) == list(range(stream.rows_per_epoch))
    assert first.tolist() != second.tolist()


def test_the_seed_changes_the_order(written: Written) -> None:
    orders = {tuple(stream_of(written, rows=20, seed=seed).batch(0).sample_ids) for seed in range(5)}
    assert len(orders) == 5


def test_a_known_batch(make_corpus: Callable[..., Written]) -> None:
    """Frozen: a change of these numbers breaks the resume of every run under way."""
    written = make_corpus([7, 3, 12, 5, 9, 4])
    stream = stream_of(written, rows=2, max_seq_length=16, seed=11)
    batch = stream.batch(2)
    assert batch.sample_ids.tolist() == [2, 1]
    assert batch.cu_seq_lens.tolist() == [0, 9, 16, 27, 32]
    assert batch.masked_positions.tolist() == [1, 3, 7, 13, 24, 28, 30]
    assert batch.input_ids[0, batch.masked_positions].tolist() == [83, 4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("batch_size", [1, 5, 1000])
def test_validation_sees_each_document_once_with_frozen_masks(written: Written, batch_size: int) -> None:
    options: dict[str, Any] = {"max_seq_length": 80, "masking": Masking(unit="word"), "seed": 1}
    reference = list(ValidationBatches(written.corpus, batch_size=7, **options))
    batches = list(ValidationBatches(written.corpus, batch_size=batch_size, **options))
    assert joined(batches) == joined(reference)
    found = sorted(segments_of_all(batches))
    expected = [document[first : first + 78].tolist() for document in written.documents
                for first in range(0, len(document), 78)]  # fmt: skip
    assert found == sorted(expected)
    assert joined([ValidationBatches(written.corpus, batch_size=7, **options)[-1]]) == joined(reference[-1:])
    other = list(ValidationBatches(written.corpus, batch_size=7, **{**options, "seed": 2}))
    assert joined(other)["masked"] != joined(reference)["masked"]


def test_validation_masks_of_a_document_do_not_depend_on_packing(written: Written) -> None:
    found = []
    for max_seq_length in (500, 900):
        masks = {}
        for batch in ValidationBatches(
            written.corpus, max_seq_length=max_seq_length, batch_size=3, masking=Masking(), seed=0
        ):
            ids = originals(batch)
            for begin, end in zip(batch.cu_seq_lens, batch.cu_seq_lens[1:], strict=False):
                inside = (batch.masked_positions >= begin) & (batch.masked_positions < end)
                masks[tuple(ids[begin:end])] = (batch.masked_positions[inside] - begin).tolist()
        found.append(masks)
    assert found[0] == found[1]
    assert len(found[0]) > 290


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Written]:
    from .conftest import write_corpus

    return [
        write_corpus(tmp_path_factory.mktemp("mixed"), [30 + 10 * number] * count, seed=number)
        for number, count in enumerate((40, 90, 20))
    ]


def test_a_mixture_keeps_its_weights(three: list[Written]) -> None:
    corpora = [written.corpus for written in three]
    weights = [0.5, 0.3, 0.2]
    stream = BatchStream(corpora, max_seq_length=52, global_batch_size=1024, masking=Masking(), seed=0, weights=weights)
    counts = [stream.indices[source].num_rows for source in range(3)]
    edges = np.cumsum(counts)
    rows = [stream.batch(step).sample_ids for step in range(3)]
    for block in rows:
        assert np.bincount(np.searchsorted(edges, block, side="right")).tolist() == [512, 307, 205]
    # Within each corpus, no row comes twice more often than another.
    times = np.bincount(np.concatenate(rows))
    for source, first in enumerate([0, *edges[:-1]]):
        own = times[first : first + counts[source]]
        assert own.max() - own.min() <= 1


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 500), st.integers(1, 5), st.integers(1, 2))
def test_every_split_of_a_mixed_batch_is_the_batch(
    three: list[Written], step: int, world_size: int, micro_batches: int
) -> None:
    stream = BatchStream(
        [written.corpus for written in three], max_seq_length=52, global_batch_size=11, masking=Masking(), seed=2,
        weights=[1, 2, 1],
    )  # fmt: skip
    whole = stream.batch(step)
    chunks = [
        stream.batch(step, rank=rank, world_size=world_size, micro_batch=micro_batch, micro_batches=micro_batches)
        for micro_batch in range(micro_batches)
        for rank in range(world_size)
    ]
    assert joined(chunks) == joined([whole])
    for segment in segments(whole):
        assert len(segment) in (30, 40, 50)


def test_a_mixture_of_one_corpus_is_that_corpus(written: Written) -> None:
    alone = stream_of(written)
    mixed = BatchStream(
        [written.corpus], max_seq_length=80, global_batch_size=6, masking=Masking(), seed=3, weights=[7.0]
    )
    assert_equal(alone.batch(11), mixed.batch(11))


def test_what_is_wrong_with_a_stream_is_said(
    written: Written, three: list[Written], make_corpus: Callable[..., Written]
) -> None:
    with pytest.raises(ValueError, match="global_batch_size=0 must be at least 1"):
        stream_of(written, rows=0)
    stream = stream_of(written, rows=np.int64(4))
    with pytest.raises(ValueError, match="step=-1 must count from 0"):
        stream.batch(-1)
    with pytest.raises(
        ValueError, match="global_batch_size=4 rows cannot be split into world_size=3 x micro_batches=2"
    ):
        stream.batch(0, world_size=3, micro_batches=2)
    with pytest.raises(ValueError, match="rank=2 of world_size=2"):
        stream.batch(0, rank=2, world_size=2)
    corpora = [written.corpus for written in three]
    common: dict[str, Any] = {"max_seq_length": 52, "global_batch_size": 4, "masking": Masking(), "seed": 0}
    with pytest.raises(ValueError, match="weights is None, but there are 3 corpora"):
        BatchStream(corpora, **common)
    with pytest.raises(ValueError, match="must be 3 positive numbers"):
        BatchStream(corpora, weights=[1, 1], **common)
    with pytest.raises(ValueError, match="1025 corpora are more than the 1024 that can be mixed"):
        BatchStream(corpora[:1] * 1025, weights=[1] * 1025, **common)
    assert BatchStream(corpora, weights=[1, 1, 1e-9], **common).quotas == [512, 511, 1]
    with pytest.raises(ValueError, match="corpora is empty"):
        BatchStream([], **common)
    with pytest.raises(ValueError, match="is empty"):
        BatchStream(make_corpus([]).corpus, **common)
    assert (
        list(ValidationBatches(make_corpus([]).corpus, max_seq_length=9, batch_size=2, masking=Masking(), seed=0)) == []
    )
