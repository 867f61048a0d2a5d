"""Ctrl-C in a terminal: answered at once, whatever the program does; and the first sign of life."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parent))
from pretraining_helpers import MODEL_FLAGS, flags, make_corpus, settings
from terminal import after, in_terminal

from clozebert.training.checkpoints.folders import list_checkpoints
from clozebert.utils.interrupts import hearing_signals
from clozebert.utils.stop_request import StopRequest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such terminals")

PROGRAM = """
import hashlib, sys
from clozebert.scripts._program import run
def main():
    print("begun", flush=True)
    {body}
run(main)
"""
# One call into a library that takes hours and gives Python's handlers no turn, without the lock of the interpreter.
LONG_CALL = "hashlib.pbkdf2_hmac('sha256', b'x', b'y', 2_000_000_000)"
# Measured 0.4 s; a busy machine gets some more.
SOON = 5.0


@pytest.mark.parametrize("body", [LONG_CALL, "import time; time.sleep(100)"])
def test_ctrl_c_ends_a_program_soon(body: str) -> None:
    done = in_terminal([sys.executable, "-c", PROGRAM.format(body=body)], interrupt_when=after("begun", 0.3))
    assert done.ended is not None
    assert done.ended < SOON, done.shown
    assert done.status == 130
    assert done.shown.count("interrupted") == 1
    assert "Traceback" not in done.shown


@pytest.mark.slow
def test_without_the_watcher_the_long_call_goes_on() -> None:
    """The test above can fail."""
    code = f"import hashlib; print('begun', flush=True); {LONG_CALL}"
    done = in_terminal([sys.executable, "-c", code], interrupt_when=after("begun", 0.3), timeout=4)
    assert done.ended is None


def test_pretraining_says_at_once_that_it_stops_and_saves(tmp_path: Path) -> None:
    prepared = make_corpus(tmp_path)
    run = {**MODEL_FLAGS, **settings(prepared, output_dir=tmp_path / "run"), "max_steps": 100_000}
    words = [word for word in flags(run) if word not in ("--disable_tqdm", "True")]
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = in_terminal(
        [sys.executable, "-m", "clozebert", "pretrain", *words],
        interrupt_when=after(r"[1-9]\d*/100000", 1.0),
        environment=environment,
    )
    assert "loading" in done.shown.splitlines()[0]
    assert done.answered is not None
    assert done.answered < SOON
    assert "stopping: a checkpoint is saved first" in done.shown
    assert done.status == 130, done.shown[-2000:]
    assert done.has_bar
    (checkpoint,) = list_checkpoints(tmp_path / "run")
    assert f"stopped at step {checkpoint.name.partition('-')[2]}" in done.shown


@pytest.mark.slow
def test_a_log_has_no_sign_of_life_and_no_bar(tmp_path: Path) -> None:
    prepared = make_corpus(tmp_path)
    run = flags({**MODEL_FLAGS, **settings(prepared, output_dir=tmp_path / "run"), "max_steps": 3})
    words = [word for word in run if word not in ("--disable_tqdm", "True")]
    done = subprocess.run(
        [sys.executable, "-m", "clozebert", "pretrain", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stderr + done.stdout
    assert "loading" not in done.stderr


def test_a_run_hears_signals_where_pipes_always_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.12, Windows has no `os.set_blocking`, and every run ended in an AttributeError."""
    set_blocking, set_wakeup_fd = os.set_blocking, signal.set_wakeup_fd

    def as_on_windows(descriptor: int, **options: Any) -> int:
        if descriptor != -1:
            set_blocking(descriptor, False)
        return set_wakeup_fd(descriptor, **options)

    monkeypatch.setattr(signal, "set_wakeup_fd", as_on_windows)
    monkeypatch.delattr(os, "set_blocking")
    heard, is_heard = [], threading.Event()

    def hear(number: int) -> None:
        heard.append(number)
        is_heard.set()

    with StopRequest().listening() as stop, hearing_signals(hear):
        signal.raise_signal(signal.SIGTERM)
        assert is_heard.wait(10)
        assert stop
    assert heard == [signal.SIGTERM]


def test_the_handlers_of_a_host_program_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has None for a handler that was set before it began, and cannot put it back."""
    with monkeypatch.context() as patch:
        patch.setattr(signal, "getsignal", lambda number: None)
        patch.setattr(signal, "signal", lambda number, handler: pytest.fail(f"{number} is not Python's"))
        with StopRequest().listening():
            pass
