"""Rows spread evenly over a corpus: a sample large enough for the counts that are made once, before training.

Shapes: N tokens, V vocabulary.
"""

from collections.abc import Iterator

import numpy as np

from .mixtures import Mixture
from .packing import RowIndex

_COUNTED = 1 << 24  # tokens of all corpora
_BLOCK = 1 << 20  # tokens that are read at a time


def sample_text(mixture: Mixture, *, max_seq_length: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Non-special tokens, int32 [N], and the length of each segment, for some rows at a time.

    Each corpus has its share of them, as in training. So a small corpus with a large share is read several times.
    """
    indices = [RowIndex(corpus, max_seq_length=max_seq_length) for corpus in mixture.corpora]
    whole = max(index.num_rows * max_seq_length / share for index, share in zip(indices, mixture.shares, strict=True))
    total = min(_COUNTED, whole)
    for index, share in zip(indices, mixture.shares, strict=True):
        corpus = index.corpus
        wanted = max(1, int(total * share) // max_seq_length)
        rows = np.linspace(0, index.num_rows - 1, wanted).astype(np.int64)
        for some in np.array_split(rows, -(-wanted * max_seq_length // _BLOCK)):
            documents, firsts, lengths, _ = index.read(some)
            ids, _ = corpus.gather(corpus.offsets[documents] + firsts, lengths)
            yield ids.astype(np.int32), lengths


def count_tokens(mixture: Mixture, *, max_seq_length: int, vocab_size: int) -> np.ndarray:
    """How often each token occurs in the sample, int64 [V]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for ids, _ in sample_text(mixture, max_seq_length=max_seq_length):
        counts += np.bincount(ids, minlength=vocab_size)
    return counts
