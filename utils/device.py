"""Devices: which one to use, the modes of training on it, which precision is fast on it, its FLOP/s and its memory."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from .errors import UserError
from .limits import memory_limit

logger = logging.getLogger(__name__)

# Seconds of timed matmuls after which the measurement stops.
_LONG_ENOUGH = 0.5
_training = threading.Lock()  # held while a run trains


def _train_anew() -> None:
    global _training
    _training = threading.Lock()


if hasattr(os, "register_at_fork"):  # what trains in the parent does not train in its child
    os.register_at_fork(after_in_child=_train_anew)


def find_device(*, use_cpu: bool = False) -> torch.device:
    """This machine's accelerator: CUDA, else MPS. The CPU if there is none or `use_cpu` is set."""
    if use_cpu:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


@contextmanager
def training_modes(device: torch.device) -> Iterator[None]:
    """PyTorch's modes as training needs them, whatever the program around it has set.

    Within the block, new tensors are float32 and on the CPU, gradients are recorded, and there is no autocast. After
    it, the program's own `Accelerator` has its precision back, or it may make one of any precision: all of a process
    share one.

    Raises:
        UserError: this process is within such a block already.
    """
    with _alone(), _accelerators_kept():
        yield from _modes(device)


@contextmanager
def _alone() -> Iterator[None]:
    lock = _training
    if not lock.acquire(blocking=False):
        raise UserError(
            "this process is training already, and two runs would draw from one generator of random numbers: train "
            "one after the other, or each in a process of its own"
        )
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _accelerators_kept() -> Iterator[None]:
    from accelerate.state import AcceleratorState

    before = dict(AcceleratorState._shared_state)
    try:
        yield
    finally:
        AcceleratorState._shared_state.clear()
        AcceleratorState._shared_state.update(before)


def _modes(device: torch.device) -> Iterator[None]:
    dtype, caches = torch.get_default_dtype(), torch.is_autocast_cache_enabled()
    enabled = {kind: torch.is_autocast_enabled(kind) for kind in {"cpu", device.type}}
    # Only where it is needed, as it makes each call of a function slower.
    usual_device = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    torch.set_default_dtype(torch.float32)
    # Not by `torch.autocast`: it keeps copies of the weights until the outermost one is left, so that each step would
    # compute with those of the first.
    for kind in enabled:
        torch.set_autocast_enabled(kind, False)
    if torch.autocast_increment_nesting() > 1:
        torch.set_autocast_cache_enabled(False)
    torch.autocast_decrement_nesting()
    try:
        with torch.inference_mode(False), torch.enable_grad(), usual_device:
            yield
    finally:
        torch.set_autocast_cache_enabled(caches)
        for kind, was in enabled.items():
            torch.set_autocast_enabled(kind, was)
        torch.set_default_dtype(dtype)


def choose_precision(wanted: str, device: torch.device) -> str:
    """Turn `auto` into `bf16` if the device multiplies it in hardware, else `no`. Other values are returned unchanged.

    Raises:
        ValueError: the device does not support the wanted precision.
    """
    if wanted == "auto":
        return "bf16" if has_fast_bf16(device) else "no"
    if wanted == "bf16" and device.type == "cpu" and not has_fast_bf16(device):
        logger.warning(
            "mixed_precision='bf16': this CPU multiplies bf16 in software, about eighty times as slowly as float32; "
            "'auto' and 'no' compute in float32"
        )
    if wanted == "fp16" and device.type != "cuda":
        raise UserError(f"mixed_precision='fp16' needs a CUDA device, not {device.type}; take bf16, no or auto")
    if wanted == "bf16" and device.type == "cuda" and not has_fast_bf16(device):
        raise UserError("mixed_precision='bf16': this GPU does not support it; take fp16, no or auto")
    return wanted


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 in hardware. A CPU that does not is eighty times slower than in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        # ATEN_CPU_CAPABILITY=avx2 in the environment makes PyTorch treat any CPU as one without AVX512.
        if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
            return False
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(bool(getattr(torch.cpu, check, bool)()) for check in checks)
    return False


def measure_matmul_flops(device: torch.device, precision: str, *, size: int | None = None) -> float:
    """The FLOP/s of this device in a matmul of two square matrices: the best of at most eight.

    Takes about a tenth of a second on a GPU or a few cores. A model's own FLOP/s are compared with this peak.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    size = size or (8192 if device.type == "cuda" else 768)
    # Its own generator: drawing from the global one would change the weights that the run's seed gives.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    seconds: list[float] = []
    # On a CPU that emulates half precision, one matmul takes seconds.
    while len(seconds) < 8 and sum(seconds) < _LONG_ENOUGH:
        wait_for(device)
        begun = time.perf_counter()
        left @ right
        wait_for(device)
        seconds.append(time.perf_counter() - begun)
    return 2 * size**3 / min(seconds)


def memory_of(device: torch.device) -> float:
    """The memory of the GPU, or else of the machine, in bytes; of a container or a job, what it may take."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return min(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")), memory_limit())
    except (AttributeError, ValueError):
        raise UserError("this system does not say how much memory it has: name a kind of GPU with --device") from None


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
