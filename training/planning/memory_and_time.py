"""Plans a run by closed formulas: FLOPs, memory on each device by part, hours and cost.

Symbols as in `clozebert.configuration.costs`; N tokens and M predicted tokens in a micro-batch, P parameters, c bytes
of a number in the computing precision (2 under bf16 and fp16, else 4).

    FLOPs of a step   3 x forward; 4 x where activations are recomputed. The head works at predicted tokens only.
    weights           4 P, and under half precision their copies, 2 for each weight of a matrix
    gradients         4 P
    optimizer         AdamW 8 P; Muon 4 for each weight of its matrices, 8 for each of the rest
    activations       for each layer and token: two norms read 4 D each, 2 D of a stream in bf16; linear layers read
                      c (3 D + F); attention keeps c (D + 2 G) of queries, keys and values; the feed-forward keeps
                      c 2 F, gated ones c 4 F, of which half is recomputed if there are many tokens. The last layer
                      works for predicted tokens only, apart from keys and values (`last_layer_reads`). With
                      checkpointing: what one norm reads of each layer, and one layer in full
    dropout           for each layer and token, masks of the outputs of both parts, 2 D, and of the inner one, F: c
                      bytes a number on a CPU, 1 elsewhere. On a CPU, dropout in attention keeps its weights, their
                      masks and products, 3 c H T for documents of T tokens
    logits            M V 2 c: the logits and their gradient, and some rows of both in float32; with a sample of the
                      vocabulary, its S tokens and the label in place of V

No step on a GPU is shorter than the launches of its kernels, one for each operation, nor than the exchange of the
gradients between the devices:

    launches          in a micro-batch 80 a layer and 60 more; in an update 20, with Muon 60 more and 2 for each matrix:
                      those of one shape are made orthogonal together
    communication     2 (n - 1) / n 4 P bytes over the link, during the backward pass

On a CPU the C library keeps freed memory for later: a process may be larger than its tensors by a tenth to a third
(`MALLOC_MMAP_THRESHOLD_=262144` in the environment makes it return everything).
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...configuration import ClozeBertConfig
from ...configuration.costs import parts_of, symbols_of
from ...modeling.losses import WIDENED, WIDENED_ON_CPU
from ...utils.errors import UserError
from ..arguments import PretrainingArguments, divisors
from ..runtime.machine import choose_bf16_residual
from .time_budget import StepTime

if TYPE_CHECKING:
    from ...corpus import Mixture

GIB = 1 << 30
# Memory that a plan leaves free: the device's own context, its libraries' workspace, and gaps between blocks.
_FREE_SHARE, _FREE_BYTES = 0.06, GIB
# The seconds that Python needs at least to launch one operation on the device.
_LAUNCH_SECONDS = 5e-6


@dataclasses.dataclass(frozen=True)
class Device:
    """A kind of device: dense bf16 FLOP/s with float32 accumulation, as its maker states them, memory in bytes, and
    bytes per second to another one in the same machine, in each direction (PCIe if there is nothing faster)."""

    name: str
    peak_flops: float
    memory: float
    link: float = 25e9


DEVICES = {
    device.name: device
    for device in (
        Device("a10", 125e12, 22.5 * GIB),
        Device("a100-40gb", 312e12, 39.5 * GIB, 300e9),
        Device("a100-80gb", 312e12, 79.2 * GIB, 300e9),
        Device("b200", 2250e12, 178 * GIB, 900e9),
        Device("h100", 989e12, 79.6 * GIB, 450e9),
        Device("h200", 989e12, 140 * GIB, 450e9),
        Device("l4", 121e12, 22 * GIB),
        Device("l40s", 362e12, 44.5 * GIB),
        Device("rtx-3090", 71e12, 23.6 * GIB),
        Device("rtx-4090", 165e12, 23.6 * GIB),
        Device("rtx-5090", 209e12, 31.4 * GIB, 50e9),
    )
}


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What a few steps on this machine took, and the memory at their peak."""

    step: StepTime
    peak_bytes: float | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run in figures; bytes are those of one device.

    Attributes:
        device, num_devices: on which it runs.
        flops_per_step: for the whole global batch, optimizer included; smaller batches of a warm-up take fewer.
        update_flops: the part of these that the optimizer takes on one device.
        memory: bytes by part; `peak_memory` is less than their sum if parts are not held at the same time.
        largest_batch: rows of the largest micro-batch that fits and divides a process' share; None: not even one row.
    """

    device: Device
    num_devices: int
    parameters: int
    flops_per_step: int
    update_flops: int
    memory: dict[str, int]
    peak_memory: int
    largest_batch: int | None
    tokens_per_second: float
    utilization: float
    seconds: float
    cost: float | None


def check_utilization(utilization: float) -> None:
    """Refuse a share of a device's peak that is none."""
    if not 0 < utilization <= 1:
        raise UserError(f"utilization={utilization} must lie in (0, 1]")


