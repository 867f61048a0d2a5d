"""A mixture of one or more corpora, with the share of the rows that each contributes."""

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from ..utils.errors import UserError
from .batches import MIX_BLOCK, check_weights
from .shards import Corpus, open_split


class Mixture:
    """The train and validation splits of some corpora.

    Args:
        places: folders or URLs that hold what `prepare_corpus` wrote.
        weights: the share of rows of each corpus, in any unit; none: its share of the tokens, but at least one row in
            1,024.

    Attributes:
        corpora: the train splits.
        validation: the validation splits that are not empty, by the name of the corpus.
        names: of the corpora: the last component of each place, numbered if two are the same.
        shares: of the corpora; their sum is 1.

    Raises:
        FileNotFoundError: a place holds no corpus.
        ValueError: a corpus is empty, or the weights are not one positive number per corpus.
    """

    def __init__(self, places: str | Path | Sequence[str | Path], weights: Sequence[float] | None = None) -> None:
        places = [places] if isinstance(places, str | Path) else places
        if not places:
            raise UserError("corpora is empty; give at least one corpus")
        weights = [] if weights is None else list(weights)
        if weights:
            check_weights(weights, len(places), name="corpus_weights")
        self.corpora = [_open_train(place) for place in places]
        self.names = _names(places)
        splits = {
            name: open_split(corpus.directory, "validation")
            for name, corpus in zip(self.names, self.corpora, strict=True)
        }
        self.validation = {name: split for name, split in splits.items() if split}
        parts = weights or [corpus.num_tokens for corpus in self.corpora]
        self.shares = [part / sum(parts) for part in parts]
        least = 1 / MIX_BLOCK
        for place, share in zip(places, self.shares, strict=True):
            if weights and share < least:
                raise UserError(
                    f"corpus_weights={weights}: {place} would give {share:.2g} of the rows, below the least "
                    f"share of 1/{MIX_BLOCK}: give it a larger weight, or leave it out"
                )
        if min(self.shares) < least:
            raised = [max(share, least) for share in self.shares]
            self.shares = [share / sum(raised) for share in raised]

    @property
    def fingerprint(self) -> str:
        """A string that identifies these corpora and their order."""
        return "+".join(corpus.fingerprint for corpus in self.corpora)

    @property
    def validation_fingerprint(self) -> str:
        """The same of the validation splits; empty if there are none."""
        return "+".join(split.fingerprint for split in self.validation.values())

    @property
    def num_documents(self) -> int:
        return sum(corpus.num_documents for corpus in self.corpora)

    @property
    def num_tokens(self) -> int:
        return sum(corpus.num_tokens for corpus in self.corpora)

    def share_of(self, name: str) -> float:
        """The share of the corpus of that name."""
        return self.shares[self.names.index(name)]

    def facts(self) -> dict[str, Any]:
        """The facts about the data for a model card."""
        if len(self.corpora) == 1:
            return self.corpora[0].facts()
        each = zip(self.names, self.shares, self.corpora, strict=True)
        return {name: {"share": share, **corpus.facts()} for name, share, corpus in each}


def _open_train(place: str | Path) -> Corpus:
    corpus = Corpus(place)
    if not corpus.num_documents:
        raise UserError(f"the corpus {place} is empty")
    return corpus


def _names(places: Sequence[str | Path]) -> list[str]:
    last = [PurePath(str(place)).name or str(place) for place in places]
    names = [name if last.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(last, start=1)]
    return names if len(set(names)) == len(names) else [f"{number}-{name}" for number, name in enumerate(last, start=1)]
