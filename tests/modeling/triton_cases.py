"""Our Triton kernels against the formula in float64: on a GPU, or interpreted on the CPU.

    TRITON_INTERPRET=1 python triton_cases.py       # errors as JSON

A process of its own where they are interpreted: Triton reads the variable when it is imported.
"""

import itertools
import json
import math
from typing import Any

import torch

from clozebert.modeling.fast_paths import rotated
from clozebert.modeling.joined import _JoinedWindowAttention, turn_back_and_join
from clozebert.modeling.window_attention import window_attention

# Lengths of the documents, heads, heads of keys, head size, window.
WINDOWS = (
    ((70, 3, 130, 53), 2, 2, 32, 16),  # shorter and longer than window and block
    ((200, 1, 1, 150), 4, 2, 16, 64),  # fewer heads of keys
    ((300,), 2, 1, 64, 100),  # a window that is no multiple of a block
    ((64, 64, 64), 1, 1, 128, 1),
)
# Rows, tokens, heads, heads of keys, head size.
JOINED = ((1, 70, 3, 1, 16), (2, 33, 2, 2, 40), (1, 130, 2, 2, 64))


def within_window(q: Any, k: Any, v: Any, document_N: Any, window: int) -> torch.Tensor:
    """softmax(q k^T / sqrt(K)) v under the mask, all at once."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores_HNN = torch.einsum("nhk,mhk->hnm", q, k) / math.sqrt(q.shape[-1])
    steps_N = torch.arange(len(q), device=q.device)
    sees_NN = (document_N[:, None] == document_N) & ((steps_N[:, None] - steps_N).abs() <= window)
    return torch.einsum("hnm,mhk->nhk", scores_HNN.masked_fill(~sees_NN, -math.inf).softmax(-1), v)


def window_errors(case: tuple, dtype: torch.dtype, device: str = "cpu") -> list[float]:
    """‖found - truth‖ / ‖truth‖ of the output and of the gradients of q, k and v."""
    lengths, heads, key_heads, size, window = case
    generator = torch.Generator().manual_seed(0)
    tokens = sum(lengths)
    document_N = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).int().to(device)
    # Of one tensor, as a joined matmul gives them: they do not lie together.
    joined = torch.randn(tokens, heads + 2 * key_heads, size, generator=generator).to(device, dtype)
    grad = torch.randn(tokens, heads, size, generator=generator).to(device, dtype)
    found, truth = (
        [x.detach().to(kind).requires_grad_() for x in joined.split([heads, key_heads, key_heads], dim=1)]
        for kind in (dtype, torch.float64)
    )
    out, wanted = window_attention(*found, document_N, window), within_window(*truth, document_N, window)
    grads = torch.autograd.grad(out, found, grad), torch.autograd.grad(wanted, truth, grad.double())
    return [relative(a, b) for a, b in ((out, wanted), *zip(*grads, strict=True))]


def joined_window_errors(case: tuple, dtype: torch.dtype, device: str = "cpu") -> list[float]:
    """As `window_errors`, of the output and of the gradient of joined queries, keys and values, with RoPE."""
    lengths, heads, key_heads, size, window = case
    generator = torch.Generator().manual_seed(0)
    tokens, numbers = sum(lengths), [heads, key_heads, key_heads]
    document_N = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).int().to(device)
    joined = torch.randn(tokens, sum(numbers), size, generator=generator).to(device, dtype)
    grad = torch.randn(tokens, heads, size, generator=generator).to(device, dtype)
    angles = torch.randn(tokens, size // 2, generator=generator).to(device)
    cos, sin = angles.cos(), angles.sin()
    found, truth = (joined.to(kind).requires_grad_() for kind in (dtype, torch.float64))
    out = _JoinedWindowAttention.apply(found, cos, sin, numbers, document_N, window)
    q, k, v = truth.split(numbers, dim=1)
    q, k = (rotated(x, cos.double().unsqueeze(1), sin.double().unsqueeze(1)) for x in (q, k))
    wanted = within_window(q, k, v, document_N, window)
    grads = torch.autograd.grad(out, found, grad), torch.autograd.grad(wanted, truth, grad.double())
    return [relative(out, wanted), relative(grads[0][0], grads[1][0])]


def joined_error(case: tuple, dtype: torch.dtype, device: str = "cpu") -> float:
    rows, tokens, heads, key_heads, size = case
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(rows, tokens, n, size, generator=generator).to(device, dtype) for n in (heads, key_heads, key_heads)
    )
    angles = torch.randn(rows, tokens, 1, size // 2, generator=generator).to(device)
    cos, sin = angles.cos(), angles.sin()
    wide, tables = (q.double(), k.double()), (cos.double(), -sin.double())
    wanted = torch.cat([*(rotated(x, *tables) for x in wide), v.double()], dim=-2)
    return relative(turn_back_and_join(q, k, v, cos, sin, in_kernel=True), wanted)


def relative(found: torch.Tensor, truth: torch.Tensor) -> float:
    return ((found.double() - truth).norm() / truth.norm()).item()


def main() -> None:
    windows = list(itertools.product(WINDOWS, (torch.float32, torch.float16)))
    errors = {
        "window": [[str(dtype), *window_errors(case, dtype)] for case, dtype in windows],
        "joined window": [[str(dtype), *joined_window_errors(case, dtype)] for case, dtype in windows],
        "joined": [[str(torch.float32), joined_error(case, torch.float32)] for case in JOINED],
    }
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
