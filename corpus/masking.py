"""Chooses the tokens to mask (by token, whole word or span), and what replaces them (80 / 10 / 10).

Every decision is a hash of (seed, epoch, document, position within the document), so it does not depend on packing, on
the number of processes or on the order of batches. Each predictable (non-special) token is selected with probability
`rate`, by one of three units:

    token   each token by itself                                   (Devlin et al., 2019)
    word    whole words: all tokens from one word start to the next (whole-word masking)
    span    runs of whole words: every word begins a span with probability q; its length in words has
            P(k) proportional to p (1 - p)^(k - 1), k = 1…max_span (Joshi et al., 2020: p = 0.2, max_span = 10, so a
            mean of 3.8). Spans may overlap. A word is selected when a span covers it; q solves
            1 - prod_k (1 - q P(length >= k)) = rate.

Of the selected tokens, a share `mask_share` is replaced by the mask token, a share `random_share` by a random
non-special token, and the rest is kept. This is drawn for each token; with spans, once for each run of adjacent
selected tokens, as in SpanBERT. There is no minimum per document: it would raise the rate of short documents, whose
words have the least context.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..utils.errors import UserError, check_choice
from .randomness import below, fold, ragged_arange, uniform

UNITS = ("token", "word", "span")
# A separate random stream for each kind of decision.
_SELECT, _SPAN_LENGTH, _BEFORE, _SPLIT, _REPLACE = 0, 1, 2, 3, 4


@dataclass(frozen=True, kw_only=True)
class Masking:
    """How tokens are selected and corrupted.

    Attributes:
        rate: the probability that a predictable token is selected, in (0, 1].
        final_rate: the rate at the end of the run, reached linearly; None: the rate is constant.
        mask_share: the share of selected tokens that become the mask token.
        random_share: the share that become a random token. The rest is kept unchanged.
        unit: `token`, `word` or `span`.
        span_probability: p of the geometric span lengths.
        max_span: the longest span, in words.
    """

    rate: float = 0.3
    final_rate: float | None = None
    mask_share: float = 0.8
    random_share: float = 0.1
    unit: str = "token"
    span_probability: float = 0.2
    max_span: int = 10

    def __post_init__(self) -> None:
        check_choice("masking_unit", self.unit, UNITS)
        for name in ("rate", "final_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise UserError(f"{name}={value} must lie in (0, 1]")
        for name in ("mask_share", "random_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name}={getattr(self, name)} must lie in [0, 1]")
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise UserError(
                f"mask_share={self.mask_share} and random_share={self.random_share} must not exceed 1 together"
            )
        if not 0 < self.span_probability < 1:
            raise UserError(f"span_probability={self.span_probability} must lie in (0, 1)")
        if self.max_span < 1:
            raise UserError(f"max_span={self.max_span} must be at least 1")

    def rate_at(self, fraction: float) -> float:
        """The rate when a share `fraction` of the run is done."""
        if self.final_rate is None:
            return self.rate
        return self.rate + (self.final_rate - self.rate) * min(max(fraction, 0.0), 1.0)


def select(
    masking: Masking,
    *,
    rate: float,
    keys: np.ndarray,
    firsts: np.ndarray,
    lengths: np.ndarray,
    starts: np.ndarray,
    predictable: np.ndarray,
) -> np.ndarray:
    """Which tokens of some segments are predicted; N tokens in S segments, concatenated.

    Segments are treated separately: a word or span that is cut between two segments counts as two.

    Args:
        rate: the rate at this step.
        keys: uint64 [S], hashes of (seed, epoch, document).
        firsts: int64 [S], the position of each segment's first token within its document.
        lengths: int64 [S].
        starts: bool [N], whether a word begins at the token.
        predictable: bool [N], False for special tokens.

    Returns:
        bool [N].
    """
    positions = ragged_arange(firsts, lengths)
    if masking.unit == "token":
        draws = uniform(fold(fold(np.repeat(keys, lengths), positions), _SELECT))
        return (draws < rate) & predictable
    starts = starts.copy()
    starts[np.cumsum(lengths) - lengths] = True
    words = np.flatnonzero(starts)
    segment_of_word = np.repeat(np.arange(len(lengths)), lengths)[words]
    word_keys = fold(keys[segment_of_word], positions[words])
    if masking.unit == "word":
        chosen = uniform(fold(word_keys, _SELECT)) < rate
    else:
        chosen = _covered_by_spans(masking, rate, keys, firsts, word_keys, segment_of_word)
    return chosen[np.cumsum(starts) - 1] & predictable


def corrupt(
    masking: Masking,
    selected: np.ndarray,
    originals: np.ndarray,
    *,
    keys: np.ndarray,
    firsts: np.ndarray,
    lengths: np.ndarray,
    mask_token_id: int,
    ordinary_token_ids: np.ndarray,
) -> np.ndarray:
    """What replaces the M selected tokens; N tokens in S segments, concatenated.

    Args:
        selected: bool [N], as `select` returns it.
        originals: int64 [M].
        keys, firsts, lengths: [S], as `select` takes them.
        ordinary_token_ids: int64, what a random token is drawn from.

    Returns:
        int64 [M].
    """
    token_keys = fold(np.repeat(keys, lengths), ragged_arange(firsts, lengths))
    decided_at = _runs(selected, lengths) if masking.unit == "span" else np.flatnonzero(selected)
    split = uniform(fold(token_keys[decided_at], _SPLIT))
    random = ordinary_token_ids[below(fold(token_keys[selected], _REPLACE), len(ordinary_token_ids))]
    shown = np.where(split < masking.mask_share + masking.random_share, random, originals)
    return np.where(split < masking.mask_share, mask_token_id, shown)


def _runs(selected: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """For each selected token, where its run of adjacent selected tokens begins in the segment; int64 [selected]."""
    places = np.flatnonzero(selected)
    follows = np.zeros(len(selected), dtype=bool)
    follows[1:] = selected[:-1]
    follows[np.cumsum(lengths) - lengths] = False
    return np.maximum.accumulate(np.where(follows[places], 0, places))


def _covered_by_spans(
    masking: Masking,
    rate: float,
    keys: np.ndarray,
    firsts: np.ndarray,
    word_keys: np.ndarray,
    segment_of_word: np.ndarray,
) -> np.ndarray:
    """Which words are covered by a span; bool [words].

    Each segment is preceded by `max_span - 1` virtual words, so its first words are covered as often as the others.
    """
    before = masking.max_span - 1
    counts = np.bincount(segment_of_word, minlength=len(keys)) + before
    ends = np.cumsum(counts)
    imagined = ragged_arange(ends - counts, np.full(len(keys), before))
    real = np.ones(int(counts.sum()), dtype=bool)
    real[imagined] = False
    slot_keys = np.empty(len(real), dtype=np.uint64)
    slot_keys[real] = word_keys
    slot_keys[imagined] = fold(
        np.repeat(fold(fold(keys, firsts), _BEFORE), before), np.tile(np.arange(before), len(keys))
    )
    cumulative, start_probability = _span_distribution(rate, masking.span_probability, masking.max_span)
    begins = uniform(fold(slot_keys, _SELECT)) < start_probability
    spans = 1 + np.searchsorted(cumulative, uniform(fold(slot_keys, _SPAN_LENGTH)), side="right")
    slots = np.arange(len(real))
    reach = np.minimum(slots + np.where(begins, spans, 0), np.repeat(ends, counts))
    return (np.maximum.accumulate(reach) > slots)[real]


@lru_cache(maxsize=64)
def _span_distribution(rate: float, probability: float, longest: int) -> tuple[np.ndarray, float]:
    """Cumulative probabilities of span lengths, without the last one, and the probability that a word begins a span."""
    weights = probability * (1 - probability) ** np.arange(longest)
    weights /= weights.sum()
    at_least = np.cumsum(weights[::-1])[::-1]
    low, high = 0.0, 1.0
    for _ in range(60):  # bisection to the last bit
        middle = (low + high) / 2
        if 1 - np.prod(1 - middle * at_least) < rate:
            low = middle
        else:
            high = middle
    return np.cumsum(weights)[:-1], high
