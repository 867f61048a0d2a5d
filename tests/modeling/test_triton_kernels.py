"""Our Triton kernels, interpreted on the CPU (triton_cases.py); on a GPU they are in test_gpu.py. Needs Triton."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Of numbers in the type: the measured errors are at most 3.9e-7 and 3.9e-4.
MOST = {"torch.float32": 2e-6, "torch.float16": 1e-3}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which CPU builds of torch lack")
def test_kernels_give_the_formula():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("triton_cases.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found["window"]) == 8
    assert len(found["joined"]) == 3
    for dtype, *errors in [*found["window"], *found["joined"]]:
        assert max(errors) <= MOST[dtype]
