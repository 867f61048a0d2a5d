# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""How each layer attends, full or in a sliding window: its mask, or the implementation for packed documents.

For packed documents a layer gets a plan in place of a mask. The plan names the implementation:

    tiles    on a CPU (attention_tiles.py)
    varlen   on CUDA in half precision: PyTorch's variable-length kernel, which reads documents where they lie
    window   the same within a window, where Triton is installed: kernels of our own (window_attention.py)
    padded   anywhere else, and as the plain formula of the others: documents as padded rows, under a mask

Shapes: N tokens of the batch, S documents of at most L tokens, B rows of T tokens, H heads, K head size.
"""

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from ..configuration.configuration_clozebert import ClozeBertConfig
from .attention_tiles import TilePlan, plan_tiles
from .fast_paths import HALF_PRECISION, is_plain, is_traced, matmul_dtype, repeat_heads
from .packed import Packed
from .window_attention import has_window_kernel, window_attention

try:  # torch 2.10, and windows from 2.11 on
    from torch.nn.attention.varlen import varlen_attn

    _VARLEN_CAN = frozenset(inspect.signature(varlen_attn).parameters)
except ImportError:
    _VARLEN_CAN = frozenset()

_MASK_MAKERS = {
    "full_attention": create_bidirectional_mask,
    "sliding_attention": create_bidirectional_sliding_window_mask,
}


@dataclass(frozen=True)
class PackedPlan:
    """Documents for `varlen`, `window` or `padded` attention.

    Attributes:
        window: how many tokens on either side a token sees; None: all of its document.
        document_N: each token's document, int32, for `window`.
        read_R: the tokens whose output is read, in ascending order, for `varlen` without a window; None: all.
        read_bounds: how many of them stand before each document, and in all; int32 [documents + 1].
    """

    packed: Packed
    window: int | None
    implementation: str
    document_N: torch.Tensor | None = None
    read_R: torch.Tensor | None = None
    read_bounds: torch.Tensor | None = None

    def to(self, device: Any, non_blocking: bool = False) -> "PackedPlan":
        """The same plan on another device. Models that are spread over devices move their inputs with this."""
        tensors = {name: getattr(self, name) for name in ("packed", "document_N", "read_R", "read_bounds")}
        moved: Any = {name: x if x is None else x.to(device, non_blocking=non_blocking) for name, x in tensors.items()}
        return replace(self, **moved)


def tokens_read(mask: Any) -> torch.Tensor | None:
    """The tokens [R] whose output a layer with this mask or plan computes; None: all."""
    return mask.read_R if isinstance(mask, (TilePlan, PackedPlan)) else None


def is_flash(config: ClozeBertConfig) -> bool:
    """Whether attention is a FlashAttention kernel, which takes the boundaries of documents; also one of the Hub."""
    return "flash" in config._attn_implementation


def make_masks(
    config: ClozeBertConfig,
    layer_types: list[str],
    x_BTD: torch.Tensor,
    attention_mask: Any,
    packed: Packed | None,
    *,
    dropout: float,
) -> list[Any]:
    """The mask for each layer's attention.

    This is what transformers makes of `attention_mask` for the attention implementation; or a plan, for packed
    documents under `sdpa` and for windowed layers over long rows on a CPU.

    Args:
        dropout: the largest dropout probability in any layer's attention; not every kernel supports dropout.
    """
    implementation = config._attn_implementation
    if implementation == "flex_attention" and x_BTD.device.type == "cpu" and x_BTD.requires_grad:
        raise ValueError(
            "attn_implementation='flex_attention' has no gradient on a CPU; train with 'sdpa' or 'eager' there"
        )
    if isinstance(attention_mask, dict):
        masks = attention_mask
        if missing := set(layer_types) - set(masks):
            raise ValueError(
                f"attention_mask is a dictionary with the keys {', '.join(map(repr, masks))}: it needs one for each "
                f"layer type, and {', '.join(sorted(missing))} is missing"
            )
    elif packed is not None and implementation == "sdpa":
        masks = {kind: _plan_packed(packed, config, kind, x_BTD, dropout=dropout) for kind in set(layer_types)}
    else:
        masks = {kind: _make_mask(kind, config, x_BTD, attention_mask, packed) for kind in set(layer_types)}
    return [masks[kind] for kind in layer_types]


def _make_mask(
    layer_type: str, config: ClozeBertConfig, x_BTD: torch.Tensor, attention_mask: Any, packed: Packed | None
) -> Any:
    if layer_type == "sliding_attention" and packed is None and _tiles_pay(config, x_BTD, attention_mask):
        return _tile_rows(config, x_BTD, attention_mask)
    same_document = None
    if packed is not None and not is_flash(config):
        same_document = _same_document(packed.document_ids(x_BTD.shape[:2].numel()).view(x_BTD.shape[:2]))
    mask = _MASK_MAKERS[layer_type](
        config=config, inputs_embeds=x_BTD, attention_mask=attention_mask, and_mask_function=same_document
    )
    if same_document is not None and mask is None:
        raise ValueError(
            f"attn_implementation={config._attn_implementation!r} takes no mask, so packed documents would see one "
            f"another: register a mask function for it (AttentionMaskInterface), or give padded rows"
        )
    if torch.jit.is_tracing() and isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
        # Padding with no token in its window sees nothing. OpenVINO would give NaN for it, and for the whole row.
        mask = mask | ~mask.any(-1, keepdim=True)
    return mask


def _same_document(document_BT: torch.Tensor) -> Any:
    """A mask function for transformers: two tokens see each other if they are in the same document."""

    def same_document(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return document_BT[batch, query] == document_BT[batch, key]

    return same_document


def _plan_packed(
    packed: Packed, config: ClozeBertConfig, layer_type: str, x_BTD: torch.Tensor, *, dropout: float
) -> TilePlan | PackedPlan:
    """How the layers of one type attend over packed documents."""
    # In compiled code, too: plans are made outside of the graph.
    if x_BTD.device.type == "cpu" and not is_plain() and (torch.compiler.is_compiling() or not is_traced()):
        return _tiles_of(packed, config, layer_type)
    window = config.sliding_window if layer_type == "sliding_attention" else None
    head_size = config.hidden_size // config.num_attention_heads
    if not _has_varlen_kernel(x_BTD, head_size=head_size, dropout=dropout):
        return PackedPlan(packed, window, "padded")
    if window is None or not has_window_kernel(head_size):
        return PackedPlan(packed, window, "varlen")
    document_N = packed.document_ids(x_BTD.shape[:2].numel()).to(torch.int32)
    return PackedPlan(packed, window, "window", document_N)


@torch.compiler.disable
def _tiles_of(packed: Packed, config: ClozeBertConfig, layer_type: str, read_R: torch.Tensor | None = None) -> TilePlan:
    """The tiles of one layer type, made once for a batch. If only some tokens are read, only they are queries."""
    heads, window = config.num_attention_heads, config.sliding_window if layer_type == "sliding_attention" else None
    key = (heads, window, torch.is_grad_enabled(), read_R is None)
    known_R, plan = packed.plans.get(key, (None, None))
    if plan is None or (read_R is not None and not torch.equal(known_R, read_R)):
        plan = plan_tiles(packed.cu_seq_lens, heads=heads, window=window, read_R=read_R)
        # A copy: the caller may write other positions into the tensor.
        packed.plans[key] = (None if read_R is None else read_R.clone(), plan)
    return plan


def read_in_last_layer(
    mask: Any, x_BTD: torch.Tensor, packed: Packed | None, positions_R: torch.Tensor, config: ClozeBertConfig
) -> tuple[Any, torch.Tensor]:
    """The last layer's mask, and the indices [R] in its output of the tokens that are read.

    For documents packed in one row, in tiles or by the varlen kernel, and without a window, the layer computes only
    these tokens.
    """
    if packed is None or x_BTD.shape[0] != 1 or not len(positions_R):
        return mask, positions_R
    if isinstance(mask, TilePlan) and mask.window is None:
        plan = _tiles_of(packed, config, "full_attention", positions_R)
        assert plan.read_index_R is not None
        return plan, plan.read_index_R
    if isinstance(mask, PackedPlan) and mask.window is None and mask.implementation == "varlen":
        read_R, order_R = positions_R.to(x_BTD.device).sort()
        read_bounds = torch.searchsorted(read_R, packed.cu_seq_lens.to(read_R.dtype), out_int32=True)
        return replace(mask, read_R=read_R, read_bounds=read_bounds), order_R.argsort()
    return mask, positions_R


def prepare_attention(packed: Packed, config: ClozeBertConfig, *, read_positions: torch.Tensor) -> None:
    """Make the plans of a training step on a CPU in advance, in the thread that makes the batch."""
    if is_plain() or config._attn_implementation != "sdpa":
        return
    with torch.enable_grad():
        layer_types = [config.attention_type(layer) for layer in range(config.num_hidden_layers)]
        reads = layer_types[-1] == "full_attention"
        for layer_type in set(layer_types[:-1] if reads else layer_types):
            _tiles_of(packed, config, layer_type)
        if reads:
            _tiles_of(packed, config, "full_attention", read_positions)


def _has_varlen_kernel(x_BTD: torch.Tensor, *, head_size: int, dropout: float) -> bool:
    """Whether PyTorch's kernel can be used: half precision on an Ampere GPU or later, no dropout, torch 2.11."""
    if x_BTD.device.type != "cuda" or dropout or head_size % 8 or head_size > 256 or is_plain():
        return False
    if matmul_dtype(x_BTD) not in HALF_PRECISION or "window_size" not in _VARLEN_CAN:
        return False
    return torch.cuda.get_device_capability(x_BTD.device) >= (8, 0)


