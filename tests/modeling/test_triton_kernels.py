"""Triton kernels without a GPU: ours, interpreted (triton_cases.py) and compiled (triton_compiled.py); and those that
torch.compile writes, compiled (inductor_compiled.py). Needs Triton.

On a GPU they are in test_gpu.py.
"""

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import fake_cuda

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which CPU builds of torch lack"
)
# Of numbers in the type: the measured errors are at most 3.9e-7 and 4.8e-4.
MOST = {"torch.float32": 2e-6, "torch.float16": 1e-3}
# Kilobytes of shared memory that a block may have, by compute capability.
SHARED = {"80": 163, "86": 99, "90": 227, "100": 227, "120": 99}


def run(script, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def can_interpret():
    """Triton below 3.7 interprets with NumPy below 2.4 only."""
    triton, numpy = (tuple(map(int, version(name).split(".")[:2])) for name in ("triton", "numpy"))
    return triton >= (3, 7) or numpy < (2, 4)


def test_kernels_give_the_formula():
    if not can_interpret():
        pytest.skip("this Triton cannot interpret kernels with this NumPy")
    found = run("triton_cases.py", TRITON_INTERPRET="1")
    assert {name: len(errors) for name, errors in found.items()} == {"window": 8, "joined window": 8, "joined": 3}
    for dtype, *errors in itertools.chain.from_iterable(found.values()):
        assert max(errors) <= MOST[dtype]


@pytest.mark.parametrize("capability", SHARED)
def test_kernels_compile_for_gpus_that_are_not_here(capability, tmp_path):
    found = run("triton_compiled.py", capability, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert len(found) == 20
    assert max(shared for *_, shared in found) <= SHARED[capability] * 1024


@pytest.mark.slow
@pytest.mark.skipif(fake_cuda.find_obstacle() is not None, reason=str(fake_cuda.find_obstacle()))
@pytest.mark.parametrize("capability", [80, 90, 100, 120])
def test_kernels_of_torch_compile_compile_for_gpus_that_are_not_here(capability):
    """All that Inductor writes for a training step of ModernBERT, in both types of the residual stream."""
    [[found, kernels, configurations]] = run("inductor_compiled.py", str(capability))
    assert found == capability
    assert configurations >= kernels >= 60
