# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Attention over a run of documents of any lengths, none of which sees another.

On CUDA it is PyTorch's own variable-length kernel. Elsewhere the run is cut into tiles: a tile is a stretch of queries
with the keys that they may see. Full attention has one tile for each document; a window of W has one for each block of
queries, with W more keys on either side, so its cost grows as O(N W). Tiles of about one size are attended together.

Shapes: N tokens of the run (B rows of T, laid end to end), H heads, K head size, G tiles of a group, Q queries and S
keys of a tile. A head of a token is a row of its own, so one gather brings a tile into the order [G, H, Q, K] that the
matrix products want.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F

_LARGEST_GROUP = 1 << 24  # queries times keys: 16 M scores a head at a time
_SHORT = 512  # keys
_LARGEST_BLOCK = 1 << 23  # scores, of all heads: 16 MB


@dataclass(frozen=True)
class TileGroup:
    """Tiles attended together: the sizes [G, H, Q] and [G, H, S]. `mask` is None where every query sees every key."""

    query_shape: torch.Size
    key_shape: torch.Size
    mask_G1QS: torch.Tensor | None


@dataclass(frozen=True)
class RaggedPlan:
    """What the layers of one type need to know of a batch: boundaries and, off CUDA, tiles."""

    cu_seq_lens: torch.Tensor
    max_length: int
    window: int | None
    groups: tuple[TileGroup, ...]
    # Of all groups, one after the other: the rows that queries and keys take, None where a tile's keys are its queries'
    # tokens; and where each row's output stands among them.
    query_rows_M: torch.Tensor | None = None
    key_rows_M: torch.Tensor | None = None
    places_NH: torch.Tensor | None = None

    def to(self, device: Any, non_blocking: bool = False) -> "RaggedPlan":
        """The same plan on another device; models spread over devices move their inputs by this."""

        def move(x: torch.Tensor | None) -> Any:
            return None if x is None else x.to(device, non_blocking=non_blocking)

        tensors = ("cu_seq_lens", "query_rows_M", "key_rows_M", "places_NH")
        groups = tuple(replace(group, mask_G1QS=move(group.mask_G1QS)) for group in self.groups)
        return replace(self, groups=groups, **{name: move(getattr(self, name)) for name in tensors})


@torch.compiler.disable
def plan_ragged_attention(
    cu_seq_lens: torch.Tensor,
    *,
    heads: int,
    window: int | None = None,
    valid_N: torch.Tensor | None = None,
    use_tiles: bool = True,
) -> RaggedPlan:
    """Cut a run into tiles.

    Args:
        cu_seq_lens: [documents + 1] cumulative lengths, from 0 to N.
        heads: of the queries.
        window: how many tokens on either side a token sees; None for all of its document.
        valid_N: which tokens may be seen at all; None for all.
        use_tiles: False where the variable-length kernel does the work and boundaries are enough.
    """
    device = cu_seq_lens.device
    bounds = cu_seq_lens.to("cpu", torch.long)
    starts, lengths = bounds[:-1], bounds.diff()
    max_length = int(lengths.max()) if len(lengths) else 0
    if window is not None and window >= max_length - 1:
        window = None  # no document is long enough for it to hide anything
    if not use_tiles:
        return RaggedPlan(cu_seq_lens.to(torch.int32), max_length, window, ())
    starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    if window is None:
        query_starts, query_counts, key_starts, key_counts = starts, lengths, starts, lengths
    else:
        query_starts, query_counts, key_starts, key_counts = _window_tiles(starts, lengths, window)
    places_NH = torch.zeros(int(bounds[-1]) * heads, dtype=torch.long)
    groups, query_rows, key_rows, offset = [], [], [], 0
    for rows, repeats, queries, keys in _group(_rounded(query_counts), _rounded(key_counts)):
        query_index_GQ, query_valid_GQ = _spread(query_starts[rows], query_counts[rows], queries)
        key_index_GS, key_valid_GS = _spread(key_starts[rows], key_counts[rows], keys)
        query_valid_GQ[len(rows) - repeats :] = False
        query_rows_GHQ, valid_GHQ = _head_rows(query_index_GQ, heads), query_valid_GQ[:, None].expand(-1, heads, -1)
        places_NH[query_rows_GHQ[valid_GHQ]] = offset + valid_GHQ.flatten().nonzero().squeeze(1)
        offset += query_rows_GHQ.numel()
        mask_GQS = key_valid_GS[:, None, :]
        if valid_N is not None:
            mask_GQS = mask_GQS & valid_N.to("cpu")[key_index_GS][:, None, :]
        if window is not None:
            mask_GQS = mask_GQS & ((query_index_GQ[:, :, None] - key_index_GS[:, None, :]).abs() <= window)
        mask = None if bool(mask_GQS.all()) else mask_GQS[:, None].to(device)
        query_rows.append(query_rows_GHQ)
        key_rows.append(_head_rows(key_index_GS, heads))
        groups.append(TileGroup(query_rows_GHQ.shape, key_rows[-1].shape, mask))
    shared = bool((query_starts == key_starts).all() and (query_counts == key_counts).all())
    return RaggedPlan(
        cu_seq_lens,
        max_length,
        window,
        tuple(groups),
        query_rows_M=_joined(query_rows).to(device),
        key_rows_M=None if shared else _joined(key_rows).to(device),
        places_NH=places_NH.to(device),
    )


