"""MinHash estimates the Jaccard similarity, and near duplicates are what it says they are."""

import random

import numpy as np
import pytest

from clozebert.corpus.preparation.duplicates import NearDuplicates, signature


def words(seed: int, count: int = 400) -> list[str]:
    draws = random.Random(seed)
    return [f"word{draws.randrange(5000)}" for _ in range(count)]


def changed(text: list[str], places: int, seed: int = 1) -> list[str]:
    draws = random.Random(seed)
    text = list(text)
    for place in draws.sample(range(len(text)), places):
        text[place] = "changed"
    return text


def jaccard(one: list[str], other: list[str]) -> float:
    runs = [{tuple(text[i : i + 5]) for i in range(len(text) - 4)} for text in (one, other)]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def agreement(one: list[str], other: list[str]) -> float:
    minima = [np.frombuffer(signature(" ".join(text)), dtype="<u4") for text in (one, other)]
    return float(np.mean(minima[0] == minima[1]))


@pytest.mark.parametrize("places", [2, 10, 40])
def test_signatures_agree_as_often_as_texts_overlap(places: int) -> None:
    exact, estimated = [], []
    for seed in range(20):
        one = words(seed)
        other = changed(one, places, seed)
        exact.append(jaccard(one, other))
        estimated.append(agreement(one, other))
    # The mean of 20 estimates of 64 draws each: a standard error below 0.014.
    assert np.mean(estimated) == pytest.approx(np.mean(exact), abs=0.05)


def test_near_duplicates_are_recognised_and_others_are_not() -> None:
    seen = NearDuplicates()
    originals = [words(seed) for seed in range(50)]
    assert not any(seen.seen(signature(" ".join(text))) for text in originals)
    assert all(seen.seen(signature(" ".join(changed(text, 3)))) for text in originals)  # 0.93 alike
    assert not any(seen.seen(signature(" ".join(changed(text, 60)))) for text in originals)  # 0.3 alike


def test_documents_from_one_template_are_compared_with_all_before_them() -> None:
    """Each agrees in some bands with many that are no near duplicates of it, and with one that is."""
    template = words(0)[:90]
    originals = [template + words(seed)[:20] for seed in range(1, 121)]
    signatures = [signature(" ".join(text)) for text in originals + [[*text[:-1], "other"] for text in originals]]
    kept: list[bytes] = []
    wanted = []
    for one in signatures:
        mine = np.frombuffer(one, dtype="<u4")
        wanted.append(any(np.mean(mine == np.frombuffer(other, dtype="<u4")) >= 0.8 for other in kept))
        kept += [] if wanted[-1] else [one]
    seen = NearDuplicates()
    assert [seen.seen(one) for one in signatures] == wanted
    assert 20 < sum(wanted) < 200


def test_case_and_spacing_do_not_matter_and_short_texts_count() -> None:
    assert signature("The quick  brown\nFOX") == signature("the quick brown fox")
    assert signature("one two three") != signature("one two four")
    assert len(signature("")) == 256


@pytest.mark.parametrize("first", [0x4E00, 0x3041, 0x0E01], ids=["chinese", "japanese", "thai"])
def test_near_duplicates_are_recognised_where_no_spaces_are(first: int) -> None:
    draws = random.Random(0)
    originals = ["".join(chr(first + draws.randrange(40)) for _ in range(400)) for _ in range(20)]
    seen = NearDuplicates()
    assert not any(seen.seen(signature(text)) for text in originals)
    assert all(seen.seen(signature(f"{text[:100]}{chr(first)}{text[101:]}")) for text in originals)
