"""Masks: their laws, against binomial bounds; what they depend on and what they do not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from clozebert.corpus import BatchStream, Masking
from clozebert.corpus.masking import UNITS, _runs, _span_distribution, select
from clozebert.corpus.randomness import fold

from .conftest import VOCAB_SIZE, Written

N = 60_000


def draw(masking: Masking, *, lengths: Any, word_length: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Select from documents of these lengths whose words all hold `word_length` tokens: (selected, word of token)."""
    lengths = np.asarray(lengths)
    within = np.concatenate([np.arange(length) for length in lengths])
    starts = within % word_length == 0
    selected = select(
        masking,
        rate=masking.rate,
        keys=fold(seed, np.arange(len(lengths))),
        firsts=np.zeros(len(lengths), dtype=np.int64),
        lengths=lengths,
        starts=starts,
        predictable=np.ones(len(within), dtype=bool),
    )
    return selected, np.cumsum(starts) - 1


def assert_binomial(successes: int, trials: int, probability: float) -> None:
    """The count is within what happens by chance once in 10^5."""
    assert stats.binomtest(int(successes), int(trials), probability).pvalue > 1e-5, (successes / trials, probability)


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.6])
def test_tokens_are_selected_independently_at_the_rate(rate: float) -> None:
    selected, _ = draw(Masking(rate=rate), lengths=[N])
    assert_binomial(selected.sum(), N, rate)
    for lag in (1, 2, 7):
        assert_binomial((selected[:-lag:2] & selected[lag::2][: len(selected[:-lag:2])]).sum(),
                        len(selected[:-lag:2]), rate**2)  # fmt: skip


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_words_are_selected_whole_at_the_rate(rate: float) -> None:
    selected, words = draw(Masking(rate=rate, unit="word"), lengths=[N] * 3, word_length=3)
    per_word = np.bincount(words, weights=selected)
    assert set(np.unique(per_word)) == {0, 3}
    assert_binomial(np.count_nonzero(per_word), len(per_word), rate)


@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_spans_cover_every_place_at_the_rate(rate: float) -> None:
    """The first word, the third and the twentieth alike: documents do not begin with fewer masks."""
    selected, _ = draw(Masking(rate=rate, unit="span"), lengths=[25] * 8000, word_length=1)
    grid = selected.reshape(8000, 25)
    for place in (0, 2, 19, 24):
        assert_binomial(grid[:, place].sum(), 8000, rate)


def test_spans_hold_whole_words() -> None:
    selected, words = draw(Masking(rate=0.2, unit="span"), lengths=[600] * 20, word_length=2)
    assert set(np.unique(np.bincount(words, weights=selected))) == {0, 2}


def test_span_lengths_are_geometric() -> None:
    cumulative, start = _span_distribution(0.15, 0.2, 10)
    law = np.diff(np.concatenate([[0], cumulative, [1]]))
    assert law @ np.arange(1, 11) == pytest.approx(3.8, abs=0.01)  # the mean that SpanBERT reports
    assert law[1:] / law[:-1] == pytest.approx(0.8)
    assert 1 - np.prod(1 - start * np.cumsum(law[::-1])[::-1]) == pytest.approx(0.15)
    # At a low rate spans hardly ever meet, so runs have the law of spans.
    selected, _ = draw(Masking(rate=0.005, unit="span"), lengths=[40 * N])
    edges = np.flatnonzero(np.diff(np.concatenate([[0], selected, [0]])))
    lengths = edges[1::2] - edges[::2]
    observed = np.bincount(lengths, minlength=12)[1:11]
    assert len(lengths) > 2000
    assert stats.chisquare(observed, law * observed.sum()).pvalue > 1e-4


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("shares", [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.5, 0.2)])
def test_selected_tokens_are_split_as_asked(
    make_corpus: Callable[..., Written], unit: str, shares: tuple[float, float]
) -> None:
    written = make_corpus([400] * 60)
    masking = Masking(rate=0.25, mask_share=shares[0], random_share=shares[1], unit=unit)
    stream = BatchStream(written.corpus, max_seq_length=402, global_batch_size=60, masking=masking, seed=1)
    batch = stream.batch(0)
    shown = batch.input_ids[0, batch.masked_positions]
    masked, kept = shown == 4, shown == batch.labels
    count = len(shown)
    # A random token is the original once in 92 times. Spans decide once a run: fewer, so looser, decisions.
    probability_kept = 1 - sum(shares) + shares[1] / (VOCAB_SIZE - 5)
    if unit == "span":
        assert masked.mean() == pytest.approx(shares[0], abs=0.08)
        assert kept.mean() == pytest.approx(probability_kept, abs=0.08)
    else:
        assert_binomial(masked.sum(), count, shares[0])
        assert_binomial(kept.sum(), count, probability_kept)
    replaced = shown[~masked & ~kept]
    assert ((replaced >= 5) & (replaced < VOCAB_SIZE)).all()
    if len(replaced) > 1000:
        assert stats.chisquare(np.bincount(replaced, minlength=VOCAB_SIZE)[5:]).pvalue > 1e-4
    untouched = np.delete(batch.input_ids[0], batch.masked_positions)
    assert not (untouched == 4).any()


