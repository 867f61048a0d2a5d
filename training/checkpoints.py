"""Checkpoints that are whole or absent: a reader, or a run that was killed, never sees half of one.

    OUTPUT_DIR/checkpoint-500/                 a model: config, weights, code, tokenizer, README.md
    OUTPUT_DIR/checkpoint-500/training_state/  what only resuming needs:
        optimizer.safetensors                  the optimizer's tensors, by parameter name
        state.json                             the step, the arguments, the corpus' fingerprint
        manifest.json                          size and SHA-256 of every file above
    OUTPUT_DIR/latest                          the name of the newest checkpoint

A folder is written under a temporary name, flushed to the disk and renamed; `latest` follows, and only then are old
checkpoints deleted. Nothing is pickled. There is no state of random generators: order, masks and dropout are functions
of (seed, step).
"""

import dataclasses
import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ..utils.errors import UserError
from ..utils.files import INCOMPLETE, sha256_of_file, whole_folder, write_text

logger = logging.getLogger(__name__)

STATE_FOLDER = "training_state"
# What --overwrite_output_dir deletes; see `files.written_in`. A card may be a person's, and the rest is written over.
RUN_FILES = (
    r"(damaged-)?checkpoint-\d+", r"\.incomplete-.+", "latest", r"training_log\.jsonl", r"all_results\.json",
    r"loss_curve\.png", r"config\.json", r"model(-\d+-of-\d+)?\.safetensors", r"model\.safetensors\.index\.json",
)  # fmt: skip
_FORMAT = 1
_NAME = re.compile(r"checkpoint-(\d+)$")
# A person may edit the card, and the manifest cannot hold its own hash.
_NOT_HASHED = ("README.md", f"{STATE_FOLDER}/manifest.json")


@dataclass
class TrainingState:
    """What a resumed run has to know beside weights and optimizer tensors.

    Attributes:
        step: updates made so far.
        tokens_seen: tokens trained on so far.
        skipped_steps: steps whose gradient was not finite.
        consecutive_skips: how many of these were the last ones.
        losses: of the steps since the last log entry, whose mean the next entry holds.
        train_loss: what the last log entry held.
        seconds: spent training so far.
        evaluation: the last validation figures, and the step they belong to.
        arguments: those of the run's PretrainingArguments that decide what the weights become.
        model_flops: FLOPs of the model so far, without what was recomputed.
        corpus_fingerprint: which corpora the batches come from.
        phase, first_step: which phase of the run this is, and how many steps came before it.
        threads, world_size, precision: bitwise equality is promised only where these stay the same.
        scaler: the fp16 loss scale, if any.
    """

    step: int
    tokens_seen: int = 0
    skipped_steps: int = 0
    consecutive_skips: int = 0
    losses: list[float] = field(default_factory=list)
    train_loss: float | None = None
    seconds: float = 0.0
    model_flops: float = 0.0
    evaluation: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    corpus_fingerprint: str = ""
    phase: int = 0
    first_step: int = 0
    threads: int = 1
    world_size: int = 1
    precision: str = "no"
    scaler: dict[str, Any] | None = None


def write_training_state(directory: Path, state: TrainingState, optimizer_tensors: dict[str, torch.Tensor]) -> None:
    """Put the resuming part into a checkpoint folder that is being written."""
    folder = directory / STATE_FOLDER
    folder.mkdir()
    save_file(optimizer_tensors, folder / "optimizer.safetensors")
    _write_json(folder / "state.json", {"format": _FORMAT, **dataclasses.asdict(state)})


def read_training_state(directory: Path) -> tuple[TrainingState, dict[str, torch.Tensor]]:
    """The inverse of `write_training_state`.

    Raises:
        ValueError: a later version of this package wrote the state.
    """
    folder = directory / STATE_FOLDER
    values = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    if values.pop("format", None) != _FORMAT:
        raise UserError(f"{folder} has another format than this version of clozebert reads (format {_FORMAT})")
    return TrainingState(**values), load_file(folder / "optimizer.safetensors")


def commit_checkpoint(output_dir: Path, step: int, write: Callable[[Path], None], *, keep: int | None = None) -> Path:
    """Let `write` fill a folder, make it `checkpoint-STEP` at one instant, and prune all but the `keep` newest."""
    final = output_dir / f"checkpoint-{step}"
    # One of that name was left by a run that was resumed from before it; the two need not be the same.
    with whole_folder(final, replace=True) as temporary:
        write(temporary)
        _write_manifest(temporary)
    write_text(output_dir / "latest", final.name + "\n")
    prune_checkpoints(output_dir, keep=keep)
    return final


def newest_valid(output_dir: Path) -> Path | None:
    """The checkpoint with the highest step that is whole, or None where there is no checkpoint at all.

    Raises:
        ValueError: there are checkpoints, but none is whole; beginning afresh has to be a person's decision.
    """
    found = list_checkpoints(output_dir)
    for path in reversed(found):
        problem = find_damage(path)
        if problem is None:
            return path
        logger.warning("skipping %s: %s", path, problem)
    if found:
        raise UserError(
            f"none of the {len(found)} checkpoints in {output_dir} is whole; --overwrite_output_dir begins afresh"
        )
    return None


def list_checkpoints(output_dir: Path) -> list[Path]:
    """The folders `checkpoint-STEP`, by step."""
    if not output_dir.is_dir():
        return []
    return sorted((path for path in output_dir.iterdir() if _NAME.match(path.name) and path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """500 for `checkpoint-500`."""
    match = _NAME.match(checkpoint.name)
    if match is None:
        raise UserError(f"{checkpoint} is no checkpoint folder: its name is not checkpoint-STEP")
    return int(match.group(1))


def find_damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint's files, by its manifest; None where all is whole."""
    manifest = checkpoint / STATE_FOLDER / "manifest.json"
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"its manifest cannot be read ({type(error).__name__})"
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["size"]:
            return f"{name} has {path.stat().st_size} bytes, not {expected['size']}"
        if sha256_of_file(path) != expected["sha256"]:
            return f"the content of {name} has changed"
    return None


def prune_checkpoints(output_dir: Path, *, keep: int | None) -> None:
    """Delete all but the `keep` newest checkpoints (None: delete none)."""
    if keep is None:
        return
    for path in list_checkpoints(output_dir)[:-keep]:
        # Renamed first: an interrupted deletion leaves no folder that looks like a checkpoint.
        doomed = output_dir / f"{INCOMPLETE}{path.name}"
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def clear_way(output_dir: Path, *, step: int) -> None:
    """Before a run goes on from `step`: delete what was left half-written, set damaged later checkpoints aside.

    Raises:
        ValueError: whole checkpoints of later steps, which this run would mix with its own.
    """
    for path in output_dir.glob(f"{INCOMPLETE}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in list_checkpoints(output_dir):
        if step_of(path) <= step:
            continue
        if find_damage(path) is None:
            raise UserError(
                f"{output_dir} holds {path.name}, later than step {step}, where this run would begin; resume from "
                f"'latest', or branch off into another --output_dir"
            )
        aside = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)


def _write_manifest(directory: Path) -> None:
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    files = {
        name: {"size": (directory / name).stat().st_size, "sha256": sha256_of_file(directory / name)}
        for name in names
        if name not in _NOT_HASHED
    }
    _write_json(directory / STATE_FOLDER / "manifest.json", {"format": _FORMAT, "files": files})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
