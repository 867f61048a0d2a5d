"""Fine-tuning with transformers' Trainer, with our own batches, evaluation and optimizer.

Trainer does the training loop, gradient accumulation, distribution and checkpoints. The loss, the optimizer's parameter
groups and the evaluation are ours. The loss of a batch is the sum over its targets divided by the number of targets in
the whole global batch, so no split into micro-batches changes the gradient. Scores are those of whole documents,
assembled from their windows.
"""

import contextlib
import errno
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from transformers import Trainer, TrainerCallback
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_utils import SaveStrategy

from ..modeling.evaluation_mode import evaluation_mode
from ..modeling.packed_view import cut_if_padding_is_read
from ..utils.errors import UserError, as_user_errors
from ..utils.memory import is_full_memory
from ..utils.progress_bar import progress_bar
from ..utils.stop_request import StopRequest
from .reports import score_text
from .tasks import Task
from .windows import Collator, PackedCollator, PaddedCollator, Window

SELECTION = "selection"
SECONDS_BETWEEN_CHECKPOINTS = 600  # within an epoch
BATCHES_BETWEEN_QUESTIONS = 10  # of several GPUs, whether one of them has to save or was asked to stop
PACKED_MODEL_TYPES = ("clozebert",)  # models whose forward takes several documents packed into one row


def check_tracker(name: str) -> None:
    """Raise if transformers does not know a tracker, or its package is not installed."""
    with as_user_errors(ValueError, RuntimeError, ImportError, about=f"--report_to {name}"):
        for callback in get_reporting_integration_callbacks(name):
            callback()


def make_collator(model: Any, tokenizer: Any, *, per_token: bool, packing: bool) -> Collator:
    """A packing collator if `packing` is set and the model takes packed batches, else a padding one."""
    if packing and model.config.model_type in PACKED_MODEL_TYPES:
        return PackedCollator(per_token)
    pad = tokenizer.pad_token_id
    if pad is None:
        raise UserError("the tokenizer has no padding token; add one (tokenizer.pad_token = …) and save it again")
    on_left = tokenizer.padding_side == "left"
    return PaddedCollator(pad, per_token, on_left=on_left, pad_token_type_id=tokenizer.pad_token_type_id)


def predict_logits(
    model: Any,
    windows: Sequence[Window],
    collator: Collator,
    *,
    batch_size: int,
    autocast: Any = None,
    accelerator: Accelerator | None = None,
) -> list[np.ndarray]:
    """Logits of each window ([C], or [T, C] for tagging), in order. Windows of similar length share a batch.

    Args:
        accelerator: its processes share the work, and each returns all logits.
    """
    lengths = [len(window.input_ids) for window in windows]
    order = sorted(range(len(windows)), key=lambda index: -lengths[index])
    whole = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    batches = cut_if_padding_is_read(model, whole, lengths)
    if accelerator is not None:
        batches = batches[accelerator.process_index :: accelerator.num_processes]
    logits: dict[int, np.ndarray] = {}
    device = next(model.parameters()).device
    with evaluation_mode(model):
        # The bar appears only after two seconds.
        for indices in progress_bar(batches, description="scoring", unit=" batches", leave=False, delay=2):
            batch = [windows[index] for index in indices]
            inputs = {name: value.to(device) for name, value in collator(batch).items() if name != "labels"}
            with torch.no_grad(), contextlib.nullcontext() if autocast is None else autocast():
                output = model(**inputs)
            for index, rows in zip(indices, collator.split(output["logits"].float().cpu(), batch), strict=True):
                logits[index] = rows.numpy()
    if accelerator is not None:
        logits = {index: rows for part in gather_object([logits]) for index, rows in part.items()}
    return [logits[index].astype(np.float64) for index in range(len(windows))]


def are_finite(logits: Sequence[np.ndarray]) -> bool:
    """Whether all logits are finite."""
    return all(np.isfinite(one).all() for one in logits)


