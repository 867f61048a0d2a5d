"""Sequence classification and regression: examples, label names, targets, loss and metrics."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from ..corpus.readers.columns import is_number
from ..corpus.readers.compression import bare_suffix
from ..corpus.readers.formats import has_tagged_words
from ..corpus.readers.xml_texts import XML_SUFFIXES
from ..modeling.fast_paths import widen
from ..modeling.losses import sequence_loss
from ..utils.errors import UserError
from ..utils.wording import in_short
from .arguments import PROBLEM_TYPES
from .metrics import class_report, label_report, multi_label_metrics, regression_metrics, single_label_metrics
from .reports import ClassReport, Report
from .tables import SequenceColumns, Table, are_fractions, is_missing
from .tasks import Task, class_names, refuse_two_forms
from .windows import Window, WindowMaker

SINGLE_LABEL, MULTI_LABEL, REGRESSION = PROBLEM_TYPES
TEXT_SHOWN = 500  # characters of each text in the list of mistakes


@dataclass(frozen=True)
class SequenceExample:
    """One text (or pair) and its label: a name, a set of names or a number; None if it is to be predicted."""

    text: str
    pair: str | None
    label: str | frozenset[str] | float | None
    where: str

    @property
    def labels(self) -> frozenset[str]:
        """The names of its classes; empty if the label is a number."""
        if isinstance(self.label, frozenset):
            return self.label
        return frozenset([self.label] if isinstance(self.label, str) else [])


# Examples ------------------------------------------------------------------------------------------------------------


def read_examples(
    table: Table,
    columns: SequenceColumns,
    *,
    problem_type: str | None,
    multi_hot: int | None = None,
    numbers_are_texts: bool = False,
) -> list[SequenceExample]:
    """Checked examples of a table; labels become names, sets of names or numbers, depending on `problem_type`.

    Args:
        multi_hot: the length of labels that are vectors of zeros and ones; None: lists are names. See `multi_hot_size`.
        numbers_are_texts: accept a column of numbers as text, since a flag or the training settings name it.

    Raises:
        ValueError: a text is empty or not a text, or a label is missing or of the wrong kind (with file and line).
    """
    texts = _texts(table, columns.text, flag="--text_column", numbers_are_texts=numbers_are_texts)
    pairs: list[Any] = [None] * len(table)
    if columns.pair is not None:
        pairs = _texts(table, columns.pair, flag="--text_pair_column", numbers_are_texts=numbers_are_texts)
    if columns.label is None:
        labels: list[Any] = [None] * len(table)
    else:
        values = table.column(columns.label, flag="--label_column")
        if problem_type == MULTI_LABEL:
            values = [_label_list(value, table.where(row), columns.label) for row, value in enumerate(values)]
            if multi_hot is not None:
                where = map(table.where, range(len(table)))
                values = [_names_of_multi_hot(*pair, size=multi_hot) for pair in zip(values, where, strict=True)]
        labels = [_label(value, problem_type, table.where(row), columns.label) for row, value in enumerate(values)]
    rows = enumerate(zip(texts, pairs, labels, strict=True))
    return [SequenceExample(text, pair, label, table.where(row)) for row, (text, pair, label) in rows]


def _texts(table: Table, name: str, *, flag: str, numbers_are_texts: bool) -> list[str]:
    values = table.column(name, flag=flag)
    for row, value in enumerate(values):
        if value is None or value != value or (isinstance(value, str) and not value.strip()):
            raise UserError(f"{table.where(row)}: the text (column {name!r}) is empty; fill it or remove the row")
        if not isinstance(value, str):
            hint = "; from pandas, write to_json(orient='records', lines=True)" if isinstance(value, dict) else ""
            kind = type(value).__name__
            raise UserError(f"{table.where(row)}: column {name!r} is not text but {kind} ({in_short(value)}){hint}")
    if not numbers_are_texts and all(is_number(value) for value in values):
        raise UserError(f"{table.source}: column {name!r} holds only numbers, not text; choose another by {flag}")
    return values


def _label(value: Any, problem_type: str | None, where: str, column: str) -> Any:
    if problem_type == MULTI_LABEL:
        names = [_label_name(name, where, column) for name in value]
        if fractions := [x for x in value if isinstance(x, float) and not x.is_integer()]:
            raise UserError(
                f"{where}: the list of labels (column {column!r}) holds {fractions[0]!r}; labels are names, and a "
                f"regression has one number for each text"
            )
        if repeated := next((name for name, times in Counter(names).items() if times > 1), None):
            raise UserError(f"{where}: the list of labels (column {column!r}) holds {repeated!r} more than once")
        return frozenset(names)
    if problem_type == REGRESSION:
        if not is_number(value):
            hint = "; write numbers without commas, as 2.5" if _has_comma(value) else ""
            raise UserError(
                f"{where}: the label (column {column!r}) is {in_short(value)}, expected a finite number{hint}"
            )
        return float(value)
    return _label_name(value, where, column)


def _label_list(value: Any, where: str, column: str) -> list[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            raise UserError(
                f"{where}: the label (column {column!r}) is {in_short(value)}, not a JSON list, such as "
                f'["a", "b"]; give --problem_type {SINGLE_LABEL} if it is one name'
            ) from None
    if not isinstance(value, (list, tuple)):
        raise UserError(
            f"{where}: the label (column {column!r}) is {in_short(value)}, expected a list of labels, as others are; "
            f"give --problem_type {SINGLE_LABEL} if all are names"
        )
    return list(value)


def multi_hot_size(table: Table, column: str) -> int | None:
    """The length of the labels if all are vectors of zeros and ones of the same length, at least 2; else None.

    So `[0.0, 1.0, 1.0]`, the form that transformers' own classifier takes, means classes 1 and 2. The training data
    decides for all splits.
    """
    values = table.column(column, flag="--label_column")
    lists = [_label_list(value, table.where(row), column) for row, value in enumerate(values)]
    sizes = {len(one) for one in lists}
    is_multi_hot = len(sizes) == 1 and min(sizes) >= 2 and all(_are_zeros_and_ones(one) for one in lists)
    return len(lists[0]) if is_multi_hot else None


def _are_zeros_and_ones(values: list[Any]) -> bool:
    return all(isinstance(value, (bool, int, float)) and value in (0, 1) for value in values)


def _names_of_multi_hot(values: list[Any], where: str, *, size: int) -> list[int]:
    """The classes that are one in a vector of zeros and ones."""
    if len(values) != size or not _are_zeros_and_ones(values):
        raise UserError(
            f"{where}: the label is {in_short(values)}; in the training data, labels are {size} zeros and ones"
        )
    return [index for index, value in enumerate(values) if value]


def _label_name(value: Any, where: str, column: str) -> str:
    if isinstance(value, (list, tuple, dict, bytes)):
        raise UserError(f"{where}: the label (column {column!r}) is a {type(value).__name__}, expected one value")
    if is_missing(value):
        raise UserError(
            f"{where}: the label (column {column!r}) is missing ({in_short(value)}); fill it or remove the row"
        )
    if isinstance(value, (float, Decimal)) and math.isfinite(value) and value == int(value):
        value = int(value)  # Parquet gives a column of class numbers with missing values as 1.0
    return str(value).strip()


def problem_type_of_values(values: Sequence[Any]) -> str:
    """The problem type of labels: lists are multi-label, fractions are regression, everything else is single-label.

    A few values that are not numbers among fractions count as mistakes; `read_examples` then names their lines.
    """
    # A few names such as [wip] are no lists.
    written = sum(isinstance(value, str) and value.lstrip().startswith("[") for value in values)
    if any(isinstance(value, (list, tuple)) for value in values) or 2 * written > len(values):
        return MULTI_LABEL
    numbers = [value for value in values if is_number(value)]
    mostly_numbers = len(numbers) > 0 and len(numbers) >= 0.9 * len(values)
    return REGRESSION if mostly_numbers and are_fractions(numbers) else SINGLE_LABEL


def are_whole_numbers(values: Iterable[Any]) -> bool:
    """Whether all values are whole numbers, `2` or `2.0`."""
    return all(is_number(value) and float(value).is_integer() for value in values)


def write_whole_numbers_alike(table: Table, column: str) -> None:
    """Write `2.0` as `2`: programs write the first as soon as one number of a column is missing."""
    values = table.column(column, flag="--label_column")
    are_written = [isinstance(value, str) and is_number(value) for value in values]
    table.columns[column] = [
        re.sub(r"\.0+$", "", value.strip()) if is_written else value
        for value, is_written in zip(values, are_written, strict=True)
    ]


def _has_comma(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+(,\d+)+\s*", value) is not None


def refuse_decimal_commas(table: Table, column: str) -> None:
    """Raise if all labels are numbers, and some are written with commas: each would become a class."""
    values = table.columns[column]
    comma = next((row for row, value in enumerate(values) if _has_comma(value)), None)
    if comma is not None and all(is_number(value) or _has_comma(value) for value in values):
        raise UserError(
            f"{table.where(comma)}: the label (column {column!r}) is {values[comma]!r}; write numbers without commas, "
            f"as 2.5, or give --problem_type {SINGLE_LABEL} if the labels are names"
        )


def label_names_of(examples: Sequence[SequenceExample], problem_type: str) -> list[str]:
    """Every label name once, in an order that does not depend on the order of the rows (numbers by size)."""
    names = frozenset().union(*(example.labels for example in examples))
    if len(names) < 2 and problem_type == SINGLE_LABEL:
        raise UserError(f"only one class in the training data: {next(iter(names), None)!r}; nothing to learn")
    if not names:
        raise UserError("no example of the training data carries a label; nothing to learn")
    refuse_two_forms(names)
    return sorted(names, key=lambda name: (not is_number(name), float(name) if is_number(name) else 0.0, name))


# The task ------------------------------------------------------------------------------------------------------------


class SequenceTask(Task):
    """Classification of texts or pairs of texts, or a number for each.

    Args:
        problem_type: one of `PROBLEM_TYPES`.
        label_names: names by class number; for regression one name, that of the value.
        target_mean, target_scale: a regression is trained on (value - mean) / scale.
    """

    task_type = "sequence"
    head = "ForSequenceClassification"
    per_token = False
    window_overlap = 0  # every window is trained on the label of the whole document

    @classmethod
    def of_config(cls, config: Any, settings: Mapping[str, Any]) -> "SequenceTask":
        """The task of a fine-tuned model. If its configuration has no problem type, one output means regression."""
        names = class_names(config)
        by_outputs = REGRESSION if len(names) == 1 else SINGLE_LABEL
        problem_type = config.problem_type if config.problem_type in PROBLEM_TYPES else by_outputs
        if problem_type == REGRESSION and len(names) > 1:
            raise UserError(f"the model gives {len(names)} values for each text; only one can be predicted")
        return cls(problem_type=problem_type, label_names=names)

    def write_labels(self, config: Any) -> None:
        super().write_labels(config)
        config.problem_type = self.problem_type
        if self.problem_type == REGRESSION:  # else CrossEncoder puts a single output through a sigmoid
            config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
        elif hasattr(config, "sentence_transformers"):  # of a regression that the model was before
            del config.sentence_transformers

    # Examples

    def check(self, examples: Sequence[SequenceExample]) -> None:
        names = frozenset(self.label_names).union(*(example.labels for example in examples))
        are_numbers = self.problem_type == SINGLE_LABEL and all(map(is_number, names))
        hint = (
            f", whose labels were taken for classes; --problem_type {REGRESSION} reads numbers" if are_numbers else ""
        )
        for example in examples:
            for name in sorted(example.labels):
                if name not in self.label_ids:
                    raise self.unknown_label(name, example.where, hint)

    def example(self, text: str, pair: str | None, *, source: str, line: int) -> SequenceExample:
        return SequenceExample(text, pair, None, f"{source}, line {line}")

    def read_file(self, path: str) -> None:
        """None, since tables and text are read for it; tagged words and XML raise, as each line would be a text."""
        is_tagged = has_tagged_words(path)
        if is_tagged or bare_suffix(path) in XML_SUFFIXES:
            what = "a word and its tags on each line" if is_tagged else "XML"
            raise UserError(f"{path} holds {what}, by its name; write each text on a line of a .txt file")

    def target(self, example: SequenceExample) -> Any:
        """The label in the form of the loss: a class number, a row of zeros and ones, or a standardised number."""
        if self.problem_type == SINGLE_LABEL:
            return self.label_ids[str(example.label)]
        if self.problem_type == MULTI_LABEL:
            return [float(name in example.labels) for name in self.label_names]
        assert isinstance(example.label, float)
        return (example.label - self.target_mean) / self.target_scale

    def windows(self, examples: Sequence[SequenceExample], maker: WindowMaker) -> list[Window]:
        texts = [example.text for example in examples]
        pairs = None if not examples or examples[0].pair is None else [str(example.pair) for example in examples]
        targets = [None if example.label is None else self.target(example) for example in examples]
        return maker.of_texts(texts, pairs, targets)

    # Logits

    def assemble(
        self, examples: Sequence[SequenceExample], windows: Sequence[Window], logits: Sequence[np.ndarray]
    ) -> np.ndarray:
        """[examples, C]: the mean of the logits of an example's windows."""
        total = self.blank_logits(examples)
        count = np.zeros(len(examples))
        for window, logits_C in zip(windows, logits, strict=True):
            total[window.example] += logits_C
            count[window.example] += 1
        return total / count[:, None]

    def blank_logits(self, examples: Sequence[SequenceExample]) -> np.ndarray:
        """Zeros, [examples, C]."""
        return np.zeros((len(examples), len(self.label_names)))

    def loss(
        self,
        outputs: Any,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        *,
        weighted: bool = True,
    ) -> torch.Tensor:
        # fp32: under autocast the sum over a large batch would lose precision
        logits_BC = widen(outputs["logits"])
        if self.problem_type == REGRESSION:
            logits_BC = (logits_BC - self.target_mean) / self.target_scale
        return sequence_loss(
            logits_BC,
            labels,
            problem_type=self.problem_type,
            num_items_in_batch=num_items_in_batch,
            class_weights_C=self.class_weights_C if weighted else None,
        )

    @property
    def best_metric(self) -> tuple[str, bool]:
        """Accuracy, F1 over all labels, or the mean squared error, with whether higher is better."""
        return {SINGLE_LABEL: ("accuracy", True), MULTI_LABEL: ("f1_micro", True), REGRESSION: ("mse", False)}[
            self.problem_type
        ]

    def metrics(self, logits: np.ndarray, examples: Sequence[SequenceExample]) -> dict[str, float]:
        targets = [self.target(example) for example in examples]
        loss = self.loss({"logits": torch.from_numpy(logits).float()}, torch.tensor(targets), weighted=False)
        if self.problem_type == SINGLE_LABEL:
            scores = single_label_metrics(np.asarray(targets), logits.argmax(-1), num_labels=len(self.label_names))
        elif self.problem_type == MULTI_LABEL:
            scores = multi_label_metrics(np.asarray(targets).astype(int), (logits > 0).astype(int))
        else:
            values = np.asarray([example.label for example in examples], dtype=float)
            scores = regression_metrics(values, logits[:, 0], training_mean=self.target_mean)
        return {"loss": float(loss), **scores}

    def predictions(self, logits: np.ndarray, examples: Sequence[SequenceExample]) -> list[dict[str, Any]]:
        """For each example its text, and `{"label", "score", "scores"}`, `{"labels", "scores"}` or `{"value"}`."""
        return [{**_text(e), **answer} for e, answer in zip(examples, self._answers(logits), strict=True)]

    def _answers(self, logits: np.ndarray) -> list[dict[str, Any]]:
        if self.problem_type == REGRESSION:
            return [{"value": float(f"{value:.7g}")} for value in logits[:, 0]]
        probabilities = torch.from_numpy(logits)
        probabilities = probabilities.softmax(-1) if self.problem_type == SINGLE_LABEL else probabilities.sigmoid()
        return [self._answer(row) for row in probabilities.tolist()]

    def _answer(self, probabilities: list[float]) -> dict[str, Any]:
        scores = {name: round(value, 6) for name, value in zip(self.label_names, probabilities, strict=True)}
        if self.problem_type == MULTI_LABEL:
            chosen = [name for name, value in zip(self.label_names, probabilities, strict=True) if value > 0.5]
            return {"labels": chosen, "scores": scores}
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return {"label": self.label_names[best], "score": scores[self.label_names[best]], "scores": scores}

    def report(self, logits: np.ndarray, examples: Sequence[SequenceExample]) -> Report:
        """Predictions and mistakes, the most confident or most distant first; for labels, scores by class."""
        answers = self._answers(logits)
        errors = [_error(example, answer) for example, answer in zip(examples, answers, strict=True)]
        worst = sorted((index for index, error in enumerate(errors) if error > 0), key=lambda index: -errors[index])
        classes = None
        if self.problem_type == SINGLE_LABEL:
            gold, predicted = [str(e.label) for e in examples], [str(answer["label"]) for answer in answers]
            classes = ClassReport(self.label_names, gold, predicted, class_report(gold, predicted))
        elif self.problem_type == MULTI_LABEL:
            targets = np.asarray([self.target(example) for example in examples]).astype(int)
            scores = label_report(targets, (logits > 0).astype(int), names=self.label_names)
            classes = ClassReport(self.label_names, gold=[], predicted=[], scores=scores)
        return Report(
            predictions=[
                {**_text(e), "gold": sorted(e.label) if isinstance(e.label, frozenset) else e.label, **answer}
                for e, answer in zip(examples, answers, strict=True)
            ],
            mistakes=[_mistake(examples[index], answers[index]) for index in worst],
            classes=classes,
        )


