"""The state that resuming needs beside weights and optimizer tensors, and its file `state.json`."""

import dataclasses
import hashlib
import json
import math
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.dataclasses import type_validator
from safetensors.torch import load_file

from ...utils.errors import UserError
from ..arguments import PretrainingArguments

STATE_FOLDER = "training_state"
OPTIMIZER_FILE = f"{STATE_FOLDER}/optimizer.safetensors"
STATE_FILE = f"{STATE_FOLDER}/state.json"
FORMAT = 2
# Fields that older checkpoints of this format lack.
_LATER = {"available_flops", "earlier_arguments", "finished_phases", "bf16_residual"}


class DamageError(UserError):
    """A checkpoint that is not what the run wrote."""


@dataclass
class TrainingState:
    """What a resumed run needs besides weights and optimizer tensors.

    Attributes:
        step: updates made so far.
        tokens_seen: tokens trained on so far.
        skipped_steps: steps whose gradient was not finite.
        consecutive_skips: how many of these came in a row, up to the last step.
        losses: of the steps since the last log entry; the next entry has their mean.
        train_loss: the loss in the last log entry.
        seconds: spent training so far.
        evaluation: the last validation figures, and the step they belong to.
        arguments: those of the run's PretrainingArguments that `decisive` names.
        model_flops: FLOPs of the model so far, without recomputation.
        available_flops: those that plain matmuls would have done in these seconds, on the machines of each step.
        earlier_arguments: what the arguments were before a resumption changed them, by the step of that resumption.
        finished_phases: the arguments of earlier phases by their index, as `arguments` holds those of this one.
        corpus_fingerprint: which corpora the batches come from.
        phase, first_step: which phase of the run this is, and how many steps came before it.
        threads, world_size, precision: bitwise equality is promised only if these and the last two stay the same.
        scaler: the fp16 loss scale, if any.
        teacher_fingerprint: which teacher the run distils from; empty without one.
        validation_fingerprint: which validation splits the figures are of.
        micro_batch_rows: of a full micro-batch, in each process.
        bf16_residual: whether the residual stream was in bf16; None: not known.
    """

    step: int
    tokens_seen: int = 0
    skipped_steps: int = 0
    consecutive_skips: int = 0
    losses: list[float] = field(default_factory=list)
    train_loss: float | None = None
    seconds: float = 0.0
    model_flops: float = 0.0
    available_flops: float = 0.0
    earlier_arguments: dict[str, dict[str, Any]] = field(default_factory=dict)
    finished_phases: dict[str, dict[str, Any]] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    corpus_fingerprint: str = ""
    phase: int = 0
    first_step: int = 0
    threads: int = 1
    world_size: int = 1
    precision: str = "no"
    scaler: dict[str, Any] | None = None
    teacher_fingerprint: str = ""
    validation_fingerprint: str = ""
    micro_batch_rows: int = 1
    bf16_residual: bool | None = None

    def count_seconds(self, seconds: float, *, peak_flops: float) -> None:
        """Count the time of a step.

        Args:
            peak_flops: FLOP/s of plain matmuls, of all processes.
        """
        if not self.available_flops:  # of a checkpoint that did not count them yet
            self.available_flops = self.seconds * peak_flops
        self.seconds += seconds
        self.available_flops += seconds * peak_flops


@dataclass
class Binding:
    """What ties the files of a checkpoint to its state.

    Attributes:
        files: SHA-256 by name, of all files but the state, the manifest and the card.
        tensors: the type and shape of each tensor, by file and name.
    """

    files: dict[str, str]
    tensors: dict[str, dict[str, str]]


def write_state(directory: Path, state: TrainingState, binding: Binding) -> None:
    values = {"format": FORMAT, **dataclasses.asdict(state), **dataclasses.asdict(binding)}
    dump_json(directory / STATE_FILE, {**values, "sha256": _digest(values)})


def read_state(directory: Path) -> tuple[TrainingState, Binding]:
    """The inverse of `write_state`.

    Raises:
        DamageError: it cannot be read, or holds values that no run writes.
    """
    values = read_json(directory / STATE_FILE)
    digest = values.pop("sha256", None)
    form = values.get("format")
    if type(form) is not int or form != FORMAT:
        raise DamageError(f"its state has another format than this version of clozebert reads ({form!r})")
    if digest != _digest(values):
        raise DamageError("its state has changed")
    del values["format"]
    bound = {name: values.pop(name, None) for name in ("files", "tensors")}
    _check_types(Binding, bound)
    _check_types(TrainingState, values)
    state = TrainingState(**values)
    _check_values(state)
    return state, Binding(**bound)


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_training_state(directory: Path) -> tuple[TrainingState, dict[str, torch.Tensor]]:
    """The state of a checkpoint, and the optimizer's tensors.

    Raises:
        DamageError: they cannot be read.
    """
    return read_state(directory)[0], load_file(directory / OPTIMIZER_FILE)


def _check_types(kind: type, values: dict[str, Any]) -> None:
    """Refuse unknown fields, missing fields, and values of the wrong type."""
    hints = typing.get_type_hints(kind)
    if unknown := sorted(values.keys() - hints.keys()):
        raise DamageError(f"its state has a field that no state has: {unknown[0]}")
    if missing := sorted(hints.keys() - values.keys() - _LATER):
        raise DamageError(f"its state has no {missing[0]}")
    _check_kinds(values, hints)


def _check_kinds(values: dict[str, Any], hints: dict[str, Any]) -> None:
    for name, value in values.items():
        try:
            type_validator(name, value, hints[name])
        except Exception as error:
            raise DamageError(f"its state has {name}={str(value)[:60]}, which is of the wrong type") from error


def _check_values(state: TrainingState) -> None:
    """Refuse values that no run can have written."""
    least = {"threads": 1, "world_size": 1, "micro_batch_rows": 1}
    for item in dataclasses.fields(state):
        value = getattr(state, item.name)
        is_number = isinstance(value, (int, float)) and item.name != "train_loss"
        if is_number and not (math.isfinite(value) and value >= least.get(item.name, 0)):
            raise DamageError(f"its state has {item.name}={value}")
    if state.precision not in ("no", "bf16", "fp16"):
        raise DamageError(f"its state has precision={state.precision!r}")
    if state.evaluation:
        _check_mapping("evaluation", state.evaluation, {"step": int, "eval_loss": float, "eval_accuracy": float})
    if state.scaler:
        _check_mapping("scaler", state.scaler, {"scale": float, "growth_factor": float, "backoff_factor": float})
    hints = typing.get_type_hints(PretrainingArguments)
    if unknown := sorted(state.arguments.keys() - hints.keys()):
        raise DamageError(f"its state has an argument that no run has: {unknown[0]}")
    _check_kinds(state.arguments, hints)


def _check_mapping(name: str, values: dict[str, Any], needed: dict[str, Any]) -> None:
    if missing := sorted(needed.keys() - values.keys()):
        raise DamageError(f"its state has no {missing[0]} under {name}")
    _check_kinds({key: values[key] for key in needed}, needed)


def read_json(path: Path) -> dict[str, Any]:
    """A mapping from a JSON file.

    Raises:
        DamageError: it cannot be read, or does not hold a mapping.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except Exception as error:  # of any kind: deep nesting is a RecursionError
        raise DamageError(f"{path.name} cannot be read ({type(error).__name__})") from error
    if not isinstance(values, dict):
        raise DamageError(f"{path.name} holds no mapping")
    return values


def dump_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
