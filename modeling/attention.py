# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Multi-head attention (Vaswani et al. 2017): softmax(Q K^T / sqrt(K)) V, over whichever kernel is asked for.

Shapes: B rows, T tokens of a row, D hidden size, H heads, K head size.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..configuration.configuration_clozebert import ClozeBertConfig
from .products import in_product_type, is_recorded, project
from .ragged_attention import RaggedPlan, attend, products_pay, ragged_attention, repeat_heads


def rotate(x_BTHK: torch.Tensor, cos_BTK: torch.Tensor, sin_BTK: torch.Tensor) -> torch.Tensor:
    """RoPE (Su et al. 2021): turn each pair (x_i, x_{i + K/2}) by its angle, in the tables' type or better.

    Both halves of a table are the same: a pair has one angle.
    """
    half = x_BTHK.shape[-1] // 2
    cos, sin = cos_BTK[..., None, :half], sin_BTK[..., None, :half]
    if torch.is_grad_enabled() and not is_recorded():
        return _Rotation.apply(x_BTHK, cos, sin)
    return _rotated(x_BTHK, cos, sin)


def _rotated(x_BTHK: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x_BTHK.to(torch.promote_types(x_BTHK.dtype, cos.dtype)).chunk(2, dim=-1)
    turned = (torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin))
    return torch.cat([part.to(x_BTHK.dtype) for part in turned], dim=-1)


class _Rotation(torch.autograd.Function):
    """Its gradient is the gradient turned back: fewer passes than PyTorch makes of the formula, and x is not kept."""

    @staticmethod
    def forward(ctx: Any, x_BTHK: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x_BTHK, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad_BTHK: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _Rotation.apply(grad_BTHK, cos, -sin), None, None


def eager_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula, step by step; the one implementation that gives the weights.

    Shape: query [B, H, T, K], key and value [B, H or fewer, T, K], attention_mask additive and broadcastable to
    [B, H, T, T] -> ([B, T, H, K], weights [B, H, T, T]).
    """
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    scores_BHTT = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            attention_mask = torch.zeros_like(attention_mask, dtype=query.dtype).masked_fill(
                ~attention_mask, torch.finfo(query.dtype).min
            )
        scores_BHTT = scores_BHTT + attention_mask
    # In float32 (or better): bf16 keeps 8 bits of a probability, and rows then do not add up to 1.
    wide = torch.promote_types(scores_BHTT.dtype, torch.float32)
    weights_BHTT = scores_BHTT.softmax(dim=-1, dtype=wide).to(query.dtype)
    weights_BHTT = F.dropout(weights_BHTT, p=dropout, training=module.training)
    return (weights_BHTT @ value).transpose(1, 2).contiguous(), weights_BHTT


def queries_of(x_BTD: torch.Tensor, attention_mask: Any) -> torch.Tensor:
    """The tokens that are queries: [1, R, D] of a plan that says which, else all."""
    if not isinstance(attention_mask, RaggedPlan) or attention_mask.read_R is None:
        return x_BTD
    return x_BTD.index_select(1, attention_mask.read_R)


class Attention(nn.Module):
    """Attention over all tokens, or over a window of `sliding_window` on either side, by the layer's type."""

    is_causal = False

    def __init__(self, config: ClozeBertConfig, layer_idx: int):
        super().__init__()
        heads, key_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
        if config.hidden_size % heads:
            raise ValueError(f"hidden_size={config.hidden_size} must be a multiple of num_attention_heads={heads}")
        if heads % key_heads:
            raise ValueError(f"num_attention_heads={heads} must be a multiple of num_key_value_heads={key_heads}")
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.hidden_size // heads
        self.scaling = self.head_dim**-0.5
        self.num_key_value_groups = heads // key_heads
        is_sliding = config.attention_type(layer_idx) == "sliding_attention"
        self.sliding_window = config.sliding_window if is_sliding else None
        self.dropout = float(config.attention_probs_dropout_prob)
        self.q_proj = nn.Linear(config.hidden_size, heads * self.head_dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_heads * self.head_dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_heads * self.head_dim, bias=config.attention_bias)
        self.o_proj = nn.Linear(heads * self.head_dim, config.hidden_size, bias=config.attention_bias)
        self.o_proj.is_output_projection = True  # type: ignore[assignment]
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps) if config.qk_norm else None

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Shape: hidden_states [B, T, D] -> ([B, T, D], weights [B, H, T, T] where the implementation gives them).

        `attention_mask` is what the chosen implementation takes (additive, boolean, a BlockMask, or a `RaggedPlan`).
        By a plan that reads R tokens only, the output is [1, R, D].
        """
        hidden_states = in_product_type(hidden_states)
        queries = queries_of(hidden_states, attention_mask)
        q_BTHK, k_BTHK, v_BTHK = (
            project(layer, x_BTD).view(*x_BTD.shape[:-1], -1, self.head_dim)
            for layer, x_BTD in ((self.q_proj, queries), (self.k_proj, hidden_states), (self.v_proj, hidden_states))
        )
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHK, k_BTHK = self.q_norm(q_BTHK), self.k_norm(k_BTHK)
        if position_embeddings is not None:
            q_BTHK = rotate(q_BTHK, *(queries_of(table, attention_mask) for table in position_embeddings))
            k_BTHK = rotate(k_BTHK, *position_embeddings)
        q_BHTK, k_BHTK, v_BHTK = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHK))
        dropout = self.dropout if self.training else 0.0
        weights_BHTT = None
        if isinstance(attention_mask, RaggedPlan):
            out_BTHK = ragged_attention(q_BHTK, k_BHTK, v_BHTK, attention_mask, scaling=self.scaling, dropout=dropout)
        elif self._by_products(q_BHTK, attention_mask, dropout):
            k_BHTK, v_BHTK = (repeat_heads(x, q_BHTK.shape[1]) for x in (k_BHTK, v_BHTK))
            out_BTHK = attend(q_BHTK, k_BHTK, v_BHTK, attention_mask, scaling=self.scaling, dropout=dropout).transpose(
                1, 2
            )
        else:
            attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
            out_BTHK, weights_BHTT = attention(
                self,
                q_BHTK,
                k_BHTK,
                v_BHTK,
                attention_mask,
                dropout=dropout,
                scaling=self.scaling,
                is_causal=False,
                # Flash attention in transformers counts the token itself into the window.
                sliding_window=None if self.sliding_window is None else self.sliding_window + 1,
                **kwargs,
            )
        return project(self.o_proj, out_BTHK.reshape(*queries.shape[:-1], -1)), weights_BHTT

    def _by_products(self, q_BHTK: torch.Tensor, mask: Any, dropout: float) -> bool:
        """Whether `sdpa` is done by plain matrix products. Not under a compiler, which would guard on the length."""
        return (
            self.config._attn_implementation == "sdpa"
            and not is_recorded()
            and (mask is None or mask.dtype == torch.bool)
            and products_pay(q_BHTK, q_BHTK, dropout)
        )


__all__ = ["Attention", "eager_attention", "queries_of", "rotate"]
