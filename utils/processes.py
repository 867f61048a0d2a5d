"""The processes of a run under a launcher: how many there are, which one this is, waiting for them, and losing one."""

import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .errors import UserError

# What the messages of failed collective operations contain.
_OF_COLLECTIVES = re.compile(r"gloo[/\\]|NCCL|nccl|TCPStore|recvValue|Connection closed by peer")
_SECONDS_UNSAID = 10.0  # of waiting for the other processes
_SECONDS_TO_SAY = 1.0  # an error that all processes have


class LostProcessError(UserError):
    """Another process of the work has ended or does not answer."""


def process_rank() -> int:
    """The number that `torchrun` or `accelerate launch` gave this process; 0 if it is the only one."""
    return int(os.environ.get("RANK") or 0) if launched_processes() > 1 else 0


def launched_processes() -> int:
    """The number of processes of this run, by what its launcher says."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def let_first_process_speak() -> None:
    """Wait, before this process says an error that all have: the launcher ends it once the first one has said it."""
    if process_rank():
        time.sleep(_SECONDS_TO_SAY)


@contextmanager
def joining_processes() -> Iterator[None]:
    """Around the call that joins the processes of a run. If it waits for long, a line says for what.

    Raises:
        UserError: the launch would run something other than it was asked for, or nothing.
    """
    address = os.environ.get("MASTER_ADDR")
    left = [name for name in ("LOCAL_RANK", "WORLD_SIZE") if name in os.environ]
    if not address and ("LOCAL_RANK" in left or launched_processes() > 1):
        raise UserError(
            f"{left[0]}={os.environ[left[0]]!r} is in the environment, as from a launcher, but no MASTER_ADDR: unset "
            f"{' and '.join(left)}, or start the processes with accelerate launch or torchrun"
        )
    if address and "ACCELERATE_MIXED_PRECISION" in os.environ and "WORLD_SIZE" not in os.environ:
        raise UserError(
            "accelerate launch was asked for several processes but started one, as it does with --cpu: give it "
            '--config_file "$(clozebert launch-config cpu)" instead'
        )
    if launched_processes() == 1:
        yield
        return
    line = (
        f"waiting for the other processes of WORLD_SIZE={launched_processes()} at {address}:"
        f"{os.environ.get('MASTER_PORT')}; without a launcher, unset RANK, WORLD_SIZE and LOCAL_RANK"
    )
    timer = threading.Timer(_SECONDS_UNSAID, lambda: print(line, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def refuse_differences(mine: Mapping[str, Any]) -> None:
    """Raise, in all processes, if one of them was given something else than the first: another flag, a stale copy.

    Args:
        mine: by name, what decides the result of the run.
    """
    if launched_processes() == 1:
        return
    from accelerate.utils import gather_object

    first, *others = gather_object([mine])
    for rank, its in enumerate(others, start=1):
        for name, value in first.items():
            if its.get(name) != value:
                raise UserError(
                    f"process {rank} was given another {name} than process 0: give all processes the same flags, and "
                    f"the same text"
                )


@contextmanager
def lost_processes(*, goes_on_by: str) -> Iterator[None]:
    """Report the error of a collective operation in one line: another process of the run has ended.

    Args:
        goes_on_by: what resumes the run, for the message.

    Raises:
        LostProcessError: in place of that error.
    """
    try:
        yield
    except RuntimeError as error:
        if launched_processes() == 1 or not _OF_COLLECTIVES.search(str(error)):
            raise
        raise LostProcessError(
            f"process {process_rank()}: another process of the run has ended or does not answer; see its message "
            f"above; {goes_on_by} continues from the last checkpoint, if there is one"
        ) from error
