"""Metrics of fine-tuning: accuracy, F1 of classes and entities, correlations …; the main ones with a majority baseline.

The baseline always gives the commonest answer of the scored data, not of the training data; a regression gives the mean
of the training data.
The functions use scikit-learn and seqeval, and import them only when called.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..utils.errors import MissingPackageError

AVERAGES = ("micro avg", "macro avg", "weighted avg")  # the rows of a report that are no class
_MEASURES = ("precision", "recall", "f1-score", "support")


def check_metric_libraries(*, tags: bool) -> None:
    """Raise an `ImportError` that says what to install, before training rather than after. `tags`: for a tagger."""
    packages = {"sklearn": "scikit-learn"} | ({"seqeval": "seqeval"} if tags else {})
    if any(importlib.util.find_spec(library) is None for library in packages):
        named = packages.values()
        raise MissingPackageError(f"scores need {' and '.join(named)}: pip install {' '.join(named)}")


def single_label_metrics(targets: np.ndarray, predicted: np.ndarray, *, num_labels: int) -> dict[str, float]:
    """Accuracy and F1 (macro, micro, weighted) over the classes that occur; accuracy and macro F1 of the commonest."""
    from sklearn.metrics import f1_score

    commonest = np.bincount(targets, minlength=num_labels).argmax()
    majority = np.full_like(targets, commonest)
    return {
        "accuracy": float(np.mean(targets == predicted)),
        "f1_macro": float(f1_score(targets, predicted, average="macro", zero_division=0)),
        "f1_micro": float(f1_score(targets, predicted, average="micro", zero_division=0)),
        "f1_weighted": float(f1_score(targets, predicted, average="weighted", zero_division=0)),
        "majority_accuracy": float(np.mean(targets == majority)),
        "majority_f1_macro": float(f1_score(targets, majority, average="macro", zero_division=0)),
    }


def multi_label_metrics(targets: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Micro F1, macro F1 and exact matches of [examples, labels] zeros and ones; the same for the commonest set."""
    sets, counts = np.unique(targets, axis=0, return_counts=True)
    majority = np.broadcast_to(sets[counts.argmax()], targets.shape)
    scored = targets.any(0) | predicted.any(0)  # a label that neither occurs nor is predicted has no F1

    def f1(guess: np.ndarray, average: str) -> float:
        # Not scikit-learn's: it takes a single column for two classes, and counts the zeros as one of them.
        hits, marked = (targets & guess).sum(0), targets.sum(0) + guess.sum(0)
        if average == "micro":
            return float(2 * hits.sum() / marked.sum()) if marked.any() else 0.0
        return float(np.mean(2 * hits[marked > 0] / marked[marked > 0]))

    return {
        "f1_micro": f1(predicted, "micro") if scored.any() else 1.0,
        "f1_macro": f1(predicted, "macro") if scored.any() else 1.0,
        "accuracy": float((targets == predicted).all(1).mean()),
        "majority_f1_micro": f1(majority, "micro") if targets.any() else 1.0,
        "majority_accuracy": float((targets == majority).all(1).mean()),
    }


def regression_metrics(targets: np.ndarray, predicted: np.ndarray, *, training_mean: float) -> dict[str, float]:
    """Pearson and Spearman correlation (0 if undefined), and the mean squared error, also of the training mean."""
    from scipy.stats import rankdata

    return {
        "pearson": correlation(targets, predicted),
        "spearman": correlation(rankdata(targets), rankdata(predicted)),
        "mse": float(np.mean((targets - predicted) ** 2)),
        "majority_mse": float(np.mean((targets - training_mean) ** 2)),
    }


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's r = cov(a, b) / (sd(a) sd(b)); 0 if either is constant."""
    if (a == a[0]).all() or (b == b[0]).all():  # a constant minus its rounded mean may not be 0
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / scale) if scale > 0 else 0.0


def tag_metrics(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, entities: bool
) -> dict[str, float]:
    """Token accuracy; for entities precision, recall and F1 of whole spans; for plain tags macro F1; with baselines."""
    flat_gold = np.asarray([tag for tags in gold for tag in tags])
    flat_predicted = np.asarray([tag for tags in predicted for tag in tags])
    names, counts = np.unique(flat_gold, return_counts=True)
    scores = {
        "accuracy": float(np.mean(flat_gold == flat_predicted)),
        "majority_accuracy": float(counts.max() / counts.sum()),
    }
    if entities:
        average = entity_report(gold, predicted)["micro avg"]
        commonest = str(names[counts.argmax()])
        majority = entity_report(gold, [[commonest] * len(tags) for tags in gold])["micro avg"]
        return {
            "f1": average["f1-score"],
            "precision": average["precision"],
            "recall": average["recall"],
            **scores,
            "majority_f1": majority["f1-score"],
        }
    from sklearn.metrics import f1_score

    macro = f1_score(flat_gold, flat_predicted, average="macro", zero_division=0)
    return {**scores, "f1_macro": float(macro)}


def entity_report(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and support of every entity type and of their averages, by seqeval."""
    from seqeval.metrics import classification_report

    report: dict[str, Any] = {}
    if any(tag != "O" for tags in (*gold, *predicted) for tag in tags):
        report = classification_report([*map(list, gold)], [*map(list, predicted)], output_dict=True, zero_division=0)
    report.setdefault("micro avg", {"precision": 0.0, "recall": 0.0, "f1-score": 0.0, "support": 0})
    return {name: {key: float(value) for key, value in row.items()} for name, row in report.items()}


def class_report(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and support of every class that occurs, and their macro average, by scikit-learn."""
    from sklearn.metrics import precision_recall_fscore_support

    names = sorted({*gold, *predicted})
    columns = precision_recall_fscore_support(gold, predicted, labels=names, zero_division=0)
    rows = {
        name: {measure: float(column[index]) for measure, column in zip(_MEASURES, columns, strict=True)}
        for index, name in enumerate(names)
    }
    return _with_mean(rows)


def label_report(targets: np.ndarray, predicted: np.ndarray, *, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """The same of [examples, labels] zeros and ones, for every label that occurs or is predicted."""
    from sklearn.metrics import precision_recall_fscore_support

    rows = {}
    for name, gold, guess in zip(names, targets.T, predicted.T, strict=True):
        if gold.any() or guess.any():
            scores = precision_recall_fscore_support(gold, guess, average="binary", zero_division=0)
            rows[name] = {measure: float(score) for measure, score in zip(_MEASURES[:3], scores[:3], strict=True)}
            rows[name]["support"] = float(gold.sum())
    return _with_mean(rows) if rows else {}


def _with_mean(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The rows and `macro avg`: the means of the measures, and the sum of the cases."""
    mean = {measure: sum(row[measure] for row in rows.values()) / len(rows) for measure in _MEASURES[:3]}
    return {**rows, "macro avg": {**mean, "support": sum(row["support"] for row in rows.values())}}
