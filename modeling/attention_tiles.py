# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Attention over packed documents on a CPU, full or in a sliding window, in tiles.

A tile is a block of queries with the keys that they may attend to. Full attention has one tile per document. A window
of W has one tile per block of queries, with W more keys on either side, so its cost grows as O(N W). Tiles of about the
same size form a group and are computed together.

Shapes: N tokens of the batch (B rows of T, end to end), R of them that are queries (by default all), H heads, K head
size, G tiles of a group, Q queries and S keys of a tile. Each head of a token is a row of its own, so one gather puts a
tile into the order [G, H, Q, K] that the matmuls need.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from .fast_paths import LARGEST_BLOCK, attend, repeat_heads

_LARGEST_GROUP = 1 << 24  # queries times keys of a group, with a gradient: 16 M scores per head
_ROUNDED_UP_TO = 512  # numbers of queries or keys up to this are rounded up, so that the shapes of tiles recur
_LEAST = 32  # queries or keys of a tile: smaller tiles would make too many groups for the padding that they save
_LEAST_OF_SHORT = 8  # the same for a small window, or if more than two thirds of the tiles would otherwise be padding


@dataclass(frozen=True)
class TileGroup:
    """Tiles computed together: the sizes [G, H, Q] and [G, H, S]. The mask is None if every query sees every key."""

    query_shape: torch.Size
    key_shape: torch.Size
    mask_G1QS: torch.Tensor | None


@dataclass(frozen=True)
class TilePlan:
    """How a batch is cut into tiles, for all layers of one type.

    Attributes:
        groups: the tiles.
        window: how many tokens on either side a token sees; None: all of its document.
        read_R: the tokens whose output is read, in ascending order; None: all.
        read_index_R: the index among these of each token that was asked for.
        query_rows_M, key_rows_M: the rows that the tiles take of queries and of keys, group after group; key rows are
            None if a tile's keys are its queries' tokens.
        query_index_RH, key_index_NH: the index of each query and each key among these rows; None for keys that are in
            several tiles.

    Rows and indices are None if no gather is needed: all documents have one length, so the batch itself is one group.
    """

    groups: tuple[TileGroup, ...]
    window: int | None
    read_R: torch.Tensor | None = None
    read_index_R: torch.Tensor | None = None
    query_rows_M: torch.Tensor | None = None
    key_rows_M: torch.Tensor | None = None
    query_index_RH: torch.Tensor | None = None
    key_index_NH: torch.Tensor | None = None

    implementation = "tiles"

    def to(self, device: Any, non_blocking: bool = False) -> "TilePlan":
        """The same plan on another device. Models that are spread over devices move their inputs with this."""

        def move(x: torch.Tensor | None) -> Any:
            return None if x is None else x.to(device, non_blocking=non_blocking)

        tensors = ("read_R", "read_index_R", "query_rows_M", "key_rows_M", "query_index_RH", "key_index_NH")
        groups = tuple(replace(group, mask_G1QS=move(group.mask_G1QS)) for group in self.groups)
        return replace(self, groups=groups, **{name: move(getattr(self, name)) for name in tensors})


