"""How a run is laid over a machine: processes, precision, compilation, determinism."""

import datetime
import logging
import os
import shutil
from typing import Any

import torch

from ..utils.device import choose_precision, has_fast_bf16
from ..utils.errors import UserError

logger = logging.getLogger(__name__)


def choose_muon_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The type of Muon's products: bf16 where the run computes in it and the device multiplies it in hardware."""
    return torch.bfloat16 if precision == "bf16" and has_fast_bf16(device) else torch.float32


def make_accelerator(
    *, mixed_precision: str, use_cpu: bool, report_to: list[str], output_dir: str, timeout: float = 300.0
) -> Any:
    """An Accelerator with as many processes as the launcher was asked for.

    Args:
        timeout: seconds that a process waits for the others.

    Raises:
        ValueError: the launch configuration would silently run something else than it says.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
    from accelerate.state import AcceleratorState

    use_cpu = use_cpu or not (torch.cuda.is_available() or torch.backends.mps.is_available())
    _check_launch(use_cpu=use_cpu)
    device = torch.device("cpu" if use_cpu else "cuda" if torch.cuda.is_available() else "mps")
    precision = choose_precision(mixed_precision, device)
    # Accelerate keeps one precision for the whole process; a second run in it may want another.
    if AcceleratorState._shared_state.get("_mixed_precision", precision) != precision:
        AcceleratorState._reset_state()
    accelerator = Accelerator(
        cpu=use_cpu,
        mixed_precision=precision,
        log_with=report_to or None,
        project_dir=output_dir or None,
        kwargs_handlers=[
            DistributedDataParallelKwargs(gradient_as_bucket_view=True, broadcast_buffers=False),
            # Later than the watchdog, which shows where each process waits.
            InitProcessGroupKwargs(timeout=datetime.timedelta(seconds=timeout + 30)),
        ],
    )
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != launched:
        raise UserError(f"{launched} processes were launched, but Accelerate runs {accelerator.num_processes}")
    return accelerator


def _check_launch(*, use_cpu: bool) -> None:
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in os.environ
    if by_accelerate and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        raise UserError(
            "accelerate launch was asked for several processes but started one: on CPUs it needs a configuration file "
            "with `distributed_type: MULTI_GPU` and `use_cpu: true` (see docs/many_gpus.md)"
        )
    if use_cpu and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise UserError("Accelerate has no FSDP on CPUs: it would run DDP instead; take a configuration without FSDP")


def compile_model(model: torch.nn.Module, device: torch.device) -> None:
    """Have `model` compiled at its first call, for any number of tokens; without a C++ compiler: a warning."""
    if device.type == "cpu" and not any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl")):
        logger.warning("torch_compile needs a C++ compiler on the CPU, and there is none: running without it")
        return
    model.compile(dynamic=True)


def make_deterministic() -> None:
    """Only kernels that give the same bits each time; an operation without one raises an error."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make dropout a function of (seed, step, process): there is no generator state to save."""
    torch.manual_seed((seed * 1_000_003 + step) * 65_537 + rank)
