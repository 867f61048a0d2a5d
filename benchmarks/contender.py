"""One side of a comparison, in a separate process that `speed.py` starts and controls.

It builds what its specification (JSON, the only argument) names. Then it does one unit of work for each line that it
reads, and answers with a line of JSON: the seconds and other figures. Between turns it sleeps, so that the sides do not
disturb one another. On CUDA the clock starts and stops when the device is idle. There a turn begins with a warm-up step
(or a whole warm-up encoding) that does not count, and ends by freeing cached memory.

Specification:
    side: "ours" or "transformers".
    work: "train" (for each batch a step of masked-LM training, to the updated weights) or "encode"; or "matmul", which
        needs only device, precision and keep_memory, and answers with the FLOP/s of a matmul.
    shape: "bert" or "modernbert", of base size; or a dictionary of ClozeBertConfig's fields.
    options: fields of transformers' configuration that differ from the shape.
    batches: an .npz file with `ids` [N] and `lengths` [S]; rows_per_batch: sequences in one batch.
    precision: "bf16" or "no" (float32).
    keep_memory: whether the process keeps freed memory, as clozebert's programs do.
    device: "cpu" or "cuda".
transformers' side:
    attention: "eager", "sdpa" or "flash_attention_2"; compile: whether torch.compile runs the model.
    dropout: the probability in training; sparse: ModernBERT's `sparse_prediction`.
    sorted: whether it encodes sequences of similar length together, as ours always does.

Host-device synchronisation in a training step: our side waits twice, for the gradient norm and for the loss, as
`clozebert pretrain` does; theirs never waits, as run_mlm_no_trainer.py without a tracker. Their padded batches are on
the device from the start; ours are made and copied in parallel with the steps.
"""

import ctypes
import gc
import json
import math
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

MASKED_SHARE = 0.15
MASK_TOKEN_ID = 103  # BERT's; in ModernBERT's vocabulary any token will do
PARAMETERS_SEED = 1


def main() -> None:
    specification = json.loads(sys.argv[1])
    # Output of libraries must not get between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    # Threads wait as PyTorch sets it by default; in our training, as clozebert's programs set it.
    if (specification.get("side"), specification["work"]) == ("ours", "train"):
        import clozebert.scripts._program  # noqa: F401
    if specification["keep_memory"]:
        from clozebert.utils.memory import keep_freed_memory

        keep_freed_memory()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    before = held_memory("VmRSS")
    make = {"train": make_trainer, "encode": make_encoder, "matmul": make_matmul}[specification["work"]]
    work, facts = make(specification, read_batches(specification) if "batches" in specification else [])
    is_cuda = specification["device"] == "cuda"
    # The peak is reset here: building the model does not count, nor does memory that the C library kept from it.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    if is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    print(json.dumps(facts), file=answers, flush=True)
    for _ in sys.stdin:
        if is_cuda:
            work(1) if specification["work"] == "train" else work()
            torch.cuda.synchronize()
        begun = time.perf_counter()
        result = work()
        if is_cuda:
            torch.cuda.synchronize()
        answer = {"seconds": time.perf_counter() - begun, "result": result}
        memory = torch.cuda.max_memory_allocated() if is_cuda else held_memory("VmHWM") - before
        if is_cuda:
            torch.cuda.empty_cache()  # the other sides need it
        print(json.dumps({**answer, "memory": memory}), file=answers, flush=True)


def held_memory(kind: str) -> int:
    """Resident bytes of this process: current (`VmRSS`) or peak (`VmHWM`); Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))


def read_batches(specification: dict[str, Any]) -> list[list[list[int]]]:
    import numpy as np

    with np.load(specification["batches"]) as data:
        sequences = [part.tolist() for part in np.split(data["ids"], np.cumsum(data["lengths"])[:-1])]
    rows = specification["rows_per_batch"]
    return [sequences[first : first + rows] for first in range(0, len(sequences), rows)]


def make_matmul(specification: dict[str, Any], batches: list[list[list[int]]]) -> tuple[Callable, dict[str, Any]]:
    """A matmul, which measures the machine's peak FLOP/s."""
    import torch

    from clozebert.utils.device import measure_matmul_flops

    device, precision = torch.device(specification["device"]), specification["precision"]
    size = 2048 if device.type == "cpu" else None
    return lambda: measure_matmul_flops(device, precision, size=size), {}