def test_a_span_is_shown_one_way() -> None:
    selected = np.array([0, 1, 1, 0, 1, 1, 1, 1, 0, 1], dtype=bool)
    assert _runs(selected, np.array([6, 4])).tolist() == [1, 1, 4, 4, 6, 6, 9]


@pytest.mark.parametrize("unit", UNITS)
def test_special_tokens_are_never_selected(make_corpus: Callable[..., Written], unit: str) -> None:
    written = make_corpus([50] * 40, smallest_id=1)  # texts that hold [UNK], [CLS], [SEP] and [MASK]
    masking = Masking(rate=1.0, unit=unit)
    stream = BatchStream(written.corpus, max_seq_length=52, global_batch_size=40, masking=masking, seed=0)
    batch = stream.batch(0)
    assert batch.labels.min() == 5
    content = np.concatenate(written.documents)
    assert len(batch.labels) == (content >= 5).sum()  # at rate 1, every other one is


@pytest.mark.parametrize("unit", UNITS)
def test_masks_depend_on_neither_row_length_nor_batch(written: Written, unit: str) -> None:
    """Documents short enough to be whole in both: the same tokens are masked, and shown the same way."""
    found: list[dict[tuple[int, ...], tuple[list[int], list[int]]]] = []
    for max_seq_length, rows in ((500, 3), (1000, 7)):
        stream = BatchStream(
            written.corpus, max_seq_length=max_seq_length, global_batch_size=rows, masking=Masking(unit=unit), seed=5
        )
        seen = {}
        for step in range(stream.rows_per_epoch // rows):  # within the first epoch
            batch = stream.batch(step)
            original = batch.input_ids[0].copy()
            original[batch.masked_positions] = batch.labels
            for begin, end in zip(batch.cu_seq_lens, batch.cu_seq_lens[1:], strict=False):
                inside = (batch.masked_positions >= begin) & (batch.masked_positions < end)
                key = tuple(original[begin:end].tolist())
                masked = (batch.masked_positions[inside] - begin).tolist()
                seen[key] = (masked, batch.input_ids[0, begin:end].tolist())
        found.append(seen)
    shared = found[0].keys() & found[1].keys()
    assert len(shared) > 150
    assert all(found[0][key] == found[1][key] for key in shared)


def test_masks_differ_between_epochs_and_seeds(make_corpus: Callable[..., Written]) -> None:
    corpus = make_corpus([48] * 200).corpus
    masks = []
    for seed, step in ((0, 0), (0, 1), (1, 0)):
        stream = BatchStream(corpus, max_seq_length=50, global_batch_size=200, masking=Masking(rate=0.3), seed=seed)
        batch = stream.batch(step)
        order = np.argsort(batch.sample_ids)
        mask = np.zeros(batch.input_ids.size, dtype=bool)
        mask[batch.masked_positions] = True
        masks.append(mask.reshape(200, 50)[order, 1:-1].ravel())
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert_binomial((masks[one] & masks[other]).sum(), masks[one].size, 0.09)


def test_the_rate_follows_its_schedule(make_corpus: Callable[..., Written]) -> None:
    corpus = make_corpus([500] * 60).corpus
    masking = Masking(rate=0.4, final_rate=0.1)
    stream = BatchStream(corpus, max_seq_length=502, global_batch_size=60, masking=masking, seed=0, total_steps=11)
    assert [stream.rate(step) for step in (0, 5, 10, 99)] == pytest.approx([0.4, 0.25, 0.1, 0.1])
    for step in (0, 5, 10):
        assert_binomial(len(stream.batch(step).labels), 30_000, stream.rate(step))
    with pytest.raises(ValueError, match="needs total_steps"):
        BatchStream(corpus, max_seq_length=502, global_batch_size=60, masking=masking, seed=0)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(UNITS), st.floats(0.01, 1.0), st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.integers(1, 4), st.integers(0, 10**6), st.integers(1, 12),
)  # fmt: skip
def test_selection_is_a_function_of_each_segment_alone(
    unit: str, rate: float, lengths: list[int], word_length: int, seed: int, max_span: int
) -> None:
    masking = Masking(rate=rate, unit=unit, max_span=max_span)
    together, _ = draw(masking, lengths=lengths, word_length=word_length, seed=seed)
    apart = []
    for number, length in enumerate(lengths):
        starts = np.arange(length) % word_length == 0
        apart.append(
            select(
                masking,
                rate=rate,
                keys=fold(seed, np.array([number])),
                firsts=np.zeros(1, dtype=np.int64),
                lengths=np.array([length]),
                starts=starts,
                predictable=np.ones(length, dtype=bool),
            )
        )
    assert together.tolist() == np.concatenate(apart).tolist()
    if rate == 1:
        assert together.all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": 0.0}, r"rate=0.0 must lie in \(0, 1\]"),
        ({"rate": 1.5}, "rate=1.5"),
        ({"final_rate": -0.1}, "final_rate=-0.1"),
        ({"mask_share": 1.2}, "mask_share=1.2"),
        ({"mask_share": 0.8, "random_share": 0.3}, "must not exceed 1 together"),
        ({"unit": "words"}, "did you mean 'word'"),
        ({"span_probability": 1.0}, "span_probability=1.0"),
        ({"max_span": 0}, "max_span=0"),
    ],
)
def test_what_is_wrong_with_a_masking_is_said(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Masking(**wrong)
