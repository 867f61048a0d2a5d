# ruff: noqa: I001
"""The kernels that torch.compile writes for a training step, compiled for GPUs that are not here: how many, as JSON.

    python inductor_compiled.py 80 90       # compute capabilities 8.0 and 9.0; needs Triton, no GPU

The model is ModernBERT-base with five layers.
"""

import json
import re
import sys
from typing import Any
from unittest import mock

from on_fake_cuda import batch, configuration, fake_cuda, fake_inductor, make  # before torch: it makes the device

import torch
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime import triton_helpers
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from clozebert import ClozeBertForMaskedLM
from clozebert.modeling import window_attention
from clozebert.training.runtime.machine import compile_model

KERNEL = re.compile(r"^(triton_\w+) = async_compile\.triton\('\w+', '''(.*?)''', device_str='cuda'\)", re.S | re.M)


class NoDriver:
    """What Triton asks of a driver while kernels are written and compiled."""

    def __init__(self, capability: int):
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def written_kernels(capability: tuple[int, int], dtype: torch.dtype) -> set[tuple[str, str]]:
    """Names and texts of the kernels of a step, with a residual stream of this type."""
    graphs: list[fake_inductor.Graph] = []
    torch._dynamo.reset()
    with fake_cuda.device(capability, records=False), mock.patch.object(window_attention, "KERNELS", object()):
        model = make(ClozeBertForMaskedLM, configuration("modernbert-base", layers=4))
        model.model.residual_dtype = dtype
        backend = fake_inductor.backend(graphs.append, capability, writes=True)
        compile_model(model, torch.device("cuda"), backend=backend)
        with fake_cuda.autocast(torch.bfloat16):
            loss = model(**batch(48, 48 * 1024, 12 * 1024, 1024)).loss
        loss.backward()
    return {match.groups() for graph in graphs for match in KERNEL.finditer(graph.code)}


def compiled(capability: int) -> list[Any]:
    driver.set_active(NoDriver(capability))
    kernels = set()
    for dtype in (torch.float32, torch.bfloat16):
        kernels |= written_kernels(divmod(capability, 10), dtype)
    configurations = 0
    with mock.patch.object(triton_helpers, "set_driver_to_gpu"):
        for name, text in kernels:
            kernel = getattr(PyCodeCache.load(text), name)
            kernel.precompile(warm_cache_only=True)
            configurations += len(kernel.compile_results)
    return [capability, len(kernels), configurations]


if __name__ == "__main__":
    print(json.dumps([compiled(int(capability)) for capability in sys.argv[1:]]))
