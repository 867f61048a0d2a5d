#!/usr/bin/env python
"""Estimated time of a training step on an H100, computed and not measured: the table of docs/gpu_results.md.

    python benchmarks/roofline.py --output benchmarks/results/roofline.json --into docs/gpu_results.md  # two minutes

The operators come from real forward and backward passes of the full-size model over fake CUDA tensors (fake_cuda.py).
The cost of each follows from its shapes and the figures of the machine:

    matmul       max(FLOPs / products, bytes / bandwidth)
    attention    FLOPs of the blocks that the kernel visits / its own FLOP/s, forward and backward
    anything     bytes read and written / bandwidth; a view is free
    launch       added for every kernel

Eager: every operator that PyTorch dispatches is a kernel, which reads its arguments and writes its results. The few
that consist of several kernels are counted as such (PASSES).

Compiled: the kernels are those that torch.compile's Inductor schedules for this GPU, forward and backward, with the
bytes that it counts for each (fake_inductor.py). Not included: the optimizer, waits of the host, and that real kernels
do not reach the full bandwidth.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import fake_cuda
import fake_inductor
from roofline_prices import (
    FLASH_ATTENTION_4,
    LENGTH,
    PREDICTED,
    REST,
    ROWS,
    TOKENS,
    Kernel,
    Machine,
    Shapes,
    attention,
    bytes_of,
    compiled,
    list_in,
    matmul,
)

CAPABILITY = (9, 0)  # of an H100
# Operators that run no kernel.
FREE = frozenset(
    (
        "view", "_unsafe_view", "permute", "transpose", "t", "split", "split_with_sizes", "unsqueeze", "squeeze",
        "slice", "select", "expand", "reshape", "alias", "detach", "as_strided", "unbind", "unflatten", "empty",
        "empty_like", "new_empty_strided", "empty_strided", "lift_fresh",
    )
)  # fmt: skip
# Operators that consist of several kernels: (reads and writes of the first argument, launches).
PASSES = {"logsumexp": (6, 4)}  # amax; subtract; exp; sum


def price_call(call: fake_cuda.Call, shapes: Shapes, *, is_backward: bool) -> Kernel | None:
    """The kernel of an operator in an eager step; None if nothing runs."""
    name = call.name.split("::")[1]
    if name in FREE:
        return None
    inputs, outputs = call.tensors(), call.results()
    if name in ("mm", "addmm"):
        left, right = inputs[-2:]
        return matmul(left.shape, right.shape, left.element_size(), shapes)
    if name.startswith("_varlen_attn"):
        return attention(inputs, list_in(call.args), is_backward=is_backward)
    part = shapes.part_of(tuple(x.shape) for x in [*inputs, *outputs])
    if name in PASSES:
        passes, launches = PASSES[name]
        return Kernel(part, passes * bytes_of(inputs[0]), launches=launches, is_backward=is_backward)
    if name in ("embedding", "index", "index_select", "gather"):  # only the selected rows
        return Kernel(part, 2 * sum(map(bytes_of, outputs)))
    if name == "embedding_dense_backward":
        return Kernel(part, bytes_of(inputs[0]) + 2 * sum(map(bytes_of, outputs)))
    if name in ("index_put", "scatter_add_"):
        return Kernel(part, 3 * min(bytes_of(x) for x in inputs[1:]))
    read = {id(x): bytes_of(x) for x in inputs}
    if name in ("zeros", "new_zeros", "ones_like", "copy_", "zeros_like", "fill_"):
        read.pop(id(inputs[0]), None) if inputs else None
    total = sum(read.values()) + sum(map(bytes_of, outputs))
    if name == "native_layer_norm_backward":  # a second kernel, for the gradient of the weight, reads both again
        return Kernel(part, total + bytes_of(inputs[0]) + bytes_of(inputs[1]), launches=2)
    return Kernel(part, total, is_backward=is_backward)


def make_step() -> tuple[Any, Callable[..., Any], Shapes]:
    """ModernBERT-base on the fake device, a function that runs a step of it, and its sizes."""
    import torch

    from clozebert import ClozeBertConfig, ClozeBertForMaskedLM
    from clozebert.modeling.packed import Packed

    config = ClozeBertConfig.from_name("modernbert-base")
    with torch.device("cuda"):
        model = ClozeBertForMaskedLM(config).train()
    numbers = {"dtype": torch.long, "device": "cuda"}
    boundaries = torch.zeros(ROWS + 1, dtype=torch.int32, device="cuda")
    batch = {
        "input_ids": torch.zeros(1, TOKENS, **numbers),
        "packed": Packed(boundaries, LENGTH, torch.zeros(1, TOKENS, **numbers)),
        "masked_positions": torch.zeros(PREDICTED, **numbers),
        "labels": torch.zeros(PREDICTED, **numbers),
        "num_items_in_batch": torch.zeros((), device="cuda"),
    }

    def step(*, loss_only: bool) -> Any:
        with fake_cuda.autocast(torch.bfloat16):
            outputs = model(**batch, loss_only=loss_only)
        if outputs.logits is not None:
            outputs.logits.float()  # as Accelerate does with all outputs
        return outputs.loss

    heads = config.num_attention_heads
    return (
        model,
        step,
        Shapes(config.hidden_size, config.hidden_size // heads, config.intermediate_size, config.vocab_size),
    )


def eager_kernels(*, loss_only: bool) -> list[Kernel]:
    """The kernels of a step as PyTorch dispatches it."""
    with fake_cuda.device(CAPABILITY) as calls:
        _, step, shapes = make_step()
        calls.clear()
        loss = step(loss_only=loss_only)
        forward = len(calls)
        loss.backward()
        priced = [price_call(call, shapes, is_backward=index >= forward) for index, call in enumerate(calls)]
    return [kernel for kernel in priced if kernel is not None]


def compiled_kernels(*, joins: bool, has_triton: bool, loss_only: bool, bf16_residual: bool = False) -> list[Kernel]:
    """The kernels of a step: those of torch.compile's graphs, and the eager kernels outside of the graphs."""
    import torch

    from clozebert.modeling import attention, blocks, joined, window_attention
    from clozebert.training.runtime.machine import compile_model

    graphs: list[fake_inductor.Graph] = []
    torch._dynamo.reset()
    # The kernels themselves are never run here, so any object will do.
    kernels = object() if has_triton else None
    with contextlib.ExitStack() as stack:
        for module in () if joins else (attention, blocks, joined):
            stack.enter_context(mock.patch.object(module, "can_join", never_join))
        stack.enter_context(mock.patch.object(window_attention, "KERNELS", kernels))
        stack.enter_context(fake_cuda.device(CAPABILITY, records=False))
        model, step, shapes = make_step()
        if bf16_residual:
            model.model.residual_dtype = torch.bfloat16
        backend = fake_inductor.backend(graphs.append, CAPABILITY)
        compile_model(model, torch.device("cuda"), backend=backend, dynamic=False)
        step(loss_only=loss_only).backward()
    found = []
    for graph in graphs:
        found += [compiled(one, shapes, is_backward=graph.is_backward) for one in graph.kernels] * graph.runs
    return [*found, *outside_kernels()]


