"""The interface of a fine-tuning task, which `SequenceTask` and `TokenTask` implement.

Shapes: B sequences, T tokens, C labels.
"""

import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..modeling.losses import IGNORED_LABEL
from ..utils.errors import UserError
from .reports import Report
from .windows import Window, WindowMaker


def class_names(config: Any) -> list[str]:
    """The names of the classes of a model, by number."""
    return [name for _, name in sorted(config.id2label.items())]


def refuse_two_forms(names: Iterable[str]) -> None:
    """Raise if two labels are the same text in two Unicode forms."""
    of_form: dict[str, str] = {}
    for name in names:
        other = of_form.setdefault(unicodedata.normalize("NFC", name), name)
        if other != name:
            raise UserError(
                f"the labels {other!a} and {name!a} are the same text in two Unicode forms: write them alike"
            )


class Task(ABC):
    """Turns examples into model inputs, and logits into losses, scores and predictions.

    `assemble` makes the logits of an example from those of its windows. All other methods take logits of examples.

    Args:
        problem_type: the kind of labels: a `problem_type` of the model's configuration, or `token_classification`.
        label_names: names by class number; for regression one name, that of the value.
        target_mean, target_scale: a regression is trained on (value - mean) / scale.

    Attributes:
        task_type: "sequence" or "token", as in the settings file of a run.
        head: the suffix of the names of model classes with a head for this task.
        per_token: whether the model gives logits for each token, [B, T, C], or for each sequence, [B, C].
        class_weights_C: weights of the training loss; None for equal ones.
        window_overlap: tokens that neighbouring windows of a document share by default; None: a quarter of a window.
    """

    task_type: str
    head: str
    per_token: bool
    window_overlap: int | None

    def __init__(
        self,
        *,
        problem_type: str,
        label_names: Sequence[str],
        target_mean: float = 0.0,
        target_scale: float = 1.0,
    ) -> None:
        self.problem_type = problem_type
        self.label_names = list(label_names)
        self.label_ids = {name: number for number, name in enumerate(self.label_names)}
        self.class_weights_C: torch.Tensor | None = None
        self.target_mean = target_mean
        self.target_scale = target_scale

    @property
    def has_classes(self) -> bool:
        """Whether each target is one of the classes, so that classes can be weighed."""
        return self.problem_type in ("single_label_classification", "token_classification")

    def class_of(self, name: str) -> str:
        """The class that a label counts as where classes are weighed or reported."""
        return name

    def balance(self, windows: Sequence[Window]) -> None:
        """Give each class the same share of the loss of these training windows, by `class_weights_C`."""
        targets = np.concatenate([np.atleast_1d(window.target) for window in windows])
        numbers_C = np.bincount(targets[targets != IGNORED_LABEL], minlength=len(self.label_names))
        counts: Counter[str] = Counter()
        for name, number in zip(self.label_names, numbers_C.tolist(), strict=True):
            counts[self.class_of(name)] += number
        weights = dict(zip(counts, balanced_weights(list(counts.values())), strict=True))
        self.class_weights_C = torch.tensor([weights[self.class_of(name)] for name in self.label_names])

    # The model

    @classmethod
    def has_head(cls, config: Any) -> bool:
        """Whether the model of a configuration has a head for this task."""
        return any(name.endswith(cls.head) for name in getattr(config, "architectures", None) or [])

    @classmethod
    @abstractmethod
    def of_config(cls, config: Any, settings: Mapping[str, Any]) -> "Task":
        """The task that a fine-tuned model was trained for; `settings`: what its run saved, maybe nothing."""

    def write_labels(self, config: Any) -> None:
        """Write the label names, and the head's other settings, into the configuration of a model."""
        config.id2label = dict(enumerate(self.label_names))
        config.label2id = dict(self.label_ids)

    # Examples

    def unknown_label(self, name: str, where: str, way_out: str = "") -> UserError:
        """The error for a label that is not one of `label_names`."""
        form, what = unicodedata.normalize("NFC", name), "tag" if self.per_token else "label"
        for other in self.label_names:
            if unicodedata.normalize("NFC", other) == form:
                return UserError(
                    f"{where}: the {what} {name!a} and {other!a} of the training data are the same text in two Unicode "
                    "forms: write them alike"
                )
        return UserError(f"{where}: {what} {name!r} does not occur in the training data{way_out}")

    @abstractmethod
    def check(self, examples: Sequence[Any]) -> None:
        """Raise a `ValueError`, with file and line, if a label is not one of `label_names`."""

    @abstractmethod
    def example(self, text: str, pair: str | None, *, source: str, line: int) -> Any:
        """An example without a label, made from running text."""

    def read_file(self, path: str) -> list[Any] | None:
        """Examples without labels from a file in a format that only this task has; None for tables and text."""
        return None

    def refuse_tagged(self, rows: Iterable[Sequence[str]], source: str) -> None:
        """Raise a `ValueError` if the cells of a file are not texts but words and their tags."""
        return

    @abstractmethod
    def windows(self, examples: Sequence[Any], maker: WindowMaker) -> list[Window]:
        """One window for each example, or several overlapping ones if it is longer than the model's input."""

    def limitations(self, examples: Sequence[Any]) -> str | None:
        """What the card says that a model trained on these examples is not good for."""
        return None

    # Logits

    @abstractmethod
    def assemble(self, examples: Sequence[Any], windows: Sequence[Window], logits: Sequence[np.ndarray]) -> Any:
        """The logits of examples, made from those of their windows."""

    @abstractmethod
    def blank_logits(self, examples: Sequence[Any]) -> Any:
        """Zero logits. A run scores them before training, so that errors in the data show up early."""

    @abstractmethod
    def loss(
        self,
        outputs: Any,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        *,
        weighted: bool = True,
    ) -> torch.Tensor:
        """Sum of the losses of all targets, divided by the number of targets in the whole global batch.

        Args:
            weighted: each by the weight of its class.
        """

    @property
    @abstractmethod
    def best_metric(self) -> tuple[str, bool]:
        """The metric that selects the best evaluation, and whether higher is better."""

    @abstractmethod
    def metrics(self, logits: Any, examples: Sequence[Any]) -> dict[str, float]:
        """Loss, without the weights of classes, and scores against the labels of the examples."""

    @abstractmethod
    def predictions(self, logits: Any, examples: Sequence[Any]) -> list[dict[str, Any]]:
        """A JSON-serialisable record for each example."""

    @abstractmethod
    def report(self, logits: Any, examples: Sequence[Any]) -> Report:
        """Predictions beside gold labels, mistakes, and scores by class."""


def balanced_weights(counts: Sequence[int]) -> list[float]:
    """Weights n / (classes × count): classes that occur have equal total weight, and the mean over targets is 1."""
    classes = sum(count > 0 for count in counts)
    return [sum(counts) / (classes * count) if count else 0.0 for count in counts]
