"""Several corpora as one: their shares, names, validation splits, and what is wrong with them."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clozebert.corpus import BatchStream, Masking, Mixture, ShardWriter
from clozebert.corpus.mixtures import _names

from .conftest import FACTS, VOCAB_SIZE, Written, write_corpus


def test_shares_are_those_of_the_tokens_or_the_weights(make_corpus: Callable[..., Written]) -> None:
    places = [str(make_corpus([length] * 10, seed=length).directory) for length in (30, 90)]
    by_tokens, weighted = Mixture(places), Mixture(places, [3, 1])
    assert by_tokens.shares == pytest.approx([0.25, 0.75])
    assert weighted.shares == [0.75, 0.25]
    assert (weighted.num_documents, weighted.num_tokens) == (20, 1200)
    assert weighted.fingerprint == "+".join(corpus.fingerprint for corpus in weighted.corpora)
    assert weighted.share_of(weighted.names[1]) == 0.25
    facts = weighted.facts()
    assert [of_one["tokens"] for of_one in facts.values()] == [300, 900]
    assert Mixture(places[:1]).facts()["documents"] == 10
    assert Mixture(Path(places[0])).num_documents == 10
    assert Mixture(places, np.array([3, 1])).shares == [0.75, 0.25]
    for wrong in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"corpus_weights=\[1, {wrong}\] must be 2 positive numbers"):
            Mixture(places, [1, wrong])


def test_a_small_corpus_has_one_row_in_1024_unless_its_weight_is_smaller(make_corpus: Callable[..., Written]) -> None:
    places = [str(make_corpus([length] * 10, seed=length).directory) for length in (4000, 1, 2)]
    mixture = Mixture(places)
    assert mixture.shares == pytest.approx([1022 / 1024, 1 / 1024, 1 / 1024], rel=3e-3)
    assert sum(mixture.shares) == pytest.approx(1)
    stream = BatchStream(
        mixture.corpora, max_seq_length=32, global_batch_size=4, masking=Masking(), seed=0, weights=mixture.shares
    )
    assert stream.quotas == [1022, 1, 1]
    with pytest.raises(ValueError, match=rf"{places[2]} would give 0\.0005 of the rows, .* 1/1024: give it a larger"):
        Mixture(places, [1, 1, 1e-3])


def test_names_are_the_last_part_of_a_place_and_told_apart(tmp_path: Path) -> None:
    places = [tmp_path / "old" / "books", tmp_path / "new" / "books", tmp_path / "papers"]
    for number, place in enumerate(places):
        write_corpus(place, [20, 30], seed=number)
    writer = ShardWriter(places[2] / "validation", vocab_size=VOCAB_SIZE)
    writer.append([7, 8, 9], [True, False, True])
    writer.close(FACTS)
    ShardWriter(places[0] / "validation", vocab_size=VOCAB_SIZE).close(FACTS)
    mixture = Mixture([str(place) for place in places])
    assert mixture.names == ["books-1", "books-2", "papers"]
    assert list(mixture.validation) == ["papers"], "an empty split and an absent one are left out"
    assert mixture.validation["papers"].num_tokens == 3
    assert _names(["x/a", "y/a", "z/a-2"]) == ["1-a", "2-a", "3-a-2"]


def test_an_empty_corpus_is_refused(make_corpus: Callable[..., Written]) -> None:
    place = str(make_corpus([]).directory)
    with pytest.raises(ValueError, match=f"the corpus {place} is empty"):
        Mixture([place])
