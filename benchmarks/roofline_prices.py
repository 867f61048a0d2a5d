"""The cost of a kernel, and the part of the model that it belongs to; used by roofline.py."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import fake_inductor

ROWS, LENGTH, MASKED = 48, 1024, 0.3
TOKENS = ROWS * LENGTH
PREDICTED = round(TOKENS * MASKED)
BLOCK = 128  # queries and keys in a block of FlashAttention, for heads of 64
WINDOW_BLOCK = 64  # the same for the kernels of modeling/triton_kernels.py


@dataclasses.dataclass(frozen=True)
class Machine:
    """FLOP/s of matmuls and of attention (forward, backward), bytes/s of memory, seconds per launch.

    `window`: FLOP/s of our own kernels, from their times on an H100 (0.161, and 0.183 and 0.229 ms per layer).
    """

    products: float = 650e12
    bandwidth: float = 2.85e12
    launch: float = 3e-6
    attention: tuple[float, float] = (330e12, 250e12)  # FlashAttention 2, heads of 64
    window: tuple[float, float] = (180e12, 246e12)


REST = "norms, residual, casts"
# From its times on an H200, 0.420 and 0.887 ms for 48 documents of 1,024 tokens, 12 heads of 64.
FLASH_ATTENTION_4 = (368e12, 436e12)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """FLOPs and bytes of a kernel, and the part of the model that it belongs to."""

    part: str
    bytes: float
    flops: float = 0.0
    is_backward: bool = False
    launches: int = 1
    is_window: bool = False

    def seconds(self, machine: Machine) -> float:
        of_attention = (machine.window if self.is_window else machine.attention)[self.is_backward]
        speed = of_attention if self.part == "attention" else machine.products
        return max(self.flops / speed, self.bytes / machine.bandwidth) + self.launches * machine.launch


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The sizes by which a tensor is recognised."""

    hidden: int
    head: int
    inner: int
    vocabulary: int

    def part_of(self, shapes: Iterable[tuple[int, ...]]) -> str:
        """The part of the model that works on tensors of these shapes, for kernels other than matmul and attention."""
        found = [shape for shape in shapes if shape]
        if any(shape[-1] == self.vocabulary and shape[0] != self.hidden for shape in found):
            return "loss"
        if not any(size in shape for shape in found for size in (TOKENS, PREDICTED)):
            return "weights: casts, gradients"
        if any(shape[-1] == self.inner for shape in found):
            return "gate"
        if any(len(shape) >= 3 and shape[-1] in (self.head, self.head // 2) for shape in found):
            return "RoPE"
        if any(shape[-1] == 3 * self.hidden for shape in found):
            return "q-k-v joined"
        return REST


def bytes_of(x: Any) -> float:
    """The bytes of a tensor; broadcast elements count once."""
    sizes = [size for size, stride in zip(x.shape, x.stride(), strict=True) if stride != 0]
    return math.prod(sizes) * x.element_size()


def matmul(left: Any, right: Any, size: int, shapes: Shapes) -> Kernel:
    (rows, inner), columns = left, right[-1]
    part = "vocabulary" if shapes.vocabulary in (rows, inner, columns) else "matmuls"
    return Kernel(part, size * (rows * inner + inner * columns + rows * columns), 2 * rows * inner * columns)


def attention(tensors: list[Any], window: list[Any], *, is_backward: bool) -> Kernel:
    """FlashAttention; a block of queries visits all blocks of keys, or those that the window touches.

    The last layer has fewer queries in each document, in whole blocks.
    """
    tokens, heads, head_size = tensors[0].shape
    tokens = ROWS * math.ceil(tokens / ROWS / BLOCK) * BLOCK
    side = window[0]
    keys = LENGTH if side < 0 else min(LENGTH, BLOCK * (2 * math.ceil(side / BLOCK) + 1))
    flops = 4 * tokens * keys * heads * head_size * (2.5 if is_backward else 1)
    return Kernel("attention", 2.0 * sum(map(bytes_of, tensors[:3])), flops, is_backward=is_backward)


def window_attention(tensors: list[Any], window: int, *, is_backward: bool) -> Kernel:
    """Our own kernels, which visit the blocks that a window touches. The backward pass computes the scores twice, so it
    has 7 matmuls, not 5.
    """
    tokens, heads, head_size = tensors[0].shape
    keys = WINDOW_BLOCK * (2 * math.ceil(window / WINDOW_BLOCK) + 1)
    flops = 4 * tokens * keys * heads * head_size * (3.5 if is_backward else 1)
    launches = 2 if is_backward else 1
    return Kernel("attention", 2.0 * sum(map(bytes_of, tensors[:3])), flops, is_backward, launches, is_window=True)


def list_in(arguments: Any) -> list[Any]:
    """The window among the arguments of an attention operator."""
    return next(value for value in arguments if isinstance(value, (list, tuple)) and len(value) == 2)


def compiled(kernel: fake_inductor.Kernel, shapes: Shapes, *, is_backward: bool) -> Kernel:
    """The cost of a kernel of a compiled graph."""
    seen = [*kernel.origins, *(source for node in kernel.origins for source in node.all_input_nodes)]
    part = shapes.part_of(tuple(x.shape) for node in seen for x in tensors_of(node))
    if kernel.operator is None:
        return Kernel(part, kernel.bytes, is_backward=is_backward)
    node = next(node for node in kernel.origins if fake_inductor.name_of(node.target) == kernel.operator)
    inputs = [x for source in node.all_input_nodes for x in tensors_of(source)[:1]]
    if kernel.operator in ("mm", "addmm"):
        left, right = inputs[-2:]
        return matmul(left.shape, right.shape, left.element_size(), shapes)
    if kernel.operator.startswith("_varlen_attn"):
        return attention(inputs, list_in(node.args), is_backward=is_backward)
    if kernel.operator.startswith("window_attention"):
        window = next(value for value in reversed(node.args) if isinstance(value, int))
        return window_attention(inputs, window, is_backward=is_backward)
    if kernel.operator == "turn_back_and_join":  # a launch each for queries, keys and values
        return Kernel("RoPE", kernel.bytes, is_backward=is_backward, launches=3)
    return Kernel(part, kernel.bytes, is_backward=is_backward)


def tensors_of(node: Any) -> list[Any]:
    """The results of a graph's node that are tensors."""
    import torch

    value = node.meta.get("val")
    return [x for x in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(x, torch.Tensor)]
