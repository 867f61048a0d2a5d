# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Fast paths of the encoder (linear, dropout, RoPE, attention), each beside the plain formula it replaces.

A fast path is used where it applies and is faster; everywhere else the plain formula runs. `CLOZEBERT_PLAIN=1` in the
environment switches all of them off. The two agree within rounding, for every head and precision (test_fast_paths.py).

    fast path                    where                                what it saves (docs/speed.md, docs/LOG.md)
    linear, with its activation  bf16 inference, CPU                  two passes over the output
    joined linear layers         compiled, CUDA                       reading x, and adding its gradient (joined.py)
    cast_once                    autocast                             a cast of x by each linear layer that reads it
    dropout from 16 bits         training, CPU                        three quarters of the random numbers
    rotate, with its gradient    training                             PyTorch's passes over the formula's gradient
    recompute                    training, large inner activations    a third of a layer's memory
    matmul attention             CPU: bf16, or under dropout          PyTorch's kernel is slow for both there
    attention in tiles           packed rows, CPU                     padding (attention_tiles.py)
    read positions               packed rows, CPU and CUDA            the last layer's work for tokens that are not read
    sizes that recur             packed rows in bf16, CPU             compiling kernels for each size
    loss, a few rows at a time   training                             copies of all logits (losses.py)

Shapes: B rows, T tokens, N tokens of a packed row, D hidden size, H heads, K head size.
"""

import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.activations import ACT2FN

_PLAIN = os.environ.get("CLOZEBERT_PLAIN") == "1"
RECOMPUTE_FROM = 1 << 24  # tokens times inner size: 32 MB in half precision
SHORT_IN_TRAINING = 256  # keys up to which attention keeps its weights for the backward pass
LARGEST_BLOCK = 1 << 23  # scores computed at once, over all heads, without a gradient: 16 MB in half precision
HALF_PRECISION = (torch.bfloat16, torch.float16)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# Activations that oneDNN fuses into a matmul: its name for each, and the variant.
_FUSED_ACTIVATIONS = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
}


def is_plain() -> bool:
    """Whether all fast paths are switched off: by the user, or in forward-mode differentiation, for which some have no
    rule.
    """
    # PyTorch has no public way to ask.
    return _PLAIN or getattr(forward_ad, "_current_level", -1) >= 0


def is_traced() -> bool:
    """Whether the computation is traced or transformed, by `torch.compile`, `jit`, `export` or `func`.

    Then the code path must not depend on a value or a length, and only fast paths for compiled code are used.
    """
    if torch.compiler.is_compiling() or torch.compiler.is_exporting() or torch.jit.is_tracing():
        return True
    # Transforms of `torch.func` (`grad`, `vmap` …): PyTorch has no public way to ask.
    functorch = getattr(torch._C, "_functorch", None)
    transforms = getattr(functorch, "peek_interpreter_stack", None)
    return transforms is not None and transforms() is not None


def values_of(tensor: torch.Tensor) -> list[Any] | None:
    """The values of a tensor; None if they cannot be read, in a traced program or from a fake tensor."""
    if is_traced():
        return None
    try:
        return tensor.tolist()
    except RuntimeError:
        return None


def value_outside(values: torch.Tensor, limit: int, *, ignored: int | None = None) -> Any:
    """A value outside [0, limit) other than `ignored`, or None. Looks only on a CPU: elsewhere it would synchronise."""
    if values.device.type != "cpu" or is_traced() or not values.numel():
        return None
    if ignored is not None:
        values = values.masked_fill(values == ignored, 0)
    bounds = torch.stack(torch.aminmax(values))
    try:
        least, greatest = bounds.tolist()
    except RuntimeError:  # a fake tensor
        return None
    if least < 0:
        return least
    return greatest if greatest >= limit else None


def cast_once(x: torch.Tensor) -> torch.Tensor:
    """x in autocast's type for matmuls: cast once here, instead of in each linear layer that reads it."""
    return x if is_plain() else x.to(matmul_dtype(x))


