"""What a run leaves in its output folder: checkpoints, then the finished model with its card, curve and results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..utils.files import WriteCard, whole_files, write_text
from .checkpoints import TrainingState, commit_checkpoint, write_training_state
from .curves import CURVE_NAME, draw_loss_curve
from .initial_model import without_progress_bars
from .progress import LOG_NAME

RESULTS_NAME = "all_results.json"

Weights = dict[str, torch.Tensor]


class OutputFolder:
    """Writes what a run leaves; for the main process only.

    Args:
        write_card: writes a folder's README.md from what is known about the run.
    """

    def __init__(self, path: Path, *, tokenizer: PreTrainedTokenizerFast, write_card: WriteCard | None):
        self.path, self.tokenizer, self.write_card = path, tokenizer, write_card

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
            weights: the model's, where they do not lie whole in it.
            tensors: the optimizer's state.
            facts: for the card.
            keep: how many of the newest checkpoints stay; None: all.
        """

        def write(directory: Path) -> None:
            self._write_model(directory, model, weights)
            write_training_state(directory, state, tensors)
            if self.write_card is not None:
                self.write_card(directory, facts)

        commit_checkpoint(self.path, state.step, write, keep=keep)

    def save_model(
        self,
        model: PreTrainedModel,
        weights: Weights | None,
        *,
        facts: dict[str, Any],
        results: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        """Write the finished model, the curve of its losses, its card and its results."""
        with whole_files(self.path) as directory:
            self._write_model(directory, model, weights)
        try:
            draw_loss_curve(self.path / LOG_NAME, self.path / CURVE_NAME)
        except ImportError as error:
            say(str(error))
        if self.write_card is not None:
            self.write_card(self.path, facts)
        write_text(self.path / RESULTS_NAME, json.dumps(results, indent=2) + "\n")

    def _write_model(self, directory: Path, model: PreTrainedModel, weights: Weights | None) -> None:
        with without_progress_bars():
            model.save_pretrained(directory, state_dict=weights)
        self.tokenizer.save_pretrained(directory)