def _tiles_pay(config: ClozeBertConfig, x_BTD: torch.Tensor, attention_mask: Any) -> bool:
    """Whether a windowed layer is cheaper in tiles than under a mask: for long rows under `sdpa` on a CPU."""
    assert config.sliding_window is not None
    return (
        config._attn_implementation == "sdpa"
        and x_BTD.device.type == "cpu"
        and (attention_mask is None or attention_mask.dim() == 2)
        # Before the length is compared: that would tie a compiled or exported graph to one side of the bound.
        and not is_traced()
        and not hasattr(x_BTD, "fake_mode")  # tiles are cut by values, which a fake tensor does not have
        and not is_plain()
        and x_BTD.shape[1] >= 8 * config.sliding_window
    )


def _tile_rows(config: ClozeBertConfig, x_BTD: torch.Tensor, attention_mask: torch.Tensor | None) -> TilePlan:
    rows, length = x_BTD.shape[:2]
    return plan_tiles(
        torch.arange(0, (rows + 1) * length, length, device=x_BTD.device),
        heads=config.num_attention_heads,
        window=config.sliding_window,
        valid_N=None if attention_mask is None else attention_mask.flatten() != 0,
    )


def varlen_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: PackedPlan,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention by PyTorch's varlen kernel, scale 1 / sqrt(K).

    Shape: [B, H or fewer, T, K] each -> [B, T, H, K]; queries [1, H, R, K] -> [1, R, H, K] if only R tokens are read.
    """
    packed, window = attention_mask.packed, attention_mask.window
    grouped: dict[str, Any] = {}
    if key.shape[1] != query.shape[1] and "enable_gqa" in _VARLEN_CAN:
        grouped = {"enable_gqa": True}
    else:
        key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    q_NHK, k_NHK, v_NHK = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    sides: Any = (-1, -1) if window is None else (window, window)
    bounds, longest = packed.cu_seq_lens, packed.max_length
    of_queries = bounds if attention_mask.read_bounds is None else attention_mask.read_bounds
    out: Any = varlen_attn(q_NHK, k_NHK, v_NHK, of_queries, bounds, longest, longest, window_size=sides, **grouped)
    return out.unflatten(0, (query.shape[0], query.shape[2])), None


def windowed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: PackedPlan,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention by our Triton kernels, scale 1 / sqrt(K). Shape: [B, H or fewer, T, K] each -> [B, T, H, K]."""
    assert attention_mask.window is not None
    assert attention_mask.document_N is not None
    q_NHK, k_NGK, v_NGK = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    out = window_attention(q_NHK, k_NGK, v_NGK, attention_mask.document_N, attention_mask.window)
    return out.unflatten(0, (query.shape[0], query.shape[2])), None


