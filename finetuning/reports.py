"""What fine-tuning leaves beside the model: scores, predictions, the worst mistakes, reports by class, pictures."""

import json
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .metrics import class_report, entity_report
from .sequence_task import MULTI_LABEL, REGRESSION, SequenceExample, SequenceTask
from .tags import TaggedSentence
from .token_task import TokenTask

WORST_SHOWN = 50
CLASSES_SHOWN = 40  # a picture of more cannot be read
TEXT_SHOWN = 500


def write_json(path: str, value: Any) -> None:
    """Write JSON that a person can read; a NaN is an error here, not in the reader."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def write_json_lines(path: str, records: Sequence[dict[str, Any]]) -> None:
    """One JSON object a line."""
    with open(path, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")


def write_sequence_reports(
    folder: str, split: str, task: SequenceTask, examples: Sequence[SequenceExample], logits: np.ndarray
) -> None:
    """`SPLIT_predictions.jsonl`, `SPLIT_mistakes.txt`, and for single labels `SPLIT_report.json` and pictures."""
    predictions = task.predictions(logits)
    records = [
        {"text": example.text, **_pair(example), "gold": _gold(example), **prediction}
        for example, prediction in zip(examples, predictions, strict=True)
    ]
    write_json_lines(os.path.join(folder, f"{split}_predictions.jsonl"), records)
    badness = [_badness(example, prediction) for example, prediction in zip(examples, predictions, strict=True)]
    worst = sorted((index for index, bad in enumerate(badness) if bad > 0), key=lambda index: -badness[index])
    lines = [_sequence_mistake(examples[index], predictions[index]) for index in worst[:WORST_SHOWN]]
    _write_mistakes(folder, split, lines, len(worst), len(examples))
    if task.problem_type not in (MULTI_LABEL, REGRESSION):
        gold = [str(example.label) for example in examples]
        predicted = [str(prediction["label"]) for prediction in predictions]
        report = class_report(gold, predicted)
        write_json(os.path.join(folder, f"{split}_report.json"), report)
        _draw(folder, split, task.label_names, gold, predicted, report)


def write_token_reports(
    folder: str, split: str, task: TokenTask, sentences: Sequence[TaggedSentence], logits: Sequence[np.ndarray]
) -> dict[str, dict[str, float]]:
    """The same files for tagging; returns the report by entity type (or by tag)."""
    predictions = task.predictions(logits, sentences)
    records = [
        {**prediction, "gold": sentence.tags} for sentence, prediction in zip(sentences, predictions, strict=True)
    ]
    write_json_lines(os.path.join(folder, f"{split}_predictions.jsonl"), records)
    gold, predicted = task.scored_tags(logits, sentences)
    mistaken = [sum(a != b for a, b in zip(g, p, strict=True)) for g, p in zip(gold, predicted, strict=True)]
    worst = sorted((index for index, count in enumerate(mistaken) if count), key=lambda index: -mistaken[index])
    lines = [_token_mistake(sentences[index], predictions[index]["tags"]) for index in worst[:WORST_SHOWN]]
    _write_mistakes(folder, split, lines, len(worst), len(sentences))
    flat_gold = [_type_of(tag, task.entities) for tags in gold for tag in tags]
    flat_predicted = [_type_of(tag, task.entities) for tags in predicted for tag in tags]
    report = entity_report(gold, predicted) if task.entities else class_report(flat_gold, flat_predicted)
    write_json(os.path.join(folder, f"{split}_report.json"), report)
    names = list(dict.fromkeys(_type_of(name, task.entities) for name in task.label_names))
    _draw(folder, split, names, flat_gold, flat_predicted, report)
    return report


def _pair(example: SequenceExample) -> dict[str, str]:
    return {} if example.pair is None else {"text_pair": example.pair}


def _gold(example: SequenceExample) -> Any:
    return sorted(example.label) if isinstance(example.label, frozenset) else example.label


def _badness(example: SequenceExample, prediction: dict[str, Any]) -> float:
    """How wrong a prediction is: 0 if right; the probability it gave away; for numbers the distance."""
    if "value" in prediction:
        return abs(prediction["value"] - float(example.label))  # type: ignore[arg-type]
    scores = prediction["scores"]
    if isinstance(example.label, frozenset):
        wrong = set(prediction["labels"]) ^ example.label
        return sum(scores[name] if name in prediction["labels"] else 1 - scores[name] for name in wrong)
    return 0.0 if prediction["label"] == example.label else 1 - scores[str(example.label)]


def _sequence_mistake(example: SequenceExample, prediction: dict[str, Any]) -> str:
    if "value" in prediction:
        verdict = f"gold {example.label:g}, predicted {prediction['value']:.3f}"
    elif isinstance(example.label, frozenset):
        predicted = ", ".join(prediction["labels"]) or "none"
        verdict = f"gold {', '.join(sorted(example.label)) or 'none'}; predicted {predicted}"
    else:
        scores = prediction["scores"]
        verdict = (
            f"gold {example.label} ({scores[str(example.label)]:.1%}), "
            f"predicted {prediction['label']} ({prediction['score']:.1%})"
        )
    texts = [example.text] if example.pair is None else [example.text, example.pair]
    return "\n".join([f"{example.where}: {verdict}", *(f"    {_shortened(text)}" for text in texts)])


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_SHOWN else line[:TEXT_SHOWN] + " …"


def _token_mistake(sentence: TaggedSentence, tags: Sequence[str]) -> str:
    pieces = [
        word if gold is None or gold == tag else f"[{word}: {gold} -> {tag}]"
        for word, gold, tag in zip(sentence.words, sentence.tags or [], tags, strict=True)
    ]
    return f"{sentence.where(0)}: [word: gold -> predicted]\n    {' '.join(pieces)}"


def _write_mistakes(folder: str, split: str, blocks: list[str], wrong: int, total: int) -> None:
    head = f"{wrong} of {total} examples have a mistake" + (f"; the worst {len(blocks)}:" if wrong else ".")
    with open(os.path.join(folder, f"{split}_mistakes.txt"), "w", encoding="utf-8") as file:
        file.write("\n\n".join([head, *blocks]) + "\n")


def _type_of(tag: str, entities: bool) -> str:
    return tag[2:] if entities and tag != "O" else tag


def _draw(
    folder: str,
    split: str,
    names: Sequence[str],
    gold: Sequence[str],
    predicted: Sequence[str],
    report: dict[str, dict[str, float]],
) -> None:
    """Confusion matrix and F1 by class as PNG, where matplotlib is installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return
    draw_confusion(Figure, FigureCanvasAgg, os.path.join(folder, f"{split}_confusion.png"), names, gold, predicted)
    rows = [(name, row["f1-score"], row["support"]) for name, row in report.items() if not name.endswith(" avg")]
    rows = sorted(rows, key=lambda row: -row[2])[:CLASSES_SHOWN]
    if not rows:
        return
    figure = Figure(figsize=(7, 1.2 + 0.25 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([f"{name} ({support:g})" for name, _, support in rows], [f1 for _, f1, _ in rows], color="#3b6ea5")
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="F1", title=f"{split}: F1 by class (number of cases)")
    FigureCanvasAgg(figure).print_png(os.path.join(folder, f"{split}_f1_by_class.png"))


def confusion_matrix(names: Sequence[str], gold: Sequence[str], predicted: Sequence[str]) -> np.ndarray:
    """[gold, predicted] counts in the order of `names`."""
    numbers = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(names), len(names)), dtype=np.int64)
    for gold_name, predicted_name in zip(gold, predicted, strict=True):
        matrix[numbers[gold_name], numbers[predicted_name]] += 1
    return matrix