def make_plan(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    *,
    device: Device,
    num_devices: int = 1,
    precision: str = "bf16",
    sharded: bool = False,
    utilization: float = 0.3,
    document_length: float | None = None,
    fill: float = 1.0,
    price_per_hour: float | None = None,
    calibration: Calibration | None = None,
) -> Plan:
    """The plan of a run on `num_devices` devices.

    Args:
        precision: "bf16", "fp16" or "no".
        sharded: weights, gradients and optimizer state are spread over the devices (FSDP2).
        utilization: the share of the peak that is reached, if nothing was measured.
        document_length: how far attention reaches, see `attention_length`; None: whole rows.
        fill: the share of a row's places that holds tokens, see `row_fill`. The memory is that of full rows.
        price_per_hour: of one device.
        calibration: seconds measured on a device of this kind, instead of `utilization`.

    Raises:
        ValueError: a value out of range, or a batch that does not fit the number of devices.
    """
    if num_devices < 1:
        raise UserError(f"num_devices={num_devices} must be at least 1")
    check_utilization(utilization)
    micro_batches, share = arguments.micro_batches(num_devices), arguments.global_batch_size // num_devices
    length = min(document_length or arguments.max_seq_length, arguments.max_seq_length)
    on_cpu, shards, half = device.name == "cpu", num_devices if sharded else 1, precision != "no"
    on_cuda = device.name not in ("cpu", "mps")
    bf16_residual = choose_bf16_residual(arguments.bf16_residual, config, precision=precision, on_cuda=on_cuda)

    def memory_of(rows: int) -> tuple[dict[str, int], int]:
        keeps = rows < share or num_devices > 1  # gradients, while activations are made: to add to, or to exchange
        options: dict[str, Any] = {"half": half, "shards": shards, "on_cpu": on_cpu, "length": length}
        return _memory(arguments, config, rows=rows, keeps_gradients=keeps, bf16_residual=bf16_residual, **options)

    memory, peak = memory_of(arguments.rows_at_once(num_devices))
    room = device.memory * (1 - _FREE_SHARE) - _FREE_BYTES
    fitting = (size for size in divisors(share) if memory_of(size)[1] <= room)
    tokens = round(arguments.tokens_per_step * fill)
    forward = forward_flops(
        config,
        tokens=tokens,
        length=length,
        predicted=arguments.mean_mlm_probability,
        reads=last_layer_reads(config, on_cpu=on_cpu, half=half),
        vocabulary_sample=arguments.vocabulary_sample,
    )
    update = _update_flops(arguments, config, owners=shards)
    passes = 4 if arguments.gradient_checkpointing else 3
    if calibration is None:
        # No micro-batch and no update is faster than the launches of its kernels.
        launches = (0, 0) if on_cpu else launches_of(config, muon=arguments.optimizer == "muon")
        speed = device.peak_flops * utilization
        step = StepTime(
            max(passes * forward / num_devices / micro_batches / speed, _LAUNCH_SECONDS * launches[0]),
            max(update / speed, _LAUNCH_SECONDS * launches[1]),
        )
    else:
        step = calibration.step
    # While the batch size warms up, a step has fewer rows and counts as a part of a full one.
    size = arguments.batch_size
    of_whole_steps = size.before(arguments.num_steps) / size.rows
    seconds = max(
        of_whole_steps * micro_batches * step.micro_batch + arguments.num_steps * step.update,
        arguments.num_steps * _exchange_seconds(config, device, num_devices),
    )
    all_tokens = size.before(arguments.num_steps) * arguments.max_seq_length * fill
    return Plan(
        device=device,
        num_devices=num_devices,
        parameters=parameters_of(config),
        flops_per_step=passes * forward + update,
        update_flops=update,
        memory=memory,
        peak_memory=peak,
        largest_batch=next(fitting, None),
        tokens_per_second=all_tokens / seconds,
        # Model FLOP/s: recomputation does not count as work done.
        utilization=3 * forward / num_devices * of_whole_steps / seconds / device.peak_flops,
        seconds=seconds,
        cost=None if price_per_hour is None else price_per_hour * num_devices * seconds / 3600,
    )


