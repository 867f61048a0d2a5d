#!/usr/bin/env python
"""What a training step takes on an H100, computed and not measured: the table of docs/gpu.md.

    python benchmarks/roofline.py --output benchmarks/results/roofline.json --into docs/gpu.md     # two minutes, no GPU

The operators come from real forward and backward passes of the full-size model over fake CUDA tensors (fake_cuda.py);
each is priced by its shapes, on a machine of three figures:

    matmul       max(FLOPs / products, bytes / bandwidth)
    attention    FLOPs of the blocks that the kernel visits / its own FLOP/s, forward and backward
    anything     bytes read and written / bandwidth; a view is free
    launch       on every kernel

Eager: every operator that PyTorch dispatched is a kernel; it reads its arguments and writes its results. The few that
are several kernels inside are counted as such (PASSES).

Compiled: the graphs are those of torch.compile itself, forward and backward, cut by Inductor's own partitioner, which
decides what is kept and what is computed again. What Inductor would fuse is a rule here. A pointwise
result is written where a matmul, an attention or a scatter takes it, or another graph; anywhere else it is computed
again. A kernel reads each tensor from outside once and writes its results once. Two results are one kernel where one
depends on the other or both read one large tensor, and no matmul has to run between them (sums over tokens too, by
Inductor's `mix_order_reduction`). What is left out: the optimizer, waits of the host, and how far real kernels stay
below the bandwidth.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fake_cuda

ROWS, LENGTH, MASKED = 48, 1024, 0.3
TOKENS = ROWS * LENGTH
PREDICTED = round(TOKENS * MASKED)
BLOCK = 128  # queries and keys that FlashAttention takes at a time, for heads of 64


@dataclasses.dataclass(frozen=True)
class Machine:
    """FLOP/s of matmuls and of attention (forward, backward), bytes/s of memory, seconds of a launch."""

    products: float = 650e12
    bandwidth: float = 2.85e12
    launch: float = 3e-6
    attention: tuple[float, float] = (330e12, 250e12)  # FlashAttention 2, heads of 64


REST = "norms, residual, casts"
FLASH_ATTENTION_3 = (480e12, 400e12)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """FLOPs and bytes of a kernel, and the part of the model that it belongs to."""

    part: str
    bytes: float
    flops: float = 0.0
    is_backward: bool = False
    launches: int = 1

    def seconds(self, machine: Machine) -> float:
        speed = machine.attention[self.is_backward] if self.part == "attention" else machine.products
        return max(self.flops / speed, self.bytes / machine.bandwidth) + self.launches * machine.launch


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The sizes by which a tensor is recognised."""

    hidden: int
    head: int
    inner: int
    vocabulary: int

    def part_of(self, shapes: Iterable[tuple[int, ...]]) -> str:
        """Which part of the model works on tensors of these shapes, where it is neither matmul nor attention."""
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


# Eager ------------------------------------------------------------------------------------------------------------

VIEWS = frozenset(
    (
        "view", "_unsafe_view", "permute", "transpose", "t", "split", "split_with_sizes", "unsqueeze", "squeeze",
        "slice", "select", "expand", "reshape", "alias", "detach", "as_strided", "unbind", "unflatten",
    )
)  # fmt: skip
FREE = VIEWS | {"empty", "empty_like", "new_empty_strided", "empty_strided", "lift_fresh"}
# Operators that are several kernels: how often the first argument is read or written, of these kernels.
PASSES = {"logsumexp": (6, 4)}  # amax; subtract; exp; sum


def price_call(call: fake_cuda.Call, shapes: Shapes, *, is_backward: bool) -> Kernel | None:
    """An operator of an eager step; None where nothing runs."""
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
    if name in ("embedding", "index", "index_select", "gather"):  # the rows that are taken, not all
        return Kernel(part, 2 * sum(map(bytes_of, outputs)))
    if name == "embedding_dense_backward":
        return Kernel(part, bytes_of(inputs[0]) + 2 * sum(map(bytes_of, outputs)))
    if name in ("index_put", "scatter_add_"):
        return Kernel(part, 3 * min(bytes_of(x) for x in inputs[1:]))
    read = {id(x): bytes_of(x) for x in inputs}
    if name in ("zeros", "new_zeros", "ones_like", "copy_", "zeros_like", "fill_"):
        read.pop(id(inputs[0]), None) if inputs else None
    total = sum(read.values()) + sum(map(bytes_of, outputs))
    if name == "native_layer_norm_backward":  # a second kernel, for the weight's gradient, reads both again
        return Kernel(part, total + bytes_of(inputs[0]) + bytes_of(inputs[1]), launches=2)
    return Kernel(part, total, is_backward=is_backward)


