"""What `demo` refuses before it begins; `make demo` runs it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clozebert.scripts import demo
from clozebert.utils.errors import UserError

Begin = Callable[[str], tuple[subprocess.Popen[str], int]]


def test_an_unknown_recipe_is_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--config: unknown recipe 'foo'"):
        demo.main(["--config", "foo", "--output_dir", str(tmp_path / "o")])
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task_examples", "20"], "task_examples=20 must be at least 50"),
        (["--max_steps", "0"], "max_steps=0 must be at least 1"),
        (["--max_minutes", "0"], "max_minutes=0 must be above 0"),
    ],
)
def test_a_number_that_a_later_step_refuses_is_told_before_any_work(
    flags: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        demo.main([*flags, "--output_dir", str(tmp_path / "o")])
    assert not (tmp_path / "o").exists()


# Runs a step whose command is a program of the test.
STEP = """
import sys
from clozebert.scripts import demo
from clozebert.scripts._program import run
sys.executable = sys.argv[1]
run(lambda: demo.step("A step", "pretrain"))
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins a step of the demo whose command runs a line of shell; gives both processes."""
    begun = []

    def begin_step(line: str) -> tuple[subprocess.Popen[str], int]:
        command = tmp_path / "command"
        command.write_text(f"#!/bin/sh\necho $$\n{line}\n")
        command.chmod(0o755)
        demonstration = subprocess.Popen(
            [sys.executable, "-c", STEP, str(command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert demonstration.stdout is not None
        number = next(int(line) for line in demonstration.stdout if line.strip().isdigit())
        begun.append(number)
        return demonstration, number

    yield begin_step
    for number in begun:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def test_sigterm_ends_the_step_under_way_too(begin: Begin) -> None:
    """Else pretraining would go on for minutes, and keep its folder."""
    demonstration, number = begin("exec sleep 100")
    demonstration.terminate()
    assert demonstration.wait(timeout=60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_a_step_that_was_killed_is_named(begin: Begin) -> None:
    demonstration, _ = begin("kill -9 $$")
    message = demonstration.communicate(timeout=60)[1]
    assert demonstration.returncode == 2
    assert message.startswith("error: pretrain was ended by signal 9; ")