def padded_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: PackedPlan,
    *,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over documents as padded rows. Shape: [B, H or fewer, T, K] each -> [B, T, H, K]."""
    packed, window = attention_mask.packed, attention_mask.window
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    q_NHK, k_NHK, v_NHK = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    # Where each document begins among the padded rows of all groups.
    begins_S = torch.zeros(packed.num_documents, dtype=torch.long, device=query.device)
    parts, rows = [], 0
    for documents_G, longest in packed.groups_by_length():
        index_GL, is_token_GL = packed.padded_index(documents_G, longest)
        q_GHLK, k_GHLK, v_GHLK = (x[index_GL].transpose(1, 2) for x in (q_NHK, k_NHK, v_NHK))
        steps_L = torch.arange(longest, device=query.device)
        mask_G1LL = (is_token_GL | (steps_L == 0))[:, None, None]  # a row without a key would be NaN
        if window is not None:
            # Padding queries take the position of the last token. Their output is not read.
            last_G1 = is_token_GL.sum(dim=1, keepdim=True).clamp(min=1) - 1
            steps_GL1 = torch.minimum(steps_L, last_G1).unsqueeze(2)
            # No difference of steps: it would take eight bytes for each pair.
            near_GLL = (steps_L >= steps_GL1 - window) & (steps_L <= steps_GL1 + window)
            mask_G1LL = mask_G1LL & near_GLL[:, None]
        out_GHLK = F.scaled_dot_product_attention(
            q_GHLK, k_GHLK, v_GHLK, attn_mask=mask_G1LL, dropout_p=dropout, scale=scaling
        )
        parts.append(out_GHLK.transpose(1, 2).flatten(0, 1))
        begins_S[documents_G] = rows + torch.arange(documents_G.shape[0], device=query.device) * longest
        rows += documents_G.shape[0] * longest
    documents_N = packed.document_ids(len(q_NHK))
    steps_N = torch.arange(len(q_NHK), device=query.device) - packed.cu_seq_lens.long()[documents_N]
    out_NHK = torch.cat(parts)[begins_S[documents_N] + steps_N]
    return out_NHK.unflatten(0, (query.shape[0], query.shape[2])), None


__all__ = [
    "PackedPlan",
    "is_flash",
    "make_masks",
    "padded_attention",
    "prepare_attention",
    "read_in_last_layer",
    "tokens_read",
    "varlen_attention",
    "windowed_attention",
]
