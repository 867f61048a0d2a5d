"""What the benchmarks of learning (learning.py, levers.py, scaling.py, finetuning_table.py) claim and count."""

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pretraining_helpers import make_corpus, run_forked

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
# What docs/learning_results.md shows of learning-epyc.json.
BUDGETS = [180, 300, 720, 900, 1200, 3600, 4320, 10800]
PEER, OLD = "modernbert, 0.002, 16 rows", "nano, whole vocabulary, 30 % masks"
CLAIMS = [["nano@180", f"{PEER}@900"], *([name, f"{PEER}@3600"] for name in ("nano@720", "nano@1200"))]


@pytest.fixture(autouse=True)
def _benchmarks_import_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def learning() -> Any:
    return importlib.import_module("learning")


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


def test_grams_are_counted() -> None:
    ngrams = importlib.import_module("ngrams")
    ids = np.random.default_rng(0).integers(0, 7, size=500)
    for order in (1, 2, 3):
        expected = Counter(tuple(ids[i : i + order].tolist()) for i in range(len(ids) - order + 1))
        grams = ngrams.grams_of(ids, order, 7)
        counts = ngrams.count_of(np.unique(grams, return_counts=True), grams)
        assert counts.tolist() == [expected[tuple(ids[i : i + order].tolist())] for i in range(len(grams))]
    absent = ngrams.grams_of(np.array([6, 6, 6]), 3, 7)
    assert ngrams.count_of((np.array([0, 1]), np.array([4, 5])), absent).tolist() == [0]


def test_a_gain_in_fine_tuning_is_over_the_better_baseline_and_bold_beyond_two_errors(learning: Any) -> None:
    finetuning = importlib.import_module("finetuning_table")
    assert {encoder.name for encoder in finetuning.MODELS.values()} <= {job["name"] for job in learning.all_jobs([1])}

    def side(mean: float) -> dict[str, Any]:
        return {"mean": mean, "sd": 0.01 * (3 / 2) ** 0.5, "seeds": [1, 2, 3]}

    # The error of each mean is 0.01 / sqrt(2), that of a difference 0.01: one point.
    baselines = {"modernbert": side(0.5), "bert": side(0.4)}
    assert finetuning.gain({"ours": side(0.521), **baselines}) == "**+2.1 ± 1.0**"
    assert finetuning.gain({"ours": side(0.519), **baselines}) == "+1.9 ± 1.0"
    assert finetuning.gain({"ours": side(0.45), **baselines}) == "-5.0 ± 1.0"
    assert finetuning.gain({"ours": None, **baselines}) == ""


def test_a_lever_counts_from_two_standard_errors(learning: Any) -> None:
    levers = importlib.import_module("levers")
    losses = {"as it is": [4.0, 4.2], "wide windows": [4.023, 4.223], "NorMuon's row scaling": [4.126]}
    found = levers.table(
        [
            {"recipe": "nano", "lever": lever, "loss": loss, "seed": seed}
            for lever, of_lever in losses.items()
            for seed, loss in enumerate(of_lever)
        ]
    )
    # Two runs each: the error of the difference is the deviation.
    assert "| | `nano`, 898 steps: 4.100 (2) |" in found
    assert "| wide windows | **+0.023** ± 0.011 (2) |" in found
    assert "| NorMuon's row scaling | +0.026 ± 0.013 (1) |" in found


def test_the_law_of_losses_is_found_again(learning: Any) -> None:
    scaling = importlib.import_module("scaling")
    law = {"E": 1.2, "A": 0.8, "a": 0.32, "B": 2.5, "b": 0.24}
    runs = [
        {"beside_embeddings": n, "tokens": t, "loss": scaling.predict(law, n, t)}
        for n in (4e5, 2.6e6, 3e7)
        for t in (5e5, 1e6, 2e6, 4e6)
    ]
    found = scaling.fit(runs)
    assert found == pytest.approx({**law, "error": 0}, abs=1e-6)
    assert scaling.predict(found, 1e8, 1e9) == pytest.approx(1.2 + 0.8 / 100**0.32 + 2.5 / 1000**0.24)


@pytest.mark.parametrize(
    ("script", "results", "page", "settings"),
    [
        ("levers", "levers", "learning_results", ()),
        pytest.param("scaling", "scaling", "learning_results", (), marks=pytest.mark.slow),
        (
            "learning",
            "learning",
            "learning_results",
            ([300, 900], [[f"{OLD}@300", f"{PEER}@900"]], [f"{OLD}*", PEER]),
        ),
        ("learning", "learning-epyc", "learning_results", (BUDGETS, CLAIMS, ["*"])),
        (
            "learning",
            "learning-bert",
            "learning_results",
            ([300, 850], [["nano as a BERT@300", "bert@300"], ["nano as a BERT@300", "modernbert@300"]], ["*"]),
        ),
        ("finetuning_table", "finetuning", "finetuning_results", ()),
    ],
)
def test_a_table_of_the_pages_is_that_of_its_results(script: str, results: str, page: str, settings: Any) -> None:
    found = json.loads((BENCHMARKS / "results" / f"{results}.json").read_text())
    takes_runs = script in ("levers", "scaling")
    text = importlib.import_module(script).table(found["runs"] if takes_runs else found, *settings)
    assert text.strip() in (BENCHMARKS.parent / "docs" / f"{page}.md").read_text()


@pytest.mark.slow
def test_every_lever_trains(tmp_path: Path) -> None:
    """Each lever that is not a setting replaces a part of the package, whose names may change."""
    levers = importlib.import_module("levers")
    prepared = make_corpus(tmp_path)
    # A lever cuts the layers between into blocks of two heads' size.
    run = {"optimizer": "muon", "max_steps": 4, "intermediate_size": 72}
    for number, (name, replace) in enumerate({**levers.MUON, **levers.PATCHES}.items()):

        def begin(rank: int, replace: Any = replace) -> None:
            replace()

        assert run_forked(prepared, tmp_path / str(number), prelude=begin, **run) == [0], name
