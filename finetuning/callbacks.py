"""Callbacks of the Trainer: when a run ends early, when it saves, and what it prints."""

import math
import os
import time
from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

from ..utils.progress_bar import progress_bar
from ..utils.stop_request import StopRequest
from .reports import score_text

SECONDS_BETWEEN_CHECKPOINTS = 600  # within an epoch
BATCHES_BETWEEN_QUESTIONS = 10  # of several GPUs, whether one of them has to save or was asked to stop


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
