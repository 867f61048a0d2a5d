# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""The encoder's repeating parts: norm, feed-forward, layer.

Shapes: B rows, T tokens, D hidden size, F feed-forward size.
"""

from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from ..configuration.configuration_clozebert import ClozeBertConfig
from .attention import Attention
from .products import in_product_type, project


def make_norm(config: ClozeBertConfig, size: int) -> nn.Module:
    """Layer norm, (x - mean) / sqrt(var + eps) * w + b, or RMS norm, x / sqrt(mean(x^2) + eps) * w."""
    if config.norm_type == "rmsnorm":
        return nn.RMSNorm(size, eps=config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.norm_bias)


def make_activation(name: str) -> nn.Module:
    """An activation by its name in transformers' ACT2FN.

    Raises:
        ValueError: no activation has that name.
    """
    if name not in ACT2FN:
        raise ValueError(f"unknown activation {name!r}; known: {', '.join(sorted(ACT2FN))}")
    return ACT2FN[name]


class FeedForward(nn.Module):
    """`mlp`: W_down act(W_up x). `glu`: W_down (act(W_gate x) * W_up x) (Shazeer 2020)."""

    def __init__(self, config: ClozeBertConfig):
        super().__init__()
        inner, outer, bias = config.intermediate_size, config.hidden_size, config.mlp_bias
        self.gate_proj = nn.Linear(outer, inner, bias=bias) if config.mlp_type == "glu" else None
        self.up_proj = nn.Linear(outer, inner, bias=bias)
        self.down_proj = nn.Linear(inner, outer, bias=bias)
        self.down_proj.is_output_projection = True  # type: ignore[assignment]
        self.activation = make_activation(config.hidden_act)
        self.activation_name = config.hidden_act
        self.dropout = nn.Dropout(config.mlp_dropout)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Shape: [B, T, D] -> [B, T, D]."""
        x_BTD = in_product_type(x_BTD)
        first = self.up_proj if self.gate_proj is None else self.gate_proj
        h_BTF = project(first, x_BTD, activation=self.activation, name=self.activation_name)
        if self.gate_proj is not None:
            h_BTF = h_BTF * project(self.up_proj, x_BTD)
        return project(self.down_proj, self.dropout(h_BTF))


class EncoderLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each with its residual. Dropout falls on a sub-layer's output, before the addition.

    post-norm (Vaswani et al. 2017): x = norm(x + f(x)).  pre-norm (Xiong et al. 2020): x = x + f(norm(x)).
    """

    def __init__(self, config: ClozeBertConfig, layer_idx: int):
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.attention_type = config.attention_type(layer_idx)
        self.attention = Attention(config, layer_idx)
        self.mlp = FeedForward(config)
        has_norm = config.first_attention_norm or layer_idx > 0
        self.attention_norm = make_norm(config, config.hidden_size) if has_norm else nn.Identity()
        self.mlp_norm = make_norm(config, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Shape: [B, T, D] -> [B, T, D]; the other arguments are `Attention`'s."""
        x_BTD = hidden_states
        attend = {"attention_mask": attention_mask, "position_embeddings": position_embeddings, **kwargs}
        if self.pre_norm:
            x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), **attend)[0])
            return x_BTD + self.dropout(self.mlp(self.mlp_norm(x_BTD)))
        x_BTD = self.attention_norm(x_BTD + self.dropout(self.attention(x_BTD, **attend)[0]))
        return self.mlp_norm(x_BTD + self.dropout(self.mlp(x_BTD)))


__all__ = ["EncoderLayer", "FeedForward", "make_activation", "make_norm"]
