"""The peak memory of a process is its own."""

import subprocess
import sys

import numpy as np
import pytest

from clozebert.utils.memory import peak_memory


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
