"""What a launcher leaves in the environment, and what is said while and when other processes are missing."""

import time

import pytest

from clozebert.utils import processes
from clozebert.utils.command_line import Parser
from clozebert.utils.errors import UserError
from clozebert.utils.processes import (
    LostProcessError,
    joining_processes,
    launched_processes,
    lost_processes,
    process_rank,
)

_OF_A_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_MIXED_PRECISION")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _OF_A_LAUNCHER:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("left", [{}, {"RANK": "1"}, {"RANK": ""}, {"RANK": "3", "WORLD_SIZE": ""}])
def test_a_rank_that_an_earlier_launcher_left_is_none(left: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    assert (process_rank(), launched_processes()) == (0, 1)
    with joining_processes():
        pass


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")])
def test_a_launcher_without_an_address_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    said = rf"^{name}='{value}' is in the environment, .*: unset {name}, or"
    with pytest.raises(UserError, match=said), joining_processes():
        raise AssertionError


def test_waiting_for_long_says_for_what(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(processes, "_SECONDS_UNSAID", 0.2)
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    with joining_processes():
        pass
    time.sleep(0.4)
    assert not capfd.readouterr().err
    with joining_processes():
        time.sleep(0.6)
    said = "waiting for the other processes of WORLD_SIZE=2 at 10.0.0.1:29500; without a launcher, unset RANK"
    assert capfd.readouterr().err.startswith(said)


def test_only_the_errors_of_lost_processes_become_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = RuntimeError("[gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:1")
    with pytest.raises(RuntimeError, match="gloo"), lost_processes(goes_on_by="x"):
        raise gone
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    said = r"^process 1: another .*; --resume continues from the last checkpoint"
    with pytest.raises(LostProcessError, match=said), lost_processes(goes_on_by="--resume"):
        raise gone
    with pytest.raises(RuntimeError, match="shape"), lost_processes(goes_on_by="x"):
        raise RuntimeError("shape")


def test_the_first_process_is_given_time_to_refuse_a_flag(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(processes.time, "sleep", waited.append)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit):
            Parser([], prog="p", description="d").read(["--x"])
        assert capfd.readouterr().err == "error: unknown flag --x; see --help\n"
        assert len(waited) == int(rank)
