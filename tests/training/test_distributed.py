"""Two processes do what one does: the same batches, gradients, losses; each goes on where the other stopped."""

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from often import often
from pretraining_helpers import (
    REPOSITORY,
    dense_loss,
    in_forks,
    losses_of,
    make_corpus,
    model_config,
    rows_of,
    run_forked,
    run_here,
    run_program,
    settings,
)
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from warm_python import WarmPython

from clozebert import ClozeBertForMaskedLM
from clozebert.corpus import BatchStream, Corpus, Masking, Mixture, ValidationBatches
from clozebert.training import loop
from clozebert.training.arguments import PretrainingArguments
from clozebert.training.batches import make_masking
from clozebert.training.evaluation import evaluate_masked_lm
from clozebert.training.optimizers.optimizer import make_optimizer
from clozebert.training.optimizers.state import load_optimizer_state, optimizer_state, whole_tensor, whole_weights
from clozebert.training.planning.calibration import seconds_per_place
from clozebert.training.prefetch import StepLoader
from clozebert.training.runtime import watchdog
from clozebert.training.runtime.machine import make_accelerator
from clozebert.training.runtime.processes import sum_over_processes
from clozebert.training.step import accumulate_gradient

STEPS = 20
RUN = {"max_steps": STEPS, "save_steps": 10, "eval_steps": 10, "save_total_limit": 5, "per_device_train_batch_size": 2}
# Of a loss, between one process and two. Measured over 20 steps of this model: AdamW 5e-7, Muon 6e-7.
DRIFT = 1e-5


@pytest.fixture(scope="module", params=often(["muon", "adamw"]))
def runs(request: Any, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[int, Path]]:
    """The optimizer, and the same run with it on one process and on two."""
    folder = tmp_path_factory.mktemp("runs")
    for processes in (1, 2):
        done = run_forked(prepared, folder / str(processes), processes=processes, optimizer=request.param, **RUN)
        assert done == [0] * processes
    return request.param, {processes: folder / str(processes) for processes in (1, 2)}


def world_size(checkpoint: Path) -> int:
    return json.loads((checkpoint / "training_state" / "state.json").read_text())["world_size"]


def test_two_processes_lose_as_one(runs: tuple[str, dict[int, Path]]) -> None:
    _, folders = runs
    assert [world_size(folders[processes] / f"checkpoint-{STEPS}") for processes in (1, 2)] == [1, 2]
    one, two = losses_of(folders[1]), losses_of(folders[2])
    assert len(one) == STEPS
    # A wrong scale of the gradient shows in the third decimal after a few steps.
    print("largest difference of a loss:", max(abs(a - b) for a, b in zip(one, two, strict=True)))
    assert two == pytest.approx(one, abs=DRIFT)
    assert one[-1] < one[0] - 0.1
    assert rows_of(folders[1]) == rows_of(folders[2])
    assert len(rows_of(folders[1])) == STEPS
    results = [json.loads((folders[processes] / "all_results.json").read_text()) for processes in (1, 2)]
    assert results[1]["eval_loss"] == pytest.approx(results[0]["eval_loss"], abs=DRIFT)
    for name in ("eval_predicted_tokens", "tokens_seen", "step", "skipped_steps", "parameters"):
        assert results[1][name] == results[0][name]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_resuming_on_another_number_of_processes(
    prepared: Path, runs: tuple[str, dict[int, Path]], tmp_path: Path, before: int, after: int
) -> None:
    """The same rows in the same order, and losses within the drift."""
    optimizer, folders = runs
    output_dir = tmp_path / "run"
    shutil.copytree(folders[before], output_dir)
    shutil.rmtree(output_dir / f"checkpoint-{STEPS}")
    run = {**RUN, "optimizer": optimizer, "resume_from_checkpoint": "latest"}
    assert run_forked(prepared, output_dir, processes=after, **run) == [0] * after
    assert [world_size(output_dir / f"checkpoint-{step}") for step in (10, 20)] == [before, after]
    assert losses_of(output_dir) == pytest.approx(losses_of(folders[before]), abs=DRIFT)
    assert losses_of(output_dir)[:10] == losses_of(folders[before])[:10]
    rows = rows_of(output_dir)
    assert rows == {step: ids for step, ids in rows_of(folders[before]).items() if step >= 10}