def matmul_dtype(x: torch.Tensor) -> torch.dtype:
    """The type in which matmuls of x are computed: autocast's, or its own. Autocast leaves float64 as it is."""
    is_cast = is_autocast(x) and x.dtype != torch.float64
    return torch.get_autocast_dtype(x.device.type) if is_cast else x.dtype


def widen(x: torch.Tensor) -> torch.Tensor:
    """x in float32 if it is in half precision, since in bf16 a loss is off in its third decimal; wider types stay."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def is_autocast(x: torch.Tensor) -> bool:
    """Whether autocast is on for x's device. There is none for the meta device, and asking PyTorch raises an error."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


# Linear layers -------------------------------------------------------------------------------------------------------


def linear(
    layer: nn.Module, x: torch.Tensor, *, activation: nn.Module | None = None, name: str | None = None
) -> torch.Tensor:
    """activation(layer(x)).

    Args:
        layer: a linear layer, or what has replaced it (an adapter, a quantised layer).
        activation: None: the identity.
        name: name of the activation in transformers' ACT2FN.
    """
    can_fuse = name in _FUSED_ACTIVATIONS and not torch.is_grad_enabled() and is_plain_linear(layer)
    if can_fuse and _has_fused_linear(x, layer) and (activation is None or _is_plain_activation(activation, name)):
        kind, variant = _FUSED_ACTIVATIONS[name]
        return torch.ops.mkldnn._linear_pointwise(x, layer.weight, layer.bias, kind, [], variant)
    x = layer(x)
    return x if activation is None else activation(x)


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether calling the layer only computes its linear map, on an ordinary tensor: not sharded, not quantised."""
    return is_untouched(layer, nn.Linear) and not hasattr(type(layer.weight), "__tensor_flatten__")


def is_plain_norm(norm: nn.Module) -> bool:
    """Whether calling the norm only divides by a size and multiplies by an ordinary weight; it has no bias."""
    if not (is_untouched(norm, nn.LayerNorm) or is_untouched(norm, nn.RMSNorm)):
        return False
    has_weight = norm.weight is not None and not hasattr(type(norm.weight), "__tensor_flatten__")
    return has_weight and getattr(norm, "bias", None) is None


def _is_plain_activation(activation: nn.Module, name: str | None) -> bool:
    """Whether the module is still the one that the configuration names."""
    return is_untouched(activation, _type_of_activation(name))


@functools.cache
def _type_of_activation(name: str | None) -> type:
    return type(ACT2FN[name])


def is_untouched(module: nn.Module, kind: type) -> bool:
    """Whether calling the module computes what its class does: no subclass, no hook, no replaced `forward`."""
    return (
        type(module) is kind and not any(getattr(module, hooks) for hooks in _HOOKS) and "forward" not in vars(module)
    )


def _has_fused_linear(x: torch.Tensor, layer: nn.Module) -> bool:
    """Whether oneDNN has the fused kernel: bf16, on a CPU that multiplies it in hardware, and not traced."""
    return (
        not is_plain()
        and x.dtype == torch.bfloat16 == layer.weight.dtype
        and x.device.type == "cpu" == layer.weight.device.type
        and not is_traced()
        and not _is_watched()
        and not torch.is_autocast_enabled("cpu")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and _multiplies_bf16()
    )


def has_global_hooks() -> bool:
    """Whether hooks look at the layers of all models."""
    # PyTorch has no public way to ask.
    kinds = ("forward", "forward_pre", "backward", "backward_pre")
    return any(getattr(torch.nn.modules.module, f"_global_{kind}_hooks", None) for kind in kinds)


def _is_watched() -> bool:
    """Whether hooks look at the layers of all models, or each operator is dispatched to a Python object.

    Such an object may be a FLOP counter, which knows only public operators.
    """
    # PyTorch has no public way to ask.
    is_in_mode = getattr(getattr(torch.utils, "_python_dispatch", None), "is_in_torch_dispatch_mode", None)
    return has_global_hooks() or (is_in_mode is not None and is_in_mode())


@functools.cache
def _multiplies_bf16() -> bool:
    """Whether oneDNN has bf16 kernels for this CPU. The operator is private: if it is missing, the answer is no."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return torch.backends.mkldnn.is_available() and supported is not None and bool(supported())


