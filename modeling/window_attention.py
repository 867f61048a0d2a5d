# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Sliding-window attention on CUDA, over packed documents, by our own kernels (triton_kernels.py).

Other machines have other implementations: packed_attention.py chooses.

To PyTorch it is one operator, `clozebert::window_attention`, so that a compiled graph calls it unchanged. Its gradient
is another: that of q, k and v, or of one tensor in which they were joined before RoPE (joined.py).

Shapes: N tokens, H heads, G heads of keys, J = H + 2 G, K head size.
"""

import contextlib
import math
import os
import shutil
import sysconfig
from typing import Any

import torch


def _can_compile_launchers() -> bool:
    """Whether there is what Triton compiles its launchers with, where it looks: a C compiler and Python's headers."""
    scheme = sysconfig.get_default_scheme()
    # The scheme of Debian's and Ubuntu's own Python may name a folder that is not there.
    include = sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme)
    has_compiler = "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))
    return has_compiler and os.path.exists(os.path.join(include, "Python.h"))


KERNELS: Any = None  # without Triton, or without what it needs
if _can_compile_launchers():
    with contextlib.suppress(ImportError):
        from .triton_kernels import ALL_KERNELS

        KERNELS = ALL_KERNELS

HEAD_SIZES = (16, 32, 64, 128)
_LOG2_E = math.log2(math.e)
# Tokens of a block, tokens of the blocks that it loops over, warps, stages. The best values measured on an H100 with
# heads of 64.
_TILES = {"forward": (64, 64, 4, 1), "queries": (64, 32, 4, 3), "keys": (64, 32, 4, 3)}


def has_window_kernel(head_size: int) -> bool:
    """Whether Triton can run here and there are kernels for heads of this size. The device is not checked."""
    return KERNELS is not None and head_size in HEAD_SIZES


def window_attention(
    q_NHK: torch.Tensor, k_NGK: torch.Tensor, v_NGK: torch.Tensor, document_N: torch.Tensor, window: int
) -> torch.Tensor:
    """softmax(q k^T / sqrt(K)) v, over tokens of one document that are at most `window` apart; half precision, CUDA.

    Args:
        document_N: int32, the number of each token's document; the tokens of a document are contiguous.

    Shape: [N, H, K], [N, G, K] twice, [N] -> [N, H, K].
    """
    return torch.ops.clozebert.window_attention(q_NHK, k_NGK, v_NGK, document_N, window)[0]


