"""Forks of a Python that has imported the libraries are Pythons: status, streams, folder, environment."""

import os
import signal
from pathlib import Path

import pytest
from warm_python import WarmPython


def test_a_fork_begins_with_nothing_of_ours(python: WarmPython, tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), sys.argv[1:], os.environ['OF_THIS_TEST'], sys.stdin.read())"
    told = "; print('torch' in sys.modules, 'clozebert' in sys.modules)"
    done = python.run(["-c", code + told, "a", 7], cwd=tmp_path, env={**os.environ, "OF_THIS_TEST": "x"}, input=b"in")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path} ['a', '7'] x in\nTrue False\n"


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('too late')", 1, "too late\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_how_it_ends(python: WarmPython, code: str, status: int, said: str) -> None:
    done = python.run(["-c", code])
    assert (done.returncode, done.stderr) == (status, said)
    assert "ZeroDivisionError" in python.run(["-c", "1 / 0"]).stderr


def test_it_ends_in_time_and_the_next_one_begins(python: WarmPython) -> None:
    assert python.run(["-c", "import time; time.sleep(60)"], timeout=1).returncode == -signal.SIGALRM
    assert python.run(["-c", "print(1)"]).stdout == "1\n"


def test_what_libraries_have_read_already_is_refused(python: WarmPython) -> None:
    with pytest.raises(AssertionError, match="a fork is too late for HF_HUB_OFFLINE"):
        python.run(["-c", ""], env={**os.environ, "HF_HUB_OFFLINE": "0"})
