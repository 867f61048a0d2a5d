"""Settings of the whole process, changed by threads at once; and the one run that a process may train."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from pretraining_helpers import in_forks
from transformers.utils import logging

from clozebert.utils.device import training_modes
from clozebert.utils.errors import UserError
from clozebert.utils.output import outliving_readers
from clozebert.utils.progress_bar import quiet
from clozebert.utils.switch import Switch

CPU = torch.device("cpu")


def test_the_first_block_changes_and_the_last_restores() -> None:
    done: list[str] = []
    switch = Switch(lambda: done.append("change"), lambda before: done.append("restore"))
    one, other = switch.changed(), switch.changed()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert done == ["change"]
    other.__exit__(None, None, None)
    assert done == ["change", "restore"]
    with pytest.raises(KeyError), switch.changed():
        raise KeyError
    assert done == ["change", "restore"] * 2


@pytest.mark.parametrize("block", [quiet, outliving_readers])
def test_threads_that_overlap_leave_no_trace(block) -> None:
    """One that began within another's block once put back what that one had set, for good."""
    before = logging.get_verbosity(), logging.is_progress_bar_enabled(), sys.stdout
    entered, left = threading.Event(), threading.Event()

    def first() -> None:
        with block():
            assert entered.wait(10)
        left.set()

    def second() -> None:
        with block():
            entered.set()
            assert left.wait(10)

    with ThreadPoolExecutor(2) as pool:
        for result in [pool.submit(first), pool.submit(second)]:
            result.result()
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled(), sys.stdout) == before


def test_a_process_trains_one_model_at_a_time() -> None:
    def train() -> None:
        with training_modes(CPU):
            pass

    with ThreadPoolExecutor(1) as pool:
        with training_modes(CPU), pytest.raises(UserError, match="is training already"):
            pool.submit(train).result()
        pool.submit(train).result()
    with pytest.raises(KeyError), training_modes(CPU):
        raise KeyError
    train()


def test_a_fork_of_a_process_that_trains_may_train() -> None:
    def train(rank: int) -> None:
        with training_modes(CPU):
            pass

    with training_modes(CPU):
        assert in_forks(train, [{}]) == [0]
