"""The longest input of a model, in tokens."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from .tokenizer_files import read_tokenizer_settings, write_tokenizer_settings

NO_LIMIT = 1 << 30


def longest_input(model: nn.Module, tokenizer: Any) -> int:
    """The most tokens of one sequence, special ones included, that the model's positions and the tokenizer allow.

    For relative or rotary positions this is the length in the configuration. `NO_LIMIT` if neither model nor tokenizer
    states a limit.
    """
    limits = [NO_LIMIT, int(tokenizer.model_max_length)]  # 1e30 for a tokenizer without a limit
    config: Any = model.config
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        limits.append(positions)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(getattr(module, "weight", None), torch.Tensor):
            # RoBERTa and MPNet count positions from padding_idx + 1: the rows before that belong to no token.
            padding_idx = getattr(module, "padding_idx", None)
            limits.append(len(module.weight) - (0 if padding_idx is None else padding_idx + 1))
    return min(limits)


def announce_length(folder: Path, model: nn.Module, *, trained_on: int = 0) -> None:
    """Write what the model takes as `model_max_length` of the tokenizer in a folder: pipelines truncate texts there.

    A smaller number stays, unless the model was `trained_on` longer rows.
    """
    settings = read_tokenizer_settings(folder)
    stated = settings.get("model_max_length", NO_LIMIT)
    fitting = stated if trained_on <= stated else NO_LIMIT
    longest = longest_input(model, SimpleNamespace(model_max_length=fitting))
    if longest not in (stated, NO_LIMIT):
        write_tokenizer_settings(folder, {**settings, "model_max_length": longest})


def beginning_of(tokenizer: Any, text: str, tokens: int) -> tuple[list[int], int]:
    """The ids of the first tokens of a text, special ones included, and the character at which they end.

    Tokenizes only as much of the text as needed.
    """
    characters, backend = 16 * tokens, tokenizer.backend_tokenizer
    before = backend.truncation  # else a tokenizer that is saved later would keep ours
    side, tokenizer.truncation_side = tokenizer.truncation_side, "right"
    try:
        while True:
            cut = tokenizer(text[:characters], truncation=True, max_length=tokens, return_offsets_mapping=True)
            if len(cut["input_ids"]) >= tokens or characters >= len(text):
                return cut["input_ids"], max((end for _, end in cut["offset_mapping"]), default=0)
            characters *= 4
    finally:
        tokenizer.truncation_side = side
        backend.no_truncation() if before is None else backend.enable_truncation(**before)
