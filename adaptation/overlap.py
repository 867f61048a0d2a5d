"""Overlap of texts by 13-grams of words: finds test documents that also occur in the training text (contamination).

Words are compared as sequences of tokens. A shared 13-gram is a sign that one text was copied from the other (Brown et
al. 2020).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..corpus import Corpus
from ..corpus.encoding import split_encoded
from ..corpus.randomness import fold
from ..corpus.readers.inputs import Reader, files_in_both
from ..utils.errors import UserError

RUN_WORDS = 13
_TOKENS_AT_ONCE = 1 << 22


class TokenizedDocuments(NamedTuple):
    """Tokenized documents, concatenated.

    Attributes:
        ids, starts: token ids [tokens] without special tokens, and whether a word begins at each.
        lengths: the lengths of the documents in tokens; each document begins with a word.
    """

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class Overlap:
    """How much of some documents also occurs in others.

    Attributes:
        documents, found_documents: how many were compared, and how many of them share a 13-gram with the others.
        runs, found_runs: the number of their 13-grams, and how many of these also occur in the others.
        too_short: documents of fewer than 13 words, which cannot be compared.
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


def measure_overlap(documents: TokenizedDocuments, others: Iterable[Corpus]) -> Overlap:
    """The overlap of documents with corpora, by 13-grams of words."""
    runs, owners = run_hashes(*documents)
    wanted = np.unique(runs)
    seen = np.zeros(len(wanted), dtype=bool)
    for other in others:
        for theirs in _runs_in(other):
            seen |= np.isin(wanted, theirs)
    hits = np.isin(runs, wanted[seen])
    return Overlap(
        documents=len(np.unique(owners)),
        found_documents=len(np.unique(owners[hits])),
        runs=len(runs),
        found_runs=int(hits.sum()),
        too_short=len(documents.lengths) - len(np.unique(owners)),
    )


def documents_of(corpus: Corpus, first: int = 0, last: int | None = None) -> TokenizedDocuments:
    """The documents of a prepared split, from `first` up to but not including `last`."""
    offsets = corpus.offsets[first : None if last is None else last + 1]
    lengths = np.diff(offsets)
    return TokenizedDocuments(*corpus.gather(offsets[:-1], lengths), lengths)


def encoded_documents(encoded: Iterable[bytes]) -> TokenizedDocuments:
    """The documents encoded by a `corpus.encoding.Encoder`."""
    found = list(encoded)
    ids, starts = split_encoded(b"".join(found))
    return TokenizedDocuments(
        ids.astype(np.int64), starts, np.array([len(document) // 4 for document in found], dtype=np.int64)
    )


def run_hashes(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hashes of all 13-grams of words within documents, and the document of each; see `TokenizedDocuments`.

    Returns:
        hashes uint64 [runs], documents int64 [runs].
    """
    first = (np.cumsum(lengths) - lengths)[lengths > 0]
    begins_word = starts.copy()
    begins_word[first] = True
    begins = np.flatnonzero(begins_word)
    if len(begins) < RUN_WORDS:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
    # A token's hash depends on its position in the word, so their sum, the word's hash, depends on the order.
    place = np.arange(len(ids)) - np.repeat(begins, np.diff(np.append(begins, len(ids))))
    words = np.add.reduceat(fold(ids, place), begins)
    owners = np.repeat(np.arange(len(lengths)), lengths)[begins]
    count = len(words) - RUN_WORDS + 1
    runs = np.zeros(count, dtype=np.uint64)
    for step in range(RUN_WORDS):
        runs = fold(runs, words[step : step + count])
    in_one = owners[:count] == owners[RUN_WORDS - 1 :]
    return runs[in_one], owners[:count][in_one]


def _runs_in(corpus: Corpus) -> Iterator[np.ndarray]:
    """The 13-gram hashes of a corpus, in batches of whole documents."""
    ends = np.asarray(corpus.offsets)
    first = 0
    while first < corpus.num_documents:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + _TOKENS_AT_ONCE, side="right")) - 1)
        yield run_hashes(*documents_of(corpus, first, last))[0]
        first = last


def refuse_scored_text(readers: Mapping[str, Reader]) -> None:
    """Refuse a file that is trained on and scored; `prepare` compares `input` and `validation_input`.

    Args:
        readers: by the name of the flag.
    """
    for trained, scored in (
        ("input", "general_input"), ("replay_input", "general_input"), ("replay_input", "validation_input"),
    ):  # fmt: skip
        if trained in readers and scored in readers:
            for path in files_in_both(readers[trained], readers[scored]):
                raise UserError(f"{path} is in {trained} and in {scored}: leave it out of one of them")
