"""Two processes do what one does: the same batches, gradients, losses; each goes on where the other stopped."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pretraining_helpers import REPOSITORY, losses_of, make_corpus, model_config, run_program, settings
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from clozebert import ClozeBertForMaskedLM
from clozebert.corpus import BatchStream, Corpus, Masking, validation_batches
from clozebert.training.arguments import PretrainingArguments
from clozebert.training.evaluation import evaluate_masked_lm, sum_over_processes
from clozebert.training.machine import make_accelerator
from clozebert.training.optimizers import load_optimizer_state, make_optimizer, optimizer_state, whole_weights
from clozebert.training.prefetch import StepLoader
from clozebert.training.pretraining import accumulate_gradient, make_masking

STEPS = 12
RUN = {"max_steps": STEPS, "save_steps": 6, "eval_steps": 6, "save_total_limit": 5, "per_device_train_batch_size": 2}


@pytest.fixture(scope="module")
def runs(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same run on one process and on two."""
    folder = tmp_path_factory.mktemp("runs")
    for processes in (1, 2):
        run_program(prepared, folder / str(processes), processes=processes, **RUN)
    return {processes: folder / str(processes) for processes in (1, 2)}


def world_size(checkpoint: Path) -> int:
    return json.loads((checkpoint / "training_state" / "state.json").read_text())["world_size"]


def test_two_processes_lose_as_one(runs: dict[int, Path]) -> None:
    assert [world_size(runs[processes] / "checkpoint-12") for processes in (1, 2)] == [1, 2]
    one, two = losses_of(runs[1]), losses_of(runs[2])
    assert len(one) == STEPS
    # Measured: 5e-7. A wrong scale of the gradient shows in the third decimal after a few steps.
    assert two == pytest.approx(one, abs=1e-5)
    assert one[-1] < one[0] - 0.1
    results = [json.loads((runs[processes] / "all_results.json").read_text()) for processes in (1, 2)]
    assert results[1]["eval_loss"] == pytest.approx(results[0]["eval_loss"], abs=1e-5)
    for name in ("eval_predicted_tokens", "tokens_seen", "step", "skipped_steps", "parameters"):
        assert results[1][name] == results[0][name]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_resuming_on_another_number_of_processes(
    prepared: Path, runs: dict[int, Path], tmp_path: Path, before: int, after: int
) -> None:
    output_dir = tmp_path / "run"
    shutil.copytree(runs[before], output_dir)
    shutil.rmtree(output_dir / "checkpoint-12")
    resumed = run_program(prepared, output_dir, processes=after, resume_from_checkpoint="latest", **RUN)
    assert "resumed at step 6" in resumed.stdout
    assert f"world_size={before} there, {after} here" in resumed.stderr
    assert [world_size(output_dir / f"checkpoint-{step}") for step in (6, 12)] == [before, after]
    assert losses_of(output_dir) == pytest.approx(losses_of(runs[before]), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "drift"), [("adamw", 1e-5), ("muon", 2e-4)])
def test_drift_between_one_and_two_processes(prepared: Path, tmp_path: Path, optimizer: str, drift: float) -> None:
    run = {**RUN, "max_steps": 40, "optimizer": optimizer, "save_steps": 0}
    for processes in (1, 2):
        run_program(prepared, tmp_path / str(processes), processes=processes, **run)
    assert losses_of(tmp_path / "2") == pytest.approx(losses_of(tmp_path / "1"), abs=drift)


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_at_the_same_step(prepared: Path, tmp_path: Path) -> None:
    prelude = (
        "import os, signal\n"
        "from clozebert import ClozeBertForMaskedLM as Model\n"
        "forward, calls = Model.forward, [0]\n"
        "def signalling(self, *args, **kwargs):\n"
        "    calls[0] += self.training\n"
        "    if os.environ['RANK'] == '1' and calls[0] == 9: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return forward(self, *args, **kwargs)\n"
        "Model.forward = signalling\n"
    )
    stopped = run_program(prepared, tmp_path / "run", processes=2, prelude=prelude, check=False, **RUN)
    assert stopped.returncode != 0
    # 8 rows on two processes, two at a time: the ninth micro-batch is the first of step 5.
    assert (tmp_path / "run" / "latest").read_text() == "checkpoint-5\n", stopped.stdout + stopped.stderr
    run_program(prepared, tmp_path / "run", processes=2, resume_from_checkpoint="latest", **RUN)
    assert len(losses_of(tmp_path / "run")) == STEPS


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
    """What `accumulate_gradient` asks of an Accelerator, for a model sharded by hand or not at all."""

    device = torch.device("cpu")

    def __init__(self, num_processes: int = 1, process_index: int = 0):
        self.num_processes, self.process_index = num_processes, process_index

    @contextlib.contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        if self.num_processes > 1:
            model.set_requires_gradient_sync(False)
        yield
        if self.num_processes > 1:
            model.set_requires_gradient_sync(True)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def make_parts(folder: Path, optimizer: str) -> tuple[ClozeBertForMaskedLM, BatchStream, PretrainingArguments]:
    arguments = PretrainingArguments(**settings(folder, output_dir="unused", optimizer=optimizer))
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
    batches = list(validation_batches(corpus, max_seq_length=40, batch_size=5, masking=Masking(rate=0.15), seed=5))
    assert len(batches) >= 3
    return evaluate_masked_lm(model, batches[:3], accelerator=accelerator)


def train_sharded(rank: int, folder: Path) -> None:
    """In one of two processes, for each optimizer: two steps, a save, and two more after loading into a fresh model."""
    torch.set_num_threads(1)
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
            for layer in model.model.layers:
                fully_shard(layer)
            fully_shard(model)
            assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
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
    # Under load, a thread of torch outlived the interpreter once, and aborted the process after its work was done.
    os._exit(0)


def test_sharded_training_is_the_same(tmp_path: Path) -> None:
    """FSDP2 by torch's `fully_shard` over gloo: Accelerate refuses FSDP without an accelerator."""
    make_corpus(tmp_path, documents=60)
    torch.multiprocessing.spawn(train_sharded, args=(tmp_path,), nprocs=2)
    # Muon orthogonalises in bf16, which amplifies the rounding of another order of sums.
    for name, drift in (("adamw", 1e-5), ("muon", 1e-3)):
        losses, weights, state, metrics = torch.load(tmp_path / f"{name}.pt")
        model, stream, arguments = make_parts(tmp_path, name)
        optimizer = make_optimizer(model, arguments)
        expected = train(model, optimizer, stream, arguments, ByHand(), range(4))
        assert losses == pytest.approx(expected, abs=drift)
        assert expected[-1] < expected[0]
        expected_metrics = evaluate(model, tmp_path, ByHand())
        assert metrics["eval_predicted_tokens"] == expected_metrics["eval_predicted_tokens"] > 0
        assert metrics["eval_loss"] == pytest.approx(expected_metrics["eval_loss"], abs=10 * drift)
        expected_state = optimizer_state(optimizer)
        assert state.keys() == expected_state.keys()
        for key, value in expected_state.items():
            assert (state[key] - value).abs().max() <= 10 * drift, key
        for key, value in weights.items():
            assert (model.state_dict()[key] - value).abs().max() <= 10 * drift, key
