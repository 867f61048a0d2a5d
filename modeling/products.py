# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Products of vectors with weight matrices, with as few passes over memory as the device allows."""

import torch
from torch import nn

# Activations that oneDNN computes within the product: its name, and the variant.
_FUSED_ACTIVATIONS = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
}


def is_recorded() -> bool:
    """Whether a graph of the computation is being recorded: nothing in it may then hang on values or lengths."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.compiler.is_exporting()


def in_product_type(x: torch.Tensor) -> torch.Tensor:
    """x in the type that autocast gives matrix products: cast here once, and not by each of the maps that read it."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def project(
    layer: nn.Module, x: torch.Tensor, *, activation: nn.Module | None = None, name: str | None = None
) -> torch.Tensor:
    """activation(layer(x)). Encoding in bf16 on a CPU, bias and activation are part of the product's own kernel.

    Args:
        layer: a linear map, or whatever took its place (an adapter, a quantised map).
        activation: None: the identity.
        name: the activation's, in transformers' ACT2FN.
    """
    if name in _FUSED_ACTIVATIONS and _is_plain_linear(layer) and _has_fused_product(x, layer):
        kind, variant = _FUSED_ACTIVATIONS[name]
        return torch.ops.mkldnn._linear_pointwise(x, layer.weight, layer.bias, kind, [], variant)
    x = layer(x)
    return x if activation is None else activation(x)


def _is_plain_linear(layer: nn.Module) -> bool:
    """Whether calling the layer does nothing but multiply: no subclass, no hook, no `forward` put in its place."""
    return (
        type(layer) is nn.Linear
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and "forward" not in vars(layer)
    )


def _has_fused_product(x: torch.Tensor, layer: nn.Module) -> bool:
    """Half precision on a CPU that multiplies it, nothing to differentiate, no graph being recorded."""
    return (
        x.dtype == torch.bfloat16 == layer.weight.dtype
        and x.device.type == "cpu" == layer.weight.device.type
        and not torch.is_grad_enabled()
        and not is_recorded()
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


__all__ = ["in_product_type", "is_recorded", "project"]
