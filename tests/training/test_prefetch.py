"""Batches are made ahead without taking the model's cores."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from often import often
from pretraining_helpers import make_corpus, model_config

from clozebert import ClozeBertForMaskedLM
from clozebert.corpus import BatchStream, Corpus, Masking
from clozebert.modeling import packed_attention
from clozebert.training.prefetch import model_inputs, prefetch
from clozebert.utils.errors import UserError


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


# Not within a test: where workers are not forked, they are sent the function.
def many_tensors(step: int) -> list[dict[str, torch.Tensor]]:
    kinds = {"ids": torch.int64, "mask": torch.bool, "rates": torch.float32, "half": torch.bfloat16}
    return [{name: torch.full((2, 3), step).to(kind) for name, kind in kinds.items()} for _ in range(100)]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such limit")
def test_a_step_of_many_tensors_needs_few_open_files() -> None:
    """Each tensor held one: the workers failed, and after five minutes were said to lack memory."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/dev/fd"))
    context = multiprocessing.get_context("fork")

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 60, opened + 60))
        made = list(prefetch(many_tensors, 0, 6, workers=2, timeout=5))
        assert [step[99]["half"].dtype for step in made] == [torch.bfloat16] * 6
        for step, found in enumerate(made):
            for name, expected in many_tensors(step)[0].items():
                assert torch.equal(found[99][name], expected)

    process = context.Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def send_at_six(number: int, step: int) -> torch.Tensor:
    if step == 6:
        os.kill(os.getpid(), number)
    return torch.full((10,), step)


def fail_at_one(step: int) -> torch.Tensor:
    if step == 1:
        raise KeyError("no such document")
    return torch.full((10,), step)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize("number", often(["SIGSTOP", "SIGKILL"]))
@pytest.mark.parametrize("workers", often([2, 1]))
def test_a_worker_that_ends_or_hangs_is_said_in_a_sentence(workers: int, number: str) -> None:
    """It has made the steps before, of tensors, which travel over a connection to the worker itself."""

    before, handler = multiprocessing.active_children(), signal.getsignal(signal.SIGCHLD)
    batches = prefetch(partial(send_at_six, getattr(signal, number)), 0, 9, workers=workers, timeout=2)
    with pytest.raises(UserError, match="a data worker has ended"):
        assert len(list(batches)) < 9
    for child in multiprocessing.active_children():
        if child not in before:
            child.join(timeout=60)
            assert not child.is_alive()
    assert signal.getsignal(signal.SIGCHLD) == handler


def test_an_error_of_a_worker_is_no_lost_worker() -> None:
    before = multiprocessing.active_children()
    with pytest.raises(KeyError, match="no such document") as kept:  # as Python keeps an error that ends it
        list(prefetch(fail_at_one, 0, 3, workers=2, timeout=60))
    for child in multiprocessing.active_children():
        if child not in before:
            child.join(timeout=60)
            assert not child.is_alive(), f"the end of the program would wait for it; {kept}"


def batches_in_this_process(_: object) -> list[int]:
    return list(prefetch(abs, 0, 5, workers=2, timeout=60))


@pytest.mark.slow
def test_a_process_of_a_pool_makes_its_batches_itself() -> None:
    """It may have no processes of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(batches_in_this_process, [None]) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(("precision", "recurs"), [(torch.bfloat16, True), (torch.float32, False)])
def test_attention_is_planned_with_the_batch_and_not_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: torch.dtype, recurs: bool
) -> None:
    """In half precision, too, where the encoder fills the row up to a multiple of 64 tokens."""
    stream = BatchStream(
        Corpus(make_corpus(tmp_path) / "corpus"),
        max_seq_length=40,
        global_batch_size=3,
        masking=Masking(rate=0.3),
        seed=0,
    )
    batch = next(batch for step in range(50) if (batch := stream.batch(step)).input_ids.shape[1] % 64)
    model = ClozeBertForMaskedLM(model_config(num_hidden_layers=3, attn_implementation="sdpa")).train()
    made = model_inputs(batch, plan_for=model.config, recurs=recurs)
    plans, plan = [], packed_attention.plan_tiles
    monkeypatch.setattr(packed_attention, "plan_tiles", lambda *a, **k: plans.append(1) or plan(*a, **k))
    with torch.autocast("cpu", dtype=precision, enabled=recurs):
        model(**made).loss.backward()
    assert plans == []
    fresh = model_inputs(batch, recurs=recurs)
    with torch.autocast("cpu", dtype=precision, enabled=recurs):
        model(**fresh)
    assert plans