def draw_confusion(
    figure_class: Any, canvas_class: Any, path: str, names: Sequence[str], gold: Sequence[str], predicted: Sequence[str]
) -> None:
    """The confusion matrix, each row as shares of its gold class; of many classes the most confused."""
    matrix = confusion_matrix(names, gold, predicted)
    title = "rows: gold, columns: predicted"
    if len(names) > CLASSES_SHOWN:
        errors = matrix.sum(0) + matrix.sum(1) - 2 * matrix.diagonal()
        kept = np.sort(np.argsort(-errors, kind="stable")[:CLASSES_SHOWN])
        title += f" (the {CLASSES_SHOWN} most confused of {len(names)} classes)"
        names, matrix = [names[index] for index in kept], matrix[np.ix_(kept, kept)]
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    side = 3 + 0.32 * len(names)
    figure = figure_class(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.set_title(title)
    if len(names) <= 20:
        for row, column in zip(*np.nonzero(matrix), strict=True):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(matrix[row, column]), ha="center", va="center", color=colour, fontsize=8)
    canvas_class(figure).print_png(path)


def mean_and_deviation(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each number that all results share: its mean, and its standard deviation (n - 1) under `KEY_sd`."""
    combined: dict[str, Any] = {}
    for key, value in results[0].items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and all(key in result for result in results):
            values = [float(result[key]) for result in results]
            mean = sum(values) / len(values)
            combined[key] = mean
            if len(values) > 1:
                combined[f"{key}_sd"] = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return combined


def table_of_results(results: dict[str, Any], *, splits: Sequence[str]) -> str:
    """The scores as columns of text, one column for each split, with ± where there are several seeds."""
    hidden = ("runtime", "samples_per_second", "epoch", "loss_sd")
    names: list[str] = []
    for split in splits:
        keys = [key[len(split) + 1 :] for key in results if key.startswith(f"{split}_")]
        names += [name for name in keys if name not in names and name not in hidden and not name.endswith("_sd")]
    rows = [["", *splits]]
    for name in names:
        rows.append([name, *(_cell(results, f"{split}_{name}") for split in splits)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _cell(results: dict[str, Any], key: str) -> str:
    if key not in results:
        return ""
    value = results[key]
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return f"{text} ± {results[f'{key}_sd']:.4f}" if f"{key}_sd" in results else text