def bytes_of(x: Any) -> float:
    """Of the numbers that there are: a broadcast one counts once."""
    sizes = [size for size, stride in zip(x.shape, x.stride(), strict=True) if stride != 0]
    return math.prod(sizes) * x.element_size()


def matmul(left: Any, right: Any, size: int, shapes: Shapes) -> Kernel:
    (rows, inner), columns = left, right[-1]
    part = "vocabulary" if shapes.vocabulary in (rows, inner, columns) else "matmuls"
    return Kernel(part, size * (rows * inner + inner * columns + rows * columns), 2 * rows * inner * columns)


def attention(tensors: list[Any], window: list[Any], *, is_backward: bool) -> Kernel:
    """Blocks of keys that a block of queries visits: all, or those that a window touches."""
    tokens, heads, head_size = tensors[0].shape
    side = window[0]
    keys = LENGTH if side < 0 else min(LENGTH, BLOCK * (2 * math.ceil(side / BLOCK) + 1))
    flops = 4 * tokens * keys * heads * head_size * (2.5 if is_backward else 1)
    return Kernel("attention", 2.0 * sum(map(bytes_of, tensors[:3])), flops, is_backward=is_backward)


def list_in(arguments: Any) -> list[Any]:
    """The window among an attention's arguments."""
    return next(value for value in arguments if isinstance(value, (list, tuple)) and len(value) == 2)


# Compiled ---------------------------------------------------------------------------------------------------------

REDUCTIONS = frozenset({"var_mean", "sum", "amax", "mean", "prepare_softmax_online", "logsumexp"})
LARGE = 1 << 24  # bytes
SCATTERS = frozenset({"index_put", "_unsafe_masked_index_put_accumulate", "embedding_dense_backward", "sort"})


