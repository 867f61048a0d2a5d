"""Samples of the vocabulary: rates, how often each token is drawn, and that a sample is a function of seed and step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from clozebert.corpus.vocabulary_sample import VocabularySampler, inclusion_rates


def zipf(vocab_size: int) -> np.ndarray:
    return (1e6 / np.arange(1, vocab_size + 1) ** 1.2).astype(np.int64)


@given(
    st_numpy.arrays(np.int64, st.integers(2, 200), elements=st.integers(0, 10**9)),
    st.floats(0.01, 0.99),
)
def test_rates_add_up_to_the_size_and_follow_the_counts(counts: np.ndarray, share: float) -> None:
    size = max(1, int(share * len(counts)))
    rates = inclusion_rates(counts, size=size)
    assert rates.sum() == pytest.approx(size)
    assert (rates > 0).all()
    assert (rates <= 1).all()
    assert (np.diff(rates[np.argsort(counts, kind="stable")]) >= -1e-12).all()
    # Below 1 they are proportional to a power of the counts, those of unseen tokens being 1.
    below = rates < 1
    scale = rates[below] / (counts[below] + 1) ** 0.75
    assert np.allclose(scale, scale[:1], rtol=1e-9)


def test_a_token_is_drawn_as_often_as_its_rate_says() -> None:
    sampler = VocabularySampler(zipf(500), size=60, seed=3)
    drawn = np.zeros(500)
    for step in range(4000):
        sample = sampler.draw(step)
        assert len(set(sample.ids.tolist())) == 60
        assert np.array_equal(sample.log_rates, sampler.log_rates[sample.ids])
        drawn[sample.ids] += 1
    rates = np.exp(sampler.log_rates.astype(np.float64))
    certain = rates > 1 - 1e-6
    assert certain.any()
    assert (drawn[certain] == 4000).all()
    # Four standard deviations of a share of 4,000 draws: at most 4 sqrt(0.25 / 4000) = 0.032.
    assert np.abs(drawn / 4000 - rates).max() < 4 * np.sqrt(0.25 / 4000)


def test_a_sample_is_a_function_of_seed_and_step() -> None:
    one, again, other = (VocabularySampler(zipf(500), size=60, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.draw(7).ids, again.draw(7).ids)
    assert not np.array_equal(one.draw(7).ids, one.draw(8).ids)
    assert not np.array_equal(one.draw(7).ids, other.draw(7).ids)


@pytest.mark.parametrize("counts", [np.zeros(9, np.int64), np.array([10**15] + [0] * 8), np.full(9, 10**12)])
def test_extreme_counts(counts: np.ndarray) -> None:
    sampler = VocabularySampler(counts, size=8, seed=0)
    for step in range(200):
        assert len(set(sampler.draw(step).ids.tolist())) == 8
