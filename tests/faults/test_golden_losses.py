"""The losses of 20 steps of every recipe, at a small size: one document at a time, one process, DDP, and FSDP2."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pretraining_helpers import MODEL_FLAGS, dense_loss, in_forks, losses_of, run_forked, settings
from torch.nn.parallel import DistributedDataParallel

TESTS = Path(__file__).resolve().parents[1]
if str(TESTS / "training") not in sys.path:
    sys.path.append(str(TESTS / "training"))

from test_distributed import ByHand, shard  # noqa: E402

from clozebert import ClozeBertForMaskedLM  # noqa: E402
from clozebert.corpus import BatchStream, Corpus  # noqa: E402
from clozebert.training.arguments import PretrainingArguments  # noqa: E402
from clozebert.training.batches import make_masking  # noqa: E402
from clozebert.training.optimizers.optimizer import make_optimizer  # noqa: E402
from clozebert.training.prefetch import StepLoader  # noqa: E402
from clozebert.training.run_settings import make_config, split_settings  # noqa: E402
from clozebert.training.runtime.processes import sum_over_processes  # noqa: E402
from clozebert.training.step import accumulate_gradient  # noqa: E402

STEPS = 20
RECIPES = ("nano", "tiny", "small", "bert-base", "roberta-base", "modernbert-base")
RUN: dict[str, Any] = {
    "max_steps": STEPS, "warmup_steps": 3, "save_steps": 0, "eval_steps": 0,
    "per_device_train_batch_size": 2, "mixed_precision": "no", "learning_rate": 5e-3,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def make_parts(folder: Path, recipe: str) -> tuple[ClozeBertForMaskedLM, BatchStream, PretrainingArguments]:
    """The recipe's model, batches and optimizer at the size of the tests; the same in every process."""
    values, model = split_settings(recipe, {**MODEL_FLAGS, **settings(folder, output_dir="unused", **RUN)})
    arguments = PretrainingArguments(**values)
    config = make_config(model)
    config.vocab_size, config.pad_token_id = 64, 0
    torch.manual_seed(0)
    stream = BatchStream(
        Corpus(folder / "corpus"),
        max_seq_length=arguments.max_seq_length,
        global_batch_size=arguments.global_batch_size,
        masking=make_masking(arguments, rate=arguments.mlm_probability),
        seed=0,
    )
    return ClozeBertForMaskedLM(config), stream, arguments


def train_densely(model: Any, optimizer: Any, stream: BatchStream, arguments: PretrainingArguments) -> list[float]:
    """One document at a time, from all logits: no packing, no micro-batches, no masked positions."""
    losses = []
    for step in range(STEPS):
        optimizer.set_learning_rate(arguments.learning_rate_factor(step))
        loss = dense_loss(model, stream.batch(step)) / stream.num_predicted(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_in_parts(
    model: Any, optimizer: Any, stream: BatchStream, arguments: PretrainingArguments, accelerator: ByHand, half: bool
) -> list[float]:
    """As the loop does it: packed, in two micro-batches, at the masked positions alone."""
    load = StepLoader(stream, accelerator.process_index, accelerator.num_processes, micro_batches=2)
    losses = []
    for step in range(STEPS):
        optimizer.set_learning_rate(arguments.learning_rate_factor(step))
        batches, num_predicted = load(step)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            part = accumulate_gradient(model, batches, num_predicted=num_predicted, accelerator=accelerator)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum_over_processes(part, accelerator).item())
    return losses


def train_by_two(folder: Path, out: Path, recipe: str, rank: int) -> None:
    """In one of two processes: the losses by DDP and by FSDP2, in float32 and under autocast, into a file."""
    dist.init_process_group("gloo", init_method=f"file://{out}/meet-{recipe}", rank=rank, world_size=2)
    found = {}
    for way, distribute in (("DDP", DistributedDataParallel), ("FSDP2", shard)):
        for half in (False, True):
            model, stream, arguments = make_parts(folder, recipe)
            wrapped: Any = distribute(model)
            optimizer = make_optimizer(model, arguments)
            found[way, half] = train_in_parts(wrapped, optimizer, stream, arguments, ByHand(2, rank), half)
    if rank == 0:
        torch.save(found, out / f"{recipe}.pt")
    dist.barrier()
    dist.destroy_process_group()


def largest_difference(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.faults
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_way_loses_the_same(
    prepared: Path, tmp_path: Path, recipe: str, figure: Callable[[str, Any], None]
) -> None:
    model, stream, arguments = make_parts(prepared, recipe)
    dense = train_densely(model, make_optimizer(model, arguments), stream, arguments)
    assert dense[-1] < dense[0] - 0.02
    assert in_forks(lambda rank: train_by_two(prepared, tmp_path, recipe, rank), [{}, {}]) == [0, 0]
    found = torch.load(tmp_path / f"{recipe}.pt")
    for half in (False, True):
        model, stream, arguments = make_parts(prepared, recipe)
        optimizer = make_optimizer(model, arguments)
        found["one process", half] = train_in_parts(model, optimizer, stream, arguments, ByHand(), half)
    whole = {way: largest_difference(losses, dense) for (way, half), losses in found.items() if not half}
    halves = max(largest_difference(losses, dense) for (_, half), losses in found.items() if half)
    # The program itself, with its clipping and its loop.
    for processes in (1, 2):
        done = run_forked(prepared, tmp_path / str(processes), processes=processes, config=recipe, **RUN)
        assert done == [0] * processes
    one, two = (losses_of(tmp_path / str(processes)) for processes in (1, 2))
    whole["the program by two"] = largest_difference(one, two)
    figure(
        f"golden losses, {recipe}",
        f"{arguments.optimizer}: {max(whole.values()):.0e} in float32; {halves:.0e} under bf16 autocast",
    )
    print({**whole, "bf16": halves})
    assert all(difference <= 1e-5 for difference in whole.values()), whole
    assert halves < 0.1
