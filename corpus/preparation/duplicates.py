"""Near-duplicate documents by MinHash (Broder, 1997).

A document is treated as the set of its lower-cased five-word shingles; in scripts without spaces, each character is a
word. Its signature is the minima of 64 hash functions over that set. Two documents agree in each minimum with
probability J, the Jaccard similarity of their sets. Signatures that agree in all four numbers of any of 16 bands are
compared: a document that agrees with an earlier one in at least 0.8 of the 64 is a near duplicate. Where more than
1,000 documents agree in a band, as with much text from one template, only the first 1,000 are compared. Each document
kept takes about 2.3 KB of memory; for tens of millions of documents, use a dedicated tool.
"""

import zlib

import numpy as np

from ..encoding import UNSPACED_SCRIPTS
from ..randomness import derive, fold

_SHINGLE_WORDS = 5
_HASHES = 64
_BANDS = 16
_THRESHOLD = 0.8
_MOST_IN_A_BUCKET = 1000
_BLOCK = 1 << 14
_KEYS = np.array([derive(number) for number in range(_HASHES)], dtype=np.uint64)


def signature(text: str) -> bytes:
    """The MinHash signature of a text: uint32 [64] in bytes."""
    spaced = text.lower() if text.isascii() else UNSPACED_SCRIPTS.sub(r" \g<0> ", text.lower())
    words = np.array([zlib.crc32(word.encode("utf-8")) for word in spaced.split()], dtype=np.uint64)
    count = max(1, len(words) - _SHINGLE_WORDS + 1)
    shingles = np.zeros(count, dtype=np.uint64)
    for place in range(min(_SHINGLE_WORDS, len(words))):
        shingles = fold(shingles, words[place : place + count])
    shingles = np.unique(shingles)
    smallest = np.full(_HASHES, np.iinfo(np.uint64).max, dtype=np.uint64)
    for first in range(0, len(shingles), _BLOCK):
        hashed = fold(_KEYS[:, None], shingles[None, first : first + _BLOCK])
        smallest = np.minimum(smallest, hashed.min(axis=1))
    return (smallest >> np.uint64(32)).astype("<u4").tobytes()


class NearDuplicates:
    """Remembers the documents that are kept, and recognises near duplicates of them."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []  # signatures
        # For each band: its numbers -> the indices in `_kept` that have them; one alone is no list, which saves memory.
        self._buckets: list[dict[bytes, int | list[int]]] = [{} for _ in range(_BANDS)]

    def seen(self, signature: bytes) -> bool:
        """Whether an earlier document is nearly the same; if not, this one is remembered."""
        width = len(signature) // _BANDS
        bands = [signature[start : start + width] for start in range(0, len(signature), width)]
        candidates: set[int] = set()
        for buckets, band in zip(self._buckets, bands, strict=True):
            found = buckets.get(band, [])
            candidates.update([found] if isinstance(found, int) else found)
        if candidates:
            together = b"".join(self._kept[index] for index in candidates)
            others = np.frombuffer(together, dtype="<u4").reshape(-1, _HASHES)
            agreement = (others == np.frombuffer(signature, dtype="<u4")).mean(axis=1)
            if agreement.max() >= _THRESHOLD:
                return True
        index = len(self._kept)
        self._kept.append(signature)
        for buckets, band in zip(self._buckets, bands, strict=True):
            found = buckets.setdefault(band, index)
            if isinstance(found, list):
                if len(found) < _MOST_IN_A_BUCKET:
                    found.append(index)
            elif found != index:
                buckets[band] = [found, index]
        return False
