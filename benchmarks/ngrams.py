"""How well a text is predicted without a network: unigram entropy and a trigram model, the floors of learning.py."""

from typing import Any


def floors(corpus: str) -> dict[str, float]:
    """Nats per token of the validation split under a unigram and a trigram model.

    The trigram model mixes the frequencies given two, one and no previous tokens with a uniform distribution. The
    mixture weights are fitted to the last 200,000 tokens of the training split, which are not counted.
    """
    import numpy as np

    from clozebert.corpus import Corpus

    def read(split: str) -> tuple[Any, int]:
        found = Corpus(corpus, split)
        return np.concatenate([found.document(i) for i in range(len(found))]).astype(np.int64), found.vocab_size

    train, size = read("train")
    counted, tuning = train[:-200_000], train[-200_000:]
    keys = {order: np.unique(grams_of(counted, order, size), return_counts=True) for order in (1, 2, 3)}

    def probabilities(ids: Any) -> Any:
        """[4, tokens]: uniform, then given 0, 1 and 2 previous tokens."""
        rows = [np.full(len(ids) - 2, 1 / size)]
        for order in (1, 2, 3):
            grams = grams_of(ids, order, size)[3 - order :]
            seen = count_of(keys[order], grams)
            before = count_of(keys[order - 1], grams // size) if order > 1 else np.full(len(grams), len(counted))
            rows.append(seen / np.maximum(before, 1))
        return np.stack(rows)

    p = probabilities(tuning)
    weights = np.full(4, 0.25)
    for _ in range(30):  # expectation maximisation
        shares = weights[:, None] * p
        weights = (shares / shares.sum(0)).mean(1)
    p = probabilities(read("validation")[0])
    unigram = 0.999 * p[1] + 0.001 * p[0]
    return {
        "unigram": round(float(-np.log(unigram).mean()), 3),
        "trigram": round(float(-np.log(weights @ p).mean()), 3),
    }


def grams_of(ids: Any, order: int, size: int) -> Any:
    """A unique number for each n-gram of `order` tokens."""
    found = ids[: len(ids) - order + 1].copy()
    for place in range(1, order):
        found = found * size + ids[place : len(ids) - order + 1 + place]
    return found


def count_of(table: Any, grams: Any) -> Any:
    import numpy as np

    keys, counts = table
    place = np.minimum(np.searchsorted(keys, grams), len(keys) - 1)
    return np.where(keys[place] == grams, counts[place], 0)
