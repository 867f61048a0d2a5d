"""Batches are made ahead without taking the model's cores."""

import threading
from collections.abc import Iterator

import pytest
import torch

from clozebert.training.prefetch import prefetch


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_thread_computes_on_one_core_and_the_model_on_all(two_threads: None) -> None:
    def threads(step: int) -> tuple[str, int]:
        return threading.current_thread().name, torch.get_num_threads()

    before = torch.__config__.parallel_info()
    made = list(prefetch(threads, 0, 3))
    assert [number for _, number in made] == [1, 1, 1]
    assert all(name.startswith("batches") for name, _ in made)
    # OpenMP's and MKL's numbers of this thread.
    assert torch.__config__.parallel_info() == before
    found = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [2]