def _text(example: SequenceExample) -> dict[str, str]:
    return {"text": example.text} if example.pair is None else {"text": example.text, "text_pair": example.pair}


def _error(example: SequenceExample, answer: dict[str, Any]) -> float:
    """How wrong an answer is: 0 if right, else the misplaced probability (summed over labels), or the distance."""
    if "value" in answer:
        return abs(answer["value"] - float(example.label))  # type: ignore[arg-type]
    scores = answer["scores"]
    if isinstance(example.label, frozenset):
        wrong = set(answer["labels"]) ^ example.label
        return sum(scores[name] if name in answer["labels"] else 1 - scores[name] for name in wrong)
    return 0.0 if answer["label"] == example.label else 1 - scores[str(example.label)]


def _mistake(example: SequenceExample, answer: dict[str, Any]) -> str:
    """A paragraph with the place of an example, its gold and predicted labels, and its text."""
    if "value" in answer:
        verdict = f"gold {example.label:g}, predicted {answer['value']:.4g}"
    elif isinstance(example.label, frozenset):
        predicted = ", ".join(answer["labels"]) or "none"
        verdict = f"gold {', '.join(sorted(example.label)) or 'none'}; predicted {predicted}"
    else:
        scores = answer["scores"]
        verdict = (
            f"gold {example.label} ({scores[str(example.label)]:.1%}), "
            f"predicted {answer['label']} ({answer['score']:.1%})"
        )
    return "\n".join([f"{example.where}: {verdict}", *(f"    {_shortened(text)}" for text in _text(example).values())])


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_SHOWN else line[:TEXT_SHOWN] + " …"


def make_sequence_task(
    examples: Sequence[SequenceExample],
    *,
    problem_type: str,
    value_name: str,
    known_names: Sequence[str] | None,
) -> SequenceTask:
    """The task that training examples define; `known_names` (the model's) keep their order if they cover the labels."""
    if problem_type == REGRESSION:
        values = np.asarray([example.label for example in examples], dtype=float)
        if (values == values[0]).all():  # the standard deviation may exceed 0 by a rounding error
            raise UserError(f"every label of the training data is {values[0]:g}; nothing to learn")
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = float(values.mean()), float(values.std())
            steps = scale / np.spacing(np.abs(values).max().astype(np.float32))
        if not 16 <= steps < math.inf:
            raise UserError(
                f"the labels of the training data, {values.min():.12g} to {values.max():.12g}, are too large or too "
                f"close together for a model, which computes in float32; scale them, or subtract a number from each"
            )
        return SequenceTask(problem_type=problem_type, label_names=[value_name], target_mean=mean, target_scale=scale)
    names = label_names_of(examples, problem_type)
    if known_names is not None and set(names) <= set(known_names):
        names = list(known_names)
    return SequenceTask(problem_type=problem_type, label_names=names)