@torch.compiler.disable
def plan_tiles(
    cu_seq_lens: torch.Tensor,
    *,
    heads: int,
    window: int | None = None,
    valid_N: torch.Tensor | None = None,
    read_R: torch.Tensor | None = None,
) -> TilePlan:
    """Cut a batch into tiles. All indices are computed on the CPU, whatever the default device is.

    Args:
        cu_seq_lens: [documents + 1] cumulative lengths, from 0 to N.
        heads: number of query heads.
        window: how many tokens on either side a token sees; None for all of its document.
        valid_N: which tokens may be attended to; None for all.
        read_R: the tokens that are queries, in any order; None for all. Not with a window.
    """
    device, read_index_R = cu_seq_lens.device, None
    if read_R is not None:
        order_R = read_R.argsort()
        read_R, read_index_R = read_R[order_R], order_R.argsort()
    bounds = cu_seq_lens.to("cpu", torch.long).unique()  # without empty documents
    tokens = int(bounds[-1])
    if window is not None and window >= int(bounds.diff().max()) - 1:
        window = None  # every document fits into the window
    queries, keys = _queries_and_keys(bounds, window=window, read_R=read_R)
    is_shared = queries is keys  # a tile's keys are its queries' tokens
    least = _LEAST if window is None else min(_LEAST, max(_LEAST_OF_SHORT, 2 * window))
    # Few tokens of a document are read: with the larger minimum, most queries would be padding.
    query_sizes = _rounded(queries.counts, least=least if read_R is None else _LEAST_OF_SHORT)
    key_sizes = _rounded(keys.counts, least=least)
    groups, of_queries, of_keys = [], _Rows(heads), _Rows(heads)
    largest = _LARGEST_GROUP if torch.is_grad_enabled() else LARGEST_BLOCK // heads  # queries times keys of a group
    for tiles, repeats, size_Q, size_S in _group(query_sizes, key_sizes, largest=largest):
        query_index_GQ = of_queries.add(queries, tiles, size=size_Q, repeats=repeats)
        key_index_GS = query_index_GQ if is_shared else of_keys.add(keys, tiles, size=size_S, repeats=repeats)
        mask_G1QS = _tile_mask(query_index_GQ, key_index_GS, keys.counts[tiles], window=window, valid_N=valid_N)
        query_shape, key_shape = torch.Size((len(tiles), heads, size_Q)), torch.Size((len(tiles), heads, size_S))
        groups.append(TileGroup(query_shape, key_shape, None if mask_G1QS is None else mask_G1QS.to(device)))
    if is_shared and len(groups) == 1 and groups[0].query_shape.numel() == tokens * heads:
        return TilePlan(tuple(groups), window)
    plan = TilePlan(
        tuple(groups),
        window,
        read_R=read_R,
        read_index_R=read_index_R,
        query_rows_M=of_queries.rows().to(device),
        query_index_RH=of_queries.index(tokens if read_R is None else len(read_R)).to(device),
    )
    if is_shared:
        return plan
    key_index_NH = of_keys.index(tokens).to(device) if window is None else None
    return replace(plan, key_rows_M=of_keys.rows().to(device), key_index_NH=key_index_NH)


class _Tiles(NamedTuple):
    """The queries, or the keys, of all tiles: the first token of each tile and the number of tokens."""

    starts: torch.Tensor
    counts: torch.Tensor


def _queries_and_keys(
    bounds: torch.Tensor, *, window: int | None, read_R: torch.Tensor | None
) -> tuple[_Tiles, _Tiles]:
    """The queries and the keys of each tile; the same object if a tile is a whole document."""
    documents = _Tiles(bounds[:-1], bounds.diff())
    if window is not None:
        assert read_R is None
        return _window_tiles(documents, window)
    if read_R is None:
        return documents, documents
    read_bounds = torch.searchsorted(read_R.to("cpu"), bounds)
    return _Tiles(read_bounds[:-1], read_bounds.diff()), documents


def _tile_mask(
    query_index_GQ: torch.Tensor,
    key_index_GS: torch.Tensor,
    key_counts_G: torch.Tensor,
    *,
    window: int | None,
    valid_N: torch.Tensor | None,
) -> torch.Tensor | None:
    """Which keys each query of a group's tiles sees, [G, 1, Q, S]; None if every query sees every key."""
    mask_GQS = (torch.arange(key_index_GS.shape[1], device="cpu") < key_counts_G[:, None])[:, None, :]
    if valid_N is not None:
        mask_GQS = mask_GQS & valid_N.to("cpu")[key_index_GS][:, None, :]
    if window is not None:
        mask_GQS = mask_GQS & ((query_index_GQ[:, :, None] - key_index_GS[:, None, :]).abs() <= window)
    return None if bool(mask_GQS.all()) else mask_GQS[:, None]


