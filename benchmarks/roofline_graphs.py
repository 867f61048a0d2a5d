"""Turns the graphs of torch.compile into kernels, by the fusion rule that roofline.py states."""

import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from roofline_prices import (
    PREDICTED,
    TOKENS,
    Kernel,
    Shapes,
    attention,
    bytes_of,
    list_in,
    matmul,
    window_attention,
)

VIEWS = frozenset(
    (
        "view", "_unsafe_view", "permute", "transpose", "t", "split", "split_with_sizes", "unsqueeze", "squeeze",
        "slice", "select", "expand", "reshape", "alias", "detach", "as_strided", "unbind", "unflatten",
    )
)  # fmt: skip
REDUCTIONS = frozenset({"var_mean", "sum", "amax", "mean", "prepare_softmax_online", "logsumexp"})
LARGE = 1 << 24  # bytes
SCATTERS = frozenset({"index_put", "_unsafe_masked_index_put_accumulate", "embedding_dense_backward", "sort"})


class Graph:
    """A graph of torch.compile, with the number of its runs."""

    def __init__(self, module: Any, *, is_backward: bool):
        self.nodes, self.is_backward, self.runs = list(module.graph.nodes), is_backward, 0
        self.waits_for: dict[Any, set[Any]] = {}  # matmuls and other opaque kernels that a node depends on
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
        """The kind of a node: extern, scatter, sum (over tokens), reduction (of a row), result, pointwise, nothing."""
        if node.op != "call_function" or self._is_view(node) or not tensors_of(node):
            return "nothing"
        name = self._name(node)
        if name == "getitem":
            return "result" if self._kind(node.args[0]) == "reduction" else "nothing"
        if name in ("mm", "addmm", "turn_back_and_join") or name.startswith(("_varlen_attn", "window_attention")):
            return "extern"
        if name in SCATTERS:
            return "scatter"
        if name not in REDUCTIONS:
            return "pointwise"
        sizes = {size for shape in all_shapes([node]) for size in shape}
        return "reduction" if sizes & {TOKENS, PREDICTED} else "sum"

    def kernels(self, shapes: Shapes) -> list[Kernel]:
        """The kernels of one run of the graph, by the fusion rule."""
        kinds = {node: self._kind(node) for node in self.nodes}
        bases = {node: {self._base(source) for source in node.all_input_nodes} for node in self.nodes}
        outside = {node for node in self.nodes if kinds[node] in ("extern", "scatter")}
        for node in self.nodes:
            self.waits_for[node] = set().union(*(self.waits_for[s] | ({s} & outside) for s in bases[node]))
        written = {node for node in self.nodes if kinds[node] in ("reduction", "sum") or self._is_kept(node, kinds)}
        computed = {node: self._computed_in(node, kinds, written) for node in written}
        found = [self._price_extern(node, shapes) for node in self.nodes if kinds[node] == "extern"]
        found += [self._price_scatter(node, shapes) for node in self.nodes if kinds[node] == "scatter"]
        # Kernels that read the same large tensor are merged, and a row's reduction with the kernels that use it.
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
            if total > 1 << 16:  # smaller ones handle only scalars and the like
                found.append(Kernel(self._part(inside, shapes), total))
        return found

    def _between(self, left: set[Any], right: set[Any], outside: set[Any]) -> bool:
        """Whether a kernel of `outside` has to run after one of two kernels and before the other."""
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
        """Whether a pointwise result has to be written, for a matmul, an attention, a scatter or another graph."""
        after = ("extern", "scatter", "nothing")
        return kinds[node] == "pointwise" and any(kinds[user] in after for user in self.users[node])

    def _computed_in(self, node: Any, kinds: dict[Any, str], written: set[Any]) -> set[Any]:
        """The node and the pointwise nodes before it, back to tensors in memory; all of these are recomputed."""
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
        """Bytes that a kernel reads from outside: of each tensor only the parts that it uses."""
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
        if self._name(node) == "turn_back_and_join":
            return Kernel("RoPE", sum(map(bytes_of, [*inputs, *tensors_of(node)])), is_backward=True, launches=3)
        if self._name(node).startswith("window_attention"):
            window = next(value for value in reversed(node.args) if isinstance(value, int))
            return window_attention(inputs, window, is_backward=self.is_backward)
        return attention(inputs, list_in(node.args), is_backward=self.is_backward)


def root(leader: dict[Any, Any], node: Any) -> Any:
    while leader[node] is not node:
        node = leader[node]
    return node


def tensors_of(node: Any) -> list[Any]:
    """The output tensors of a node."""
    import torch

    value = node.meta.get("val") if hasattr(node, "meta") else None
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]


def all_shapes(nodes: Iterable[Any]) -> list[tuple[int, ...]]:
    return [tuple(x.shape) for node in nodes for x in tensors_of(node)]
