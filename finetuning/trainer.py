"""Fine-tuning with transformers' Trainer, with our own batches, evaluation and optimizer.

Trainer does the training loop, gradient accumulation, distribution and checkpoints. The loss, the optimizer's parameter
groups and the evaluation are ours. The loss of a batch is the sum over its targets divided by the number of targets in
the whole global batch, so no split into micro-batches changes the gradient. Scores are those of whole documents,
assembled from their windows.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import Trainer
from transformers.integrations import get_reporting_integration_callbacks

from ..utils.errors import UserError, as_user_errors
from ..utils.memory import is_full_memory
from .batches import (
    Collator,
    LengthGroupedSampler,
    SharedBatches,
    are_finite,
    predict_logits,
)
from .callbacks import EarlyStopping
from .optimizer import make_adamw
from .tasks import Task
from .windows import Window

SELECTION = "selection"


def check_tracker(name: str) -> None:
    """Raise if transformers does not know a tracker, or its package is not installed."""
    with as_user_errors(ValueError, RuntimeError, ImportError, about=f"--report_to {name}"):
        for callback in get_reporting_integration_callbacks(name):
            callback()


@contextlib.contextmanager
def _reading(checkpoint: str | None) -> Iterator[None]:
    """A context in which Trainer reads a checkpoint; pickles that could run code are rejected.

    Raises:
        UserError: a file of the checkpoint cannot be read.
    """
    try:
        yield
    except Exception as error:
        if is_full_memory(error):
            raise
        reason = str(error).strip().split(". ")[0].split("\n")[0]
        raise UserError(
            f"--resume_from_checkpoint: {checkpoint} cannot be read ({type(error).__name__}: {reason}); name another "
            f"checkpoint, or begin afresh with --overwrite_output_dir in place of it"
        ) from error


class FinetuningTrainer(Trainer):
    """Trainer with our evaluation (documents assembled from windows) and parameter groups.

    Args:
        task: the task to learn.
        best_metric: the score that selects the best evaluation, and whether higher is better.
        evaluation: (examples, their windows) to evaluate on.
        collator: makes the batches, for training and evaluation.
        groups: (model, learning rate) -> the optimizer's parameter groups.
        group_by_length: make batches of windows of similar length; otherwise the order is random.
    """

    def __init__(
        self,
        *,
        task: Task,
        best_metric: tuple[str, bool],
        evaluation: tuple[list[Any], list[Window]],
        collator: Collator,
        groups: Callable[[Any, float], list[dict[str, Any]]],
        group_by_length: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_collator=collator, eval_dataset=evaluation[1], compute_loss_func=task.loss, **kwargs)
        self.task = task
        self.best_metric = best_metric
        self.evaluation = evaluation
        self.collator = collator
        self.groups = groups
        self.group_by_length = group_by_length
        self.autocast: Any = self.compute_loss_context_manager

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler | None:
        """A sampler that groups windows by length, or Trainer's own."""
        if not self.group_by_length:
            return super()._get_train_sampler(train_dataset)
        windows: Any = self.train_dataset if train_dataset is None else train_dataset
        lengths = [len(window.input_ids) for window in windows]
        # Sized for the whole global batch: its content must not depend on how it is split.
        per_step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return LengthGroupedSampler(
            lengths, batch_size=per_step, seed=self.args.seed, epoch=lambda: int(self.state.epoch or 0)
        )

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        """Trainer's own; for several processes with `SharedBatches`."""
        if self.args.world_size == 1:
            return super().get_train_dataloader()
        windows: Any = self.train_dataset
        batches = SharedBatches(self._get_train_sampler(), self.args.train_batch_size, self.args.world_size)
        pin_memory = self.args.dataloader_pin_memory
        loader = torch.utils.data.DataLoader(
            windows, batch_sampler=batches, collate_fn=self.collator, pin_memory=pin_memory
        )
        return self.accelerator.prepare(loader)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """No batches for a resumed run that has already finished or stopped early; Trainer would train on."""
        early = [call for call in self.callback_handler.callbacks if isinstance(call, EarlyStopping)]
        has_stopped = any(call.has_stopped(self.state) for call in early)
        if has_stopped or self.state.global_step >= self.state.max_steps:
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except RuntimeError as error:
            if "inline_container" not in str(error):
                raise
            # torch.save does not tell which error of the disk it met.
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from error

    # Trainer reads a checkpoint with these four methods. An error in one means a bad checkpoint; it is shown in a line.

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with _reading(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _reading(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with _reading(checkpoint):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _reading(checkpoint):
            super()._load_rng_state(checkpoint)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW over the parameter groups of `groups`."""
        if self.optimizer is None:
            rate = self.args.learning_rate
            self.optimizer = make_adamw(self.groups(self.model, rate), learning_rate=rate)
        return self.optimizer

    def leave_mixed_precision(self) -> None:
        """Remove the autocast that Accelerate put around `forward`: the saved model will predict in float32."""
        self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        self.autocast = None

    def document_logits(self, examples: Sequence[Any], windows: Sequence[Window]) -> Any:
        """Logits of whole documents, assembled from those of their windows. The processes share the windows."""
        logits = predict_logits(
            self.model,
            windows,
            self.collator,
            batch_size=self.args.eval_batch_size,
            autocast=self.autocast,
            accelerator=self.accelerator,
        )
        return self.task.assemble(examples, windows, logits)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Scores of the evaluation examples. If the model's answers are not finite, training ends."""
        began = time.perf_counter()
        examples, windows = self.evaluation
        logits = self.document_logits(examples, windows)
        # Where they decide, all processes must have the same, to the last bit.
        scores, finite = broadcast_object_list([self.task.metrics(logits, examples), are_finite(logits)])
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        metrics[f"{metric_key_prefix}_{SELECTION}"] = selection(scores, self.best_metric)
        metrics[f"{metric_key_prefix}_runtime"] = round(time.perf_counter() - began, 3)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if not finite:
            self.control.should_training_stop = True
        return metrics


def selection(scores: dict[str, float], best_metric: tuple[str, bool]) -> float:
    """The number that selects the best evaluation: the score minus 1e-6 × loss, which breaks ties."""
    name, greater_is_better = best_metric
    return (scores[name] if greater_is_better else -scores[name]) - 1e-6 * scores["loss"]
