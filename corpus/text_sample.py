"""Rows spread evenly over a corpus: a sample large enough for the counts that are made once, before training.

Shapes: N tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from .packing import RowIndex

_COUNTED = 1 << 24  # tokens of all corpora
_BLOCK = 1 << 20  # tokens that are read at a time


def sample_text(indices: Sequence[RowIndex], shares: Sequence[float]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Non-special tokens, int32 [N], and the length of each segment, for some rows at a time.

    Each corpus has its share of them, as in training. So a small corpus with a large share is read several times.

    Args:
        indices: the rows of each corpus.
        shares: of the corpora; their sum is 1.
    """
    whole = max(index.num_rows * index.max_seq_length / share for index, share in zip(indices, shares, strict=True))
    total = min(_COUNTED, whole)
    for index, share in zip(indices, shares, strict=True):
        corpus, length = index.corpus, index.max_seq_length
        wanted = max(1, int(total * share) // length)
        rows = np.linspace(0, index.num_rows - 1, wanted).astype(np.int64)
        for some in np.array_split(rows, -(-wanted * length // _BLOCK)):
            documents, firsts, lengths, _ = index.read(some)
            ids, _ = corpus.gather(corpus.offsets[documents] + firsts, lengths)
            yield ids.astype(np.int32), lengths


def count_tokens(indices: Sequence[RowIndex], shares: Sequence[float], *, vocab_size: int) -> np.ndarray:
    """How often each token occurs in the sample, int64 [V]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for ids, _ in sample_text(indices, shares):
        counts += np.bincount(ids, minlength=vocab_size)
    return counts
