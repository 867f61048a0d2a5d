#!/usr/bin/env python
"""Attention of one layer on a GPU over packed documents: our windowed kernels and PyTorch's, forward and backward.

    python benchmarks/window_attention.py            # 48 documents of 1,024 tokens, 12 heads of 64, bf16, window 64

Milliseconds by CUDA events, the mean of 20 runs after 3 warm-up runs, for full and windowed attention: the
variable-length kernel (FlashAttention 2), FlexAttention and, for full attention over equal rows, cuDNN's.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

from clozebert.modeling.window_attention import window_attention

DOCUMENTS, LENGTH, HEADS, SIZE, WINDOW = 48, 1024, 12, 64, 64
TOKENS = DOCUMENTS * LENGTH


def milliseconds(work: Callable[[], object], runs: int = 20) -> float:
    for _ in range(3):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(runs):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / runs


def main() -> None:
    torch.manual_seed(0)
    shape = (TOKENS, HEADS, SIZE)
    q, k, v, grad = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    bounds = torch.arange(0, TOKENS + 1, LENGTH, device="cuda", dtype=torch.int32)
    document_N = torch.arange(TOKENS, device="cuda", dtype=torch.int32) // LENGTH
    flex = torch.compile(flex_attention)

    def near(_b: object, _h: object, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (document_N[query] == document_N[key]) & ((query - key).abs() <= WINDOW)

    def same(_b: object, _h: object, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return document_N[query] == document_N[key]

    masks = [create_block_mask(rule, None, None, TOKENS, TOKENS, device="cuda", _compile=True) for rule in (same, near)]

    def by_flex(mask: object) -> torch.Tensor:
        return flex(*(x.transpose(0, 1)[None] for x in inputs), block_mask=mask)[0].transpose(0, 1)

    def by_cudnn() -> torch.Tensor:
        rows = (x.view(DOCUMENTS, LENGTH, HEADS, SIZE).transpose(1, 2) for x in inputs)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(*rows).transpose(1, 2).flatten(0, 1)

    both = (bounds, bounds, LENGTH, LENGTH)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "whole, variable length": lambda: varlen_attn(*inputs, *both),
        "whole, FlexAttention": lambda: by_flex(masks[0]),
        "whole, cuDNN over rows": by_cudnn,
        "window, variable length": lambda: varlen_attn(*inputs, *both, window_size=(WINDOW, WINDOW)),
        "window, FlexAttention": lambda: by_flex(masks[1]),
        "window, ours": lambda: window_attention(*inputs, document_N, WINDOW),
    }
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, attend in ways.items():
        out = attend()
        forward = milliseconds(attend)
        backward = milliseconds(lambda out=out: torch.autograd.grad(out, inputs, grad, retain_graph=True))
        print(f"{name}: forward {forward:.3f} ms, backward {backward:.3f} ms")


if __name__ == "__main__":
    main()
