"""Writes the output folder of a run: checkpoints, then the final model with its card, curve and results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ...utils.errors import UserError
from ...utils.files import OLD_SPECIAL_TOKENS, WriteCard, whole_files, write_json
from ...utils.input_length import announce_length
from ...utils.locks import lock_folder
from ...utils.progress_bar import without_progress_bars
from ...utils.tokenizer_files import save_tokenizer
from ..reporting.curves import CURVE_NAME, draw_loss_curve
from ..reporting.progress import LOG_NAME
from .damage import first_not_finite
from .folders import commit_checkpoint
from .training_state import TrainingState

RESULTS_NAME = "all_results.json"

Weights = dict[str, torch.Tensor]


class OutputFolder:
    """Writes the output of a run. Every process has one, and only that of the main process writes.

    Args:
        length: the most tokens of a row of the run.
        write_card: writes a folder's README.md from what is known about the run.
    """

    def __init__(self, path: Path, *, tokenizer: PreTrainedTokenizerFast, length: int, write_card: WriteCard | None):
        self.path, self.tokenizer, self.write_card = path, tokenizer, write_card
        self.length = length
        self._lock: FileLock | None = None

    def take(self) -> None:
        """Lock the folder for this run; see `lock_folder`."""
        self._lock = lock_folder(self.path)

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.release()

    def save_checkpoint(
        self,
        model: PreTrainedModel,
        weights: Weights | None,
        *,
        state: TrainingState,
        tensors: dict[str, torch.Tensor],
        facts: dict[str, Any],
        keep: int | None,
    ) -> None:
        """Commit the model with what resuming needs, as checkpoint-STEP.

        Args:
            weights: the gathered weights of a sharded model; None: those of the model.
            tensors: the optimizer's state.
            facts: for the card.
            keep: how many of the newest checkpoints stay; None: all.
        """
        _check_finite(model.state_dict() if weights is None else weights, step=state.step)
        _check_finite(tensors, step=state.step, whose="the optimizer's ")

        def write(directory: Path) -> None:
            self._write_model(directory, model, weights)
            if self.write_card is not None:
                self.write_card(directory, facts)

        commit_checkpoint(self.path, state, tensors, write, keep=keep)

    def describe_checkpoint(self, step: int, facts: dict[str, Any]) -> None:
        """Rewrite the card of a checkpoint, with the results of a later evaluation."""
        folder = self.path / f"checkpoint-{step}"
        if self.write_card is not None and folder.is_dir():
            self.write_card(folder, facts)

    def save_model(
        self,
        model: PreTrainedModel,
        weights: Weights | None,
        *,
        facts: dict[str, Any],
        results: dict[str, Any],
        say: Callable[[str], None],
        distilled: bool,
    ) -> None:
        """Write the finished model, the curve of its losses, its card and its results."""
        _check_finite(model.state_dict() if weights is None else weights, step=results["step"])
        with whole_files(self.path, replacing=[OLD_SPECIAL_TOKENS]) as directory:
            self._write_model(directory, model, weights)
        write_json(self.path / RESULTS_NAME, results, allow_nan=True)
        try:
            draw_loss_curve(self.path / LOG_NAME, self.path / CURVE_NAME, distilled=distilled)
        except ImportError as error:
            say(str(error))
        if self.write_card is not None:
            self.write_card(self.path, facts)

    def _write_model(self, directory: Path, model: PreTrainedModel, weights: Weights | None) -> None:
        with without_progress_bars():
            model.save_pretrained(directory, state_dict=weights)
        save_tokenizer(self.tokenizer, directory)
        announce_length(directory, model, trained_on=self.length)


def _check_finite(tensors: Weights, *, step: int, whose: str = "") -> None:
    if (name := first_not_finite(tensors)) is not None:
        raise UserError(
            f"{whose}{name} is not finite at step {step}: this step is not saved; resume from the last checkpoint, "
            f"with a lower learning_rate if it happens again"
        )