def _exchange_seconds(config: ClozeBertConfig, device: Device, num_devices: int) -> float:
    """Seconds in which every device has the sum of all gradients, in float32 (ring all-reduce); 0 for a single one."""
    if device.name == "cpu":
        return 0.0  # processes of one machine
    return 2 * (num_devices - 1) / num_devices * 4 * parameters_of(config) / device.link


def launches_of(config: ClozeBertConfig, *, muon: bool = False) -> tuple[int, int]:
    """The least number of kernels that a micro-batch and an update launch, one for each operation on the device.

    On the plain path under bf16, torch dispatches about 155 operations a layer, forward and backward. A kernel for
    packed attention replaces some tens of them.
    """
    matrices = (7 if config.mlp_type == "glu" else 6) * config.num_hidden_layers
    return 80 * config.num_hidden_layers + 60, 20 + (60 + 2 * matrices if muon else 0)


def parameters_of(config: ClozeBertConfig) -> int:
    """All parameters of the masked-LM model, tied ones once."""
    symbols = symbols_of(config, batch_size=1, length=1)
    return sum(part.count(part.parameters, symbols) for part in parts_of(config))


def matrix_parameters(config: ClozeBertConfig) -> int:
    """The number of weights of the linear layers between embeddings and decoder: half of their FLOPs for one token."""
    symbols = symbols_of(config, batch_size=1, length=1)
    maps = [part for part in parts_of(config) if not part.name.startswith(("attention, ", "decoder"))]
    return sum(part.count(part.flops, symbols) for part in maps) // 2


def forward_flops(
    config: ClozeBertConfig,
    *,
    tokens: int,
    length: float,
    predicted: float,
    reads: bool,
    vocabulary_sample: int = 0,
) -> int:
    """FLOPs of the matmuls of one forward pass in training.

    Args:
        tokens: in the batch.
        length: of a document: how many tokens each one attends to.
        predicted: the share of the tokens that the head sees.
        reads: the last layer works for these only (`last_layer_reads`).
        vocabulary_sample: tokens that a prediction is compared with; 0: all.
    """
    window = min(config.sliding_window or 0, length - 1)
    symbols = {**symbols_of(config, batch_size=1, length=1), "B": tokens / length, "T": length, "W": window}
    symbols["V"] = _compared(vocabulary_sample, config)
    total = sum(part.count(part.flops, symbols) * (predicted if part.predicted else 1.0) for part in parts_of(config))
    if reads:
        d, f = symbols["D"], symbols["F"]
        total -= (
            tokens * (1 - predicted) * (4 * d * d + 4 * length * d + (6 if config.mlp_type == "glu" else 4) * d * f)
        )
    return round(total)


def _compared(vocabulary_sample: int, config: ClozeBertConfig) -> int:
    """How many tokens a prediction is compared with: the vocabulary, or the sample and the label."""
    return vocabulary_sample + 1 if 0 < vocabulary_sample < config.vocab_size else config.vocab_size


