"""The peak memory of a process is its own, and a full memory is no bug."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from clozebert.utils.errors import FullMemoryError
from clozebert.utils.memory import memory_errors, peak_memory


def test_the_peak_grows_with_what_is_held():
    before = peak_memory()
    if before is None:
        pytest.skip("the system does not tell")
    held = np.ones(before // 8 + (1 << 24))
    assert peak_memory() >= before + (1 << 26)
    assert held.sum() > 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the program that started this one")
def test_the_peak_is_not_that_of_the_program_that_started_this_one():
    held = np.ones(1 << 27)  # 1 GiB
    code = "from clozebert.utils.memory import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < held.nbytes / 2


def test_a_full_memory_of_the_machine_says_what_to_lower():
    with (
        pytest.raises(FullMemoryError, match=r"the memory is full: lower batch_size=7 \("),
        memory_errors("lower batch_size=7"),
    ):
        torch.empty(1 << 60)


@pytest.mark.parametrize(("kind", "device"), [(torch.OutOfMemoryError, "CUDA"), (RuntimeError, "MPS backend")])
def test_a_full_memory_of_a_gpu_says_what_to_lower(kind, device):
    with (
        pytest.raises(FullMemoryError, match=rf"lower batch_size=7 \({device} out of memory\)"),
        memory_errors("lower batch_size=7"),
    ):
        raise kind(f"{device} out of memory\nmore lines")


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes") as caught, memory_errors("lower batch_size=7"):
        raise RuntimeError("shapes do not fit")
    assert type(caught.value) is RuntimeError
