"""Samples the tokens of the vocabulary that a training step compares its predictions with.

The loss of a prediction needs the sum of exp(logit) over the vocabulary. In a small model these logits can be a
third of a training step. A sample of tokens estimates the sum by importance sampling (Bengio and Senécal 2008; Jean
et al. 2015, https://arxiv.org/abs/1412.2007):

    exp(logit of the label) + sum over sampled tokens i other than the label of exp(logit i) / rate i

The rate of a token is the probability that a sample holds it: at most 1, and proportional to the token's count in the
text to the power of 3/4 (as in Mikolov et al. 2013). So the most frequent tokens are in every sample. The sample
depends only on seed and step: however a batch is split, the gradient is the same.

Shapes: V vocabulary, S tokens of a sample.
"""

from dataclasses import dataclass

import numpy as np

from .randomness import derive, fold, uniform

_VOCABULARY = 5  # the purpose of a hash; the others are in batches.py
_POWER = 0.75


@dataclass(frozen=True)
class VocabularySample:
    """Token ids, int64 [S], and the logarithms of their rates, float32 [S]."""

    ids: np.ndarray
    log_rates: np.ndarray


class VocabularySampler:
    """Draws the sample of a step, as a pure function of the step.

    Args:
        counts: how often the text holds each token, [V].
        size: S, below V.
    """

    def __init__(self, counts: np.ndarray, *, size: int, seed: int) -> None:
        self.size = size
        rates = inclusion_rates(counts, size=size)
        self.log_rates = np.log(rates).astype(np.float32)
        self.ends = np.cumsum(rates)
        self.key = derive(seed, _VOCABULARY)

    def draw(self, step: int) -> VocabularySample:
        """The sample of a step, by systematic sampling (Madow and Madow 1944).

        Each token has an interval on a line of length S, as long as its rate. S points, 1 apart and all shifted by one
        random number, select the tokens. No interval is longer than 1, so no token is selected twice.
        """
        shift = uniform(fold(self.key, np.asarray(step)))
        ids = np.searchsorted(self.ends, shift + np.arange(self.size), side="right").clip(max=len(self.ends) - 1)
        return VocabularySample(ids, self.log_rates[ids])


def inclusion_rates(counts: np.ndarray, *, size: int) -> np.ndarray:
    """min(1, c (count + 1)^0.75) for each token, float64 [V], with c such that the sum is `size`."""
    weights = (counts.astype(np.float64) + 1) ** _POWER  # + 1: a token that is not in the text can be drawn, too
    is_certain = np.zeros(len(weights), dtype=bool)
    while True:
        factor = (size - is_certain.sum()) / weights[~is_certain].sum()
        exceeding = ~is_certain & (weights * factor > 1)
        if not exceeding.any():
            return np.where(is_certain, 1.0, weights * factor)
        is_certain |= exceeding