def _joined(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in rows])


def _head_rows(index_GQ: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows [G, H, Q] of tokens, each of which has `heads` of them."""
    return index_GQ[:, None, :] * heads + torch.arange(heads)[None, :, None]


def _window_tiles(starts: torch.Tensor, lengths: torch.Tensor, window: int) -> tuple[torch.Tensor, ...]:
    """Cut each document into blocks of queries, with `window` more keys on either side, within the document."""
    block = max(2 * window, 64)
    tiles = []
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        end = start + length
        for first in range(start, end, block):
            last = min(first + block, end)
            tiles.append((first, last - first, max(start, first - window), min(end, last + window)))
    table = torch.tensor(tiles, dtype=torch.long).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3] - table[:, 2]


def _rounded(counts: torch.Tensor) -> torch.Tensor:
    """Lengths of up to 512 rounded up by at most an eighth, or to a multiple of 8: then shapes of tiles come again.

    oneDNN compiles a kernel for each shape that it meets first, which takes longer than a small product (docs/LOG.md).
    """
    step = 2 ** (counts.clamp(min=65) - 1).log2().floor().long() // 8
    return torch.where(counts <= _SHORT, -(-counts // step) * step, counts)


def _group(query_counts: torch.Tensor, key_counts: torch.Tensor) -> Iterator[tuple[torch.Tensor, int, int, int]]:
    """Tiles of one size together: their indices, how many of these repeat the last one, queries, keys.

    A group's number of tiles is 1, 2, 3, 4, 6, 8, 12, 16, …, for the same reason.
    """
    sizes, group_of_tile = torch.stack([query_counts, key_counts]).unique(dim=1, return_inverse=True)
    for group, (queries, keys) in enumerate(sizes.T.tolist()):
        tiles = (group_of_tile == group).nonzero().squeeze(1)
        for part in tiles.split(max(1, _LARGEST_GROUP // (queries * keys))):
            power = 2 ** (len(part) - 1).bit_length()
            repeats = (power * 3 // 4 if len(part) <= power * 3 // 4 and power > 2 else power) - len(part)
            yield torch.cat([part, part[-1:].expand(repeats)]), repeats, queries, keys


def _spread(starts: torch.Tensor, counts: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices [G, size] of each tile's tokens, its last one repeated to fill up, and which are not filling."""
    columns = torch.arange(size)
    index = starts[:, None] + torch.minimum(columns, counts[:, None] - 1)
    return index, columns < counts[:, None]


class _Take(torch.autograd.Function):
    """Rows of x by index. The gradient is a plain gather too where each row that matters is taken exactly once.

    `index_add`, the general gradient, runs on one core of a CPU.
    """

    @staticmethod
    def forward(ctx: Any, x_NK: torch.Tensor, rows_M: torch.Tensor, places_N: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places_N)
        return x_NK.index_select(0, rows_M)

    @staticmethod
    def backward(ctx: Any, grad_MK: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (places_N,) = ctx.saved_tensors
        return grad_MK.index_select(0, places_N), None, None


class _Place(torch.autograd.Function):
    """Each row out of the tiles' rows; the gradient of a row that fills up a tile is zero."""

    @staticmethod
    def forward(ctx: Any, x_MK: torch.Tensor, places_N: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places_N)
        ctx.rows = x_MK.shape[0]
        return x_MK.index_select(0, places_N)

    @staticmethod
    def backward(ctx: Any, grad_NK: torch.Tensor) -> tuple[torch.Tensor, None]:
        (places_N,) = ctx.saved_tensors
        grad_MK = grad_NK.new_zeros(ctx.rows, grad_NK.shape[1])
        return grad_MK.index_copy_(0, places_N, grad_NK), None


def products_pay(q_BHTK: torch.Tensor, k_BHSK: torch.Tensor) -> bool:
    """Whether plain matrix products beat PyTorch's attention kernel: half precision on a CPU, up to 512 keys.

    Of more keys they do too, a block of queries at a time; but a gradient would want the scores of all blocks at once.
    Measured: the kernel works in blocks that short sequences do not fill, and in long ones at half the speed of a
    product (docs/LOG.md).
    """
    half = (torch.bfloat16, torch.float16)
    if q_BHTK.device.type != "cpu" or q_BHTK.dtype not in half:
        return False
    return k_BHSK.shape[2] <= _SHORT or not torch.is_grad_enabled()


def attend(
    q_BHTK: torch.Tensor,
    k_BHSK: torch.Tensor,
    v_BHSK: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    """softmax(q k^T * scaling) v, as many heads in q as in k. `mask` is boolean and broadcasts to [B, H, T, S].

    Shape: [B, H, T, K], [B, H, S, K] twice -> [B, H, T, K].
    """
    if not products_pay(q_BHTK, k_BHSK):
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, dropout_p=dropout, scale=scaling)
    queries, keys = q_BHTK.shape[2], k_BHSK.shape[2]
    block = queries if keys <= _SHORT else max(16, _LARGEST_BLOCK // (q_BHTK.shape[:2].numel() * keys))
    outs = []
    for first in range(0, queries, block):
        scores_BHQS = (q_BHTK[:, :, first : first + block] * scaling) @ k_BHSK.transpose(-1, -2)
        if mask is not None:
            part = mask if mask.shape[2] == 1 else mask[:, :, first : first + block]
            # Added in place: a fill would copy the scores, and their gradient too. Half of the least: sums stay finite.
            least = torch.finfo(scores_BHQS.dtype).min / 2
            scores_BHQS += torch.zeros_like(part, dtype=scores_BHQS.dtype).masked_fill_(~part, least)
        outs.append(F.dropout(scores_BHQS.softmax(dim=-1), dropout).to(v_BHSK.dtype) @ v_BHSK)
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


@torch.compiler.disable
def ragged_attention(
    q_BHTK: torch.Tensor,
    k_BHTK: torch.Tensor,
    v_BHTK: torch.Tensor,
    plan: RaggedPlan,
    *,
    scaling: float,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Shape: query [B, H, T, K], key and value [B, H or fewer, T, K] -> [B, T, H, K]."""
    groups = q_BHTK.shape[1] // k_BHTK.shape[1]
    if groups > 1:
        k_BHTK, v_BHTK = (x.repeat_interleave(groups, dim=1) for x in (k_BHTK, v_BHTK))
    q_NHK, k_NHK, v_NHK = (x.transpose(1, 2).flatten(0, 1) for x in (q_BHTK, k_BHTK, v_BHTK))
    if plan.places_NH is None:
        out_NHK = _varlen_attention(q_NHK, k_NHK, v_NHK, plan)
    else:
        out_NHK = _tiled_attention(q_NHK, k_NHK, v_NHK, plan, scaling=scaling, dropout=dropout)
    return out_NHK.unflatten(0, (q_BHTK.shape[0], q_BHTK.shape[2]))


def _varlen_attention(q_NHK: torch.Tensor, k_NHK: torch.Tensor, v_NHK: torch.Tensor, plan: RaggedPlan) -> torch.Tensor:
    """PyTorch's own kernel, at its scale of 1 / sqrt(K). Shape: [N, H, K] each -> [N, H, K]."""
    from torch.nn.attention.varlen import varlen_attn

    bounds, longest = plan.cu_seq_lens, plan.max_length
    window: Any = (-1, -1) if plan.window is None else (plan.window, plan.window)
    out: Any = varlen_attn(q_NHK, k_NHK, v_NHK, bounds, bounds, longest, longest, window_size=window)
    return out


def _tiled_attention(
    q_NHK: torch.Tensor, k_NHK: torch.Tensor, v_NHK: torch.Tensor, plan: RaggedPlan, *, scaling: float, dropout: float
) -> torch.Tensor:
    """Shape: [N, H, K] each -> [N, H, K]."""
    assert plan.query_rows_M is not None
    q_MK = _Take.apply(q_NHK.flatten(0, 1), plan.query_rows_M, plan.places_NH)
    if plan.key_rows_M is None:
        k_MK, v_MK = (_Take.apply(x.flatten(0, 1), plan.query_rows_M, plan.places_NH) for x in (k_NHK, v_NHK))
    else:
        k_MK, v_MK = (x.flatten(0, 1).index_select(0, plan.key_rows_M) for x in (k_NHK, v_NHK))
    # `split`, not slices: the gradient of a slice is a whole tensor of zeros around it.
    q_parts = q_MK.split([group.query_shape.numel() for group in plan.groups])
    key_counts = [group.key_shape.numel() for group in plan.groups]
    k_parts, v_parts = k_MK.split(key_counts), v_MK.split(key_counts)
    outs = []
    for group, q_part, k_part, v_part in zip(plan.groups, q_parts, k_parts, v_parts, strict=True):
        out_GHQK = attend(
            q_part.unflatten(0, group.query_shape),
            k_part.unflatten(0, group.key_shape),
            v_part.unflatten(0, group.key_shape),
            group.mask_G1QS,
            scaling=scaling,
            dropout=dropout,
        )
        outs.append(out_GHQK.flatten(0, 2))
    return _Place.apply(torch.cat(outs), plan.places_NH).view_as(q_NHK)


__all__ = ["RaggedPlan", "attend", "plan_ragged_attention", "products_pay", "ragged_attention"]