class Graph:
    """A graph of torch.compile, with how often it ran."""

    def __init__(self, module: Any, *, is_backward: bool):
        self.nodes, self.is_backward, self.runs = list(module.graph.nodes), is_backward, 0
        self.waits_for: dict[Any, set[Any]] = {}  # matmuls and the like that come before a node
        self.users: dict[Any, list[Any]] = defaultdict(list)
        for node in self.nodes:
            for source in node.all_input_nodes:
                if self._is_view(node):
                    continue
                self.users[self._base(source)].append(node)

    @staticmethod
    def _name(node: Any) -> str:
        if node.target is operator.getitem:
            return "getitem"
        return node.target._schema.name.split("::")[1] if hasattr(node.target, "_schema") else str(node.target)

    def _is_view(self, node: Any) -> bool:
        if node.op != "call_function":
            return False
        return self._name(node) in VIEWS or (self._name(node) == "getitem" and self._is_view(node.args[0]))

    def _base(self, node: Any) -> Any:
        while self._is_view(node):
            node = node.args[0]
        return node

    def _kind(self, node: Any) -> str:
        """extern, scatter, sum (over tokens), reduction (of a row), pointwise, or nothing (inputs, views, sizes)."""
        if node.op != "call_function" or self._is_view(node) or not tensors_of(node):
            return "nothing"
        name = self._name(node)
        if name == "getitem":
            return "result" if self._kind(node.args[0]) == "reduction" else "nothing"
        if name in ("mm", "addmm") or name.startswith("_varlen_attn"):
            return "extern"
        if name in SCATTERS:
            return "scatter"
        if name not in REDUCTIONS:
            return "pointwise"
        sizes = {size for shape in all_shapes([node]) for size in shape}
        return "reduction" if sizes & {TOKENS, PREDICTED} else "sum"

    def kernels(self, shapes: Shapes) -> list[Kernel]:
        """What runs once, by the rule of fusion."""
        kinds = {node: self._kind(node) for node in self.nodes}
        bases = {node: {self._base(source) for source in node.all_input_nodes} for node in self.nodes}
        outside = {node for node in self.nodes if kinds[node] in ("extern", "scatter")}
        for node in self.nodes:
            self.waits_for[node] = set().union(*(self.waits_for[s] | ({s} & outside) for s in bases[node]))
        written = {node for node in self.nodes if kinds[node] in ("reduction", "sum") or self._is_kept(node, kinds)}
        computed = {node: self._computed_in(node, kinds, written) for node in written}
        found = [self._price_extern(node, shapes) for node in self.nodes if kinds[node] == "extern"]
        found += [self._price_scatter(node, shapes) for node in self.nodes if kinds[node] == "scatter"]
        # Kernels that look at the same large tensor are one; so is a row's sum with what is done with it.
        leader = {node: node for node in written}
        members = {node: {node} for node in written}
        reads = {node: {s for one in computed[node] for s in bases[one]} - computed[node] for node in written}
        for left, right in itertools.combinations([node for node in self.nodes if node in written], 2):
            depends = left in reads[right] or any(kinds[s] == "result" and s.args[0] is left for s in reads[right])
            if depends or any(sum(map(bytes_of, tensors_of(s))) > LARGE for s in reads[left] & reads[right]):
                one, other = root(leader, left), root(leader, right)
                if one is not other and not self._between(members[one], members[other], outside):
                    leader[other] = one
                    members[one] |= members.pop(other)
        groups: dict[Any, set[Any]] = defaultdict(set)
        for node in written:
            groups[root(leader, node)].add(node)
        for group in groups.values():
            inside = set().union(*(computed[node] for node in group))
            inside |= {s for one in inside for s in bases[one] if kinds[s] == "result" and s.args[0] in group}
            out = sum(sum(map(bytes_of, tensors_of(node))) for node in group if set(self.users[node]) - inside)
            total = self._read(inside) + out
            if total > 1 << 16:  # smaller ones are numbers about numbers
                found.append(Kernel(self._part(inside, shapes), total))
        return found

    def _between(self, left: set[Any], right: set[Any], outside: set[Any]) -> bool:
        """Whether something outside has to run after one of two kernels and before the other."""
        return any(self._leads(one, other, outside) for one, other in ((left, right), (right, left)))

    def _leads(self, before: set[Any], after: set[Any], outside: set[Any]) -> bool:
        needed = set().union(*(self.waits_for[node] for node in after))
        reached: set[Any] = set()
        waiting = list(before)
        while waiting:
            for user in self.users[waiting.pop()]:
                if user in needed:
                    return True
                if user not in reached and user not in outside:
                    reached.add(user)
                    waiting.append(user)
        return False

    def _is_kept(self, node: Any, kinds: dict[Any, str]) -> bool:
        """Whether a pointwise result has to be written: for a matmul, an attention, a scatter, or after the graph."""
        after = ("extern", "scatter", "nothing")
        return kinds[node] == "pointwise" and any(kinds[user] in after for user in self.users[node])

    def _computed_in(self, node: Any, kinds: dict[Any, str], written: set[Any]) -> set[Any]:
        """The node and all pointwise nodes before it, up to tensors that lie in memory: computed anew where needed."""
        found: set[Any] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            if one in found or (one is not node and (kinds[one] != "pointwise" or one in written)):
                continue
            found.add(one)
            waiting += [self._base(source) for source in one.all_input_nodes]
        return found

    def _read(self, group: set[Any]) -> float:
        """Bytes that a kernel reads from outside: of each tensor the parts that it looks at."""
        parts: dict[Any, dict[Any, float]] = defaultdict(dict)
        for node in group:
            for source in node.all_input_nodes:
                base = self._base(source)
                if base in group:
                    continue
                seen = sum(map(bytes_of, tensors_of(source)))
                if self._name(node) in ("embedding", "gather", "index"):
                    seen = min(seen, sum(map(bytes_of, tensors_of(node))))
                parts[base][source] = seen
        whole = {base: sum(map(bytes_of, tensors_of(base))) for base in parts}
        return sum(min(whole[base] or math.inf, sum(views.values())) for base, views in parts.items())

    def _price_scatter(self, node: Any, shapes: Shapes) -> Kernel:
        written = sum(map(bytes_of, tensors_of(node)))
        values = max((bytes_of(x) for source in node.all_input_nodes for x in tensors_of(source)), default=0.0)
        part = shapes.part_of(all_shapes([node, *node.all_input_nodes]))
        return Kernel(part, written + 3 * min(values, written), is_backward=True)

    def _part(self, group: set[Any], shapes: Shapes) -> str:
        return shapes.part_of(all_shapes([*group, *(s for node in group for s in node.all_input_nodes)]))

    def _price_extern(self, node: Any, shapes: Shapes) -> Kernel:
        inputs = [tensors_of(source)[0] for source in node.all_input_nodes if tensors_of(source)]
        if self._name(node) in ("mm", "addmm"):
            left, right = inputs[-2:]
            return matmul(left.shape, right.shape, left.element_size(), shapes)
        return attention(inputs, list_in(node.args), is_backward=self.is_backward)


def root(leader: dict[Any, Any], node: Any) -> Any:
    while leader[node] is not node:
        node = leader[node]
    return node


def tensors_of(node: Any) -> list[Any]:
    """The tensors that a node gives."""
    import torch

    value = node.meta.get("val") if hasattr(node, "meta") else None
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]


def all_shapes(nodes: Iterable[Any]) -> list[tuple[int, ...]]:
    return [tuple(x.shape) for node in nodes for x in tensors_of(node)]


