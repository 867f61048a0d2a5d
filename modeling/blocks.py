# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""The encoder layer: feed-forward (MLP or GLU), norms, residual connections.

Shapes: B rows, T tokens, D hidden size, F feed-forward size.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from ..configuration.configuration_clozebert import ClozeBertConfig
from .attention import Attention
from .fast_paths import (
    Dropout,
    cast_once,
    dropout,
    has_global_hooks,
    is_plain_linear,
    is_traced,
    is_untouched,
    linear,
    recompute,
    should_recompute,
)
from .joined import can_join, joined_gate_and_up, split_norm, unsplit
from .packed_attention import tokens_read


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
        self.dropout = Dropout(config.mlp_dropout)

    @property
    def input_layers(self) -> tuple[nn.Module, ...]:
        """The linear layers that read the input, if compiled code joins them."""
        return () if self.gate_proj is None else (self.gate_proj, self.up_proj)

    def forward(self, x_BTD: torch.Tensor, scale_D: torch.Tensor | None = None) -> torch.Tensor:
        """Shape: [B, T, D] -> [B, T, D]. `scale_D` is what `split_norm` left to the joined layers."""
        x_BTD = cast_once(unsplit(x_BTD, scale_D))
        if torch.is_grad_enabled() or is_traced():
            if self.gate_proj is None:
                return self._down(self.up_proj(x_BTD))
            if torch.compiler.is_compiling() and can_join(self.input_layers, x_BTD):
                return self._down(*joined_gate_and_up(self.gate_proj, self.up_proj, x_BTD, scale_D))
            return self._down(self.gate_proj(x_BTD), self.up_proj(x_BTD))
        first = self.up_proj if self.gate_proj is None else self.gate_proj
        h_BTF = linear(first, x_BTD, activation=self.activation, name=self.activation_name)
        h_BTF = h_BTF if self.gate_proj is None else h_BTF * linear(self.up_proj, x_BTD)
        return linear(self.down_proj, self.dropout(h_BTF))

    def _down(self, h_BTF: torch.Tensor, up_BTF: torch.Tensor | None = None) -> torch.Tensor:
        """W_down dropout(act(h)), or W_down dropout(act(h) * up).

        What this would keep for the backward pass is most of a layer's memory, and quick to compute again. Until then
        weights and dropout may have changed, so what is computed again takes them as they are now. An adapter is not
        part of it.
        """
        down, drop = self.down_proj, self.dropout
        if not should_recompute(h_BTF):
            return down(drop(self._activate(h_BTF, up_BTF)))
        if is_untouched(drop, Dropout) and is_plain_linear(down) and not has_global_hooks():
            map_down = partial(self._map_down, drop.p if drop.training else 0.0)
            return recompute(map_down, h_BTF, up_BTF, down.weight, down.bias)
        return down(drop(recompute(self._activate, h_BTF, up_BTF)))

    def _activate(self, h_BTF: torch.Tensor, up_BTF: torch.Tensor | None) -> torch.Tensor:
        h_BTF = self.activation(h_BTF)
        return h_BTF if up_BTF is None else h_BTF * up_BTF

    def _map_down(
        self,
        p: float,
        h_BTF: torch.Tensor,
        up_BTF: torch.Tensor | None,
        weight_DF: torch.Tensor,
        bias_D: torch.Tensor | None,
    ) -> torch.Tensor:
        h_BTF = self._activate(h_BTF, up_BTF)
        return F.linear(dropout(h_BTF, p) if p else h_BTF, weight_DF, bias_D)


class EncoderLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each with a residual. Dropout applies to a sub-layer's output, before the addition.

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
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Shape: [B, T, D] -> [B, T, D], or [1, R, D] if only R tokens are read; other arguments as in `Attention`."""
        attend = {"attention_mask": attention_mask, "position_embeddings": position_embeddings, **kwargs}
        x_BTD = hidden_states
        if (read_R := tokens_read(attention_mask)) is not None:
            x_BTD = x_BTD.index_select(1, read_R)
        if self.pre_norm:
            joins = self.attention if read_R is None else None
            h_BTD, scale = split_norm(self.attention_norm, joins, Attention, hidden_states)
            x_BTD = x_BTD + self.dropout(self.attention(h_BTD, **scale, **attend)[0])
            h_BTD, scale = split_norm(self.mlp_norm, self.mlp, FeedForward, x_BTD)
            return x_BTD + self.dropout(self.mlp(h_BTD, **scale))
        x_BTD = self.attention_norm(x_BTD + self.dropout(self.attention(hidden_states, **attend)[0]))
        return self.mlp_norm(x_BTD + self.dropout(self.mlp(x_BTD)))


__all__ = ["EncoderLayer", "FeedForward", "make_activation", "make_norm"]