def test_ddp_under_accelerate_launch(
    python: WarmPython, prepared: Path, tmp_path: Path, capsys: Any, caplog: Any
) -> None:
    """As a person starts it, with the shipped launch file; through a phase with longer rows, and resumed in it."""
    run = {"max_steps": 4, "save_steps": 3, "max_seq_length": 24, "phases": [{"max_steps": 4, "max_seq_length": 40}]}
    run_program(prepared, tmp_path / "two", processes=2, launcher=python, **run)
    assert world_size(tmp_path / "two" / "checkpoint-8") == 2
    assert run_forked(prepared, tmp_path / "one", **run) == [0]
    assert losses_of(tmp_path / "two") == pytest.approx(losses_of(tmp_path / "one"), abs=1e-5)
    assert len(losses_of(tmp_path / "one")) == 8
    shutil.rmtree(tmp_path / "two" / "checkpoint-8")
    run_here(prepared, tmp_path / "two", resume_from_checkpoint="latest", **run)
    assert "resumed at step 6" in capsys.readouterr().out
    assert "world_size=2 there, 1 here" in caplog.text
    assert losses_of(tmp_path / "two") == pytest.approx(losses_of(tmp_path / "one"), abs=1e-5)


def test_a_signal_to_one_process_stops_both_at_the_same_step(prepared: Path, tmp_path: Path) -> None:
    # 8 rows on two processes, two at a time: the ninth micro-batch is the first of step 5.
    stopped = run_forked(prepared, tmp_path / "run", processes=2, die_at=9, how=signal.SIGTERM, only_rank=1, **RUN)
    assert stopped == [128 + 15] * 2
    assert (tmp_path / "run" / "latest").read_text() == "checkpoint-5\n"


