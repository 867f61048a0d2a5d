"""`--flash_attention`: attention over packed documents by the package of FlashAttention 4 (`pip install flash-attn-4`).

PyTorch has an adapter for this package, too. But in torch 2.11 that has no backward pass for documents, and up to 2.13
it takes only the package's releases up to 4.0.0b15. So the package's functions are called here, as one operator:
`clozebert::flash_attention`.

Shapes: R queries and N keys of packed documents, H heads, G heads of keys, K head size.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...modeling.attention import ALL_ATTENTION_FUNCTIONS
from ...modeling.packed_attention import PackedPlan, varlen_attention
from ...modeling.window_attention import define, empty_gradients, empty_outputs
from ...utils.errors import UserError

_CAPABILITIES = (9, 10)  # compute capabilities that it is for, by their first number
_kernels: Any = None  # the package's module, once it is in use


@contextmanager
def flash_attention(version: str | None, device: torch.device) -> Iterator[None]:
    """Have packed documents use FlashAttention 4 ("FA4") within the block; None: PyTorch's own kernel, which is 2.

    Raises:
        ValueError: its package is not there, or not for this device.
    """
    if version is None:
        yield
        return
    _load(f"flash_attention={version!r}", device)
    before, ALL_ATTENTION_FUNCTIONS["varlen"] = ALL_ATTENTION_FUNCTIONS["varlen"], _attend
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["varlen"] = before


def _load(asked: str, device: torch.device) -> None:
    global _kernels
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    if capability[0] not in _CAPABILITIES:
        wanted = " or ".join(f"{major}.0" for major in _CAPABILITIES)
        here = f"{capability[0]}.{capability[1]}" if device.type == "cuda" else f"the device {device.type!r}"
        raise UserError(f"{asked} needs a GPU of compute capability {wanted}, and this is {here}; leave it out")
    try:
        _kernels = importlib.import_module("flash_attn.cute.interface")
        # Private, so another release may not have them.
        _ = _kernels._flash_attn_fwd, _kernels._flash_attn_bwd
    except (ImportError, AttributeError, RuntimeError, ValueError) as error:
        reason = f"the package flash-attn-4 cannot be loaded ({error})"
        raise UserError(f"{asked}: {reason}; pip install flash-attn-4, or leave it out") from error


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: PackedPlan,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """`varlen_attention` by the package, for layers without a window."""
    packed = attention_mask.packed
    if attention_mask.window is not None:
        return varlen_attention(module, query, key, value, attention_mask, **kwargs)
    q_RHK, k_NGK, v_NGK = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    bounds = packed.cu_seq_lens
    of_queries = bounds if attention_mask.read_bounds is None else attention_mask.read_bounds
    operator = torch.ops.clozebert.flash_attention
    out_RHK = operator(q_RHK, k_NGK, v_NGK, of_queries, bounds, packed.max_length)[0]
    return out_RHK.unflatten(0, (query.shape[0], query.shape[2])), None


def _forward(
    q_RHK: torch.Tensor,
    k_NGK: torch.Tensor,
    v_NGK: torch.Tensor,
    bounds_of_queries: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and, for the gradient, the log of the sums of exponentiated scores, float32 [H, R].

    Args:
        bounds_of_queries, bounds: int32 [documents + 1], where each document's queries and keys begin, and their ends.
        longest: an upper bound for the length of a document.
    """
    documents = _documents(bounds_of_queries, bounds, longest)
    found = _kernels._flash_attn_fwd(q_RHK, k_NGK, v_NGK, return_lse=True, **documents)
    return found[0], found[1]


def _backward(
    grad_RHK: torch.Tensor,
    q_RHK: torch.Tensor,
    k_NGK: torch.Tensor,
    v_NGK: torch.Tensor,
    out_RHK: torch.Tensor,
    log_HR: torch.Tensor,
    bounds_of_queries: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v, in their shapes."""
    dq_RHK, dk_NGK, dv_NGK = grads = empty_gradients(grad_RHK, q_RHK, k_NGK, v_NGK)
    _kernels._flash_attn_bwd(
        q_RHK, k_NGK, v_NGK, out_RHK, grad_RHK.contiguous(), log_HR, dq=dq_RHK, dk=dk_NGK, dv=dv_NGK,
        deterministic=torch.are_deterministic_algorithms_enabled(), **_documents(bounds_of_queries, bounds, longest),
    )  # fmt: skip
    return grads


def _documents(bounds_of_queries: torch.Tensor, bounds: torch.Tensor, longest: int) -> dict[str, Any]:
    return {
        "cu_seqlens_q": bounds_of_queries, "cu_seqlens_k": bounds, "max_seqlen_q": longest, "max_seqlen_k": longest,
    }  # fmt: skip


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.longest = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward_of(ctx: Any, grad_RHK: torch.Tensor, grad_log_HR: Any) -> tuple[Any, ...]:
    q_RHK, k_NGK, v_NGK, bounds_of_queries, bounds, out_RHK, log_HR = ctx.saved_tensors
    backward = torch.ops.clozebert.flash_attention_backward
    grads = backward(grad_RHK, q_RHK, k_NGK, v_NGK, out_RHK, log_HR, bounds_of_queries, bounds, ctx.longest)
    return *grads, None, None, None


define("flash_attention", _forward, empty_outputs, gradient=(_backward_of, _save))
define("flash_attention_backward", _backward, empty_gradients)
