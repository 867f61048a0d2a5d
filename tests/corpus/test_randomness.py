"""Counter-based draws: known values, bijections, uniformity."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from clozebert.corpus.randomness import below, derive, fold, permute, ragged_arange, uniform


def splitmix64(state: int) -> int:
    """The published generator's next output, in Python's own integers."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def test_fold_is_splitmix64() -> None:
    # The first outputs of the reference generator seeded with 1234567 (Vigna's splitmix64.c).
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert fold(1234567, np.arange(5)).tolist() == known


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_fold_agrees_with_python_integers(key: int, value: int) -> None:
    assert int(fold(key, value)) == splitmix64((key + value * 0x9E3779B97F4A7C15) % 2**64)


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_permutation_is_a_bijection(size: int, key: int) -> None:
    image = permute(np.arange(size), size=size, key=key)
    assert sorted(image.tolist()) == list(range(size))


def test_permutation_of_a_huge_range_is_found_place_by_place() -> None:
    size = 10**15 + 37
    places = np.array([0, 1, 10**9, size - 1])
    together = permute(places, size=size, key=3)
    assert together.tolist() == [int(permute(np.array([place]), size=size, key=3)[0]) for place in places]
    assert (together >= 0).all()
    assert (together < size).all()


def test_permutations_of_different_keys_look_independent() -> None:
    size = 1000
    images = np.stack([permute(np.arange(size), size=size, key=derive(0, key)) for key in range(200)])
    # Where the first place goes is uniform, and so is the distance of neighbours.
    for sample in (images[:, 0], (images[:, 1] - images[:, 0]) % size):
        counts = np.histogram(sample, bins=10, range=(0, size))[0]
        assert stats.chisquare(counts).pvalue > 1e-4
    fixed = np.mean(images == np.arange(size)) * size
    assert 0.7 < fixed < 1.3  # one fixed point in expectation


def test_uniform_and_below_are_uniform() -> None:
    hashed = fold(derive(1, 2, 3), np.arange(100_000))
    assert stats.kstest(uniform(hashed), "uniform").pvalue > 1e-4
    draws = below(hashed, 37)
    assert stats.chisquare(np.bincount(draws, minlength=37)).pvalue > 1e-4
    assert draws.max() == 36


def test_derive_tells_order_and_negative_seeds_apart() -> None:
    assert derive(np.int64(42), np.int32(-1)) == derive(42, -1)
    keys = {derive(1, 2), derive(2, 1), derive(1), derive(-1), derive(1, 2, 0), derive(2**64 - 2)}
    assert len(keys) == 6


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 9))))
def test_ragged_arange(runs: list[tuple[int, int]]) -> None:
    expected = [start + place for start, length in runs for place in range(length)]
    starts, lengths = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    assert ragged_arange(starts, lengths).tolist() == expected
