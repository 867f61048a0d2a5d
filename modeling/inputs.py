# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Checks of a model's inputs, before anything is computed.

Shapes: B rows, T tokens of a row, E embedding size.
"""

from typing import Any

import torch

from ..configuration.configuration_clozebert import ClozeBertConfig
from .fast_paths import is_traced, value_outside
from .packed import Packed

_WRONG_SHAPE = "{} of shape {} must be {}, as the input"


def check_text(
    input_ids: torch.Tensor | None,
    attention_mask: Any,
    token_type_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    pixel_values: torch.Tensor | None = None,
) -> torch.Size:
    """Check the inputs of a text model; return the batch's shape [B, T].

    Raises:
        ValueError: not exactly one input, an empty one, or shapes or devices that do not fit one another.
    """
    if pixel_values is not None:
        raise ValueError("pixel_values given to a text model: its configuration has image_size=None")
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give exactly one of input_ids and inputs_embeds")
    for name, value in (("input_ids", input_ids), ("inputs_embeds", inputs_embeds), ("token_type_ids", token_type_ids)):
        if value is not None and not isinstance(value, torch.Tensor):
            raise ValueError(f"{name} is a {type(value).__name__}; give a tensor")
    if input_ids is not None and input_ids.dim() != 2:
        raise ValueError(f"input_ids of shape {tuple(input_ids.shape)} must be [batch, length]")
    if inputs_embeds is not None and inputs_embeds.dim() != 3:
        raise ValueError(f"inputs_embeds of shape {tuple(inputs_embeds.shape)} must be [batch, length, size]")
    given = input_ids if input_ids is not None else inputs_embeds
    assert given is not None
    shape_BT = given.shape[:2]
    if not torch.compiler.is_compiling() and 0 in shape_BT:
        raise ValueError(f"input of shape {tuple(shape_BT)} holds no token: leave an empty batch out")
    if token_type_ids is not None and token_type_ids.shape not in (shape_BT, (1, shape_BT[1])):
        raise ValueError(_WRONG_SHAPE.format("token_type_ids", tuple(token_type_ids.shape), tuple(shape_BT)))
    check_mask(attention_mask, shape_BT)
    for name, value in (("token_type_ids", token_type_ids), ("attention_mask", attention_mask)):
        if isinstance(value, torch.Tensor) and value.device != given.device:
            raise ValueError(f"{name} lies on {value.device}, the input on {given.device}: move one to the other")
    return shape_BT


def leading_shape(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Size:
    """[B, T] of whichever is given; nothing if neither is a tensor, which the encoder refuses."""
    given = input_ids if input_ids is not None else inputs_embeds
    return given.shape[:2] if isinstance(given, torch.Tensor) else torch.Size(())


def check_mask(attention_mask: Any, shape_BT: torch.Size) -> None:
    """Refuse a mask that is neither [B, T], over tokens, nor [B, heads, T, T], for the attention itself."""
    if isinstance(attention_mask, (list, tuple)):
        raise ValueError(f"attention_mask is a {type(attention_mask).__name__}; give a tensor")
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.shape == shape_BT:
        return
    if attention_mask.dim() != 4:
        raise ValueError(_WRONG_SHAPE.format("attention_mask", tuple(attention_mask.shape), tuple(shape_BT)))
    if attention_mask.dtype != torch.bool and not attention_mask.is_floating_point():
        raise ValueError(
            f"attention_mask of {attention_mask.dtype} and four dimensions would be added to the scores; give it as "
            f"torch.bool, True where a token is read, or as numbers to add"
        )
    if attention_mask.shape[0] not in (1, shape_BT[0]) or attention_mask.shape[2:] != (shape_BT[1], shape_BT[1]):
        raise ValueError(
            f"attention_mask of shape {tuple(attention_mask.shape)} must be [batch, heads or 1, {shape_BT[1]}, "
            f"{shape_BT[1]}], or {tuple(shape_BT)}"
        )


def refuse_causal(kwargs: Any) -> None:
    """Take `is_causal` out of a forward's further arguments, and refuse True."""
    if kwargs.pop("is_causal", None):
        raise ValueError("is_causal=True: a token of an encoder sees those on both sides; leave it out")


def check_length(config: ClozeBertConfig, shape_BT: torch.Size, packed: Packed | None) -> None:
    """Refuse rows, or packed documents, longer than `max_position_embeddings`: positions that are added end there."""
    length = shape_BT[1] if packed is None else packed.max_length
    # In a traced program the lengths of packed documents are unknown, and max_length may be more than any of them.
    if length > config.max_position_embeddings and (packed is None or not is_traced()):
        raise ValueError(
            f"a sequence of {length} tokens is longer than max_position_embeddings={config.max_position_embeddings}; "
            f"truncate it or split it into windows"
        )


def check_ids(ids: torch.Tensor, limit_value: int, *, name: str, limit: str) -> None:
    """Raise `ValueError` for ids that are not integers or, on a CPU, lie outside [0, limit_value)."""
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"{name} must be whole numbers (torch.long), not {ids.dtype}")
    wrong = value_outside(ids, limit_value)
    if wrong is not None:
        raise ValueError(f"{name} holds {wrong}, outside the {limit_value} rows that {limit} gives")


def row_mask(attention_mask: Any) -> torch.Tensor | None:
    """The mask [B, T] that tells tokens from padding, or None if the mask is one for the attention itself.

    [B, 1, 1, T] is the same mask, either boolean or added to the scores, so 0 at tokens.
    """
    if not isinstance(attention_mask, torch.Tensor):
        return None
    if attention_mask.dim() == 4 and attention_mask.shape[1] == attention_mask.shape[2] == 1:
        mask_BT = attention_mask[:, 0, 0]
        return mask_BT == 0 if mask_BT.is_floating_point() else mask_BT
    return attention_mask if attention_mask.dim() == 2 else None


__all__ = ["check_ids", "check_length", "check_mask", "check_text", "leading_shape", "refuse_causal", "row_mask"]
