"""A batch size that warms up: its closed form against counting step by step, and the stream that follows it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozebert.corpus import BatchSize, BatchStream, Masking

from .conftest import Written


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 60), st.integers(0, 90))
def test_the_rows_before_a_step_are_those_of_the_steps(initial: int, times: int, warmup: int, step: int) -> None:
    size = BatchSize(initial * times, initial, warmup)
    rows = [size.at(number) for number in range(100)]
    assert size.before(step) == sum(rows[:step])
    assert rows[0] == (initial if warmup > 0 else initial * times)
    assert rows == sorted(rows)
    assert set(rows[warmup:]) == {initial * times}
    assert all(count % initial == 0 for count in rows)


def test_it_rises_evenly_and_reaches_far() -> None:
    assert [BatchSize(6, 2, 6).at(step) for step in range(9)] == [2, 2, 2, 4, 4, 4, 6, 6, 6]
    assert BatchSize(7).before(10**15) == 7 * 10**15
    size = BatchSize(4608, 768, 60_000)
    assert size.before(10**12) - size.before(10**12 - 1) == 4608


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0,), "global_batch_size=0 must be at least 1 row"),
        ((8, 3, 5), "global_batch_size=8 must be a multiple of initial_global_batch_size=3"),
        ((8, 4), "initial_global_batch_size=4 and batch_warmup_steps=0"),
        ((8, None, 5), "give both or neither"),
    ],
)
def test_what_cannot_be_is_refused(values: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchSize(*values)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_stream_takes_the_same_rows_one_after_another(written: Written, world_size: int) -> None:
    """The rows of all steps together are those of a stream whose every step has one row."""
    options = {"max_seq_length": 80, "masking": Masking(), "seed": 3}
    growing = BatchStream(written.corpus, global_batch_size=BatchSize(12, 2, 9), **options)
    single = BatchStream(written.corpus, global_batch_size=1, **options)
    taken = [
        growing.batch(step, rank=rank, world_size=world_size).sample_ids.tolist()
        for step in range(12)
        for rank in range(world_size)
    ]
    joined = np.concatenate(taken).tolist()
    assert joined == [single.batch(place).sample_ids.item() for place in range(len(joined))]
    assert len(joined) == growing.batch_size.before(12)
    assert growing.epochs(12) == len(joined) / growing.rows_per_epoch
