"""Fake CUDA tensors on a machine without CUDA: shapes, types and kernels of a real forward and backward pass.

    import fake_cuda                 # before torch
    fake_cuda.install()
    with fake_cuda.device(capability=(8, 0)) as calls:
        ...                          # tensors made here with device="cuda" are fake
    calls                            # every operator, with its arguments and results

Nothing is computed. PyTorch's FakeTensorMode traces CUDA tensors through the real operators, autograd and autocast. A
PyTorch built without CUDA lacks the device itself (its index, its streams); `fake_cuda.cpp`, compiled once, replaces
it. It must be loaded before torch, so it needs a separate process.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

SOURCE = Path(__file__).with_name("fake_cuda.cpp")


def find_obstacle() -> str | None:
    """Why no fake CUDA device is possible here; None if it is."""
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    if not shutil.which("g++"):
        return "needs g++"
    if _is_built_with_cuda():
        return "this PyTorch has a CUDA device of its own"
    return None


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _is_built_with_cuda() -> bool:
    return "cuda: Optional[str] = None" not in (_torch_folder() / "version.py").read_text(encoding="utf-8")


def install() -> None:
    """Load the device. It is compiled once for each version of the source and of torch, in about three seconds."""
    assert "torch" not in sys.modules, "fake_cuda.install() comes before the first import of torch"
    torch_folder = _torch_folder()
    # The folder counts, too: the library is linked against torch's libraries there.
    made_of = (SOURCE.read_bytes(), (torch_folder / "version.py").read_bytes(), bytes(torch_folder))
    key = hashlib.sha256(b"".join(made_of)).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"clozebert_fake_cuda_{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "fake_cuda.so"
            libraries = torch_folder / "lib"
            subprocess.run(
                ["g++", "-shared", "-fPIC", "-std=c++20", f"-I{torch_folder / 'include'}", str(SOURCE), "-o", str(made),
                 f"-L{libraries}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"],
                check=True,
            )  # fmt: skip
            shutil.copy(made, f"{library}.{key}")
            Path(f"{library}.{key}").rename(library)
    ctypes.CDLL(str(library))


class Call:
    """A call of an operator: its name, its tensors' types and shapes, and its other arguments."""

    def __init__(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.operator, self.args, self.kwargs, self.result = operator, args, kwargs, None
        self.module = ""

    @property
    def name(self) -> str:
        return f"{self.operator.namespace}::{self.operator._schema.name.split('::')[1]}"

    def tensors(self) -> list[Any]:
        """The tensor arguments, with lists flattened."""
        return _tensors_in([*self.args, *self.kwargs.values()])

    def results(self) -> list[Any]:
        return _tensors_in([self.result])


def _tensors_in(values: list[Any]) -> list[Any]:
    import torch

    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors_in(list(value))
    return found


@contextlib.contextmanager
def device(capability: tuple[int, int] = (8, 0), *, records: bool = True) -> Iterator[list[Call]]:
    """A context in which tensors are fake, and CUDA has this compute capability; the calls of operators are recorded.

    With `records=False` nothing is recorded, and `torch.compile` works, which it does not while calls are recorded.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[Call] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if function.namespace == "prim":
                return function(*args, **(kwargs or {}))
            calls.append(Call(function, args, kwargs or {}))
            call = calls[-1]
            call.result = function(*args, **(kwargs or {}))
            return call.result

    stubs = {
        "get_device_capability": lambda device=None: capability,
        "is_bf16_supported": lambda including_emulation=True: capability >= (8, 0) or including_emulation,
    }
    with contextlib.ExitStack() as stack:
        # Autocast checks this, also when activation checkpointing re-enters it.
        stack.enter_context(
            mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=False)
        )
        for name, stub in stubs.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, stub))
        stack.enter_context(FakeTensorMode())
        if records:
            stack.enter_context(Recorder())
        yield calls


def autocast(dtype: Any) -> Any:
    """CUDA autocast to `dtype`; None: disabled."""
    import torch

    return torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None)


# Operators that make the host wait for the device: their values or shapes are known only there.
WAITS = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense", "item", "nonzero", "masked_select", "unique_consecutive", "_unique2", "unique_dim",
        "repeat_interleave", "is_nonzero", "equal", "bincount",
    )
)  # fmt: skip


def waits(calls: list[Call]) -> list[str]:
    """The operators for which the host would have waited: those above, copies from the device, blocking ones to it."""
    return [call.name for call in calls if _waits(call)]


def _waits(call: Call) -> bool:
    if call.name in WAITS:
        return call.name != "aten::repeat_interleave" or len(call.tensors()) > 1
    is_copy = call.name in ("aten::_to_copy", "aten::copy_")
    kinds = [x.device.type for x in call.tensors()] + [x.device.type for x in call.results()]
    if not is_copy or len(set(kinds)) == 1:
        return False
    return kinds[-1] == "cpu" or not call.kwargs.get("non_blocking")
