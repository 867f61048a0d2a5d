"""Signals, a launcher that is gone, and a process that hangs: saved where it can be, and no process is left waiting."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from often import often
from pretraining_helpers import MODEL_FLAGS, REPOSITORY, flags, log_of, run_forked, settings

from clozebert.training import evaluation
from clozebert.training.checkpoints.damage import find_damage

LONG = {"max_steps": 100_000, "save_steps": 0, "eval_steps": 0, "logging_steps": 1}


@pytest.fixture
def programs() -> Iterator[list[subprocess.Popen[str]]]:
    """Programs in sessions of their own, whose groups are killed in the end."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for program in started:
        for pid in [program.pid, *descendants(program.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.wait()


def descendants(pid: int) -> list[int]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if Path(f"/proc/{pid}").exists() else []:
        found += [int(child), *descendants(int(child))]
    return found


def start(
    programs: list[subprocess.Popen[str]],
    folder: Path,
    output_dir: Path,
    *,
    processes: int = 1,
    by_tee: bool = False,
    **changes: Any,
) -> subprocess.Popen[str]:
    """pretrain in a session of its own, after its first steps; `by_tee`: what it prints goes through `tee`."""
    arguments = flags({**MODEL_FLAGS, **settings(folder, output_dir=output_dir, **{**LONG, **changes})})
    command = [sys.executable, "-m", "clozebert.scripts.pretrain_mlm", *arguments]
    if processes > 1:
        launch = REPOSITORY / "configuration" / "accelerate_cpu.yaml"
        command[1:2] = [
            "-m", "accelerate.commands.launch", "--config_file", str(launch), "--num_processes", str(processes), "-m",
        ]  # fmt: skip
    log = output_dir.with_name("shown.txt")
    if by_tee:
        command = ["bash", "-c", '"$@" 2>&1 | tee "$0"', f"{log}.tee", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("w") as shown:
        program = subprocess.Popen(
            command, env=environment, stdout=shown, stderr=shown, text=True, start_new_session=True
        )
    programs.append(program)
    wait_until(lambda: (output_dir / "training_log.jsonl").exists() and len(log_of(output_dir)) > 3, 120, log, program)
    return program


def wait_until(is_so: Any, seconds: float, log: Path, program: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert program is None or program.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.2)


def saved_step(output_dir: Path) -> int:
    (checkpoint,) = output_dir.glob("checkpoint-*")
    assert find_damage(checkpoint) is None
    state = json.loads((checkpoint / "training_state" / "state.json").read_text())
    assert checkpoint.name == f"checkpoint-{state['step']}"
    return int(state["step"])


@pytest.mark.parametrize("number", often([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
def test_a_signal_to_the_group_saves_although_workers_get_it_too(
    prepared: Path, tmp_path: Path, programs: list[subprocess.Popen[str]], number: int
) -> None:
    program = start(programs, prepared, tmp_path / "run", dataloader_num_workers=2)
    os.killpg(program.pid, number)
    assert program.wait(timeout=60) == 128 + number
    assert saved_step(tmp_path / "run") >= 3
    shown = (tmp_path / "shown.txt").read_text()
    assert "Traceback" not in shown
    assert "--resume_from_checkpoint latest goes on from there" in shown.splitlines()[-1]


@pytest.mark.parametrize("number", often([signal.SIGHUP, signal.SIGINT]))
def test_a_signal_that_ends_the_reader_of_the_output_saves_too(
    prepared: Path, tmp_path: Path, programs: list[subprocess.Popen[str]], number: int
) -> None:
    """As Ctrl-C does to `clozebert pretrain … | tee log`: our lines meet a closed pipe."""
    program = start(programs, prepared, tmp_path / "run", by_tee=True)
    (run,) = (pid for pid in descendants(program.pid) if b"pretrain_mlm" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.killpg(program.pid, number)
    wait_until(lambda: not Path(f"/proc/{run}").exists(), 60, tmp_path / "shown.txt.tee")
    assert saved_step(tmp_path / "run") >= 3
    assert "goes on from there" not in (tmp_path / "shown.txt.tee").read_text()  # `tee` was gone by then


def test_a_signal_does_not_wait_for_a_whole_evaluation(prepared: Path, tmp_path: Path) -> None:
    """SIGTERM in the second batch of many; then the run is resumed, and evaluates again."""

    def prelude(rank: int) -> None:
        score, calls = evaluation._score, [0]

        def signalling(*args: Any) -> Any:
            calls[0] += 1
            (tmp_path / "calls").write_text(str(calls[0]))
            if calls[0] == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return score(*args)

        evaluation._score = signalling

    run = {"max_steps": 6, "eval_steps": 3, "save_steps": 3, "per_device_eval_batch_size": 1,
           "resume_from_checkpoint": "latest"}  # fmt: skip
    assert run_forked(prepared, tmp_path / "run", prelude=prelude, **run) == [143]
    assert (tmp_path / "calls").read_text() == "2"
    assert saved_step(tmp_path / "run") == 3
    assert run_forked(prepared, tmp_path / "run", **run) == [0]
    assert [entry["step"] for entry in log_of(tmp_path / "run") if "eval_loss" in entry] == [3, 6]


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_launcher_and_its_group(
    prepared: Path, tmp_path: Path, programs: list[subprocess.Popen[str]], number: int
) -> None:
    program = start(programs, prepared, tmp_path / "run", processes=2, dataloader_num_workers=1)
    os.killpg(program.pid, number)
    assert program.wait(timeout=90) != 0
    assert saved_step(tmp_path / "run") >= 3


@pytest.mark.faults
def test_processes_end_when_their_launcher_is_gone(
    prepared: Path, tmp_path: Path, programs: list[subprocess.Popen[str]], figure: Callable[[str, Any], None]
) -> None:
    program = start(programs, prepared, tmp_path / "run", processes=2)
    ranks = descendants(program.pid)
    assert len(ranks) >= 2
    begun = time.monotonic()
    os.kill(program.pid, signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), 60, tmp_path / "shown.txt")
    figure("launcher", f"saved and ended after {time.monotonic() - begun:.1f} s")
    assert saved_step(tmp_path / "run") >= 3


@pytest.mark.faults
def test_a_process_that_hangs_is_found(
    prepared: Path, tmp_path: Path, programs: list[subprocess.Popen[str]], figure: Callable[[str, Any], None]
) -> None:
    """One of two is stopped by SIGSTOP: the other shows its stacks and ends, and so does the launcher."""
    program = start(programs, prepared, tmp_path / "run", processes=2, ddp_timeout=5)
    ranks = descendants(program.pid)
    begun = time.monotonic()
    os.kill(ranks[-1], signal.SIGSTOP)
    assert program.wait(timeout=90) != 0
    figure("hang", f"all ended after {time.monotonic() - begun:.0f} s, of which the launcher waits 30")
    shown = (tmp_path / "shown.txt").read_text()
    assert "seconds (ddp_timeout) nothing has moved" in shown
    assert "most recent call first" in shown
    assert "loop.py" in shown