def last_layer_reads(config: ClozeBertConfig, *, on_cpu: bool, half: bool) -> bool:
    """Whether the last layer works for predicted tokens only: without a window, on a CPU, or by PyTorch's
    variable-length kernel, which has half precision and no dropout."""
    if config.attention_type(config.num_hidden_layers - 1) == "sliding_attention":
        return False
    return on_cpu or (half and not config.attention_probs_dropout_prob)


def attention_length(lengths: np.ndarray, *, max_seq_length: int) -> float:
    """How many tokens a token sees on average, itself and its special tokens included: sum l^2 / sum l over segments.

    Args:
        lengths: tokens of each document, without special tokens; longer ones are cut to rows.
    """
    room = max_seq_length - 2
    whole, rest = np.divmod(lengths.astype(np.float64), room)
    rest = np.where(rest > 0, rest + 2, 0.0)
    squares = float((whole * max_seq_length**2 + rest**2).sum())
    return squares / float((whole * max_seq_length + rest).sum())


def mean_attention_length(corpora: "Mixture", *, max_seq_length: int) -> float:
    """`attention_length` over a sample of the documents of each corpus, weighted by the shares of the rows."""
    # A million documents are enough for a mean, and bound the memory.
    lengths = [
        attention_length(np.diff(corpus.offsets[:1_000_001]), max_seq_length=max_seq_length)
        for corpus in corpora.corpora
    ]
    return sum(share * length for share, length in zip(corpora.shares, lengths, strict=True))


def _update_flops(arguments: PretrainingArguments, config: ClozeBertConfig, *, owners: int) -> int:
    """FLOPs of Muon's Newton-Schulz steps, on the device that has most of them; AdamW has no matmuls.

    Args:
        owners: the number of devices that share the matrices; 1 if each takes all.
    """
    if arguments.optimizer != "muon":
        return 0
    from ..optimizers.muon import newton_schulz_flops, share_out

    symbols = symbols_of(config, batch_size=1, length=1)
    d, g, f, e = (symbols[name] for name in "DGFE")
    k = d // config.num_attention_heads
    feed_forward = [(f, d), (d, f), (f, d)] if config.mlp_type == "glu" else [(f, d), (d, f)]
    attention = [((d, d), (0, k)), ((g, d), (0, k)), ((g, d), (0, k)), ((d, d), (1, k))]
    matrices = [*attention, *((shape, None) for shape in feed_forward)] * config.num_hidden_layers
    matrices += [((e, d), None)] * config.prediction_dense
    shapes, heads = zip(*matrices, strict=True)
    work = [newton_schulz_flops(shape, heads=cut) for shape, cut in matrices]
    return max(sum(work[index] for index in owned) for owned in share_out(shapes, owners, heads=heads))


def _memory(
    arguments: PretrainingArguments,
    config: ClozeBertConfig,
    *,
    rows: int,
    half: bool,
    shards: int,
    keeps_gradients: bool,
    on_cpu: bool,
    length: float,
    bf16_residual: bool,
) -> tuple[dict[str, int], int]:
    """Bytes by part, and the peak of their sum."""
    parameters, matrices, c = parameters_of(config), matrix_parameters(config), 2 if half else 4
    symbols = symbols_of(config, batch_size=1, length=1)
    tokens = rows * arguments.max_seq_length
    # The step that predicts most tokens sets the peak.
    most = max(arguments.mlm_probability, arguments.final_mlm_probability or 0.0)
    predicted = math.ceil(tokens * most)
    on_muon = matrices if arguments.optimizer == "muon" else 0
    decoder, compared = symbols["V"] * symbols["E"], _compared(arguments.vocabulary_sample, config)
    memory = {
        # The copies are made for one forward and backward pass; a sharded model gathers one layer at a time.
        "weights": 4 * parameters // shards + (2 * (matrices + decoder) // shards if half else 0),
        "gradients": 4 * parameters // shards,
        "optimizer": (8 * (parameters - on_muon) + 4 * on_muon) // shards,
        "activations": int(
            tokens
            * activation_bytes(
                config,
                half=half,
                recompute=arguments.gradient_checkpointing,
                on_cpu=on_cpu,
                length=length,
                tokens=tokens,
                predicted=most,
                bf16_residual=bf16_residual,
            )
        ),
        "logits": predicted * (compared * c * 2 + symbols["E"] * (8 + 2 * c))
        + 8 * min(predicted * compared, WIDENED_ON_CPU if on_cpu else WIDENED),
    }
    # The backward pass frees activations while it makes gradients; before the first micro-batch there are no gradients.
    fixed = memory["weights"] + memory["optimizer"]
    passing = memory["activations"] + memory["logits"]
    moving = memory["gradients"] + passing if keeps_gradients else max(memory["gradients"], passing)
    return memory, fixed + moving