class _Rows:
    """Collects the rows that the tiles take of queries or of keys, group after group."""

    def __init__(self, heads: int) -> None:
        self.heads = torch.arange(heads, device="cpu")
        self.rows_of_groups: list[torch.Tensor] = []
        self.is_real: list[torch.Tensor] = []  # False: padding of a tile or a group

    def add(self, tiles: _Tiles, chosen_G: torch.Tensor, *, size: int, repeats: int) -> torch.Tensor:
        """Add the group of tiles `chosen_G`; return its tokens [G, size]. The last `repeats` tiles are padding."""
        starts, counts = tiles.starts[chosen_G], tiles.counts[chosen_G]
        columns = torch.arange(size, device="cpu")
        index_GQ = (starts[:, None] + torch.minimum(columns, counts[:, None] - 1)).clamp(min=0)
        is_real_GQ = columns < counts[:, None]
        is_real_GQ[len(starts) - repeats :] = False
        rows_GHQ = index_GQ[:, None, :] * len(self.heads) + self.heads[None, :, None]
        self.rows_of_groups.append(rows_GHQ.flatten())
        self.is_real.append(is_real_GQ[:, None].expand(rows_GHQ.shape).flatten())
        return index_GQ

    def rows(self) -> torch.Tensor:
        return torch.cat(self.rows_of_groups)

    def index(self, tokens: int) -> torch.Tensor:
        """The index of each head of each token among the rows. Each must be in one tile only."""
        index_NH = torch.zeros(tokens * len(self.heads), dtype=torch.long, device="cpu")
        real = torch.cat(self.is_real).nonzero().squeeze(1)
        index_NH[self.rows()[real]] = real
        return index_NH


def _window_tiles(documents: _Tiles, window: int) -> tuple[_Tiles, _Tiles]:
    """Cut each document into blocks of queries, with `window` more keys on either side, within the document."""
    block = max(2 * window, _LEAST)
    tiles = []
    for start, length in zip(documents.starts.tolist(), documents.counts.tolist(), strict=True):
        end = start + length
        for first in range(start, end, block):
            last = min(first + block, end)
            tiles.append((first, last - first, max(start, first - window), min(end, last + window)))
    table = torch.tensor(tiles, dtype=torch.long, device="cpu").reshape(-1, 4)
    return _Tiles(table[:, 0], table[:, 1]), _Tiles(table[:, 2], table[:, 3] - table[:, 2])


