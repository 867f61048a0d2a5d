"""The optimizer of fine-tuning: parameter groups with rates by layer, AdamW, the gradient of a regression's head."""

from typing import Any

import torch
from torch import nn

from .models import depth_of_parameters, output_layer


def parameter_groups(
    model: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float,
    layer_decay: float = 1.0,
    output_scale: float = 1.0,
) -> list[dict[str, Any]]:
    """The optimizer's parameter groups: no weight decay for vectors (norms, biases), and layer-wise learning rates.

    Args:
        layer_decay: layer k of n has the rate learning_rate × layer_decay ** (n + 1 - k) (Howard & Ruder 2018).
        output_scale: the output layer has the rate learning_rate × output_scale; its decay per step is not scaled.
    """
    depths = depth_of_parameters(model) if layer_decay != 1.0 else {}
    top = max(depths.values(), default=0)
    scaled = {id(parameter) for parameter in _scaled_parameters(model)}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        factor = output_scale if id(parameter) in scaled else 1.0
        rate = learning_rate * factor * layer_decay ** (top - depths.get(name, top))
        decay = weight_decay / factor if parameter.dim() > 1 else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
    return [{"params": params, "lr": rate, "weight_decay": decay} for (rate, decay), params in groups.items()]


def scale_output_gradient(model: nn.Module, scale: float) -> None:
    """Multiply the gradient of the output layer by the deviation of the values, its unit, when it is computed.

    It is then what it would be for standardised values: clipping weighs it like the encoder's gradient, and AdamW's
    epsilon is as small beside it.
    """
    if scale != 1.0:
        for parameter in _scaled_parameters(model):
            parameter.register_hook(lambda gradient: gradient * scale)


def _scaled_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters in the unit of a regression's values: those of an output layer that can hold their mean."""
    output = output_layer(model)
    return [] if output is None or output.bias is None else list(output.parameters())


def make_adamw(groups: list[dict[str, Any]], *, learning_rate: float) -> torch.optim.AdamW:
    """AdamW over parameter groups, fused if the device has a kernel for it."""
    device = groups[0]["params"][0].device.type
    return torch.optim.AdamW(groups, lr=learning_rate, fused=device in ("cpu", "cuda"))
