# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Multi-head attention (Vaswani et al. 2017): softmax(Q K^T / sqrt(K)) V, by the configured implementation.

Shapes: B rows, T tokens of a row, R tokens whose output is read, D hidden size, H heads, K head size.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_utils import AttentionInterface

from ..configuration.configuration_clozebert import ClozeBertConfig
from .attention_tiles import TilePlan, tiled_attention
from .fast_paths import Dropout, attend, cast_once, linear, matmul_attention_pays, repeat_heads, rotate
from .joined import can_join, joined_heads, joined_window_attention, unsplit
from .packed_attention import PackedPlan, padded_attention, tokens_read, varlen_attention, windowed_attention

_STOCK = AttentionInterface()


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
    """Attention by the plain formula; the only implementation that returns the weights.

    Shape: query [B, H, T, K], key and value [B, H or fewer, T, K], attention_mask additive or boolean and broadcastable
    to [B, H, T, T] -> ([B, T, H, K], weights [B, H, T, T]).
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


def sdpa_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """transformers' own attention by PyTorch's SDPA kernel, or plain matmuls on a CPU where they are faster."""
    is_boolean = attention_mask is None or attention_mask.dtype == torch.bool
    if not (is_boolean and matmul_attention_pays(query, query.shape[2], dropout)):
        return _STOCK["sdpa"](module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    out_BHTK = attend(query, key, value, attention_mask, scaling=scaling, dropout=dropout)
    return out_BHTK.transpose(1, 2), None


# transformers' attention functions and ours, which are not registered globally.
ALL_ATTENTION_FUNCTIONS = AttentionInterface()
ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention
ALL_ATTENTION_FUNCTIONS["tiles"] = tiled_attention
ALL_ATTENTION_FUNCTIONS["varlen"] = varlen_attention
ALL_ATTENTION_FUNCTIONS["window"] = windowed_attention
ALL_ATTENTION_FUNCTIONS["padded"] = padded_attention


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
        # transformers' flash attention counts the token itself as part of the window.
        self.sliding_window = config.sliding_window + 1 if is_sliding and config.sliding_window is not None else None
        self.dropout = Dropout(config.attention_probs_dropout_prob)  # a module, so that its `p` can be set as in BERT
        self.q_proj = nn.Linear(config.hidden_size, heads * self.head_dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_heads * self.head_dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_heads * self.head_dim, bias=config.attention_bias)
        self.o_proj = nn.Linear(heads * self.head_dim, config.hidden_size, bias=config.attention_bias)
        self.o_proj.is_output_projection = True  # type: ignore[assignment]
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps) if config.qk_norm else None

    @property
    def input_layers(self) -> tuple[nn.Module, ...]:
        """The linear layers that read the input."""
        return self.q_proj, self.k_proj, self.v_proj

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        scale_D: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Shape: hidden_states [B, T, D] -> ([B, T, D], weights [B, H, T, T] if the implementation returns them).

        `attention_mask` is what the configured implementation takes (additive, boolean, a BlockMask), or a plan, which
        names its own implementation. With a plan that reads only R tokens, the output is [1, R, D]. `scale_D` is what
        `split_norm` left to the joined layers.
        """
        tables: Any = position_embeddings
        queries = x_BTD = cast_once(unsplit(hidden_states, scale_D))
        query_tables = tables
        if (read_R := tokens_read(attention_mask)) is not None:
            queries = x_BTD.index_select(1, read_R)
            query_tables = tables and tuple(table.index_select(1, read_R) for table in tables)
        layers = self.input_layers
        has_plan = isinstance(attention_mask, (TilePlan, PackedPlan))
        if torch.compiler.is_compiling() and queries is x_BTD and can_join(layers, x_BTD):
            is_rotated = tables is not None and self.q_norm is None  # norms come first
            if is_rotated and has_plan and attention_mask.implementation == "window":
                documents, window = attention_mask.document_N, attention_mask.window
                out_BTHK = joined_window_attention(layers, x_BTD, scale_D, tables, self.head_dim, documents, window)
                return linear(self.o_proj, out_BTHK.flatten(2)), None
            q_BTHK, k_BTHK, v_BTHK = joined_heads(layers, x_BTD, scale_D, tables if is_rotated else None, self.head_dim)
        else:
            is_rotated = False
            projected = (linear(layer, x) for layer, x in zip(layers, (queries, x_BTD, x_BTD), strict=True))
            # Not `unflatten`: torch.onnx.export(dynamo=False) would fix the length to that of the example.
            q_BTHK, k_BTHK, v_BTHK = (x.view(*x.shape[:-1], -1, self.head_dim) for x in projected)
        if self.q_norm is not None and self.k_norm is not None:
            # Under CUDA's autocast norms return float32, but attention kernels need one type.
            q_BTHK, k_BTHK = self.q_norm(q_BTHK).to(v_BTHK.dtype), self.k_norm(k_BTHK).to(v_BTHK.dtype)
        if tables is not None and not is_rotated:
            q_BTHK, k_BTHK = rotate(q_BTHK, *query_tables), rotate(k_BTHK, *tables)

        implementation = attention_mask.implementation if has_plan else self.config._attn_implementation
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
        out_BTHK, weights_BHTT = attention(
            self,
            *(x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHK)),
            attention_mask,
            dropout=self.dropout.p if self.training else 0.0,
            scaling=self.scaling,
            is_causal=False,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return linear(self.o_proj, out_BTHK.reshape(*queries.shape[:-1], -1)), weights_BHTT


__all__ = ["Attention", "eager_attention", "sdpa_attention"]
