"""Writes the results that fine-tuning saves beside the model: scores, predictions, mistakes, class reports, plots."""

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.figures import save_figure
from ..utils.files import write_json, write_text
from .metrics import AVERAGES

RESULTS_FILE = "all_results.json"
WORST_SHOWN = 50
CLASSES_SHOWN = 40  # a plot of more is unreadable


def score_text(value: float) -> str:
    """A score for display: four decimals, or four significant digits if these would be zeros."""
    return f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.4g}"


def write_all_results(folder: str, results: dict[str, Any]) -> None:
    """Write the results of each split into a file, and then those of all into all_results.json."""
    for split in ("train", "eval", "test"):
        part = {key: value for key, value in results.items() if key.startswith(f"{split}_") or key == "epoch"}
        if any(key.startswith(f"{split}_") for key in part):
            write_json(os.path.join(folder, f"{split}_results.json"), part)
    write_json(os.path.join(folder, RESULTS_FILE), results)


def write_json_lines(path: str, records: Sequence[dict[str, Any]]) -> None:
    lines = (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
    write_text(Path(path), "".join(lines))


@dataclass(frozen=True)
class ClassReport:
    """Precision, recall and F1 by class, and the data of a confusion matrix.

    Attributes:
        names: the classes, in the order of the matrix.
        gold, predicted: the class of each case; empty where a case has several, so that there is no matrix.
        scores: {class or average: {"precision", "recall", "f1-score", "support"}}.
    """

    names: Sequence[str]
    gold: Sequence[str]
    predicted: Sequence[str]
    scores: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Report:
    """What a run writes about its predictions of one split.

    Attributes:
        predictions: a record for each example, with its gold label.
        mistakes: a paragraph for each wrong example, the worst first; for values, for each that is not exact.
        classes: None if the labels are not classes.
    """

    predictions: Sequence[dict[str, Any]]
    mistakes: Sequence[str]
    classes: ClassReport | None


def write_report(folder: str, split: str, report: Report) -> None:
    """Write `SPLIT_predictions.jsonl`, `SPLIT_mistakes.txt`, and for classes `SPLIT_report.json` and plots."""
    write_json_lines(os.path.join(folder, f"{split}_predictions.jsonl"), report.predictions)
    worst = report.mistakes[:WORST_SHOWN]
    if report.classes is None:  # a value is hardly ever right to the last digit
        head = f"{len(report.predictions)} examples; the {len(worst)} largest errors:"
    else:
        head = f"{len(report.mistakes)} of {len(report.predictions)} examples have a mistake"
        head += f"; the worst {len(worst)}:" if worst else "."
    write_text(Path(folder, f"{split}_mistakes.txt"), "\n\n".join([head, *worst]) + "\n")
    if report.classes is not None:
        write_json(os.path.join(folder, f"{split}_report.json"), report.classes.scores)
        _draw(folder, split, report.classes)


def _draw(folder: str, split: str, classes: ClassReport) -> None:
    """Plot the confusion matrix and the F1 of each class as PNG, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    if classes.gold:
        figure = Figure(layout="constrained")
        draw_confusion(figure, classes)
        _save(figure, Path(folder, f"{split}_confusion.png"))
    scores = classes.scores.items()
    rows = [(name, row["f1-score"], row["support"]) for name, row in scores if name not in AVERAGES]
    rows = sorted(rows, key=lambda row: -row[2])[:CLASSES_SHOWN]
    if not rows:
        return
    figure = Figure(figsize=(7, 1.2 + 0.25 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    titles = [f"{_plain(name)} ({support:g})" for name, _, support in rows]
    axes.barh(titles, [f1 for _, f1, _ in rows], color="#3b6ea5")
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="F1", title=f"{split}: F1 by class (number of cases)")
    _save(figure, Path(folder, f"{split}_f1_by_class.png"))


def _save(figure: Any, path: Path) -> None:
    split = path.name.partition("_")[0]
    about = f"{path.name}: no font here has all letters of the class names, so some are boxes; "
    save_figure(figure, path, about_missing=f"{about}{split}_report.json has the names")


def draw_confusion(figure: Any, classes: ClassReport) -> None:
    """Draw the confusion matrix, each row as shares of its gold class; of many classes only the most confused."""
    from sklearn.metrics import confusion_matrix

    names, matrix = classes.names, confusion_matrix(classes.gold, classes.predicted, labels=classes.names)
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    title = "rows: gold, columns: predicted"
    if len(names) > CLASSES_SHOWN:
        errors = matrix.sum(0) + matrix.sum(1) - 2 * matrix.diagonal()
        kept = np.sort(np.argsort(-errors, kind="stable")[:CLASSES_SHOWN])
        title += f" (the {CLASSES_SHOWN} most confused of {len(names)} classes)"
        names, matrix, shares = [names[index] for index in kept], matrix[np.ix_(kept, kept)], shares[np.ix_(kept, kept)]
    side = 3 + 0.32 * len(names)
    figure.set_size_inches(side, side)
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    shown = [_plain(name) for name in names]
    axes.set_xticks(range(len(names)), shown, rotation=90)
    axes.set_yticks(range(len(names)), shown)
    axes.set_title(title)
    if len(names) <= 20:
        for row, column in zip(*np.nonzero(matrix), strict=True):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(matrix[row, column]), ha="center", va="center", color=colour, fontsize=8)


def _plain(name: str) -> str:
    """The name of a class, escaped: matplotlib would read text between two dollar signs as a formula."""
    return name.replace("$", r"\$")


def mean_and_deviation(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each number that all results share, and its standard deviation (n - 1) as `KEY_sd`.

    Counts that are the same in all results, as of examples, stay as they are.
    """
    combined: dict[str, Any] = {}
    for key, value in results[0].items():
        if isinstance(value, int) and all(result.get(key) == value for result in results):
            combined[key] = value
        elif isinstance(value, (int, float)) and all(key in result for result in results):
            values = [float(result[key]) for result in results]
            combined[key] = statistics.fmean(values)
            if len(values) > 1:
                combined[f"{key}_sd"] = statistics.stdev(values)
    return combined


def table_of_results(results: dict[str, Any], *, splits: Sequence[str]) -> str:
    """The scores as a text table, one column for each split, with ± if there are several seeds."""
    names: list[str] = []
    for split in splits:
        names += [name for name in _scores_of(results, split) if name not in names]
    rows = [["", *splits], *([name, *(_cell(results, f"{split}_{name}") for split in splits)] for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *padded]))
    return "\n".join(lines)