def should_recompute(x: torch.Tensor) -> bool:
    """Whether what is computed from x is large, and a backward pass is to come."""
    return not is_plain() and not is_traced() and torch.is_grad_enabled() and x.numel() >= RECOMPUTE_FROM


def recompute(function: Callable[..., torch.Tensor], *inputs: torch.Tensor | None) -> torch.Tensor:
    """function(*inputs) with activation checkpointing: the backward pass computes it again.

    The function must read nothing that can change until then: weights are inputs, too.
    """
    return checkpoint(function, *inputs, use_reentrant=False)


# Dropout -------------------------------------------------------------------------------------------------------------


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """x with each number set to zero with probability p, and the others divided by 1 - p (Srivastava et al. 2014).

    On a CPU the generator runs on one core, and PyTorch draws a number for each element. Here 64 random bits decide
    four elements. p is rounded to a multiple of 2^-16, in the division too.
    """
    dropped = round(p * 2**16)
    if is_plain() or x.device.type != "cpu" or is_traced() or not 0 < dropped < 2**16:
        return F.dropout(x, p)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.long, device=x.device).random_(-(2**63), None).view(torch.int16)
    keep = bits[: x.numel()].view(x.shape) >= dropped - 2**15
    return x * keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))


class Dropout(nn.Dropout):
    """`dropout` as a module, which does nothing outside training."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Shape: any -> the same."""
        return dropout(input, self.p) if self.training and self.p else input


# Rotary positions ----------------------------------------------------------------------------------------------------


def rotate(x_BTHK: torch.Tensor, cos_BTK: torch.Tensor, sin_BTK: torch.Tensor) -> torch.Tensor:
    """RoPE (Su et al. 2021): rotate each pair (x_i, x_{i + K/2}) by its angle, in the tables' type or better.

    Both halves of a table are equal, since a pair has one angle.
    """
    half = x_BTHK.shape[-1] // 2
    if is_plain() or is_traced() or not torch.is_grad_enabled():
        return rotated(x_BTHK, cos_BTK[..., None, :half], sin_BTK[..., None, :half])
    return _Rotation.apply(x_BTHK, cos_BTK[..., None, :], sin_BTK[..., None, :half])


