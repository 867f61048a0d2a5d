"""Sets up the machine: Accelerate, processes, compilation, determinism, the precision of Muon."""

import datetime
import functools
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...configuration import ClozeBertConfig
from ...modeling import window_attention
from ...utils.device import choose_precision, find_device, has_fast_bf16
from ...utils.errors import UserError
from ...utils.processes import joining_processes, launched_processes
from .watchdog import SECONDS_TO_SAVE

logger = logging.getLogger(__name__)


def choose_muon_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The type of Muon's matmuls: bf16 if the run computes in it and the device multiplies it in hardware."""
    return torch.bfloat16 if precision == "bf16" and has_fast_bf16(device) else torch.float32


def choose_bf16_residual(wanted: bool | None, config: ClozeBertConfig, *, precision: str, on_cuda: bool) -> bool:
    """Whether the residual stream is in bf16: as wanted, or by default in a bf16 run of a pre-norm model on CUDA."""
    if wanted is not None:
        return wanted
    return on_cuda and precision == "bf16" and config.norm_position == "pre"


def make_accelerator(
    *, mixed_precision: str, use_cpu: bool, report_to: Sequence[str] = (), output_dir: str = "", timeout: float = 300.0
) -> Any:
    """An Accelerator with as many processes as the launcher was asked for.

    Args:
        timeout: seconds without progress after which a process counts as hung; see `Watchdog`.

    Raises:
        ValueError: the launch would silently run something other than the configuration says.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
    from accelerate.state import AcceleratorState
    from accelerate.utils import GradientAccumulationPlugin

    device = find_device(use_cpu=use_cpu)
    use_cpu = device.type == "cpu"
    if use_cpu and is_sharded():
        raise UserError("Accelerate has no FSDP on CPUs: it would run DDP instead; take a configuration without FSDP")
    precision = choose_precision(mixed_precision, device)
    # Accelerate keeps one precision for the whole process; a second run in it may want another.
    if AcceleratorState._shared_state.get("_mixed_precision", precision) != precision:
        AcceleratorState._reset_state()
    with joining_processes():
        accelerator = Accelerator(
            fsdp_plugin=sharding(precision) if is_sharded() else None,
            cpu=use_cpu,
            mixed_precision=precision,
            log_with=list(report_to) or None,
            project_dir=output_dir or None,
            # The loop accumulates by itself. Without this, a number in the environment would divide the gradient.
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
            kwargs_handlers=[
                DistributedDataParallelKwargs(gradient_as_bucket_view=True, broadcast_buffers=False),
                # Longer than the watchdog waits for a process that saves. It shows where each process waits.
                InitProcessGroupKwargs(timeout=datetime.timedelta(seconds=timeout + SECONDS_TO_SAVE + 30)),
            ],
        )
    launched = launched_processes()
    if accelerator.num_processes != launched:
        raise UserError(f"{launched} processes were launched, but Accelerate runs {accelerator.num_processes}")
    return accelerator


def is_sharded() -> bool:
    """Whether the launcher was asked for FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def sharding(precision: str) -> Any:
    """Accelerate's FSDP2 as the launch file configures it, in mixed precision as under DDP.

    Weights are gathered in half precision. Sums of gradients, position tables and the loss are in float32, and so is
    the residual stream if it is to be; Accelerate's own policy would cast them all to half precision.
    """
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    plugin = FullyShardedDataParallelPlugin()
    if plugin.fsdp_version != 2:
        raise UserError("fsdp_version must be 2 in the launch configuration (configuration/accelerate_fsdp.yaml)")
    if half is not None:
        plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=half, reduce_dtype=torch.float32, output_dtype=None, cast_forward_inputs=False
        )
    return plugin


def choose_compilation(wanted: bool | None, device: torch.device) -> bool:
    """Whether to compile: as wanted, or by default on CUDA with Triton and what it needs.

    By default a sharded model is not compiled, because compilation together with FSDP is untested.
    """
    if wanted is not None:
        return wanted
    if device.type != "cuda" or is_sharded() or torch.cuda.get_device_capability(device) < (7, 0):
        return False
    if window_attention.KERNELS is None:
        _say_not_compiled()
        return False
    return True


@functools.cache  # said once
def _say_not_compiled() -> None:
    logger.warning(
        "training is not compiled: torch.compile on CUDA needs Triton (pip install triton), a C compiler and Python's "
        "headers"
    )


def begins_slowly(torch_compile: bool | None, device: torch.device) -> bool:
    """Whether the first steps may take a minute or more longer than later ones, as they compile or load kernels."""
    return bool(torch_compile) or device.type != "cpu"


def compile_model(model: Any, device: torch.device, *, backend: Any = "inductor", dynamic: bool = True) -> None:
    """Compile the parts of a masked-LM model at their first call, for any number of tokens and documents.

    Layers of one kind share a graph, so there are few: the embeddings, a layer of each kind, the head with its loss.
    On a CPU without a C++ compiler, this only warns.
    """
    if device.type == "cpu" and not any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl")):
        logger.warning("torch_compile needs a C++ compiler on the CPU, and there is none: running without it")
        return
    # There is a graph for each kind of layer, with and without a gradient, in each phase. PyTorch limits their number.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    # Under DDP, PyTorch would cut each graph where a bucket of gradients is full, the first one after 1 MB, so within
    # almost every layer. Gradients of a layer are ready early enough without that.
    torch._dynamo.config.optimize_ddp = False
    # Functions and not modules are compiled, so that hooks, such as FSDP's, stay outside.
    parts = [(model.model.embeddings, "forward"), *((layer, "forward") for layer in model.model.layers)]
    for module, name in [*parts, (model, "predict")]:
        setattr(module, name, torch.compile(getattr(module, name), dynamic=dynamic, backend=backend))


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """If wanted, use only deterministic kernels within the block; an operation without one raises an error."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make dropout a function of (seed, step, process): there is no generator state to save."""
    # A generator's seed has 64 bits. Without the modulo, seeds above 280 million would need more.
    torch.manual_seed(((seed * 1_000_003 + step) * 65_537 + rank) % 2**64)
