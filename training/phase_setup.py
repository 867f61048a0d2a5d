"""Sets up a phase of a run: its batches, and model and optimizer at the step where it begins."""

import dataclasses
import os
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..configuration import ClozeBertConfig
from ..corpus import BatchStream, Mixture
from ..modeling import ClozeBertForMaskedLM
from .arguments import Phase, PretrainingArguments
from .batches import load_batches, make_stream
from .checkpoints.training_state import TrainingState
from .distillation import with_teacher
from .initialization.initial_embeddings import embed_by_text
from .initialization.initial_model import make_model
from .initialization.initial_positions import begin_sinusoidal
from .optimizers.optimizer import make_optimizer
from .optimizers.state import load_optimizer_state
from .planning.memory_and_time import forward_flops, last_layer_reads, mean_attention_length
from .prefetch import count_predicted, inputs_maker
from .runtime.machine import choose_bf16_residual, choose_compilation, choose_muon_dtype, compile_model
from .step import accumulate_gradient

_DRY_STEPS, _FEW_TOKENS = 2, 4096


@dataclass
class PhaseSetup:
    """What a phase trains with.

    Attributes:
        core, model: the model itself, and as Accelerate prepared it (DDP, autocast).
        optimizer: as Accelerate prepared it; `optimizer.optimizer` is our own.
        loader: yields each step's micro-batches and how many tokens this process predicts in them.
        flops_per_token: FLOPs of a training step for each token.
    """

    phase: Phase
    corpora: Mixture
    stream: BatchStream
    core: ClozeBertForMaskedLM
    model: torch.nn.Module
    optimizer: Any
    loader: Generator[Any, None, None]
    flops_per_token: float

    @property
    def arguments(self) -> PretrainingArguments:
        return self.phase.arguments


def set_up_phase(
    phase: Phase,
    corpora: Mixture,
    config: ClozeBertConfig,
    *,
    accelerator: Any,
    state: TrainingState,
    weights: str | os.PathLike | None,
    tensors: dict[str, torch.Tensor] | None = None,
) -> PhaseSetup:
    """Make the batches, model and optimizer of a phase.

    Args:
        state: the step to continue from, and the fp16 loss scale.
        weights: the folder or Hub name of the weights to start from; None: random ones.
        tensors: the optimizer state to start from.
    """
    stream = make_stream(phase, corpora, vocab_size=config.vocab_size)
    core, model, optimizer = set_up_model(
        phase.arguments, config, accelerator=accelerator, weights=weights, strict=tensors is not None, corpora=corpora
    )
    if tensors is not None:
        load_optimizer_state(optimizer.optimizer, tensors)
    if accelerator.scaler is not None and state.scaler is not None:
        accelerator.scaler.load_state_dict(state.scaler)
    loader = load_batches(stream, phase, step=state.step, accelerator=accelerator, config=core.config)
    half = accelerator.mixed_precision != "no"
    reads = last_layer_reads(config, on_cpu=accelerator.device.type == "cpu", half=half)
    flops = flops_per_token(config, phase.arguments, corpora, reads=reads)
    return PhaseSetup(phase, corpora, stream, core, model, optimizer, loader, flops)


def settle_buckets(setup: PhaseSetup, *, accelerator: Any) -> None:
    """Let DDP sort the gradients into its buckets before the first step; no weight changes.

    It sorts them by the first backward pass that it sees. Three or more processes add up gradients in an order that
    depends on the place in a bucket. So a resumed run would round its first step otherwise than a run that goes on.
    """
    if not isinstance(setup.model, DistributedDataParallel):
        return
    rows = setup.arguments.rows_at_once(accelerator.num_processes)
    batch = inputs_maker(setup.core.config, accelerator)(setup.stream.rows(0, rows, step=0))
    accumulate_gradient(setup.model, [batch], num_predicted=count_predicted(batch), accelerator=accelerator)
    setup.optimizer.zero_grad()


def set_up_model(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    *,
    accelerator: Any,
    weights: str | os.PathLike | None = None,
    strict: bool = False,
    corpora: Mixture | None = None,
) -> tuple[ClozeBertForMaskedLM, torch.nn.Module, Any]:
    """The model, the model as Accelerate prepared it, and its optimizer.

    Args:
        strict: the weights must be exactly those of this model.
        corpora: the text that a new model may begin from (`embedding_init`); None: all its weights are random. A run
            that continues from a model needs none, also where it is only timed, without that model's weights.
    """
    torch.manual_seed(arguments.seed)
    core = make_model(config, weights, strict=strict)
    if weights is None and corpora is not None and arguments.model_name_or_path is None:
        if arguments.embedding_init == "text":
            embed_by_text(core, corpora, max_seq_length=arguments.max_seq_length, seed=arguments.seed)
        if arguments.position_init == "sinusoidal":
            begin_sinusoidal(core)
    device, precision = accelerator.device, accelerator.mixed_precision
    on_cuda = device.type == "cuda"
    if choose_bf16_residual(arguments.bf16_residual, config, precision=precision, on_cuda=on_cuda):
        core.model.residual_dtype = torch.bfloat16
    if arguments.gradient_checkpointing:
        core.gradient_checkpointing_enable()
    core.train()
    if choose_compilation(arguments.torch_compile, device):
        compile_model(core, device)
    muon_dtype = choose_muon_dtype(precision, device)
    optimizer = make_optimizer(core, arguments, muon_dtype=muon_dtype)
    trained: torch.nn.Module = core
    if arguments.teacher_name_or_path is not None:
        trained = with_teacher(core, arguments.teacher_name_or_path)
    with warnings.catch_warnings():
        # torch warns that `broadcast_buffers`, which Accelerate passes, will get another name.
        warnings.simplefilter("ignore", FutureWarning)
        model, optimizer = accelerator.prepare(trained, optimizer)
    return core, model, optimizer


def flops_per_token(
    config: ClozeBertConfig, arguments: PretrainingArguments, corpora: Mixture, *, reads: bool
) -> float:
    """FLOPs of a training step for each token, forward and backward; what is recomputed is not counted.

    `reads` as in `forward_flops`.
    """
    length, tokens = mean_attention_length(corpora, max_seq_length=arguments.max_seq_length), 1_000_000
    predicted, sample = arguments.mean_mlm_probability, arguments.vocabulary_sample
    forward = forward_flops(
        config, tokens=tokens, length=length, predicted=predicted, reads=reads, vocabulary_sample=sample
    )
    return 3 * forward / tokens


def few_rows(rows: int, max_seq_length: int) -> int:
    """As many of the rows of a micro-batch as a CPU can time soon: a single row would take longer for each token."""
    return max(1, min(rows, _FEW_TOKENS // max_seq_length))


def dry_phase(phase: Phase, accelerator: Any) -> Phase:
    """A phase in a dry run: two steps of a single micro-batch in each process, on a CPU of few rows."""
    arguments = phase.arguments
    rows = arguments.rows_at_once(accelerator.num_processes)
    if accelerator.device.type == "cpu":
        rows = few_rows(rows, arguments.max_seq_length)
    return dataclasses.replace(
        phase,
        first_step=_DRY_STEPS * phase.index,
        num_steps=_DRY_STEPS,
        arguments=dataclasses.replace(
            arguments.of_one_micro_batch(rows, accelerator.num_processes), eval_steps=0, save_steps=0
        ),
    )