@pytest.mark.slow
def test_a_step_of_many_micro_batches_is_no_hang(prepared: Path, tmp_path: Path) -> None:
    """It may take longer than the watchdog waits, and be the one in which the run is asked to stop."""

    def prelude(rank: int) -> None:
        forward, calls = ClozeBertForMaskedLM.forward, itertools.count()

        def slow(*inputs: Any, **options: Any) -> Any:
            call = next(calls)
            if call == 7:  # the first of the second step: another one is before the first step
                os.kill(os.getpid(), signal.SIGTERM)
            if call >= 7:
                time.sleep(0.9)
            return forward(*inputs, **options)

        ClozeBertForMaskedLM.forward = slow  # type: ignore[method-assign]
        watchdog.SECONDS_TO_STOP = 3.0

    run = {"max_steps": 4, "global_batch_size": 24, "per_device_train_batch_size": 2, "ddp_timeout": 3}
    assert run_forked(prepared, tmp_path / "run", processes=2, prelude=prelude, **run) == [128 + 15] * 2
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("corpus", None), ("learning_rate", 1e-9), ("per_device_train_batch_size", 1), ("save_steps", 3)],
)
def test_processes_that_differ_are_refused(
    prepared: Path, tmp_path: Path, name: str, value: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on machines with a stale copy of the corpus, or with flags of their own.

    Micro-batches of another size would repeat some rows and leave out others; one that saves waits for the other.
    """

    def prelude(rank: int) -> None:
        if rank == 1 and name == "corpus":
            Mixture.fingerprint = "of another text"  # type: ignore[assignment]
        elif rank == 1:
            check = loop.check_run
            loop.check_run = lambda given, config: check(dataclasses.replace(given, **{name: value}), config)

    assert run_forked(prepared, tmp_path / "run", processes=2, prelude=prelude, **RUN) == [2, 2]
    said = f"error: process 1 was given another {name} than process 0: give all processes the same"
    assert said in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_process_that_ends_during_the_set_up_is_one_line(
    prepared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def prelude(rank: int) -> None:
        if rank == 1:
            loop.Pretraining._begin = lambda self, **options: os._exit(9)  # type: ignore[method-assign]

    assert run_forked(prepared, tmp_path / "run", processes=2, prelude=prelude, **RUN) == [2, 9]
    errors = capfd.readouterr().err
    assert "error: process 0: another process of the run has ended or does not answer" in errors
    assert "Traceback" not in errors


def test_a_launch_that_would_run_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator: dict[str, Any] = {"mixed_precision": "no", "use_cpu": True, "report_to": [], "output_dir": ""}
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="started one"):
        make_accelerator(**accelerator)
    monkeypatch.delenv("MASTER_ADDR")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="no FSDP on CPUs"):
        make_accelerator(**accelerator)


@pytest.mark.parametrize("name", ["cpu", "gpus", "machines", "fsdp"])
def test_the_launch_files_are_read_by_accelerate(name: str) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(REPOSITORY / "configuration" / f"accelerate_{name}.yaml"))
    assert config.distributed_type == ("FSDP" if name == "fsdp" else "MULTI_GPU")
    assert config.num_processes > 1
    if name == "fsdp":
        assert config.fsdp_config["fsdp_version"] == 2
        assert config.fsdp_config["fsdp_transformer_layer_cls_to_wrap"] in ClozeBertForMaskedLM._no_split_modules


class ByHand:
    """What `accumulate_gradient` asks of an Accelerator, for a model distributed by hand or not at all."""

    device = torch.device("cpu")
    mixed_precision = "no"

    def __init__(self, num_processes: int = 1, process_index: int = 0):
        self.num_processes, self.process_index = num_processes, process_index

    @contextlib.contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        if isinstance(model, DistributedDataParallel):
            with model.no_sync():
                yield
        elif isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(False)
            yield
            model.set_requires_gradient_sync(True)
        else:
            yield

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def shard(model: ClozeBertForMaskedLM) -> ClozeBertForMaskedLM:
    """The plan of `accelerate_fsdp.yaml`: each layer by itself, and the rest."""
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    return model


def gradients_of_splits(folder: Path, world_size: int, rank: int) -> None:
    """In one of some processes: write loss and gradient of each split of one batch into FOLDER/WORLD_SIZE.pt."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{world_size}", rank=rank, world_size=world_size)
    found = {}
    for dtype in (torch.float32, torch.float64):
        for kind, distribute in (("ddp", DistributedDataParallel), ("fsdp2", shard)):
            model, stream, arguments = make_parts(folder, "adamw")
            wrapped: Any = distribute(model.to(dtype))
            accelerator = ByHand(world_size, rank)
            # Timing a step before the run must leave nothing behind.
            timed: Any = SimpleNamespace(
                arguments=arguments,
                core=model,
                model=wrapped,
                stream=stream,
                optimizer=make_optimizer(model, arguments),
            )
            assert seconds_per_place(timed, accelerator=accelerator) > 0
            for micro_batches in (1, 2, 4):
                batches, num_predicted = StepLoader(stream, rank, world_size, micro_batches)(2)
                assert len(batches) == micro_batches
                wrapped.zero_grad()
                part = accumulate_gradient(wrapped, batches, num_predicted=num_predicted, accelerator=accelerator)
                gradients = {name: whole_tensor(parameter.grad) for name, parameter in model.named_parameters()}
                loss = sum_over_processes(part, accelerator).item()
                found[dtype, kind, micro_batches] = (loss, gradients)
    if rank == 0:
        torch.save(found, folder / f"{world_size}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_split_of_a_batch_gives_the_same_gradient(prepared: Path, tmp_path: Path, world_size: int) -> None:
    """{1, 2, 4} micro-batches x processes x {DDP, FSDP2}, against one document at a time, from all logits."""
    make_corpus(tmp_path, documents=60)
    done = in_forks(lambda rank: gradients_of_splits(tmp_path, world_size, rank), [{}] * world_size)
    assert done == [0] * world_size
    found = torch.load(tmp_path / f"{world_size}.pt")
    assert len(found) == 12
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        model, stream, _ = make_parts(tmp_path, "adamw")
        model.to(dtype)
        expected_loss = dense_loss(model, stream.batch(2)) / len(stream.batch(2).labels)
        expected_loss.backward()
        worst = 0.0
        for kind in ("ddp", "fsdp2"):
            for micro_batches in (1, 2, 4):
                loss, gradients = found[dtype, kind, micro_batches]
                assert loss == pytest.approx(expected_loss.item(), rel=tolerance)
                assert gradients.keys() == {name for name, _ in model.named_parameters()}
                for name, parameter in model.named_parameters():
                    error = ((gradients[name] - parameter.grad).norm() / parameter.grad.norm()).item()
                    assert error < tolerance, (kind, micro_batches, name)
                    worst = max(worst, error)
        print(f"{dtype}, {world_size} process(es): largest relative error of a gradient {worst:.1e}")


def make_parts(folder: Path, optimizer: str) -> tuple[ClozeBertForMaskedLM, BatchStream, PretrainingArguments]:
    arguments = PretrainingArguments(**settings(folder, output_dir="unused", optimizer=optimizer, max_steps=100))
    torch.manual_seed(0)
    model = ClozeBertForMaskedLM(model_config(initializer_range=0.3))
    stream = BatchStream(
        Corpus(folder / "corpus"),
        max_seq_length=arguments.max_seq_length,
        global_batch_size=arguments.global_batch_size,
        masking=make_masking(arguments, rate=0.3),
        seed=0,
    )
    return model, stream, arguments


def train(
    model: Any, optimizer: Any, stream: BatchStream, arguments: PretrainingArguments, accelerator: ByHand, steps: range
) -> list[float]:
    load = StepLoader(stream, accelerator.process_index, accelerator.num_processes, micro_batches=2)
    losses = []
    for step in steps:
        batches, num_predicted = load(step)
        optimizer.set_learning_rate(arguments.learning_rate_factor(step))
        part = accumulate_gradient(model, batches, num_predicted=num_predicted, accelerator=accelerator)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum_over_processes(part, accelerator).item())
    return losses