# Steps ------------------------------------------------------------------------------------------------------------


def make_step() -> tuple[Any, Callable[..., Any], Shapes]:
    """ModernBERT-base on the fake device, a step of it, and its sizes."""
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
            outputs.logits.float()  # as Accelerate does with whatever is returned
        return outputs.loss

    heads = config.num_attention_heads
    return (
        model,
        step,
        Shapes(config.hidden_size, config.hidden_size // heads, config.intermediate_size, config.vocab_size),
    )


def eager_kernels(*, joined: bool, loss_only: bool) -> list[Kernel]:
    """A step as PyTorch dispatches it."""
    from clozebert.modeling import kernels

    can_join = kernels._can_join
    with fake_cuda.device((9, 0)) as calls:
        _, step, shapes = make_step()
        calls.clear()
        kernels._can_join = can_join if joined else lambda layers, x: False
        try:
            loss = step(loss_only=loss_only)
        finally:
            kernels._can_join = can_join
        forward = len(calls)
        loss.backward()
        priced = [price_call(call, shapes, is_backward=index >= forward) for index, call in enumerate(calls)]
    return [kernel for kernel in priced if kernel is not None]


def compiled_kernels(*, joined: bool, loss_only: bool) -> list[Kernel]:
    """A step as torch.compile cuts it, and the rule fuses it; what stays outside of the graphs is priced as eager."""
    import torch
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    from clozebert.modeling import kernels
    from clozebert.training.machine import compile_model

    graphs: list[Graph] = []

    def compile_part(module: Any, inputs: Any, *, is_backward: bool) -> Any:
        graph = Graph(module, is_backward=is_backward)
        graphs.append(graph)

        def run(*arguments: Any) -> Any:
            graph.runs += 1
            return module(*arguments)

        return make_boxed_func(run)

    backend = aot_autograd(
        fw_compiler=functools.partial(compile_part, is_backward=False),
        bw_compiler=functools.partial(compile_part, is_backward=True),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    can_join = kernels._can_join
    kernels._can_join = can_join if joined else never_join
    try:
        with fake_cuda.device((9, 0), records=False):
            model, step, shapes = make_step()
            compile_model(model, torch.device("cuda"), backend=backend, dynamic=False)
            step(loss_only=loss_only).backward()
            found = [kernel for graph in graphs for kernel in graph.kernels(shapes) * graph.runs]
    finally:
        kernels._can_join = can_join
    return [*found, *outside_kernels()]


def never_join(layers: Any, x: Any) -> bool:
    return False


def outside_kernels() -> list[Kernel]:
    """Between the graphs, eager: tables of RoPE for two kinds of layers, the final norm, the choice of tokens."""
    tables = [Kernel("RoPE", TOKENS * 64 * 4 * 12)] * 2
    of_tokens, of_predicted = TOKENS * 768 * 4, PREDICTED * 768 * 4
    norm = [
        Kernel("norms, residual, casts", 2 * of_tokens),
        Kernel("norms, residual, casts", 5 * of_tokens, launches=2),
    ]
    chosen = [Kernel("norms, residual, casts", 2 * of_predicted + of_tokens + 3 * of_predicted, launches=3)]
    return [*tables, *norm, *chosen]


VARIANTS: dict[str, tuple[Callable[..., list[Kernel]], dict[str, bool], Machine]] = {
    "eager, as the issue found it": (eager_kernels, {"joined": False, "loss_only": False}, Machine()),
    "eager, the loss alone returned": (eager_kernels, {"joined": False, "loss_only": True}, Machine()),
    "eager, and q-k-v, gate-up joined": (eager_kernels, {"joined": True, "loss_only": True}, Machine()),
    "compiled": (compiled_kernels, {"joined": False, "loss_only": True}, Machine()),
    "compiled, and q-k-v, gate-up joined: the default": (
        compiled_kernels, {"joined": True, "loss_only": True}, Machine(),
    ),
    "the same, FlashAttention 3": (
        compiled_kernels, {"joined": True, "loss_only": True}, Machine(attention=FLASH_ATTENTION_3),
    ),
}  # fmt: skip


def summarise(kernels: list[Kernel], machine: Machine) -> dict[str, Any]:
    """Milliseconds of a micro-batch, by part, the longest first."""
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
    """Markdown."""
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
        text = arguments.into.read_text(encoding="utf-8")
        before, rest = text.split("<!-- roofline -->\n", 1)
        _, after = rest.split("<!-- /roofline -->", 1)
        new = f"{before}<!-- roofline -->\n" + "\n".join(lines) + f"\n<!-- /roofline -->{after}"
        arguments.into.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