def _rounded(counts: torch.Tensor, *, least: int) -> torch.Tensor:
    """Round lengths of up to 512 up, by at most an eighth or to a multiple of `least`, so that shapes of tiles recur.

    oneDNN compiles a kernel for each new shape, which takes longer than a small matmul (docs/LOG.md).
    """
    if int(counts.clamp(min=least).sum()) > 3 * int(counts.sum()):
        least = _LEAST_OF_SHORT
    step = (2 ** (counts.clamp(min=2) - 1).log2().floor().long() // 8).clamp(min=least)
    return torch.where(counts <= _ROUNDED_UP_TO, -(-counts.clamp(min=1) // step) * step, counts)


def _group(
    query_counts: torch.Tensor, key_counts: torch.Tensor, *, largest: int
) -> Iterator[tuple[torch.Tensor, int, int, int]]:
    """Group tiles of one size. Yields their indices, how many of these repeat the last tile, queries, keys.

    A group has 1, 2, 3, 4, 6, 8, 12, 16, … tiles, again so that shapes recur. Its queries times keys are at most
    `largest`, unless a single tile has more.
    """
    sizes, group_of_tile = torch.stack([query_counts, key_counts]).unique(dim=1, return_inverse=True)
    for group, (queries, keys) in enumerate(sizes.T.tolist()):
        tiles = (group_of_tile == group).nonzero().squeeze(1)
        most = max(1, largest // (queries * keys))
        least = 2 ** (most.bit_length() - 1)
        for part in tiles.split(least * 3 // 2 if least * 3 // 2 <= most else least):
            power = 2 ** (len(part) - 1).bit_length()
            repeats = (power * 3 // 4 if len(part) <= power * 3 // 4 and power > 2 else power) - len(part)
            yield torch.cat([part, part[-1:].expand(repeats)]), repeats, queries, keys


class _Gather(torch.autograd.Function):
    """Takes rows of x by index, each exactly once apart from padding. So the gradient is a plain gather or copy too.

    The general gradient, `index_add`, runs on a single core of a CPU.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor, back: torch.Tensor | None) -> torch.Tensor:
        """Rows of x. `back`: the index of each row of x in the result; None: rows that are not taken are padding."""
        ctx.save_for_backward(rows if back is None else back)
        ctx.has_padding, ctx.rows_of_x = back is None, x.shape[0]
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (index,) = ctx.saved_tensors
        if ctx.has_padding:
            return grad.new_zeros(ctx.rows_of_x, grad.shape[1]).index_copy_(0, index, grad), None, None
        return grad.index_select(0, index), None, None


def _take(
    x_NK: torch.Tensor, rows_M: torch.Tensor, index_N: torch.Tensor | None, shapes: Sequence[torch.Size]
) -> Iterator[torch.Tensor]:
    """Yield the rows of each group in its shape [G, H, Q]. Without a gradient, each is gathered when it is needed."""
    counts = [shape.numel() for shape in shapes]
    if not torch.is_grad_enabled():
        parts: Iterable[torch.Tensor] = (x_NK.index_select(0, rows) for rows in rows_M.split(counts))
    else:
        taken = x_NK.index_select(0, rows_M) if index_N is None else _Gather.apply(x_NK, rows_M, index_N)
        parts = taken.split(counts)  # not slices: the gradient of each would be a full-size tensor of zeros
    return (part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True))


@torch.compiler.disable
def tiled_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: TilePlan,
    *,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in tiles, as an attention function of transformers whose mask is a plan.

    Shape: query [B, H, T, K] (or [1, H, R, K]), key and value [B, H or fewer, T, K] -> [B, T, H, K].
    """
    plan, rows, queries = attention_mask, query.shape[0], query.shape[2]
    if key.shape[1] != query.shape[1]:
        key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    q_NHK, k_NHK, v_NHK = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    if plan.query_rows_M is None:  # nothing to gather
        (group,) = plan.groups
        tiles, _, size = group.query_shape
        q_GHQK, k_GHQK, v_GHQK = (x.unflatten(0, (tiles, size)).transpose(1, 2) for x in (q_NHK, k_NHK, v_NHK))
        out_GHQK = attend(q_GHQK, k_GHQK, v_GHQK, group.mask_G1QS, scaling=scaling, dropout=dropout)
        return out_GHQK.transpose(1, 2).flatten(0, 1).unflatten(0, (rows, queries)), None
    key_rows_M, key_index_NH = plan.key_rows_M, plan.key_index_NH
    if key_rows_M is None:
        key_rows_M, key_index_NH = plan.query_rows_M, plan.query_index_RH
    query_shapes = [group.query_shape for group in plan.groups]
    key_shapes = [group.key_shape for group in plan.groups]
    q_parts = _take(q_NHK.flatten(0, 1), plan.query_rows_M, plan.query_index_RH, query_shapes)
    k_parts, v_parts = (_take(x.flatten(0, 1), key_rows_M, key_index_NH, key_shapes) for x in (k_NHK, v_NHK))
    outs = [
        attend(q_GHQK, k_GHSK, v_GHSK, group.mask_G1QS, scaling=scaling, dropout=dropout).flatten(0, 2)
        for group, q_GHQK, k_GHSK, v_GHSK in zip(plan.groups, q_parts, k_parts, v_parts, strict=True)
    ]
    out_NHK = _Gather.apply(torch.cat(outs), plan.query_index_RH, None).view_as(q_NHK)
    return out_NHK.unflatten(0, (rows, queries)), None


__all__ = ["TilePlan", "plan_tiles", "tiled_attention"]