def evaluate(model: Any, folder: Path, accelerator: ByHand) -> dict[str, float]:
    """On three batches: one of two processes has none in the second round."""
    corpus = Corpus(folder / "corpus", "validation")
    batches = list(ValidationBatches(corpus, max_seq_length=40, batch_size=5, masking=Masking(rate=0.15), seed=5))
    assert len(batches) >= 3
    return evaluate_masked_lm(model, batches[:3], accelerator=accelerator)


def train_sharded(folder: Path, rank: int) -> None:
    """In one of two processes, for each optimizer: two steps, a save, and two more after loading into a fresh model."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for name in ("adamw", "muon"):
        losses: list[float] = []
        weights: Any = None
        state: Any = None
        for steps in (range(2), range(2, 4)):
            model, stream, arguments = make_parts(folder, name)
            if weights is not None:
                absent = model.load_state_dict(weights, strict=False).missing_keys
                assert absent == ["decoder.weight"], "only the tied weight is not stored"
            shard(model)
            optimizer = make_optimizer(model, arguments)
            if state is not None:
                load_optimizer_state(optimizer, state)
            losses += train(model, optimizer, stream, arguments, ByHand(2, rank), steps)
            weights, state = whole_weights(model), optimizer_state(optimizer)
        metrics = evaluate(model, folder, ByHand(2, rank))
        if rank == 0:
            torch.save((losses, weights, state, metrics), folder / f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_sharded_training_is_the_same(tmp_path: Path) -> None:
    """FSDP2 by torch's `fully_shard` over gloo: Accelerate refuses FSDP without an accelerator."""
    make_corpus(tmp_path, documents=60)
    assert in_forks(lambda rank: train_sharded(tmp_path, rank), [{}, {}]) == [0, 0]
    for name in ("adamw", "muon"):
        losses, weights, state, metrics = torch.load(tmp_path / f"{name}.pt")
        model, stream, arguments = make_parts(tmp_path, name)
        optimizer = make_optimizer(model, arguments)
        expected = train(model, optimizer, stream, arguments, ByHand(), range(4))
        assert losses == pytest.approx(expected, abs=DRIFT)
        assert expected[-1] < expected[0]
        expected_metrics = evaluate(model, tmp_path, ByHand())
        assert metrics["eval_predicted_tokens"] == expected_metrics["eval_predicted_tokens"] > 0
        assert metrics["eval_loss"] == pytest.approx(expected_metrics["eval_loss"], abs=10 * DRIFT)
        expected_state = optimizer_state(optimizer)
        assert state.keys() == expected_state.keys()
        for key, value in expected_state.items():
            assert (state[key] - value).abs().max() <= 10 * DRIFT, key
        for key, value in weights.items():
            assert (model.state_dict()[key] - value).abs().max() <= 10 * DRIFT, key
