"""Checks a checkpoint for damage (hashes, shapes, NaN) before anything of it is used.

The manifest has the size and SHA-256 of every file. The state has the SHA-256 of each file too, and the type and shape
of each tensor. This shows if weights, optimizer and state come from different steps, even if the manifest fits them.
"""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ...configuration import ClozeBertConfig
from ...utils.errors import UserError
from ...utils.files import sha256_of_file
from ...utils.untrusted import is_plain_name
from .training_state import (
    FORMAT,
    OPTIMIZER_FILE,
    STATE_FILE,
    STATE_FOLDER,
    Binding,
    DamageError,
    read_json,
    read_state,
)

MANIFEST = f"{STATE_FOLDER}/manifest.json"
NAME = re.compile(r"checkpoint-(\d+)$")
# The user may edit the card, and the manifest cannot hold its own hash.
NOT_HASHED = ("README.md", MANIFEST)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def find_damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None. A file that cannot be read counts as damage."""
    try:
        _check(checkpoint)
    except DamageError as damage:
        return str(damage)
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200]
        return f"it cannot be read ({type(error).__name__}: {reason})"
    return None


def _check(checkpoint: Path) -> None:
    files = _read_manifest(checkpoint)
    hashes = {name: _check_file(checkpoint, name, expected) for name, expected in files.items()}
    state, binding = read_state(checkpoint)
    named = NAME.match(checkpoint.name)
    if named and int(named.group(1)) != state.step:
        raise DamageError(f"its state is that of step {state.step}")
    _check_binding(checkpoint, binding, hashes)
    for name in tensor_files(checkpoint):
        _check_tensors(checkpoint, name)
    ClozeBertConfig.from_pretrained(checkpoint)


def _read_manifest(checkpoint: Path) -> dict[str, dict[str, Any]]:
    manifest = read_json(checkpoint / MANIFEST)
    form, files = manifest.get("format"), manifest.get("files")
    if type(form) is not int or form != FORMAT or not isinstance(files, dict):
        raise DamageError("manifest.json has no list of files in a format that this version of clozebert reads")
    for name, entry in files.items():
        if not all(map(is_plain_name, name.split("/"))):
            raise DamageError(f"manifest.json names {name!r}, which is not a file of the checkpoint")
        is_whole = isinstance(entry, dict) and type(entry.get("size")) is int
        if not is_whole or not _SHA256.fullmatch(str(entry.get("sha256"))):
            raise DamageError(f"manifest.json has no size and SHA-256 of {name}")
    for name in ("config.json", STATE_FILE, OPTIMIZER_FILE):
        if name not in files:
            raise DamageError(f"manifest.json does not name {name}")
    return files


def _check_file(checkpoint: Path, name: str, expected: dict[str, Any]) -> str:
    """Check a file against the manifest, and return its SHA-256."""
    path = checkpoint / name
    if not path.is_file():
        raise DamageError(f"{name} is missing")
    if (size := path.stat().st_size) != expected["size"]:
        raise DamageError(f"{name} has {size} bytes, not {expected['size']}")
    if (found := sha256_of_file(path)) != expected["sha256"]:
        raise DamageError(f"the content of {name} has changed")
    return found


def _check_binding(checkpoint: Path, binding: Binding, hashes: dict[str, str]) -> None:
    for name, expected in binding.files.items():
        if hashes.get(name) != expected:
            raise DamageError(f"{name} is not the one that belongs to its state")
    for name in {*binding.tensors, *tensor_files(checkpoint)}:
        expected_tensors, found = binding.tensors.get(name, {}), describe_tensors(checkpoint / name)
        for tensor in sorted({*expected_tensors, *found}):
            here, there = found.get(tensor, "missing"), expected_tensors.get(tensor, "missing")
            if here != there:
                raise DamageError(f"{tensor} in {name} is {here}, in the state {there}")


def _check_tensors(checkpoint: Path, name: str) -> None:
    """Refuse weights that are not float32, and numbers that are not finite."""
    with safe_open(checkpoint / name, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118
            tensor = file.get_tensor(key)
            if name != OPTIMIZER_FILE and tensor.is_floating_point() and tensor.dtype != torch.float32:
                raise DamageError(f"{key} in {name} is {tensor.dtype}, not float32")
            if not is_finite(tensor):
                raise DamageError(f"{key} in {name} is not finite")


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no number in a tensor is NaN or infinite."""
    tensor = tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor  # fp8 has no `isfinite`
    return bool(torch.isfinite(tensor).all())


def tensor_files(checkpoint: Path) -> list[str]:
    """The names of a checkpoint's safetensors files."""
    return sorted(path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*.safetensors"))


def describe_tensors(path: Path) -> dict[str, str]:
    """The type and shape of each tensor in a file: `{"x": "F32 [3, 4]"}`."""
    if not path.is_file():
        return {}
    with safe_open(path, framework="pt") as file:
        parts = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
        return {key: f"{part.get_dtype()} {list(part.get_shape())}" for key, part in parts.items()}


def first_not_finite(tensors: dict[str, torch.Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or an infinite number, or None."""
    return next((name for name, tensor in tensors.items() if not is_finite(tensor)), None)


def hash_files(directory: Path) -> dict[str, dict[str, Any]]:
    """The size and SHA-256 of every file that the manifest names."""
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return {name: hash_file(directory / name) for name in names if name not in NOT_HASHED}


def hash_file(path: Path) -> dict[str, Any]:
    """The manifest's entry of a file."""
    return {"size": path.stat().st_size, "sha256": sha256_of_file(path)}


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint folder, by its name: 500 for `checkpoint-500`."""
    match = NAME.match(checkpoint.name)
    if match is None:
        raise UserError(f"{checkpoint} is no checkpoint folder: its name is not checkpoint-STEP")
    return int(match.group(1))
