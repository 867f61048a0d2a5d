"""A model's outputs for a fixed input, saved as `fingerprint.json`: shows whether it loads as it was saved.

Weights that were silently initialised at random look like any others: they load, run and give numbers. The fingerprint
detects them on any machine. This file imports nothing of ours, so that it also runs in the clean process, where
clozebert cannot be imported.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import torch

FILE_NAME = "fingerprint.json"
_FORMAT = 1
_ROWS, _LENGTH, _PADDING = 2, 12, 3
_SAMPLES = 16
# Architectures whose positions start after the padding id: no token uses the rows before that.
COUNTED_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
# With another machine, thread count or release, float32 outputs differ by about 1e-6 of their size (measured 3e-6
# between SDPA and eager at 22 layers); with random weights, by about their size.
TOLERANCE = 1e-3


def probe_inputs(config: Any, *, choices: int = 0) -> dict[str, torch.Tensor]:
    """The fixed input of a configuration: two rows of token ids, the second padded; or one image.

    Args:
        config: the configuration of an encoder of transformers or ours.
        choices: for multiple choice, the number of variants of each row: [rows, choices, length].
    """
    if getattr(config, "image_size", None):
        size, channels = config.image_size, config.num_channels
        height, width = (size, size) if isinstance(size, int) else size
        steps = torch.arange(channels * height * width)
        return {"pixel_values": ((7 * steps) % 101 / 50.0 - 1.0).view(1, channels, height, width)}
    pad = config.pad_token_id or 0
    longest = getattr(config, "max_position_embeddings", _LENGTH)  # missing in some with relative positions
    if config.model_type in COUNTED_FROM_PADDING:
        longest -= pad + 1
    length = max(min(_LENGTH, longest), 2)
    rows = _ROWS * max(choices, 1)
    ids = (torch.arange(rows * length) * 7919 + 104729) % config.vocab_size
    ids_BT = torch.where(ids == pad, (pad + 1) % config.vocab_size, ids).view(rows, length)
    separate_pairs(config, ids_BT)
    mask_BT = torch.ones_like(ids_BT)
    padding = min(_PADDING, length - 1)
    ids_BT[-1, length - padding :], mask_BT[-1, length - padding :] = pad, 0
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
    return {key: x.view(_ROWS, choices, length) for key, x in inputs.items()} if choices else inputs


def separate_pairs(config: Any, ids_BT: torch.Tensor) -> None:
    """Make each row a pair, in place, if the model compares pairs: of a single text the comparison would be zero."""
    if getattr(config, "compare_pairs", False):
        ids_BT[:, ids_BT.shape[1] // 3] = config.sep_token_id


def model_outputs(model: Any) -> dict[str, torch.Tensor]:
    """The outputs of a model for its fixed input: all tensors, and the last hidden state of the encoder inside a head.

    Padding positions are left out.
    """
    was_training = model.training
    model.eval()
    inputs = probe_inputs(model.config)
    try:
        found = _run(model.base_model, inputs)
        if model.base_model is not model:
            found = {"last_hidden_state": found["last_hidden_state"]}
            if type(model).__name__.endswith("ForMultipleChoice"):
                inputs = probe_inputs(model.config, choices=3)
            found.update(_run(model, inputs))
    finally:
        model.train(was_training)
    return found


@torch.no_grad()
def _run(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    device = next(model.parameters()).device
    found = model(**{key: value.to(device) for key, value in inputs.items()}, return_dict=True)
    outputs = {key: value.cpu() for key, value in found.items() if isinstance(value, torch.Tensor)}
    if "attention_mask" not in inputs:
        return outputs
    # At padding positions native models give arbitrary values, ours give zeros.
    mask = inputs["attention_mask"].bool()
    of_tokens = {key for key, value in outputs.items() if value.shape[:-1] == mask.shape}  # [B, T, C]
    of_tokens |= {"start_logits", "end_logits"}
    return {key: value[mask] if key in of_tokens else value for key, value in outputs.items()}


def make_fingerprint(model: Any) -> dict[str, Any]:
    """Shape, mean, spread and evenly spaced values of each output of a float32 model.

    Raises:
        ValueError: an output or a weight is not finite.
    """
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"the weights {name} hold values that are not finite: this model cannot be published")
    outputs = {name: _describe(name, value.float()) for name, value in sorted(model_outputs(model).items())}
    return {"format": _FORMAT, "class": type(model).__name__, "outputs": outputs}


def _describe(name: str, x: torch.Tensor) -> dict[str, Any]:
    if not torch.isfinite(x).all():
        raise ValueError(f"the output {name} on the fixed input is not finite: this model cannot be published")
    flat = x.flatten().double()
    step = max(1, flat.numel() // _SAMPLES)
    samples = flat[::step][:_SAMPLES]
    return {
        "shape": list(x.shape),
        "mean": _round(flat.mean()),
        "spread": _round(flat.std(unbiased=False)),
        "values": [_round(value) for value in samples],
    }


def _round(value: Any) -> float:
    return float(f"{float(value):.7g}")


def find_differences(
    stored: dict[str, Any] | None, found: dict[str, Any], *, outputs: list[str] | None = None
) -> list[str]:
    """The differences between a stored fingerprint and a model's, in some outputs (None: all stored); empty if none."""
    if stored is None:
        return [f"there is no {FILE_NAME} to compare with"]
    if stored.get("format") != _FORMAT:
        return [f"the fingerprint has format {stored.get('format')}, and this version reads format {_FORMAT}"]
    differences = []
    for name in outputs if outputs is not None else list(stored["outputs"]):
        old, new = stored["outputs"].get(name), found["outputs"].get(name)
        if old is None:
            continue
        if new is None or old["shape"] != new["shape"]:
            differences.append(f"{name} has shape {new and new['shape']} instead of {old['shape']}")
            continue
        scale = max(old["spread"], abs(old["mean"]), 1e-12)
        pairs = [(old[key], new[key]) for key in ("mean", "spread")] + list(
            zip(old["values"], new["values"], strict=True)
        )
        worst = max(abs(a - b) for a, b in pairs)
        if not worst <= TOLERANCE * scale or math.isnan(worst):
            differences.append(f"{name} is off by {worst:.3g}, where its spread is {scale:.3g}")
    return differences


def read_fingerprint(directory: str | os.PathLike) -> dict[str, Any] | None:
    """The fingerprint of a folder, or None if it has none.

    Raises:
        ValueError: the file is not a fingerprint.
    """
    path = Path(directory) / FILE_NAME
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        outputs = values["outputs"].values()
        if values.get("format") == _FORMAT and not all(map(_is_description, outputs)):
            raise KeyError
        list(values.get("files", []))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not a fingerprint: delete it, and publish writes a new one") from None
    return values


def _is_description(output: dict[str, Any]) -> bool:
    """Whether one output has all its figures, and all are numbers."""
    figures = [output["mean"], output["spread"], *output["values"], *output["shape"]]
    return all(isinstance(figure, (int, float)) for figure in figures)


def write_fingerprint(directory: str | os.PathLike, values: dict[str, Any]) -> None:
    """Write `fingerprint.json` into a folder, completely or not at all."""
    path = Path(directory) / FILE_NAME
    temporary = path.with_name(f".{FILE_NAME}.tmp")
    temporary.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8", newline="\n")
    temporary.replace(path)