def warn_of_majority(results: dict[str, Any], *, num_labels: int, weigh_classes: bool) -> str | None:
    """A warning if no score of the validation data beats its baseline.

    A perfect score cannot be beaten: there, the data have a single answer. The macro F1 has to beat a guess, too: among
    all ways to guess, one that knows the shares of the classes has the highest, 1 / their number, on average.

    Args:
        weigh_classes: name `--class_weights balanced` as a way out.
    """
    start = "eval_majority_"
    names = [key.removeprefix(start) for key in results if key.startswith(start) and not key.endswith("_sd")]
    scores = {name: (results[f"eval_{name}"], results[start + name]) for name in names}
    if "f1_macro" in scores and "accuracy" in scores:
        scores["f1_macro"] = (scores["f1_macro"][0], max(scores["f1_macro"][1], 1 / num_labels))
    for name, (score, baseline) in scores.items():
        if score < baseline or score == 0 if name == "mse" else score > baseline or score == 1:
            return None
    name, (score, baseline) = next(iter(scores.items()))
    constant = "the mean of the training labels" if name == "mse" else "the most frequent answer"
    return (
        f"warning: on the validation data the model is no better than always {constant} ({name} "
        f"{score_text(score)}, baseline {score_text(baseline)}): train for more epochs or on more data"
        + (", or, if classes are of unequal size, with --class_weights balanced" if weigh_classes else "")
    )


def _scores_of(results: dict[str, Any], split: str) -> list[str]:
    """The names of the scores of a split that the table shows."""
    names = [key.removeprefix(f"{split}_") for key in results if key.startswith(f"{split}_")]
    return [name for name in names if not name.endswith("_sd")]


def _cell(results: dict[str, Any], key: str) -> str:
    if key not in results:
        return ""
    value = results[key]
    text = score_text(value) if isinstance(value, float) else str(value)
    return f"{text} ± {score_text(results[f'{key}_sd'])}" if f"{key}_sd" in results else text
