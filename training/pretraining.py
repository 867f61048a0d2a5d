"""`pretrain`: one run, from its arguments to its results. The loop itself is in loop.py."""

import contextlib
import copy
from pathlib import Path
from typing import Any

from ..configuration import ClozeBertConfig
from ..corpus.packing import discarding_indices
from ..utils.device import find_device, training_modes
from ..utils.errors import UserError
from ..utils.files import WriteCard, disk_errors
from ..utils.memory import memory_errors
from ..utils.output import outliving_readers
from ..utils.output_folders import folder_stays
from ..utils.processes import lost_processes
from ..utils.stop_request import StopRequest
from .arguments import PretrainingArguments
from .loop import Pretraining
from .runtime.flash_attention import flash_attention
from .runtime.machine import deterministic


@outliving_readers()  # a run that a closed terminal stops still has to save
def pretrain(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    *,
    write_card: WriteCard | None = None,
    recipe: str | None = None,
    goes_on_by: str = "--resume_from_checkpoint latest",
    to_save_memory: str | None = None,
) -> dict[str, Any]:
    """Train an encoder on `arguments.corpus` and save it, in Hub format, in `arguments.output_dir`.

    Args:
        arguments: the run.
        config: the model; with `model_name_or_path` that model's own configuration is used instead.
        write_card: writes a folder's README.md from what is known about the run.
        recipe: the recipe's name, for the card.
        goes_on_by: what resumes a stopped run, for messages.
        to_save_memory: what to do if the memory is full, for a message; None: `arguments.to_save_memory`.

    Returns:
        The figures of `all_results.json`, the losses, the validation figures, tokens and seconds. After a signal that
        stopped the run early, `stopped_by` is the signal's number, and only a checkpoint was written.

    Raises:
        ValueError: contradictions between arguments, corpus, tokenizer, model and checkpoint, before any work; or a
            gradient that is not finite in ten steps in a row; or the memory is full.
    """
    if not isinstance(config, ClozeBertConfig):
        raise UserError(f"config is a {type(config).__name__}: give a ClozeBertConfig")
    way_out = f"free some space, then {goes_on_by}, or give another folder"
    moved = f"put it back, then {goes_on_by}, or start the run anew"
    device = find_device(use_cpu=arguments.use_cpu)
    with (
        disk_errors(Path(arguments.output_dir), way_out=way_out),
        memory_errors(to_save_memory or arguments.to_save_memory),
        training_modes(device),
        deterministic(arguments.full_determinism),
        flash_attention(arguments.flash_attention, device),
        discarding_indices() if arguments.dry_run else contextlib.nullcontext(),
    ):
        run = Pretraining(arguments, copy.deepcopy(config), write_card=write_card, recipe=recipe, goes_on_by=goes_on_by)
        stop = StopRequest()
        with (
            # A dry run has nothing to save: a signal ends it at once.
            contextlib.nullcontext() if arguments.dry_run else stop.listening(),
            contextlib.nullcontext() if arguments.dry_run else folder_stays(run.output.path, way_out=moved),
            contextlib.closing(run),
            lost_processes(goes_on_by=goes_on_by),
        ):
            return run.train(stop)
