# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Packed batches: documents end to end with no padding between them, and where each begins.

Shapes: S documents, N tokens in all, B rows of T tokens (N = B T; usually B = 1), L tokens of the longest document, D
size of a vector.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn import functional as F

from .fast_paths import values_of

# On a CPU, a packed row in half precision is padded to a multiple of this many tokens, so that oneDNN reuses kernels.
RECURRING_SIZE = 64


@dataclass
class Packed:
    """The documents of a packed batch. They do not see one another.

    It is made together with the batch, on the host, where the lengths are known. So no forward pass has to read them
    back from the device.

    Attributes:
        cu_seq_lens: int32 [S + 1], cumulative lengths from 0 to N.
        max_length: L, or any larger number.
        position_ids: [B or 1, T], from 0 in each document.
        plans: the attention plans made from it (attention_tiles.py), by number of heads, window, whether
            there is a gradient, and whether all tokens are read.
        filled: what `filled_up` made of it.
    """

    cu_seq_lens: torch.Tensor
    max_length: int
    position_ids: torch.Tensor
    plans: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    filled: "Packed | None" = field(default=None, repr=False, compare=False)

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], device: Any = None) -> "Packed":
        """Documents of these lengths, packed into one row."""
        cu_seq_lens = torch.tensor([0, *itertools.accumulate(lengths)], device="cpu")
        return cls.from_cu_seq_lens(cu_seq_lens, tokens=sum(lengths), max_length=max(lengths)).to(device)

    @classmethod
    def from_cu_seq_lens(
        cls, cu_seq_lens: torch.Tensor, *, tokens: int, max_length: int, position_ids: torch.Tensor | None = None
    ) -> "Packed":
        """Documents with these cumulative lengths, which end at `tokens`. Positions are counted if not given."""
        packed = cls(cu_seq_lens.to(torch.int32), max_length, position_ids)  # type: ignore[arg-type]
        if position_ids is None:
            documents_N = packed.document_ids(tokens)
            steps_N = torch.arange(tokens, device=cu_seq_lens.device)
            packed.position_ids = (steps_N - packed.cu_seq_lens.long()[documents_N]).unsqueeze(0)
        return packed

    @property
    def num_documents(self) -> int:
        return self.cu_seq_lens.shape[0] - 1

    def to(self, device: Any, non_blocking: bool = False) -> "Packed":
        """The same documents on another device, without the plans."""
        if device is None or self.cu_seq_lens.device == torch.device(device):
            return self
        cu_seq_lens, position_ids = (
            x.to(device, non_blocking=non_blocking) for x in (self.cu_seq_lens, self.position_ids)
        )
        return Packed(cu_seq_lens, self.max_length, position_ids)

    def pin_memory(self) -> "Packed":
        """A copy in pinned memory, which can be copied to a GPU asynchronously."""
        return Packed(self.cu_seq_lens.pin_memory(), self.max_length, self.position_ids.pin_memory())

    def lengths(self) -> torch.Tensor:
        """Shape: -> [S]."""
        return self.cu_seq_lens.diff().long()

    def lengths_of_tokens(self, shape_BT: torch.Size) -> torch.Tensor:
        """The length of each token's document, [B, T]."""
        return self.lengths()[self.document_ids(shape_BT.numel())].view(shape_BT)

    def first_tokens(self) -> torch.Tensor:
        """The index of each document's first token, [S]; for an empty document at the end, that of the last token."""
        return torch.minimum(self.cu_seq_lens[:-1], self.cu_seq_lens[-1] - 1).long()

    def document_ids(self, tokens: int) -> torch.Tensor:
        """The document of each token, [N], counted from 0."""
        steps_N = torch.arange(tokens, device=self.cu_seq_lens.device)
        return torch.bucketize(steps_N, self.cu_seq_lens[1:].long(), right=True)

    def groups_by_length(self) -> list[tuple[torch.Tensor, int]]:
        """Groups of documents that are padded together: their indices [G], and the length of the longest.

        In a group, each document is longer than half of the longest. If reading the lengths would synchronise with a
        device, all documents are one group.
        """
        lengths = values_of(self.lengths()) if self.cu_seq_lens.device.type == "cpu" else None
        if lengths is None:
            return [(torch.arange(self.num_documents, device=self.cu_seq_lens.device), self.max_length)]
        groups: dict[int, list[int]] = {}
        for document, length in enumerate(lengths):
            if length:
                groups.setdefault((length - 1).bit_length(), []).append(document)
        return [(torch.tensor(group, device="cpu"), max(lengths[one] for one in group)) for group in groups.values()]

    def padded_index(self, documents_G: torch.Tensor, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Documents as padded rows: the index of the token at each place, [G, L], and whether there is one, [G, L]."""
        starts_G1, lengths_G1 = (x[documents_G].unsqueeze(1) for x in (self.cu_seq_lens[:-1].long(), self.lengths()))
        columns_L = torch.arange(longest, device=self.cu_seq_lens.device)
        is_token_GL = columns_L < lengths_G1
        return (starts_G1 + columns_L).masked_fill(~is_token_GL, 0), is_token_GL

    def filled_up(self) -> "Packed":
        """A single packed row with one more document, of padding, up to a multiple of `RECURRING_SIZE` tokens."""
        missing = -self.position_ids.shape[1] % RECURRING_SIZE
        if not missing:
            return self
        if self.filled is None:
            positions = torch.arange(missing, device=self.position_ids.device)[None]
            self.filled = Packed(
                torch.cat([self.cu_seq_lens, self.cu_seq_lens[-1:] + missing]),
                max(self.max_length, missing),
                torch.cat([self.position_ids, positions], dim=1),
            )
        return self.filled

    def fill_up(self, x_1ND: torch.Tensor) -> tuple[torch.Tensor, "Packed"]:
        """`filled_up`, and the vectors of its tokens: zeros for padding."""
        filled = self.filled_up()
        missing = filled.position_ids.shape[1] - x_1ND.shape[1]
        return F.pad(x_1ND, (0, 0, 0, missing)) if missing else x_1ND, filled

    def flash_arguments(self) -> dict[str, Any]:
        """The keyword arguments with which transformers' flash attention takes a packed row."""
        bounds, longest = self.cu_seq_lens, self.max_length
        return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


def find_packed(
    packed: Packed | None,
    attention_mask: Any,
    position_ids: torch.Tensor | None,
    shape_BT: torch.Size,
    kwargs: dict[str, Any],
) -> Packed | None:
    """The documents of a batch, or None if its rows are ordinary sequences.

    Rows are packed if the caller gives a `Packed` or, as transformers' flattening collator does, `cu_seq_lens_q`.
    Without a mask, they are also packed if the positions within a row restart.

    Raises:
        ValueError: what was given contradicts itself or the input.
    """
    if position_ids is not None and (
        position_ids.dim() != 2 or position_ids.shape[1] != shape_BT[1] or position_ids.shape[0] not in (1, shape_BT[0])
    ):
        raise ValueError(f"position_ids of shape {tuple(position_ids.shape)} must be {tuple(shape_BT)}, as the input")
    cu_seq_lens = kwargs.get("cu_seq_lens_q")
    if packed is None and cu_seq_lens is None:
        return None if position_ids is None or attention_mask is not None else _find_restarts(position_ids, shape_BT)
    if attention_mask is not None:
        name = "packed" if packed is not None else "cu_seq_lens_q"
        raise ValueError(f"give either attention_mask or {name}: a packed run has no padding to mask")
    if packed is not None:
        _check_extent(packed, shape_BT)
        return packed if position_ids is None else replace(packed, position_ids=position_ids, filled=None)
    assert cu_seq_lens is not None
    if shape_BT[0] != 1:
        raise ValueError(f"cu_seq_lens_q describes one packed row, but the batch has {shape_BT[0]}")
    max_length = _check_boundaries(cu_seq_lens, shape_BT[1], kwargs.get("max_length_q"))
    return Packed.from_cu_seq_lens(cu_seq_lens, tokens=shape_BT[1], max_length=max_length, position_ids=position_ids)


def _check_extent(packed: Packed, shape_BT: torch.Size) -> None:
    """Refuse documents of another number of tokens than the batch has."""
    if packed.position_ids.shape[1] != shape_BT[1]:
        raise ValueError(f"packed describes {packed.position_ids.shape[1]} tokens, and the row has {shape_BT[1]}")
    end = values_of(packed.cu_seq_lens[-1]) if packed.cu_seq_lens.device.type == "cpu" else None
    if end is not None and end != shape_BT.numel():
        raise ValueError(f"packed ends at token {end}, and the batch has {shape_BT.numel()} tokens")


def _check_boundaries(cu_seq_lens: torch.Tensor, length: int, max_length: Any) -> int:
    """Refuse invalid boundaries; return the length of the longest document, or a larger number if it is unknown."""
    if cu_seq_lens.dim() != 1 or len(cu_seq_lens) < 2:
        raise ValueError(f"cu_seq_lens_q of shape {tuple(cu_seq_lens.shape)} must be [documents + 1], with documents")
    bounds = values_of(cu_seq_lens) if cu_seq_lens.device.type == "cpu" or max_length is None else None
    if bounds is None:
        return length if max_length is None else int(max_length)
    if bounds[0] != 0 or bounds[-1] != length:
        raise ValueError(f"cu_seq_lens_q runs from {bounds[0]} to {bounds[-1]}; the row has tokens 0 to {length}")
    if any(end < start for start, end in itertools.pairwise(bounds)):
        raise ValueError(f"cu_seq_lens_q={bounds} must not decrease: it holds cumulative lengths")
    return max(end - start for start, end in itertools.pairwise(bounds))


def _find_restarts(position_ids: torch.Tensor, shape_BT: torch.Size) -> Packed | None:
    """The documents whose positions restart within a row, or None if no row has two."""
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        raise ValueError(
            "position_ids may restart, which a traced graph does not follow: give attention_mask with them"
        )
    return _documents_of(position_ids, shape_BT)


@torch.compiler.disable
def _documents_of(position_ids: torch.Tensor, shape_BT: torch.Size) -> Packed | None:
    # Within a document positions rise, possibly with gaps.
    restarts_BT = position_ids.diff(dim=1, prepend=position_ids[:, :1] - 1) <= 0
    found = values_of(restarts_BT.any())
    if not found:  # None if values cannot be read, under `torch.func`: then rows count as ordinary sequences
        return None
    if restarts_BT[:, 1:].all():  # constant or falling: no document has a second token, so nothing is packed
        return None
    restarts_BT[:, 0] = True
    starts = restarts_BT.expand(shape_BT).flatten().nonzero().squeeze(1)
    cu_seq_lens = torch.cat([starts, starts.new_tensor([shape_BT.numel()])])
    return Packed(cu_seq_lens.to(torch.int32), int(cu_seq_lens.diff().max()), position_ids)


def batches_by_length(lengths: Sequence[int], budget: int, *, padded: bool = False) -> list[list[int]]:
    """Indices of sequences in batches of at most `budget` tokens, the longest first; a longer one is its own batch.

    So the first batch shows whether the longest sequence is too long for the model or the memory.

    Args:
        padded: count each sequence as long as the longest of its batch, to which it will be padded.
    """
    batches: list[list[int]] = []
    tokens = budget
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        size = lengths[batches[-1][0]] if padded and batches else lengths[index]
        if tokens + size > budget:
            batches.append([])
            tokens, size = 0, lengths[index]
        batches[-1].append(index)
        tokens += size
    return batches


__all__ = ["RECURRING_SIZE", "Packed", "batches_by_length", "find_packed"]
