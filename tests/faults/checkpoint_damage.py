"""Ways to damage a checkpoint, as disks, hands and half-copied folders do; each leaves what no run wrote."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

STATE = "training_state/state.json"
MANIFEST = "training_state/manifest.json"
OPTIMIZER = "training_state/optimizer.safetensors"
WEIGHTS = "model.safetensors"
# In place of a value of JSON.
WRONG_VALUES: tuple[Any, ...] = (None, [], {}, "7", -1, 1.5, True, [None], {"a": 1}, "", 10**400)
Damage = Callable[[Path, Path], None]


def mend_manifest(checkpoint: Path) -> None:
    """Make sizes and hashes fit the files that are there."""
    path = checkpoint / MANIFEST
    manifest = json.loads(path.read_text())
    files = {}
    for name in manifest["files"]:
        if (checkpoint / name).is_file():
            content = (checkpoint / name).read_bytes()
            files[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps({**manifest, "files": files}))


def flip(path: Path, draws: np.random.Generator) -> None:
    """One bit of a file."""
    content = bytearray(path.read_bytes())
    place = int(draws.integers(8 * len(content)))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def named_files(checkpoint: Path) -> list[str]:
    """All files but the card, which a person may edit."""
    names = (path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file())
    return sorted(name for name in names if name != "README.md")


def file_damages(checkpoint: Path, *, flips: int, seed: int) -> Iterator[tuple[str, Damage]]:
    """Files that are flipped, cut, empty or gone; nothing is mended."""
    for name in named_files(checkpoint):
        for number in range(flips):
            draws = np.random.default_rng([seed, number, len(name)])
            yield f"flip {name}", lambda one, other, name=name, draws=draws: flip(one / name, draws)
        yield f"empty {name}", lambda one, other, name=name: (one / name).write_bytes(b"")
        yield f"missing {name}", lambda one, other, name=name: (one / name).unlink()
        yield f"cut {name}", lambda one, other, name=name: (one / name).write_bytes((one / name).read_bytes()[:-2])


def mended_flips(checkpoint: Path, *, flips: int, seed: int) -> Iterator[tuple[str, Damage]]:
    """Flipped bits under a manifest that fits."""
    for name in named_files(checkpoint):
        for number in range(flips if name != MANIFEST else 0):
            draws = np.random.default_rng([seed, number, len(name), 1])
            yield f"flip {name}, mended", lambda one, other, name=name, draws=draws: flip(one / name, draws)


def tensor_damages(checkpoint: Path, *, every: int) -> Iterator[tuple[str, Damage]]:
    """Tensors that are missing, of another type or shape, swapped, new, or not finite; and those of another step."""

    def changed(name: str, change: Callable[[dict[str, torch.Tensor]], None]) -> Damage:
        return lambda one, other: change_tensors(one / name, change)

    for name in (WEIGHTS, OPTIMIZER, STATE):
        yield f"{name} of another step", lambda one, other, name=name: shutil.copy(other / name, one / name) is None
    for name in (WEIGHTS, OPTIMIZER):
        tensors = load_file(checkpoint / name)
        for number, (key, value) in enumerate(sorted(tensors.items())):
            if number % every:
                continue
            yield f"no {key}", changed(name, lambda found, key=key: found.pop(key) is None)
            yield f"{key} in bf16", changed(name, lambda found, key=key: found.update({key: found[key].bfloat16()}))
            for bad in (float("nan"), float("inf")):
                broken = value.clone()
                broken.view(-1)[0] = bad
                yield f"{key} is {bad}", changed(name, lambda found, k=key, b=broken: found.update({k: b}))
            others = [k for k, v in tensors.items() if k != key and v.shape == value.shape and not v.equal(value)]
            for second in others[:1]:
                pair = {key: tensors[second], second: tensors[key]}
                yield f"{key} and {second} swapped", changed(name, lambda found, pair=pair: found.update(pair))
        yield f"a new tensor in {name}", changed(name, lambda found: found.update({"new": torch.ones(2)}))


def json_damages(checkpoint: Path) -> Iterator[tuple[str, Damage]]:
    """The JSON files as something else, and each of their values replaced, renamed or gone."""

    def rewritten(name: str, change: Callable[[dict[str, Any]], Any]) -> Damage:
        def damage(one: Path, other: Path) -> None:
            (one / name).write_text(json.dumps(change(json.loads((one / name).read_text()))))

        return damage

    for name in (STATE, MANIFEST, "config.json"):
        values = json.loads((checkpoint / name).read_text())
        for wrong in WRONG_VALUES:
            yield f"{name} is {str(wrong)[:20]}", rewritten(name, lambda found, wrong=wrong: wrong)
        for key in values:
            for wrong in WRONG_VALUES:
                if wrong != values[key] or type(wrong) is not type(values[key]):
                    yield f"{name}: {key}={str(wrong)[:20]}", rewritten(name, lambda f, k=key, w=wrong: {**f, k: w})
            yield f"{name}: no {key}", rewritten(name, lambda f, k=key: {n: v for n, v in f.items() if n != k})
            yield f"{name}: {key} renamed", rewritten(name, lambda f, k=key: {f"{k}x" * (n == k) or n: f[n] for n in f})
    yield "a deep manifest", lambda one, other: (one / MANIFEST).write_text("[" * 100_000) and None


def plain_damages(checkpoint: Path, *, flips: int, seed: int = 0) -> list[tuple[str, Damage]]:
    """Damages under the manifest that the run wrote."""
    return list(file_damages(checkpoint, flips=flips, seed=seed))


def mended_damages(checkpoint: Path, *, flips: int, every: int, seed: int = 0) -> list[tuple[str, Damage]]:
    """Damages to which the manifest is made to fit."""
    return [
        *mended_flips(checkpoint, flips=flips, seed=seed),
        *tensor_damages(checkpoint, every=every),
        *json_damages(checkpoint),
    ]