def rotated(x_BTHK: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The formula of `rotate`, with tables of half the head size, [B, T, 1, K / 2]."""
    first, second = x_BTHK.to(torch.promote_types(x_BTHK.dtype, cos.dtype)).chunk(2, dim=-1)
    turned = (torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin))
    return torch.cat([part.to(x_BTHK.dtype) for part in turned], dim=-1)


class _Rotation(torch.autograd.Function):
    """Bitwise the same as `rotated`, in fewer passes: nothing is concatenated. `cos` is the full table [B, T, 1, K].

    The gradient is the gradient rotated back: again fewer passes than autograd's, and x is not kept.
    """

    @staticmethod
    def forward(ctx: Any, x_BTHK: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.save_for_forward(cos, sin)
        x = x_BTHK.to(torch.promote_types(x_BTHK.dtype, cos.dtype))
        turned, half = x * cos, sin.shape[-1]
        # Slices, because autograd forbids in-place changes to the parts of a `chunk`.
        turned[..., :half].addcmul_(x[..., half:], sin, value=-1)
        turned[..., half:].addcmul_(x[..., :half], sin)
        return turned.to(x_BTHK.dtype)

    @staticmethod
    def jvp(ctx: Any, tangent_BTHK: torch.Tensor, *tangents_of_tables: None) -> torch.Tensor:
        cos, sin = ctx.saved_tensors
        return rotated(tangent_BTHK, cos[..., : sin.shape[-1]], sin)

    @staticmethod
    def backward(ctx: Any, grad_BTHK: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _Rotation.apply(grad_BTHK, cos, -sin), None, None


# Attention of whole rows ---------------------------------------------------------------------------------------------


def matmul_attention_pays(q_BHTK: torch.Tensor, keys: int, dropout: float) -> bool:
    """Whether plain matmuls beat PyTorch's attention kernel: on a CPU, under dropout or in half precision.

    The kernel works in blocks that short sequences do not fill. On long ones it reaches half the speed of a matmul. It
    has no dropout. With a gradient, matmuls keep all scores: above 256 keys these are most of a layer's memory, and the
    kernel is as fast.
    """
    if is_plain() or q_BHTK.device.type != "cpu" or is_traced():
        return False
    if dropout:
        return True
    is_fast_half = q_BHTK.dtype in HALF_PRECISION and _multiplies_bf16()
    return is_fast_half and (keys <= SHORT_IN_TRAINING or not torch.is_grad_enabled())


def attend(
    q_BHTK: torch.Tensor,
    k_BHSK: torch.Tensor,
    v_BHSK: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    """softmax(q k^T * scaling) v, with as many heads in k as in q. `mask` is boolean and broadcasts to [B, H, T, S].

    Shape: [B, H, T, K], [B, H, S, K] twice -> [B, H, T, K].
    """
    if not matmul_attention_pays(q_BHTK, k_BHSK.shape[2], dropout):
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, dropout_p=dropout, scale=scaling)
    rows, heads, queries, keys = *q_BHTK.shape[:3], k_BHSK.shape[2]
    # Contiguous for each head: otherwise the matmuls of every block would copy keys and values.
    k_BHSK, v_BHSK = k_BHSK.contiguous(), v_BHSK.contiguous()
    # With a gradient all scores are kept anyway, and dropout is drawn for all of them at once in either case.
    if torch.is_grad_enabled() or dropout or rows * heads * queries * keys <= LARGEST_BLOCK:
        return _matmul_attention(q_BHTK, k_BHSK, v_BHSK, mask, scaling=scaling, p=dropout)
    # Allocated first: small results between large temporary blocks would leave up to 1 GB of holes in the heap.
    out_BHTK = torch.empty_like(q_BHTK)
    row_block = max(1, LARGEST_BLOCK // (heads * queries * keys))
    block = max(16, LARGEST_BLOCK // (heads * keys))
    mask = None if mask is None else mask.expand(rows, -1, -1, -1)
    for first_row, first in itertools.product(range(0, rows, row_block), range(0, queries, block)):
        of_rows, part = slice(first_row, first_row + row_block), slice(first, first + block)
        mask_of_part = None if mask is None else mask[of_rows, :, part if mask.shape[2] > 1 else slice(None)]
        out_BHTK[of_rows, :, part] = _matmul_attention(
            q_BHTK[of_rows, :, part], k_BHSK[of_rows], v_BHSK[of_rows], mask_of_part, scaling=scaling, p=0.0
        )
    return out_BHTK


def _matmul_attention(
    q_BHTK: torch.Tensor,
    k_BHSK: torch.Tensor,
    v_BHSK: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float,
    p: float,
) -> torch.Tensor:
    scores_BHTS = (q_BHTK * scaling) @ k_BHSK.transpose(-1, -2)
    if mask is not None:
        # Added in place: a fill would copy the scores and their gradient. Half of the minimum keeps sums finite.
        least = torch.finfo(scores_BHTS.dtype).min / 2
        scores_BHTS += torch.zeros_like(mask, dtype=scores_BHTS.dtype).masked_fill_(~mask, least)
    in_place = None if torch.is_grad_enabled() else scores_BHTS
    weights_BHTS = torch.softmax(scores_BHTS, dim=-1, out=in_place)
    weights_BHTS = dropout(weights_BHTS, p) if p else weights_BHTS
    return weights_BHTS.to(v_BHSK.dtype) @ v_BHSK


def repeat_heads(x_BHTK: torch.Tensor, heads: int) -> torch.Tensor:
    """Give each group of query heads the key (or value) head that they share."""
    groups = heads // x_BHTK.shape[1]
    return x_BHTK.repeat_interleave(groups, dim=1) if groups > 1 else x_BHTK


__all__ = [
    "Dropout", "attend", "cast_once", "dropout", "is_autocast", "is_plain",
    "is_traced", "is_untouched", "linear", "matmul_attention_pays", "matmul_dtype", "recompute", "repeat_heads",
    "rotate", "rotated", "value_outside", "values_of", "widen",
]  # fmt: skip