def never_join(layers: Any, x: Any) -> bool:
    """A function, since torch.compile cannot follow a mock."""
    return False


def outside_kernels() -> list[Kernel]:
    """Eager kernels between the graphs: RoPE tables for two kinds of layers; of the tokens that are read the indices,
    the final norm, and the way back to the order that was asked for.
    """
    tables = [Kernel("RoPE", TOKENS * 64 * 4 * 12)] * 2
    of_predicted = PREDICTED * 768 * 4
    norm = [Kernel(REST, 2 * of_predicted), Kernel(REST, 5 * of_predicted, launches=2)]
    chosen = [Kernel(REST, 6 * of_predicted, launches=3), Kernel(REST, PREDICTED * 8 * 20, launches=10)]
    return [*tables, *norm, *chosen]


FLOAT32_RESIDUAL = {"joins": True, "has_triton": True, "loss_only": True}
DEFAULT = {**FLOAT32_RESIDUAL, "bf16_residual": True}
VARIANTS: dict[str, tuple[Callable[..., list[Kernel]], dict[str, bool], Machine]] = {
    "eager, all logits in float32": (eager_kernels, {"loss_only": False}, Machine()),
    "eager, the loss alone returned": (eager_kernels, {"loss_only": True}, Machine()),
    "compiled": (compiled_kernels, {"joins": False, "has_triton": False, "loss_only": True}, Machine()),
    "compiled, and q-k-v, gate-up joined": (
        compiled_kernels, {"joins": True, "has_triton": False, "loss_only": True}, Machine(),
    ),
    "the same, windows by kernels of our own": (compiled_kernels, FLOAT32_RESIDUAL, Machine()),
    "the same with --flash_attention FA4": (compiled_kernels, FLOAT32_RESIDUAL, Machine(attention=FLASH_ATTENTION_4)),
    "the residual stream in bf16, too: the default": (compiled_kernels, DEFAULT, Machine()),
    "the default with --flash_attention FA4": (compiled_kernels, DEFAULT, Machine(attention=FLASH_ATTENTION_4)),
}  # fmt: skip


