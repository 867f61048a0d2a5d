"""What benchmarks/learning.py claims and counts."""

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PATH = Path(__file__).resolve().parent.parent / "benchmarks" / "learning.py"


@pytest.fixture(scope="module")
def learning() -> Any:
    spec = importlib.util.spec_from_file_location("learning", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def runs(name: str, losses: list[float], *, side: str = "ours") -> list[dict[str, Any]]:
    return [
        {"name": name, "side": side, "steps": 10, "seconds": 180, "seed": seed, "loss": loss}
        for seed, loss in enumerate(losses)
    ]


def test_a_claim_needs_a_gain_of_two_standard_errors(learning: Any) -> None:
    # sd 0.1 and n = 2 on both sides: the error of the difference is sqrt(0.01 / 2 + 0.01 / 2) = 0.1.
    sd = 0.1 / 2**0.5
    worse = runs("worse", [5 - sd, 5 + sd])
    found = learning.summaries([*worse, *runs("better", [4.79 - sd, 4.79 + sd])], 180)
    assert learning.check_claim(found["better"], found["worse"]) == pytest.approx((0.21, 0.1))
    found = learning.summaries([*worse, *runs("better", [4.81 - sd, 4.81 + sd])], 180)
    with pytest.raises(ValueError, match="not more than twice"):
        learning.check_claim(found["better"], found["worse"])
    found = learning.summaries([*worse, *runs("better", [1.0])], 180)
    with pytest.raises(ValueError, match="two runs or more"):
        learning.check_claim(found["better"], found["worse"])


def test_a_claim_over_a_baseline_is_over_its_best_rate(learning: Any) -> None:
    found = learning.summaries(
        [*runs("bert, 1", [6.0, 6.1], side="bert"), *runs("bert, 2", [5.0, 5.1], side="bert")], 180
    )
    assert learning.best_of(found, "bert")[0] == "bert, 2"


def test_grams_are_counted(learning: Any) -> None:
    ids = np.random.default_rng(0).integers(0, 7, size=500)
    for order in (1, 2, 3):
        expected = Counter(tuple(ids[i : i + order].tolist()) for i in range(len(ids) - order + 1))
        grams = learning._grams(ids, order, 7)
        counts = learning._counts(np.unique(grams, return_counts=True), grams)
        assert counts.tolist() == [expected[tuple(ids[i : i + order].tolist())] for i in range(len(grams))]
    absent = learning._grams(np.array([6, 6, 6]), 3, 7)
    assert learning._counts((np.array([0, 1]), np.array([4, 5])), absent).tolist() == [0]