def make_native(specification: dict[str, Any], *, head: str) -> Any:
    """transformers' model with random weights, the same in every process."""
    import torch
    import transformers

    family = {"bert": "Bert", "modernbert": "ModernBert"}[specification["shape"]]
    options: dict[str, Any] = {}
    dropout = specification["dropout"]
    if family == "Bert":
        options = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    elif specification["sparse"]:
        options = {"sparse_prediction": True}
    config = getattr(transformers, f"{family}Config")(**options, **specification.get("options", {}))
    torch.manual_seed(PARAMETERS_SEED)
    return getattr(transformers, f"{family}{head}")(config)


def make_ours(specification: dict[str, Any], *, head: str) -> Any:
    """Our model with the same weights as the other side's, or random ones if that has no such shape."""
    import torch

    from clozebert import ClozeBertConfig, ClozeBertModel

    if isinstance(specification["shape"], dict):
        torch.manual_seed(PARAMETERS_SEED)
        return ClozeBertModel(ClozeBertConfig(**specification["shape"]), add_pooling_layer=False)
    from clozebert.hub import from_native

    model = from_native(make_native({**specification, "dropout": 0.0}, head=head))
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        assert getattr(model.config, name) == 0.0, name
    return model


def make_trainer(specification: dict[str, Any], batches: list[list[list[int]]]) -> tuple[Callable, dict[str, Any]]:
    """A step over each batch, or over the first `count`. The result is the first loss, to compare both sides' work."""
    work, model = (our_steps if specification["side"] == "ours" else their_steps)(specification, batches)
    return work, describe(model, batches)


def describe(model: Any, batches: list[list[list[int]]]) -> dict[str, Any]:
    """Facts for the controlling process: the model's parameters, and the real tokens in a unit of work."""
    tokens = sum(len(sequence) for batch in batches for sequence in batch)
    return {"parameters": sum(p.numel() for p in model.parameters()), "tokens": tokens}


def masked(batches: list[list[list[int]]]) -> list[tuple[Any, Any, Any]]:
    """For each batch the corrupted ids [N], the labels [N] (-100: none) and the lengths; the same in every process."""
    import torch

    generator = torch.Generator().manual_seed(0)
    results = []
    for batch in batches:
        ids = torch.tensor(list(chain.from_iterable(batch)))
        chosen = torch.rand(len(ids), generator=generator) < MASKED_SHARE
        results.append(
            (ids.masked_fill(chosen, MASK_TOKEN_ID), ids.masked_fill(~chosen, -100), [len(row) for row in batch])
        )
    return results


def padded(rows: Any, lengths: list[int], *, value: int) -> Any:
    """[N] -> [S, T], padded on the right with `value`."""
    import torch

    return torch.nn.utils.rnn.pad_sequence(rows.split(lengths), batch_first=True, padding_value=value)


def packed_batch(ids: Any, labels: Any, lengths: list[int]) -> Any:
    """A packed batch, as `clozebert.corpus` makes it."""
    import numpy as np

    from clozebert.corpus.batches import Batch

    chosen = (labels != -100).nonzero().squeeze(1)
    return Batch(
        input_ids=ids[None].numpy(),
        position_ids=np.concatenate([np.arange(length) for length in lengths])[None],
        cu_seq_lens=np.cumsum([0, *lengths], dtype=np.int32),
        max_length=max(lengths),
        masked_positions=chosen.numpy(),
        labels=labels[chosen].numpy(),
        sample_ids=np.arange(len(lengths)),
    )