def summarise(kernels: list[Kernel], machine: Machine) -> dict[str, Any]:
    """Milliseconds per micro-batch, by part, the longest first."""
    parts: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        parts[kernel.part] += 1e3 * kernel.seconds(machine)
    total = sum(parts.values())
    return {
        "milliseconds": total,
        "tokens_per_second": 1e3 * TOKENS / total,
        "kernels": sum(kernel.launches for kernel in kernels),
        "gigabytes": sum(kernel.bytes for kernel in kernels) / 1e9,
        "parts": dict(sorted(parts.items(), key=lambda item: -item[1])),
    }


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """The results as Markdown."""
    names: list[str] = []
    for result in results.values():
        names += [name for name in result["parts"] if name not in names]
    lines = [
        f"| computed, not measured | ms | tokens/s | kernels | {' | '.join(names)} |",
        "| --- " * (4 + len(names)) + "|",
    ]
    for variant, result in results.items():
        parts = " | ".join(f"{result['parts'].get(name, 0):.1f}" for name in names)
        lines.append(
            f"| {variant} | {result['milliseconds']:.0f} | {result['tokens_per_second']:,.0f} | {result['kernels']:,} "
            f"| {parts} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="JSON of all figures")
    parser.add_argument("--into", type=Path, help="a Markdown file: the table goes between its roofline marks")
    arguments = parser.parse_args()
    if obstacle := fake_cuda.find_obstacle():
        sys.exit(f"there can be no fake CUDA device here: {obstacle}")
    fake_cuda.install()
    results, known = {}, {}
    for variant, (make, settings, machine) in VARIANTS.items():
        key = (make.__name__, *settings.items())
        known[key] = known.get(key) or make(**settings)
        results[variant] = summarise(known[key], machine)
    alone = [kernel for kernel in known[key] if kernel.part in ("matmuls", "attention", "vocabulary")]
    results["matmuls and attention alone"] = summarise(alone, Machine())
    lines = table(results)
    print("\n".join(lines))
    if arguments.output:
        facts = {"machine": dataclasses.asdict(Machine()), "tokens": TOKENS, "predicted": PREDICTED, "steps": results}
        arguments.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if arguments.into:
        from speed_table import put

        put("\n".join(lines), arguments.into, marker="roofline")


if __name__ == "__main__":
    main()