def _forward(
    q_NHK: torch.Tensor, k_NGK: torch.Tensor, v_NGK: torch.Tensor, document_N: torch.Tensor, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and, for the gradient, log2 of the sums of exponentiated scores, float32 [H, N]."""
    q_NHK, k_NGK, v_NGK = (_with_plain_vectors(x) for x in (q_NHK, k_NGK, v_NGK))
    tokens, heads, size = q_NHK.shape
    out_NHK, log_HN = empty_outputs(q_NHK)
    _launch(
        "forward", heads, tokens, window, size,
        (q_NHK, k_NGK, v_NGK, document_N, out_NHK, log_HN),
        (*_strides(q_NHK, k_NGK, v_NGK), tokens, heads, heads // k_NGK.shape[1], _LOG2_E / math.sqrt(size)),
    )  # fmt: skip
    return out_NHK, log_HN


def empty_outputs(q_NHK: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for an output and for its log sums, float32. Shape: [N, H, K] -> the same, [H, N]."""
    return q_NHK.new_empty(q_NHK.shape), q_NHK.new_empty((q_NHK.shape[1], q_NHK.shape[0]), dtype=torch.float32)


def _backward(
    grad_NHK: torch.Tensor,
    q_NHK: torch.Tensor,
    k_NGK: torch.Tensor,
    v_NGK: torch.Tensor,
    out_NHK: torch.Tensor,
    log_HN: torch.Tensor,
    document_N: torch.Tensor,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v, in their shapes."""
    grads = empty_gradients(grad_NHK, q_NHK, k_NGK, v_NGK)
    _write_gradients(grads, grad_NHK, (q_NHK, k_NGK, v_NGK), out_NHK, log_HN, document_N, window)
    return grads


def empty_gradients(
    grad_NHK: Any, q_NHK: Any, k_NGK: Any, v_NGK: Any, *others: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Room for the gradients of q, k and v, in their shapes."""
    return q_NHK.new_empty(q_NHK.shape), k_NGK.new_empty(k_NGK.shape), v_NGK.new_empty(v_NGK.shape)


def _backward_joined(
    grad_NHK: torch.Tensor,
    q_NHK: torch.Tensor,
    k_NGK: torch.Tensor,
    v_NGK: torch.Tensor,
    out_NHK: torch.Tensor,
    log_HN: torch.Tensor,
    document_N: torch.Tensor,
    cos_NK: torch.Tensor,
    sin_NK: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """The gradient of the joined tensor [N, J, K], where q and k are rotated, with tables [N, K / 2]."""
    joined_NJK = empty_joined(q_NHK, k_NGK)
    grads = joined_NJK.split([q_NHK.shape[1], k_NGK.shape[1], k_NGK.shape[1]], dim=1)
    tables = cos_NK.contiguous(), sin_NK.contiguous()
    _write_gradients(grads, grad_NHK, (q_NHK, k_NGK, v_NGK), out_NHK, log_HN, document_N, window, tables)
    return joined_NJK


def empty_joined(q: torch.Tensor, k: torch.Tensor, *others: Any) -> torch.Tensor:
    """Room for joined queries, keys and values. Shape: [..., H, K], [..., G, K] -> [..., H + 2 G, K]."""
    return q.new_empty((*q.shape[:-2], q.shape[-2] + 2 * k.shape[-2], q.shape[-1]))


def _write_gradients(
    grads: tuple[torch.Tensor, ...],
    grad_NHK: torch.Tensor,
    inputs: tuple[torch.Tensor, ...],
    out_NHK: torch.Tensor,
    log_HN: torch.Tensor,
    document_N: torch.Tensor,
    window: int,
    tables: tuple[torch.Tensor, ...] | None = None,
) -> None:
    """Write the gradients of q, k and v into `grads`; with tables, those of q and k before they were rotated."""
    q_NHK, k_NGK, v_NGK, grad_NHK = (_with_plain_vectors(x) for x in (*inputs, grad_NHK))
    tokens, heads, size = q_NHK.shape
    key_heads = k_NGK.shape[1]
    dq_NHK, dk_NGK, dv_NGK = grads
    product_HN = torch.empty_like(log_HN)
    strides = _strides(q_NHK, k_NGK, v_NGK, grad_NHK)
    scales = (_LOG2_E / math.sqrt(size), 1 / math.sqrt(size))
    angles = tables or (log_HN, log_HN)  # without TURNS no kernel reads them
    turns = {"TURNS": tables is not None}
    _launch(
        "queries", heads, tokens, window, size,
        (q_NHK, k_NGK, v_NGK, document_N, out_NHK.contiguous(), grad_NHK, log_HN, product_HN, dq_NHK, *angles),
        (*strides, dq_NHK.stride(0), tokens, heads, heads // key_heads, *scales), **turns,
    )  # fmt: skip
    _launch(
        "keys", key_heads, tokens, window, size,
        (q_NHK, k_NGK, v_NGK, document_N, grad_NHK, log_HN, product_HN, dk_NGK, dv_NGK, *angles),
        (*strides, dk_NGK.stride(0), dv_NGK.stride(0), tokens, heads // key_heads, *scales), **turns,
    )  # fmt: skip


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.window = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward_of(ctx: Any, grad_NHK: torch.Tensor, grad_log_HN: Any) -> tuple[Any, ...]:
    q_NHK, k_NGK, v_NGK, document_N, out_NHK, log_HN = ctx.saved_tensors
    backward = torch.ops.clozebert.window_attention_backward
    grads = backward(grad_NHK, q_NHK, k_NGK, v_NGK, out_NHK, log_HN, document_N, ctx.window)
    return *grads, None, None


def define(name: str, function: Any, fake: Any, *, gradient: tuple[Any, Any] | None = None) -> None:
    """Define an operator of PyTorch, with the `fake` that gives its shapes, and its gradient and what that needs.

    It exists already if both the package and the code of a checkpoint are loaded.
    """
    if hasattr(torch.ops.clozebert, name):
        return
    operator = torch.library.custom_op(f"clozebert::{name}", function, mutates_args=())
    operator.register_fake(fake)
    if gradient is not None:
        operator.register_autograd(gradient[0], setup_context=gradient[1])


define("window_attention", _forward, empty_outputs, gradient=(_backward_of, _save))
define("window_attention_backward", _backward, empty_gradients)
define("window_attention_backward_joined", _backward_joined, lambda grad_NHK, *inputs: empty_joined(*inputs))


def _launch(
    name: str, heads: int, tokens: int, window: int, size: int, tensors: Any, numbers: Any, **options: bool
) -> None:
    block, step, warps, stages = _TILES[name]
    with torch.cuda.device_of(tensors[0]):  # Triton launches on the current device, whatever the tensors' is
        KERNELS[name][(-(-tokens // block), heads)](
            *tensors, *numbers, **options,
            WINDOW=window, K=size, BLOCK=block, STEP=step, num_warps=warps, num_stages=stages,
        )  # fmt: skip


def _with_plain_vectors(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(*tensors: torch.Tensor) -> list[int]:
    return [stride for x in tensors for stride in x.stride()[:2]]


__all__ = [
    "define",
    "empty_gradients",
    "empty_joined",
    "empty_outputs",
    "has_window_kernel",
    "window_attention",
]
