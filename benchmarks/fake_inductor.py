"""What torch.compile runs on a GPU that is not here: Inductor's own graphs and kernels.

    backend = fake_inductor.backend(graphs.append, capability=(9, 0))
    with fake_cuda.device((9, 0), records=False):
        model = torch.compile(model, backend=backend)
        model(...).backward()
    graphs[0].kernels, graphs[0].runs

Inductor's passes, its choice of what is kept for the backward pass, and its scheduler run as they do for that GPU; its
questions about a device are answered as an H100 would. Triton is needed only for the text of the kernels.
"""

import contextlib
import copy
import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

# An H100, for Inductor: it asks for the number of multiprocessors and for their limits.
H100 = {
    "name": "NVIDIA H100", "multi_processor_count": 132, "total_memory": 80 << 30, "regs_per_multiprocessor": 65_536,
    "max_threads_per_multi_processor": 2_048, "max_threads_per_block": 1_024, "warp_size": 32,
    "shared_memory_per_block": 49_152, "shared_memory_per_block_optin": 232_448, "L2_cache_size": 50 << 20,
}  # fmt: skip


@dataclasses.dataclass
class Kernel:
    """A kernel of a graph.

    Attributes:
        operator: the operator, of one that Inductor does not write itself, such as `mm`; None: fused by Inductor.
        origins: the nodes of the graph that it computes.
        bytes: what it reads and writes at most, as Inductor counts: each tensor once, whole if any part is used.
    """

    operator: str | None
    origins: list[Any]
    bytes: int


@dataclasses.dataclass
class Graph:
    """A graph of torch.compile with its kernels, the number of its runs, and the Python program that runs it."""

    is_backward: bool
    kernels: list[Kernel]
    runs: int = 0
    code: str = ""


def backend(
    note: Callable[[Graph], Any], capability: tuple[int, int], *, writes: bool = False
) -> Callable[[Any, Any], Any]:
    """A backend for `torch.compile` that hands each graph to `note`. What it returns computes nothing but shapes.

    Args:
        writes: write the kernels too (`Graph.code`); this needs Triton, with a driver.
    """
    from functorch.compile import make_boxed_func
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner(module: Any, inputs: Any, **about: Any) -> Any:
        plain = copy.deepcopy(module)  # Inductor changes the graph
        graph = Graph(bool(about.get("is_backward")), [])
        with _device(capability), _stopping(graph, writes=writes):
            compile_fx_inner(module, inputs, **about)
        note(graph)

        def run(*arguments: Any) -> Any:
            graph.runs += 1
            mode = next(x.fake_mode for x in arguments if hasattr(x, "fake_mode"))
            with mode:
                return plain(*arguments)

        return make_boxed_func(run)

    def compile_graph(module: Any, inputs: Any) -> Any:
        with _properties(capability):
            return compile_fx(module, inputs, inner_compile=inner)

    return compile_graph


class _ScheduledError(Exception):
    """Inductor has scheduled its kernels; it goes no further."""


@contextlib.contextmanager
def _stopping(graph: Graph, *, writes: bool) -> Iterator[None]:
    """A context in which Inductor fills the graph, and stops before it would load kernels."""
    from torch._inductor import config
    from torch._inductor.exc import InductorError
    from torch._inductor.graph import GraphLowering

    def schedule(lowering: Any) -> None:
        if writes:
            graph.code = lowering.codegen()[0].value
        else:
            lowering.init_wrapper_code()
            lowering._update_scheduler()
        graph.kernels += [kernel for node in lowering.scheduler.nodes if (kernel := _kernel(node)) is not None]
        raise _ScheduledError

    settings = config.patch(fx_graph_cache=False, compile_threads=1)
    with settings, mock.patch.object(GraphLowering, "compile_to_module", schedule):
        try:
            yield
        except InductorError as error:
            if not isinstance(error.inner_exception, _ScheduledError):
                raise


def _kernel(node: Any) -> Kernel | None:
    """A node of Inductor's scheduler as a kernel; None if nothing runs."""
    from torch._inductor import ir, scheduler

    if isinstance(node, scheduler.NopKernelSchedulerNode) or isinstance(node.node, ir.MultiOutput):
        return None
    parts = [part.node for part in node.get_nodes() if part.node is not None]
    origins = [origin for part in parts for origin in part.origins]
    is_own = isinstance(node, scheduler.ExternKernelSchedulerNode)
    return Kernel(name_of(node.node.op_overload) if is_own else None, origins, node.get_read_write_buffers_sizes())


def name_of(operator: Any) -> str:
    """An operator's name without its namespace; empty for what is none."""
    return operator._schema.name.split("::")[1] if hasattr(operator, "_schema") else ""


@contextlib.contextmanager
def _properties(capability: tuple[int, int]) -> Iterator[None]:
    """A context in which the device has the properties of an H100."""
    import torch
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    facts = types.SimpleNamespace(major=capability[0], minor=capability[1], **H100)
    deduced = _deduced_on_the_cpu(UniformValueConstantFolder._deduce_value)
    with (
        mock.patch.object(torch.cuda, "get_device_properties", return_value=facts),
        mock.patch.object(CudaInterface, "get_device_properties", staticmethod(lambda device=None: facts)),
        mock.patch.object(CudaInterface.Worker, "get_device_properties", staticmethod(lambda device=None: facts)),
        mock.patch.object(UniformValueConstantFolder, "_deduce_value", deduced),
    ):
        yield


@contextlib.contextmanager
def _device(capability: tuple[int, int]) -> Iterator[None]:
    """A context in which all that the scheduler asks of the device is answered. In it, no fake tensors can be made."""
    import torch
    from torch._inductor import compile_fx, scheduler

    with (
        _properties(capability),
        mock.patch.multiple(
            torch.cuda,
            is_available=lambda: True,
            current_device=lambda: 0,
            device_count=lambda: 1,
            _exchange_device=lambda index: 0,
            _maybe_exchange_device=lambda index: 0,
        ),
        mock.patch.object(torch.version, "cuda", "13.0"),
        mock.patch.object(compile_fx.dynamo_utils, "preserve_rng_state", contextlib.nullcontext),
        mock.patch.object(scheduler, "has_triton", return_value=True),
    ):
        yield


def _deduced_on_the_cpu(deduce: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Inductor computes the values of uniform tensors with real ones of one element, on the device of the graph."""
    import torch

    def on_the_cpu(folder: Any, node: Any) -> Any:
        asked = node.kwargs
        if "device" not in asked:
            return deduce(folder, node)
        node.kwargs = {**asked, "device": torch.device("cpu")}
        try:
            return deduce(folder, node)
        finally:
            node.kwargs = asked

    return on_the_cpu
