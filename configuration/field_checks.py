# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""What a field of `ClozeBertConfig` may hold, whatever the other fields hold, and which name was meant.

This file travels inside checkpoints.
"""

import difflib
from collections.abc import Iterable
from typing import Any

_CHOICES = {
    "norm_position": ("post", "pre"),
    "norm_type": ("layernorm", "rmsnorm"),
    "position_embedding_type": ("absolute", "sinusoidal", "rope", "none"),
    "position_rule": ("row", "non_pad"),
    "mlp_type": ("mlp", "glu"),
    "classifier_pooling": ("cls", "mean", "max", "attention"),
    "classifier_dense": ("none", "pooled", "all"),
    "output_projection_init": ("normal", "scaled", "zero"),
    "problem_type": ("single_label_classification", "multi_label_classification", "regression"),
}
_PROBABILITIES = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout", "mlp_dropout", "classifier_dropout",
)  # fmt: skip
_POSITIVE = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "max_position_embeddings", "embedding_size", "image_size", "patch_size", "num_channels", "sliding_window",
)  # fmt: skip
_NOT_NEGATIVE = ("type_vocab_size", "position_offset", "norm_eps", "initializer_range")
_MOST = (1 << 31) - 1  # of these two kinds
LAYER_TYPES = ("full_attention", "sliding_attention")
# The parameters that each type of rotary positions requires besides its base, then all that are allowed.
_ROPE_NEEDS = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}  # fmt: skip
_ROPE_KEYS = [
    "rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "partial_rotary_factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
]  # fmt: skip


def check_value(name: str, value: Any) -> None:
    """Refuse a value of the field `name` that is invalid whatever the other fields hold.

    Raises:
        ValueError: names the field, its value and what it may hold.
    """
    refuse_parts_of_rope({name: value})
    if name in _CHOICES and value not in _CHOICES[name] and (name, value) != ("problem_type", None):
        hint = suggestion(str(value), _CHOICES[name])
        raise ValueError(f"{name}={value!r} must be one of {', '.join(_CHOICES[name])}{hint and '; '}{hint}")
    if name == "layer_types":
        for layer_type in value or []:
            if layer_type not in LAYER_TYPES:
                raise ValueError(f"layer_types holds {layer_type!r}; it may hold {' and '.join(LAYER_TYPES)}")
    if name == "dtype" and value not in (None, "auto"):
        _check_dtype(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_number(name, value)


def _check_dtype(value: Any) -> None:
    """Refuse what is no floating-point type of torch, by itself or by name; the base class fails at it much later."""
    import torch

    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype={value!r} must be a floating-point type, as in dtype='float32'")


def _check_number(name: str, value: float) -> None:
    if name in _PROBABILITIES and not 0 <= value <= 1:
        raise ValueError(f"{name}={value} is a probability: it must lie between 0 and 1")
    if name in _POSITIVE and value <= 0:
        raise ValueError(f"{name}={value} must be at least 1")
    if name in _NOT_NEGATIVE and not value >= 0:  # also refuses NaN
        raise ValueError(f"{name}={value} must not be negative")
    if name in (*_POSITIVE, *_NOT_NEGATIVE) and value > _MOST:  # libraries fail in many ways at larger ones
        raise ValueError(f"{name}={value} is too large: at most {_MOST}")


def refuse_parts_of_rope(overrides: dict[str, Any]) -> None:
    """Refuse to set `rope_theta` or `rope_scaling` alone: the `rope_parameters` that are there take precedence."""
    for key in {key for key in ("rope_theta", "rope_scaling") if overrides.get(key) is not None}:
        raise ValueError(f"{key}={overrides[key]} cannot be set by itself: give rope_parameters")


def check_rope_of_layers(parameters: dict[str, Any]) -> None:
    """Refuse rotary positions, of all layers or of one type of them, that are unknown, incomplete or out of range."""
    rope_type = parameters["rope_type"]
    if rope_type not in _ROPE_NEEDS:
        raise ValueError(f"rope_parameters: rope_type={rope_type!r} must be one of {', '.join(_ROPE_NEEDS)}")
    for key in parameters:
        if key not in _ROPE_KEYS:
            hint = suggestion(key, _ROPE_KEYS, otherwise=f"known: {', '.join(_ROPE_KEYS)}")
            raise ValueError(f"unknown key {key!r} in rope_parameters; {hint}")
    missing = [key for key in _ROPE_NEEDS[rope_type] if key not in parameters]
    if missing:
        raise ValueError(f"rope_parameters of rope_type={rope_type!r} need {', '.join(missing)}")
    for key in ("rope_theta", "factor"):
        value = parameters.get(key, 1)
        if not isinstance(value, (int, float)) or not value > 0:
            raise ValueError(f"rope_parameters: {key}={value!r} must be a number above 0")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("rope_parameters: partial_rotary_factor must be 1.0: all channels of a head turn")


def unknown_key_message(key: str, known: list[str]) -> str:
    """The message for an unknown key: `unknown configuration key 'hiden_size'; did you mean 'hidden_size'?`"""
    hint = suggestion(key, known, otherwise="see the docstring of ClozeBertConfig for the known keys")
    return f"unknown configuration key {key!r}; {hint}"


def nearest_key(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that resembles `word` most; None: none does."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def suggestion(word: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """`did you mean 'hidden_size'?`, or `otherwise` if no known word resembles `word`."""
    nearest = nearest_key(word, known)
    return f"did you mean {nearest!r}?" if nearest else otherwise
