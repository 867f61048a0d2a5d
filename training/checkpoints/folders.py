"""Writes, finds and deletes training checkpoints. Each is complete or absent, even after a kill.

    OUTPUT_DIR/checkpoint-500/                 a model: config, weights, code, tokenizer, README.md
    OUTPUT_DIR/checkpoint-500/training_state/  what only resuming needs:
        optimizer.safetensors                  the optimizer's tensors, by parameter name
        state.json                             the step, the arguments, the corpus' fingerprint, what binds the files
        manifest.json                          size and SHA-256 of every file above
    OUTPUT_DIR/latest                          the name of the newest checkpoint

A folder is written under a temporary name, flushed to the disk and renamed; `latest` follows, and only then are old
checkpoints deleted. Nothing is pickled. There is no state of random generators: order, masks and dropout are functions
of (seed, step).
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from ...utils.errors import UserError
from ...utils.files import INCOMPLETE, MODEL_FILES, whole_folder, write_text
from .damage import MANIFEST, NAME, describe_tensors, find_damage, hash_file, hash_files, step_of, tensor_files
from .training_state import (
    FORMAT,
    OPTIMIZER_FILE,
    STATE_FILE,
    STATE_FOLDER,
    Binding,
    TrainingState,
    dump_json,
    write_state,
)

logger = logging.getLogger(__name__)

# What --overwrite_output_dir deletes; see `files.written_in`. A card may have been edited, so it stays.
RUN_FILES = (
    r"(damaged-)?checkpoint-\d+", r"\.incomplete-.+", "latest", r"training_log\.jsonl", r"all_results\.json",
    r"loss_curve\.png", *MODEL_FILES,
)  # fmt: skip


def commit_checkpoint(
    output_dir: Path,
    state: TrainingState,
    optimizer_tensors: dict[str, torch.Tensor],
    write_model: Callable[[Path], None],
    *,
    keep: int | None = None,
) -> Path:
    """Write `checkpoint-STEP` atomically, and delete all but the `keep` newest checkpoints.

    Args:
        write_model: writes the model, with everything else that is not needed only for resuming, into a folder.
    """
    final = output_dir / f"checkpoint-{state.step}"
    # A checkpoint of this step may exist if a run wrote it and was then resumed from an earlier step.
    with whole_folder(final, replace=True) as folder:
        write_model(folder)
        (folder / STATE_FOLDER).mkdir()
        save_file(optimizer_tensors, folder / OPTIMIZER_FILE)
        files = hash_files(folder)
        hashes = {name: entry["sha256"] for name, entry in files.items()}
        tensors = {name: describe_tensors(folder / name) for name in tensor_files(folder)}
        write_state(folder, state, Binding(hashes, tensors))
        files[STATE_FILE] = hash_file(folder / STATE_FILE)
        dump_json(folder / MANIFEST, {"format": FORMAT, "files": files})
    write_text(output_dir / "latest", final.name + "\n")
    prune_checkpoints(output_dir, keep=keep)
    return final


def newest_valid(output_dir: Path) -> Path | None:
    """The undamaged checkpoint with the highest step, or None if there are no checkpoints.

    Raises:
        ValueError: all checkpoints are damaged. Whether to start over is the user's decision.
    """
    found = list_checkpoints(output_dir)
    for path in reversed(found):
        problem = find_damage(path)
        if problem is None:
            return path
        logger.warning("skipping %s: %s", path, problem)
    if found:
        raise UserError(f"all checkpoints in {output_dir} are damaged; --overwrite_output_dir starts over")
    return None


def list_checkpoints(output_dir: Path) -> list[Path]:
    """The folders `checkpoint-STEP`, by step."""
    if not output_dir.is_dir():
        return []
    return sorted((path for path in output_dir.iterdir() if NAME.match(path.name) and path.is_dir()), key=step_of)


def prune_checkpoints(output_dir: Path, *, keep: int | None) -> None:
    """Delete all but the `keep` newest checkpoints (None: delete none)."""
    if keep is None:
        return
    for path in list_checkpoints(output_dir)[:-keep]:
        # Renamed first: an interrupted deletion leaves no folder that looks like a checkpoint.
        doomed = output_dir / f"{INCOMPLETE}{path.name}"
        _delete(doomed)
        path.rename(doomed)
        _delete(doomed)


def clear_way(output_dir: Path, *, step: int) -> None:
    """Before a run resumes at `step`: delete half-written folders, and rename damaged later checkpoints.

    Raises:
        ValueError: there are undamaged checkpoints of later steps, which this run would mix with its own.
    """
    for path in output_dir.glob(f"{INCOMPLETE}*"):
        _delete(path)
    for path in list_checkpoints(output_dir):
        if step_of(path) <= step:
            continue
        if find_damage(path) is None:
            raise UserError(
                f"{output_dir} holds {path.name}, later than step {step}, where this run would begin; resume from "
                f"'latest', or branch off into another --output_dir"
            )
        aside = path.with_name(f"damaged-{path.name}")
        _delete(aside)
        path.rename(aside)


def _delete(path: Path) -> None:
    """Delete a folder or a file, which may be missing; of a link, the link. Warn if something of it stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    if os.path.lexists(path):
        logger.warning("%s cannot be deleted, and takes space: does it belong to another user?", path)
