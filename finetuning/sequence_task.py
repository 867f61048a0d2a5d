"""Sequence classification as a task: from a table to examples, label names, targets, loss and metrics."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..corpus.columns import is_number
from .columns import SequenceColumns, are_fractions
from .metrics import multi_label_metrics, regression_metrics, single_label_metrics
from .tables import Table
from .windows import Window, WindowMaker

SINGLE_LABEL = "single_label_classification"
MULTI_LABEL = "multi_label_classification"
REGRESSION = "regression"
PROBLEM_TYPES = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)


@dataclass(frozen=True)
class SequenceExample:
    """One text (or pair) and its label: a name, a set of names or a number; None where it is to be predicted."""

    text: str
    pair: str | None
    label: str | frozenset[str] | float | None
    where: str


# Examples ------------------------------------------------------------------------------------------------------------


def read_examples(table: Table, columns: SequenceColumns, *, problem_type: str | None) -> list[SequenceExample]:
    """Checked examples of a table; labels become names, sets of names or numbers as `problem_type` says.

    Raises:
        ValueError: a text is empty or no text, or a label is missing or of the wrong kind (with file and line).
    """
    texts = _texts(table, columns.text, flag="--text_column")
    pairs = [None] * len(table) if columns.pair is None else _texts(table, columns.pair, flag="--text_pair_column")
    if columns.label is None:
        labels: list[Any] = [None] * len(table)
    else:
        values = table.column(columns.label, flag="--label_column")
        labels = [_label(value, problem_type, table.where(row), columns.label) for row, value in enumerate(values)]
    rows = enumerate(zip(texts, pairs, labels, strict=True))
    return [SequenceExample(text, pair, label, table.where(row)) for row, (text, pair, label) in rows]


def _texts(table: Table, name: str, *, flag: str) -> list[str]:
    values = table.column(name, flag=flag)
    for row, value in enumerate(values):
        if value is None or value != value or (isinstance(value, str) and not value.strip()):
            raise ValueError(f"{table.where(row)}: the text (column {name!r}) is empty; fill it or remove the row")
        if not isinstance(value, str):
            raise ValueError(f"{table.where(row)}: column {name!r} is not text but {type(value).__name__} ({value!r})")
    if all(is_number(value) for value in values):
        raise ValueError(f"{table.source}: column {name!r} holds only numbers, not text; choose another by {flag}")
    return values


def _label(value: Any, problem_type: str | None, where: str, column: str) -> Any:
    if problem_type == MULTI_LABEL:
        names = _label_list(value, where, column)
        return frozenset(_label_name(name, where, column) for name in names)
    if isinstance(value, (list, tuple, dict)):
        raise ValueError(f"{where}: the label (column {column!r}) is a {type(value).__name__}, expected one value")
    if problem_type == REGRESSION:
        if not is_number(value):
            raise ValueError(f"{where}: the label (column {column!r}) is {value!r}, expected a finite number")
        return float(value)
    return _label_name(value, where, column)


def _label_list(value: Any, where: str, column: str) -> list[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError(f"{where}: the label (column {column!r}) is {value!r}, not a JSON list") from None
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{where}: the label (column {column!r}) is {value!r}, expected a list of labels")
    return list(value)


def _label_name(value: Any, where: str, column: str) -> str:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    if missing or str(value).strip().lower() in ("", "nan"):
        raise ValueError(f"{where}: the label (column {column!r}) is missing ({value!r})")
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of class numbers with gaps comes out of Parquet as 1.0
    return str(value).strip()


def find_problem_type(values: Sequence[Any]) -> str:
    """Lists are multi-label, fractions are regression, everything else is one class of several.

    A few values that are no numbers among fractions are slips, which reading them as numbers will name.
    """
    if any(isinstance(value, (list, tuple)) or (isinstance(value, str) and value.startswith("[")) for value in values):
        return MULTI_LABEL
    numbers = [value for value in values if is_number(value)]
    mostly_numbers = len(numbers) > 0 and len(numbers) >= 0.9 * len(values)
    return REGRESSION if mostly_numbers and are_fractions(numbers) else SINGLE_LABEL


def label_names_of(examples: Sequence[SequenceExample], problem_type: str) -> list[str]:
    """Every label name once, in an order that does not depend on the order of the rows (numbers by size)."""
    if problem_type == MULTI_LABEL:
        names = {name for example in examples if isinstance(example.label, frozenset) for name in example.label}
    else:
        names = {str(example.label) for example in examples}
    if len(names) < 2 and problem_type == SINGLE_LABEL:
        raise ValueError(f"only one class in the training data: {next(iter(names), None)!r}; nothing to learn")
    if not names:
        raise ValueError("no example of the training data carries a label; nothing to learn")
    return sorted(names, key=lambda name: (not is_number(name), float(name) if is_number(name) else 0.0, name))


# The task ------------------------------------------------------------------------------------------------------------


class SequenceTask:
    """What fine-tuning must know about classifying sequences.

    Args:
        problem_type: one of `PROBLEM_TYPES`.
        label_names: names by class number; for regression one name, that of the value.
        target_mean, target_scale: regression is trained on (value - mean) / scale, whatever the unit of the value.
        class_weights: [labels] weights of the loss, 1 on average over the training examples, or None.
    """

    kind = "sequence"

    def __init__(
        self,
        *,
        problem_type: str,
        label_names: Sequence[str],
        target_mean: float = 0.0,
        target_scale: float = 1.0,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        if problem_type not in PROBLEM_TYPES:
            raise ValueError(f"--problem_type {problem_type}: expected one of {', '.join(PROBLEM_TYPES)}")
        self.problem_type = problem_type
        self.label_names = list(label_names)
        self.label_ids = {name: number for number, name in enumerate(self.label_names)}
        self.target_mean = target_mean
        self.target_scale = target_scale
        self.class_weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)

    @property
    def best_metric(self) -> tuple[str, bool]:
        """The metric that chooses the best epoch, and whether more of it is better."""
        return {SINGLE_LABEL: ("accuracy", True), MULTI_LABEL: ("f1_micro", True), REGRESSION: ("mse", False)}[
            self.problem_type
        ]

    def check(self, examples: Sequence[SequenceExample]) -> None:
        """Every label must be one the model knows."""
        if self.problem_type == REGRESSION:
            return
        for example in examples:
            names = example.label if isinstance(example.label, frozenset) else {example.label}
            for name in sorted(map(str, names)):
                if name not in self.label_ids:
                    raise ValueError(f"{example.where}: label {name!r} does not occur in the training data")

    def target(self, example: SequenceExample) -> Any:
        """The label as the loss wants it: a class number, a row of zeros and ones, or a standardised number."""
        if self.problem_type == SINGLE_LABEL:
            return self.label_ids[str(example.label)]
        if self.problem_type == MULTI_LABEL:
            assert isinstance(example.label, frozenset)
            return [float(name in example.label) for name in self.label_names]
        assert isinstance(example.label, float)
        return (example.label - self.target_mean) / self.target_scale

    def windows(self, examples: Sequence[SequenceExample], maker: WindowMaker) -> list[Window]:
        """One window of each example, or several that overlap where it is longer than the model reads."""
        texts = [example.text for example in examples]
        pairs = None if not examples or examples[0].pair is None else [str(example.pair) for example in examples]
        targets = [None if example.label is None else self.target(example) for example in examples]
        return maker.of_texts(texts, pairs, targets)

    def assemble(
        self, examples: Sequence[SequenceExample], windows: Sequence[Window], logits: Sequence[np.ndarray]
    ) -> np.ndarray:
        """[examples, labels]: the mean of the logits of an example's windows."""
        total = np.zeros((len(examples), len(self.label_names)))
        count = np.zeros(len(examples))
        for window, window_logits in zip(windows, logits, strict=True):
            total[window.example] += window_logits
            count[window.example] += 1
        return total / count[:, None]

    def loss(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Sum of the losses of all targets, divided by the number of targets in the whole (global) batch."""
        return self.loss_of_logits(outputs["logits"], labels, num_items_in_batch)

    def loss_of_logits(
        self, logits_DC: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        # fp32: under autocast the sum over a large batch would lose its last digits
        logits_DC = logits_DC.float()
        if self.problem_type == SINGLE_LABEL:
            weights = None if self.class_weights is None else self.class_weights.to(logits_DC.device)
            loss = F.cross_entropy(logits_DC, labels, weight=weights, reduction="sum")
        elif self.problem_type == MULTI_LABEL:
            loss = F.binary_cross_entropy_with_logits(logits_DC, labels, reduction="sum")
        else:
            standardised_D = (logits_DC[:, 0] - self.target_mean) / self.target_scale
            loss = F.mse_loss(standardised_D, labels, reduction="sum")
        return loss / (labels.numel() if num_items_in_batch is None else num_items_in_batch)

    def metrics(self, logits: np.ndarray, examples: Sequence[SequenceExample]) -> dict[str, float]:
        """Loss and scores of assembled logits against the labels of `examples`."""
        targets = np.asarray([self.target(example) for example in examples])
        loss = self.loss_of_logits(torch.from_numpy(logits), self._tensor(targets))
        if self.problem_type == SINGLE_LABEL:
            scores = single_label_metrics(targets, logits.argmax(-1), num_labels=len(self.label_names))
        elif self.problem_type == MULTI_LABEL:
            scores = multi_label_metrics(targets.astype(int), (logits > 0).astype(int))
        else:
            values = np.asarray([example.label for example in examples], dtype=float)
            scores = regression_metrics(values, logits[:, 0], training_mean=self.target_mean)
        return {"loss": float(loss), **scores}

    def _tensor(self, targets: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(targets.astype(np.int64 if self.problem_type == SINGLE_LABEL else np.float32))

    def predictions(self, logits: np.ndarray) -> list[dict[str, Any]]:
        """What a person reads: `{"label", "score", "scores"}`, `{"labels", "scores"}` or `{"value"}` per example."""
        if self.problem_type == REGRESSION:
            return [{"value": round(float(value), 6)} for value in logits[:, 0]]
        probabilities = torch.from_numpy(logits)
        probabilities = probabilities.softmax(-1) if self.problem_type == SINGLE_LABEL else probabilities.sigmoid()
        return [self._prediction(row) for row in probabilities.tolist()]

    def _prediction(self, probabilities: list[float]) -> dict[str, Any]:
        scores = {name: round(value, 6) for name, value in zip(self.label_names, probabilities, strict=True)}
        if self.problem_type == MULTI_LABEL:
            return {"labels": [name for name, value in scores.items() if value > 0.5], "scores": scores}
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return {"label": self.label_names[best], "score": scores[self.label_names[best]], "scores": scores}


def balanced_weights(counts: Sequence[int]) -> list[float]:
    """Weight n / (labels × count) of each class: every class weighs the same, and the mean over examples is 1."""
    return [sum(counts) / (len(counts) * count) if count else 0.0 for count in counts]


def make_sequence_task(
    examples: Sequence[SequenceExample],
    *,
    problem_type: str,
    value_name: str,
    known_names: Sequence[str] | None,
    balanced: bool,
) -> SequenceTask:
    """The task that training examples define; `known_names` (the model's) keep their order if they cover the labels."""
    if problem_type == REGRESSION:
        values = np.asarray([example.label for example in examples], dtype=float)
        if values.std() == 0:
            raise ValueError(f"every label of the training data is {values[0]:g}; nothing to learn")
        return SequenceTask(
            problem_type=problem_type,
            label_names=[value_name],
            target_mean=float(values.mean()),
            target_scale=float(values.std()),
        )
    names = label_names_of(examples, problem_type)
    if known_names is not None and set(names) <= set(known_names):
        names = list(known_names)
    weights = None
    if balanced:
        if problem_type != SINGLE_LABEL:
            raise ValueError(f"--class_weights balanced works for {SINGLE_LABEL} only, this is {problem_type}")
        counts = Counter(str(example.label) for example in examples)
        weights = balanced_weights([counts[name] for name in names])
    return SequenceTask(problem_type=problem_type, label_names=names, class_weights=weights)