class LengthGroupedSampler(torch.utils.data.Sampler[int]):
    """Batches of windows of similar length, in random order, so that there is little padding.

    The windows of 50 batches, drawn at random, are sorted by length and cut into batches. Then the batches are
    shuffled. The order is a function of (seed, epoch).

    Args:
        epoch: the epoch that is about to begin. A function, since Accelerate's `set_epoch` does not reach the sampler
            of one of several processes in a resumed epoch.
    """

    def __init__(self, lengths: Sequence[int], *, batch_size: int, seed: int, epoch: Callable[[], int]) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self.seed} {self.epoch()}")
        order = rng.sample(range(len(self.lengths)), len(self.lengths))
        pool = 50 * self.batch_size
        pools = [sorted(order[i : i + pool], key=self.lengths.__getitem__) for i in range(0, len(order), pool)]
        joined = [index for of_pool in pools for index in of_pool]
        batches = [joined[i : i + self.batch_size] for i in range(0, len(joined), self.batch_size)]
        rest = [batches.pop()] if batches and len(batches[-1]) < self.batch_size else []
        rng.shuffle(batches)
        yield from (index for batch in [*batches, *rest] for index in batch)


def rounds_of_epoch(windows: int, *, batch_size: int, processes: int) -> int:
    """How many batches each process takes in an epoch; see `SharedBatches`."""
    rounds, rest = divmod(windows, batch_size * processes)
    return rounds + (rest >= processes)


class SharedBatches(torch.utils.data.BatchSampler):
    """Batches for several processes: as many for each, and each window once.

    Accelerate deals batches out in rounds, one to each process, and would fill the last round up with windows from the
    beginning of the epoch. Here its batches share what is left. If that is not a window for each process, the round
    before takes it.

    Args:
        sampler: yields the windows of an epoch in order; there are at least `num_processes`.
    """

    def __init__(self, sampler: Any, batch_size: int, num_processes: int) -> None:
        super().__init__(sampler, batch_size, drop_last=False)
        self.num_processes = num_processes
        self.num_rounds = rounds_of_epoch(len(sampler), batch_size=batch_size, processes=num_processes)

    def __len__(self) -> int:
        return self.num_rounds * self.num_processes

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        begin = (self.num_rounds - 1) * self.num_processes * self.batch_size
        yield from (order[start : start + self.batch_size] for start in range(0, begin, self.batch_size))
        for batch in np.array_split(order[begin:], self.num_processes):
            yield batch.tolist()


def make_adamw(groups: list[dict[str, Any]], *, learning_rate: float) -> torch.optim.AdamW:
    """AdamW over parameter groups, fused if the device has a kernel for it."""
    device = groups[0]["params"][0].device.type
    return torch.optim.AdamW(groups, lr=learning_rate, fused=device in ("cpu", "cuda"))


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


class EarlyStopping(TrainerCallback):
    """Ends training after some evaluations without a better score.

    With the same score, a lower loss is better: a rare class may have an F1 of 0 for long. Not so where no score is
    better, though: the loss of a model without mistakes falls on and on, and transformers' own callback goes by it.

    Args:
        best_metric: the score, and whether higher is better. The best possible one is then 1, else 0.
        patience: the number of evaluations.
    """

    def __init__(self, best_metric: tuple[str, bool], patience: int) -> None:
        self.best_metric, self.patience = best_metric, patience

    def has_stopped(self, state: Any) -> bool:
        """Whether the last evaluations, of which a resumed run has a list too, were no better than one before them."""
        name, greater_is_better = self.best_metric
        sign, possible = (1, 1.0) if greater_is_better else (-1, 0.0)
        best, since = (-math.inf, math.inf), 0
        for entry in state.log_history:
            if f"eval_{name}" in entry:
                score, loss = sign * entry[f"eval_{name}"], entry["eval_loss"]
                is_better = score > best[0] or (score == best[0] < possible and loss < best[1])
                best, since = ((score, loss), 0) if is_better else (best, since + 1)
        return since >= self.patience

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.has_stopped(state):
            control.should_training_stop = True