def our_steps(specification: dict[str, Any], batches: list[list[list[int]]]) -> tuple[Callable[..., float], Any]:
    """Training steps as in `clozebert pretrain` by default, with its own functions over packed batches."""
    import torch

    from clozebert.training import PretrainingArguments
    from clozebert.training.optimizers.optimizer import make_optimizer
    from clozebert.training.prefetch import inputs_maker, pin, prefetch
    from clozebert.training.runtime.machine import (
        choose_bf16_residual,
        choose_compilation,
        compile_model,
        make_accelerator,
    )
    from clozebert.training.step import accumulate_gradient, clip_gradient, update_weights

    on_cpu = specification["device"] == "cpu"
    precision = specification["precision"]
    accelerator = make_accelerator(mixed_precision=precision, use_cpu=on_cpu)
    model = make_ours(specification, head="ForMaskedLM").train()
    if choose_bf16_residual(None, model.config, precision=precision, on_cuda=not on_cpu):
        model.model.residual_dtype = torch.bfloat16
    if choose_compilation(None, accelerator.device):
        compile_model(model, accelerator.device)
    arguments = PretrainingArguments(corpus="-", tokenizer_name="-", output_dir="-", learning_rate=1e-5)
    prepared, optimizer = accelerator.prepare(model, make_optimizer(model, arguments))
    packed = [packed_batch(*one) for one in masked(batches)]
    make_inputs = inputs_maker(model.config, accelerator)

    def load(index: int) -> tuple[Any, int]:
        """As `StepLoader` does, in the thread of `prefetch`."""
        inputs = make_inputs(packed[index])
        return (inputs if on_cpu else pin(inputs)), len(packed[index].labels)

    def work(count: int | None = None) -> float:
        losses = []
        for inputs, num_predicted in prefetch(load, 0, count or len(packed)):
            part = accumulate_gradient(prepared, [inputs], num_predicted=num_predicted, accelerator=accelerator)
            norm = clip_gradient(prepared, max_grad_norm=arguments.max_grad_norm, accelerator=accelerator)
            assert part is not None
            losses.append(part.item())
            update_weights(optimizer, num_broken=int(not math.isfinite(norm)), accelerator=accelerator)
        return losses[0]

    return work, model


def their_steps(specification: dict[str, Any], batches: list[list[list[int]]]) -> tuple[Callable[..., float], Any]:
    """Training steps as in transformers' run_mlm_no_trainer.py, on padded batches; bf16 with Accelerate."""
    import torch
    from accelerate import Accelerator
    from transformers import get_scheduler

    accelerator = Accelerator(mixed_precision=specification["precision"], cpu=specification["device"] == "cpu")
    model = make_native(specification, head="ForMaskedLM").train()
    model.set_attn_implementation(specification["attention"])
    pad = model.config.pad_token_id
    if specification["compile"]:
        model.compile()
    no_decay = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if not name.endswith(no_decay)], "weight_decay": 0.01},
        {"params": [p for name, p in named if name.endswith(no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-5)
    scheduler = get_scheduler("constant", optimizer)
    prepared, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    inputs = []
    for ids, labels, lengths in masked(batches):
        mask = padded(torch.ones_like(ids), lengths, value=0)
        batch = {"input_ids": padded(ids, lengths, value=pad), "labels": padded(labels, lengths, value=-100)}
        batch["attention_mask"] = mask
        inputs.append({name: value.to(accelerator.device) for name, value in batch.items()})

    def work(count: int | None = None) -> float:
        losses = []
        for batch in inputs[:count]:
            loss = prepared(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses[0].item()

    return work, model


def make_encoder(specification: dict[str, Any], batches: list[list[list[int]]]) -> tuple[Callable, dict[str, Any]]:
    """Mean-pooled vectors of all sequences, with weights in `precision`; the result is a few channels of the first."""
    import torch

    is_ours = specification["side"] == "ours"
    model = (make_ours if is_ours else make_native)(specification, head="Model").eval()
    dtype = torch.bfloat16 if specification["precision"] == "bf16" else torch.float32
    model = model.to(specification["device"], dtype)
    facts = describe(model, batches)
    if is_ours:
        from clozebert import encode_ids

        sequences = list(chain.from_iterable(batches))

        def work() -> list[float]:
            return encode_ids(model, sequences)[0][:4].tolist()

        return work, facts
    model.set_attn_implementation(specification["attention"])
    if specification["compile"]:
        model.compile()
    sequences, rows = list(chain.from_iterable(batches)), specification["rows_per_batch"]
    order = list(range(len(sequences)))
    if specification.get("sorted"):
        order.sort(key=lambda index: -len(sequences[index]))
    inputs = []
    for begin in range(0, len(order), rows):
        batch = [sequences[index] for index in order[begin : begin + rows]]
        ids, lengths = torch.tensor(list(chain.from_iterable(batch))), [len(row) for row in batch]
        mask = padded(torch.ones_like(ids), lengths, value=0)
        pair = {"input_ids": padded(ids, lengths, value=model.config.pad_token_id), "attention_mask": mask}
        inputs.append({name: value.to(model.device) for name, value in pair.items()})

    @torch.no_grad()
    def their_work() -> list[float]:
        means = []
        for batch in inputs:
            weights = batch["attention_mask"].unsqueeze(-1).to(dtype)
            x = model(**batch).last_hidden_state
            means.append((x * weights).sum(dim=1) / weights.sum(dim=1))
        return torch.cat(means)[order.index(0)][:4].tolist()

    return their_work, facts


if __name__ == "__main__":
    main()
