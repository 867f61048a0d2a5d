# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Joins linear layers that read the same input into one matmul, in compiled code on CUDA (docs/gpu.md).

The parameters stay as they are. Each forward pass makes copies of them in the precision of the matmul anyway, and only
these copies are joined. Without compilation, joining the gradients costs as much as this saves.

Shapes: B rows, T tokens, N = B T, D hidden size, H heads, G heads of keys, J = H + 2 G, K head size, F feed-forward
size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .fast_paths import is_plain, is_plain_linear, is_plain_norm, is_untouched, matmul_dtype, rotated
from .window_attention import KERNELS, define, empty_joined


def can_join(layers: Sequence[Any], x: torch.Tensor) -> bool:
    """Whether compiled code on CUDA can join these layers: plain, alike in type and bias, not sharded or quantised."""
    if not torch.compiler.is_compiling() or x.device.type != "cuda" or is_plain():
        return False
    if not all(is_plain_linear(layer) for layer in layers):
        return False
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    has_bias = biases[0] is not None
    return all(
        (bias is not None) == has_bias and weight.dtype == weights[0].dtype
        for weight, bias in zip(weights, biases, strict=True)
    )


def split_norm(norm: Any, reader: Any, kind: type, x_BTD: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A norm's output for `reader`; if its layers are joined, without the norm's weight, and that as its `scale_D`.

    The joined layers multiply the weight into their copies: W (n * w) = (W diag(w)) n. So its gradient comes from
    theirs, not from a sum over all tokens, for which a kernel would read them again.

    Args:
        reader: what reads the output. One that is not as `kind` made it, such as a user's own, gets the whole norm.
    """
    can_split = torch.compiler.is_compiling() and is_plain_norm(norm) and is_untouched(reader, kind)
    if not (can_split and reader.input_layers and can_join(reader.input_layers, x_BTD)):
        return norm(x_BTD), {}
    normalize = F.layer_norm if isinstance(norm, nn.LayerNorm) else F.rms_norm
    return normalize(x_BTD, norm.normalized_shape, eps=norm.eps), {"scale_D": norm.weight}


def unsplit(x_BTD: torch.Tensor, scale_D: torch.Tensor | None) -> torch.Tensor:
    """x * scale in a function that runs uncompiled after all, as beyond PyTorch's limit of graphs; else x."""
    return x_BTD if scale_D is None or torch.compiler.is_compiling() else x_BTD * scale_D


def _join(tensors: Sequence[Any], dtype: torch.dtype, *, interleaved: bool) -> torch.Tensor | None:
    if tensors[0] is None:
        return None
    tensors = [tensor.to(dtype) for tensor in tensors]
    return torch.stack(tensors, dim=1).flatten(0, 1) if interleaved else torch.cat(tensors)


def _joined_linear(
    layers: Sequence[Any], x: torch.Tensor, scale_D: torch.Tensor | None, *, interleaved: bool = False
) -> torch.Tensor:
    dtype = matmul_dtype(x)
    weights = [layer.weight if scale_D is None else layer.weight * scale_D for layer in layers]
    weight = _join(weights, dtype, interleaved=interleaved)
    bias = _join([layer.bias for layer in layers], dtype, interleaved=interleaved)
    return F.linear(x, weight, bias)  # type: ignore[arg-type]


def joined_gate_and_up(
    gate: Any, up: Any, x_BTD: torch.Tensor, scale_D: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """gate(x * scale) and up(x * scale). Their channels alternate in the matmul: a kernel reads both from one place.

    Shape: [B, T, D] -> [B, T, F] twice.
    """
    both_BTF2 = _joined_linear((gate, up), x_BTD, scale_D, interleaved=True).unflatten(-1, (-1, 2))
    return both_BTF2[..., 0], both_BTF2[..., 1]


def joined_heads(
    layers: Sequence[Any],
    x_BTD: torch.Tensor,
    scale_D: torch.Tensor | None,
    tables: tuple[torch.Tensor, torch.Tensor] | None,
    head_size: int,
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of x * scale. Queries and keys are rotated if there are tables.

    Shape: [B, T, D] -> [B, T, H, K], and [B, T, G, K] twice.
    """
    joined_BTHK = _joined_linear(layers, x_BTD, scale_D).unflatten(-1, (-1, head_size))
    heads = [layer.weight.shape[0] // head_size for layer in layers]
    if tables is None:
        return joined_BTHK.split(heads, dim=-2)
    cos, sin = (table.expand(*x_BTD.shape[:2], -1)[..., None, : head_size // 2] for table in tables)
    return _JoinedRotation.apply(joined_BTHK, cos, sin, heads)


def joined_window_attention(
    layers: Sequence[Any],
    x_BTD: torch.Tensor,
    scale_D: torch.Tensor | None,
    tables: tuple[torch.Tensor, torch.Tensor],
    head_size: int,
    document_N: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """Attention within a window, by our kernels, of joined queries, keys and values of x * scale, with RoPE.

    Shape: [B, T, D] -> [B, T, H, K].
    """
    joined_BTJK = _joined_linear(layers, x_BTD, scale_D).unflatten(-1, (-1, head_size))
    heads = [layer.weight.shape[0] // head_size for layer in layers]
    cos, sin = (table.expand(*x_BTD.shape[:2], -1)[..., : head_size // 2].flatten(0, 1) for table in tables)
    out_NHK = _JoinedWindowAttention.apply(joined_BTJK.flatten(0, 1), cos, sin, heads, document_N, window)
    return out_NHK.unflatten(0, x_BTD.shape[:2])


class _JoinedWindowAttention(torch.autograd.Function):
    """Splits joined heads, rotates queries and keys, and attends. The kernels write the gradient in one tensor."""

    @staticmethod
    def forward(
        ctx: Any, joined_NJK: torch.Tensor, cos_NK: Any, sin_NK: Any, heads: list[int], document_N: Any, window: int
    ) -> torch.Tensor:
        q_NHK, k_NGK, v_NGK = joined_NJK.split(heads, dim=-2)
        q_NHK, k_NGK = (rotated(x, cos_NK.unsqueeze(-2), sin_NK.unsqueeze(-2)) for x in (q_NHK, k_NGK))
        out_NHK, log_HN = torch.ops.clozebert.window_attention(q_NHK, k_NGK, v_NGK, document_N, window)
        ctx.save_for_backward(q_NHK, k_NGK, v_NGK, out_NHK, log_HN, document_N, cos_NK, sin_NK)
        ctx.window = window
        return out_NHK

    @staticmethod
    def backward(ctx: Any, grad_NHK: torch.Tensor) -> tuple[Any, ...]:
        backward = torch.ops.clozebert.window_attention_backward_joined
        return backward(grad_NHK, *ctx.saved_tensors, ctx.window), None, None, None, None, None


class _JoinedRotation(torch.autograd.Function):
    """Splits joined heads and rotates queries and keys. Its gradient is rotated and joined in one pass, not two."""

    @staticmethod
    def forward(
        ctx: Any, joined_BTHK: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: list[int]
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        q, k, v = joined_BTHK.split(heads, dim=-2)
        return rotated(q, cos, sin), rotated(k, cos, sin), v

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        cos, sin = ctx.saved_tensors
        return torch.ops.clozebert.turn_back_and_join(*grads, cos, sin), None, None, None


def turn_back_and_join(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, in_kernel: bool
) -> torch.Tensor:
    """Concatenate q and k, rotated by the negative angle, and v.

    Shape: [B, T, H or G, K], tables [B, T, 1, K / 2] -> [B, T, H + 2 G, K].
    """
    if not in_kernel or KERNELS is None:
        return torch.cat([rotated(q, cos, -sin), rotated(k, cos, -sin), v], dim=-2)
    q, k, v, cos, sin = (x.contiguous() for x in (q, k, v, cos, sin))
    out = empty_joined(q, k)
    first = 0
    for x, turns in ((q, True), (k, True), (v, False)):
        rows, heads, half = x.shape[:-1].numel(), x.shape[-2], x.shape[-1] // 2
        with torch.cuda.device_of(x):  # Triton launches on the current device
            KERNELS["turn"][(-(-rows // 64),)](
                x, cos, sin, out, rows, heads, out.shape[-2], first,
                HALF=half, PADDED=1 << (half - 1).bit_length(), BLOCK=64, TURNS=turns, num_warps=4,
            )  # fmt: skip
        first += heads
    return out


def _turn_back_and_join(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    return turn_back_and_join(q, k, v, cos, sin, in_kernel=q.device.type == "cuda")


define("turn_back_and_join", _turn_back_and_join, empty_joined)

__all__ = [
    "can_join",
    "joined_gate_and_up",
    "joined_heads",
    "joined_window_attention",
    "split_norm",
    "turn_back_and_join",
    "unsplit",
]