def activation_bytes(
    config: ClozeBertConfig,
    *,
    half: bool,
    recompute: bool,
    on_cpu: bool,
    length: float,
    tokens: int,
    predicted: float,
    bf16_residual: bool = False,
) -> float:
    """Bytes that the encoder keeps of each token for the backward pass; see the module's formulas.

    On a CPU, documents of one common length keep somewhat less, because their attention gathers no copies.

    Args:
        on_cpu: attention then has no kernel for packed rows, and keeps copies, or in half precision its weights.
        length: of a document.
        tokens: in the micro-batch.
        predicted: the share of the tokens that is predicted.
    """
    from ...modeling.fast_paths import RECOMPUTE_FROM, SHORT_IN_TRAINING

    symbols = symbols_of(config, batch_size=1, length=1)
    d, g, f, heads = (symbols[name] for name in "DGFH")
    c = 2 if half else 4
    residual = (2 if bf16_residual else 4) * d
    norm = residual + 8
    inner = c * f * (2 if config.mlp_type == "glu" else 1)
    of_keys = norm + c * d + c * 2 * g  # all that the last layer needs of tokens that are not predicted
    of_queries: float = norm + c * d + c * 2 * d + 4 * heads
    mask = c if on_cpu else 1
    if on_cpu:
        of_weights = c * heads * length
        keeps_weights = half and length <= SHORT_IN_TRAINING
        of_queries += 0 if keeps_weights else c * d
        of_queries += 3 * of_weights if config.attention_probs_dropout_prob else of_weights * keeps_weights
    if config.hidden_dropout_prob:
        of_queries += 2 * mask * d
    if config.qk_norm:
        of_keys, of_queries = of_keys + 4 * g, of_queries + 4 * d
    is_recomputed = tokens * f >= RECOMPUTE_FROM
    of_queries += inner if is_recomputed else 2 * inner + (mask * f if config.mlp_dropout else 0)
    layer, layers = of_keys + of_queries, config.num_hidden_layers
    unread = of_queries * (1 - predicted) if last_layer_reads(config, on_cpu=on_cpu, half=half) else 0.0
    ends = (4 * d + 8) * config.embedding_norm + norm * config.has_final_norm + 24
    return ends + (residual * layers + layer if recompute else layer * layers - unread)


def plan_table(plan: Plan) -> Iterator[str]:
    """The plan as text, a line for each figure."""
    yield f"parameters            {plan.parameters:>18,}"
    yield f"FLOPs of a step       {plan.flops_per_step:>18.4g}"
    yield f"of them, the update   {plan.update_flops:>18.4g} on each device"
    for part, size in plan.memory.items():
        yield f"memory, {part:13} {size / GIB:>14.2f} GiB"
    yield f"memory at the peak    {plan.peak_memory / GIB:>14.2f} GiB of {plan.device.memory / GIB:.1f} on each device"
    fits = "none: shard the model, or shorten the rows" if plan.largest_batch is None else f"{plan.largest_batch} rows"
    yield f"largest micro-batch   {fits:>18}"
    yield f"tokens/s              {plan.tokens_per_second:>18,.0f}"
    yield f"model FLOP/s          {plan.utilization:>18.0%} of the peak of {plan.num_devices} x {plan.device.name}"
    hours = plan.seconds / 3600
    yield f"hours                 {hours:>18,.2f}" if hours >= 0.1 else f"minutes               {60 * hours:>18,.2f}"
    if plan.cost is not None:
        yield f"cost                  {plan.cost:>18,.2f}"
