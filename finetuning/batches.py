"""Batches of windows: padded or packed, in which order, shared among processes; and the logits of all windows.

Shapes: B windows, T tokens of the longest one, N tokens of all of them, L labels.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.nn.utils.rnn import pad_sequence

from ..modeling.evaluation_mode import evaluation_mode
from ..modeling.losses import IGNORED_LABEL
from ..modeling.packed import Packed
from ..modeling.packed_view import cut_if_padding_is_read
from ..utils.errors import UserError
from ..utils.progress_bar import progress_bar
from .windows import Window

PACKED_MODEL_TYPES = ("clozebert",)  # models whose forward takes several documents packed into one row


@dataclass(frozen=True)
class PaddedCollator:
    """Collates windows to rows [B, T] with padding.

    Attributes:
        per_token: targets are labels of positions.
        on_left: padding comes first, for models such as XLNet, whose classifier reads the last position.
        pad_token_type_id: the token type of padding.
    """

    pad_token_id: int
    per_token: bool
    on_left: bool = False
    pad_token_type_id: int = 0

    def __call__(self, windows: Sequence[Window]) -> dict[str, Any]:
        side = "left" if self.on_left else "right"

        def rows(values: Sequence[Any], fill: int) -> torch.Tensor:
            tensors = [torch.as_tensor(value, dtype=torch.int64) for value in values]
            return pad_sequence(tensors, batch_first=True, padding_value=fill, padding_side=side)

        batch = {
            "input_ids": rows([window.input_ids for window in windows], self.pad_token_id),
            "attention_mask": rows([np.ones_like(window.input_ids) for window in windows], 0),
        }
        if windows[0].token_type_ids is not None:
            batch["token_type_ids"] = rows([window.token_type_ids for window in windows], self.pad_token_type_id)
        if windows[0].target is not None:
            targets = [window.target for window in windows]
            batch["labels"] = rows(targets, IGNORED_LABEL) if self.per_token else torch.tensor(targets)
        return batch

    def split(self, logits: torch.Tensor, windows: Sequence[Window]) -> list[torch.Tensor]:
        """The logits of each window: [T, L] of [B, T, L] for tagging, else [L] of [B, L]."""
        if not self.per_token:
            return list(logits)
        lengths = [len(window.input_ids) for window in windows]
        pairs = zip(logits, lengths, strict=True)
        return [row[-length:] if self.on_left else row[:length] for row, length in pairs]


@dataclass(frozen=True)
class PackedCollator:
    """Packs windows into one row [1, N] without padding, with the start of each window."""

    per_token: bool

    def __call__(self, windows: Sequence[Window]) -> dict[str, Any]:
        lengths = [len(window.input_ids) for window in windows]
        batch: dict[str, Any] = {
            "input_ids": _joined([window.input_ids for window in windows]),
            "packed": Packed.from_lengths(lengths),
        }
        if windows[0].token_type_ids is not None:
            batch["token_type_ids"] = _joined([window.token_type_ids for window in windows])
        if windows[0].target is not None:
            targets = [window.target for window in windows]
            batch["labels"] = _joined(targets) if self.per_token else torch.tensor(targets)
        return batch

    def split(self, logits: torch.Tensor, windows: Sequence[Window]) -> list[torch.Tensor]:
        """The logits of each window: [T, L] out of [1, N, L] for tagging, else [L] of [B, L]."""
        if not self.per_token:
            return list(logits)
        return list(logits[0].split([len(window.input_ids) for window in windows]))


Collator = PaddedCollator | PackedCollator


def _joined(rows: Sequence[Any]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(rows).astype(np.int64))[None]


def make_collator(model: Any, tokenizer: Any, *, per_token: bool, packing: bool) -> Collator:
    """A packing collator if `packing` is set and the model takes packed batches, else a padding one."""
    if packing and model.config.model_type in PACKED_MODEL_TYPES:
        return PackedCollator(per_token)
    pad = tokenizer.pad_token_id
    if pad is None:
        raise UserError("the tokenizer has no padding token; add one (tokenizer.pad_token = …) and save it again")
    on_left = tokenizer.padding_side == "left"
    return PaddedCollator(pad, per_token, on_left=on_left, pad_token_type_id=tokenizer.pad_token_type_id)


class LengthGroupedSampler(torch.utils.data.Sampler[int]):
    """Batches of windows of similar length, in random order, so that there is little padding.

    The windows of 50 batches, drawn at random, are sorted by length and cut into batches. Then the batches are
    shuffled. The order is a function of (seed, epoch).

    Args:
        epoch: the epoch that is about to begin. A function, since Accelerate's `set_epoch` does not reach the sampler
            of one of several processes in a resumed epoch.
    """

    def __init__(self, lengths: Sequence[int], *, batch_size: int, seed: int, epoch: Callable[[], int]) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self.seed} {self.epoch()}")
        order = rng.sample(range(len(self.lengths)), len(self.lengths))
        pool = 50 * self.batch_size
        pools = [sorted(order[i : i + pool], key=self.lengths.__getitem__) for i in range(0, len(order), pool)]
        joined = [index for of_pool in pools for index in of_pool]
        batches = [joined[i : i + self.batch_size] for i in range(0, len(joined), self.batch_size)]
        rest = [batches.pop()] if batches and len(batches[-1]) < self.batch_size else []
        rng.shuffle(batches)
        yield from (index for batch in [*batches, *rest] for index in batch)


def rounds_of_epoch(windows: int, *, batch_size: int, processes: int) -> int:
    """How many batches each process takes in an epoch; see `SharedBatches`."""
    rounds, rest = divmod(windows, batch_size * processes)
    return rounds + (rest >= processes)


class SharedBatches(torch.utils.data.BatchSampler):
    """Batches for several processes: as many for each, and each window once.

    Accelerate deals batches out in rounds, one to each process, and would fill the last round up with windows from the
    beginning of the epoch. Here its batches share what is left. If that is not a window for each process, the round
    before takes it.

    Args:
        sampler: yields the windows of an epoch in order; there are at least `num_processes`.
    """

    def __init__(self, sampler: Any, batch_size: int, num_processes: int) -> None:
        super().__init__(sampler, batch_size, drop_last=False)
        self.num_processes = num_processes
        self.num_rounds = rounds_of_epoch(len(sampler), batch_size=batch_size, processes=num_processes)

    def __len__(self) -> int:
        return self.num_rounds * self.num_processes

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        begin = (self.num_rounds - 1) * self.num_processes * self.batch_size
        yield from (order[start : start + self.batch_size] for start in range(0, begin, self.batch_size))
        for batch in np.array_split(order[begin:], self.num_processes):
            yield batch.tolist()


def predict_logits(
    model: Any,
    windows: Sequence[Window],
    collator: Collator,
    *,
    batch_size: int,
    autocast: Any = None,
    accelerator: Accelerator | None = None,
) -> list[np.ndarray]:
    """Logits of each window ([C], or [T, C] for tagging), in order. Windows of similar length share a batch.

    Args:
        accelerator: its processes share the work, and each returns all logits.
    """
    lengths = [len(window.input_ids) for window in windows]
    order = sorted(range(len(windows)), key=lambda index: -lengths[index])
    whole = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    batches = cut_if_padding_is_read(model, whole, lengths)
    if accelerator is not None:
        batches = batches[accelerator.process_index :: accelerator.num_processes]
    logits: dict[int, np.ndarray] = {}
    device = next(model.parameters()).device
    with evaluation_mode(model):
        # The bar appears only after two seconds.
        for indices in progress_bar(batches, description="scoring", unit=" batches", leave=False, delay=2):
            batch = [windows[index] for index in indices]
            inputs = {name: value.to(device) for name, value in collator(batch).items() if name != "labels"}
            with torch.no_grad(), contextlib.nullcontext() if autocast is None else autocast():
                output = model(**inputs)
            for index, rows in zip(indices, collator.split(output["logits"].float().cpu(), batch), strict=True):
                logits[index] = rows.numpy()
    if accelerator is not None:
        logits = {index: rows for part in gather_object([logits]) for index, rows in part.items()}
    return [logits[index].astype(np.float64) for index in range(len(windows))]


def are_finite(logits: Sequence[np.ndarray]) -> bool:
    """Whether all logits are finite."""
    return all(np.isfinite(one).all() for one in logits)
