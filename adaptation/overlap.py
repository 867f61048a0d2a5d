"""How much of one text stands in another, by runs of 13 words: what has leaked from training into validation.

Words are compared as the tokenizer cuts them. A run of 13 words that both hold is a sign that one was copied from the
other (Brown et al. 2020).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..corpus import Corpus
from ..corpus.randomness import fold

RUN_WORDS = 13
_TOKENS_AT_ONCE = 1 << 22

# Token ids without special tokens, and whether a word begins at each.
Document = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Overlap:
    """What of some documents stands in others.

    Attributes:
        documents: how many were compared, and how many of them hold a run that the others hold too.
        runs: the runs of 13 words in them, and how many of these the others hold too.
        too_short: documents of fewer words, of which nothing is known.
    """

    documents: int
    found_documents: int
    runs: int
    found_runs: int
    too_short: int

    def __str__(self) -> str:
        share = self.found_documents / max(1, self.documents)
        return (
            f"{self.found_documents:,} of {self.documents:,} documents ({share:.1%}), {self.found_runs:,} of "
            f"{self.runs:,} runs; {self.too_short:,} documents are shorter than {RUN_WORDS} words"
        )


def measure_overlap(documents: Iterable[Document], others: Iterable[Corpus]) -> Overlap:
    """The overlap of documents with corpora, by runs of 13 words."""
    runs_of = [run_hashes(*document) for document in documents]
    long = [runs for runs in runs_of if len(runs)]
    wanted = np.unique(np.concatenate(long)) if long else np.zeros(0, dtype=np.uint64)
    seen = np.zeros(len(wanted), dtype=bool)
    for other in others:
        for runs in _runs_in(other):
            seen |= np.isin(wanted, runs)
    common = wanted[seen]
    hits = [np.isin(runs, common) for runs in long]
    return Overlap(
        documents=len(long),
        found_documents=sum(bool(hit.any()) for hit in hits),
        runs=sum(map(len, long)),
        found_runs=sum(int(hit.sum()) for hit in hits),
        too_short=len(runs_of) - len(long),
    )


def documents_of(corpus: Corpus) -> Iterator[Document]:
    """The documents of a prepared split."""
    for begin, end in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True):
        yield corpus.gather(np.array([begin]), np.array([end - begin]))


def encoded_documents(encoded: Iterable[bytes]) -> Iterator[Document]:
    """The documents that a `corpus.encoding.Encoder` gave."""
    for document in encoded:
        numbers = np.frombuffer(document, dtype=np.uint32)
        yield (numbers >> 1).astype(np.int64), (numbers & 1).astype(bool)


def run_hashes(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """A hash of each run of 13 words; uint64 [words - 12], or none."""
    begins = np.flatnonzero(starts)
    if len(begins) < RUN_WORDS:
        return np.zeros(0, dtype=np.uint64)
    # A token's hash depends on its place in the word, and a word's is the sum of them: order counts.
    tokens = ids[begins[0] :].astype(np.uint64)
    of_word = np.cumsum(starts[begins[0] :]) - 1
    place = np.arange(len(tokens)) - (begins - begins[0])[of_word]
    words = np.add.reduceat(fold(tokens, place.astype(np.uint64)), begins - begins[0])
    count = len(words) - RUN_WORDS + 1
    runs = np.zeros(count, dtype=np.uint64)
    for step in range(RUN_WORDS):
        runs = fold(runs, words[step : step + count])
    return runs


def _runs_in(corpus: Corpus) -> Iterator[np.ndarray]:
    """The runs of a corpus, document by document in batches."""
    batch, size = [], 0
    for ids, starts in documents_of(corpus):
        batch.append(run_hashes(ids, starts))
        size += len(ids)
        if size >= _TOKENS_AT_ONCE:
            yield np.concatenate(batch)
            batch, size = [], 0
    if batch:
        yield np.concatenate(batch)


__all__ = ["RUN_WORDS", "Overlap", "documents_of", "encoded_documents", "measure_overlap", "run_hashes"]