class TimelyCheckpoints(TrainerCallback):
    """Saves a checkpoint ten minutes after the last one, so that a run that is killed in a long epoch loses no more.

    When a signal asks for it, it saves one and ends training. All processes do so after the same step.

    Args:
        stop: what hears the signals of this process.
        accelerator: the trainer's; by it the processes agree.
    """

    def __init__(self, stop: StopRequest, accelerator: Accelerator) -> None:
        self.stop, self.accelerator = stop, accelerator
        self.has_stopped = False
        self._last = time.monotonic()
        # To agree, the processes wait for their devices. A GPU is quick, and should have work before it.
        waits = accelerator.num_processes > 1 and accelerator.device.type == "cuda"
        self.every = BATCHES_BETWEEN_QUESTIONS if waits else 1

    def _ask(self) -> tuple[bool, bool]:
        """Whether any process was asked to stop, and whether the time for a checkpoint has come in any."""
        is_alone = self.accelerator.num_processes == 1
        if not is_alone:
            self.stop.request_without_launcher()
        asked = [bool(self.stop), time.monotonic() - self._last > SECONDS_BETWEEN_CHECKPOINTS]
        if not is_alone:  # who is alone does not wait for the device
            flags = torch.tensor(asked, dtype=torch.float32, device=self.accelerator.device)
            asked = (self.accelerator.reduce(flags) > 0).tolist()
        return asked[0], asked[1]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._last = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._last = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % max(1, self.every // args.gradient_accumulation_steps):
            return
        self.has_stopped, is_due = self._ask()
        if self.has_stopped:
            control.should_training_stop = True
            control.should_save |= not _ends_epoch(state)  # there `on_epoch_end` decides
        elif is_due:
            control.should_save |= args.save_strategy != SaveStrategy.EPOCH or not _ends_epoch(state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.has_stopped:
            return
        # Trainer calls this in the middle of an epoch, too. A run that goes on will evaluate at the true end only.
        control.should_save = _ends_epoch(state)
        if not control.should_save:
            control.should_log = control.should_evaluate = False

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.has_stopped = self.has_stopped or self._ask()[0]  # in the last evaluation


def _ends_epoch(state: Any) -> bool:
    """Whether the last step of an epoch is done: Trainer counts epochs in fractions."""
    return float(state.epoch).is_integer()


class BestOfMovedRun(TrainerCallback):
    """Finds the best checkpoint of a run whose folder was moved. Trainer does so at the next checkpoint only.

    Says so at the end if that checkpoint was deleted during the run, as Trainer then keeps the last weights.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        here = os.path.join(args.output_dir, f"checkpoint-{state.best_global_step}")
        # The oldest transformers keeps the path of before, later ones forget it.
        is_lost = not os.path.isdir(state.best_model_checkpoint or "")
        if is_lost and os.path.isdir(here):
            state.best_model_checkpoint = here

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        best = state.best_model_checkpoint
        if args.load_best_model_at_end and state.is_world_process_zero and best and not os.path.isdir(best):
            print(f"the best checkpoint, {best}, is gone: the model is that of the last step", flush=True)


class EvaluationLines(TrainerCallback):
    """Prints one line for each evaluation: epoch, step, losses, and the score that selects the best.

    Args:
        is_weighted: the training loss has class weights; the validation loss never does.
    """

    def __init__(self, best_metric: str, *, is_weighted: bool = False) -> None:
        self.best_metric = best_metric
        self.training_loss = "weighted training loss" if is_weighted else "training loss"

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or metrics is None:
            return
        # With --eval_steps, the last evaluation may come between two entries of the training loss.
        losses = [
            entry["loss"] for entry in state.log_history if "loss" in entry and entry["step"] == state.global_step
        ]
        score = metrics[f"eval_{self.best_metric}"]
        parts = [f"epoch {state.epoch or 0:.4g}", f"step {state.global_step}/{state.max_steps}"]
        parts += [f"{self.training_loss} {losses[-1]:.4f}"] if losses else []
        parts += [f"validation loss {metrics['eval_loss']:.4f}", f"{self.best_metric} {score_text(score)}"]
        print("  ".join(parts), flush=True)


class TrainingProgress(TrainerCallback):
    """A progress bar of the steps; in a log, one line per minute."""

    def __init__(self) -> None:
        self._bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._bar = progress_bar(
                description="fine-tuning", unit=" steps", total=state.max_steps, initial=state.global_step, leave=False
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.close()
