"""Grows a trained model into a larger one: more tokens, more or wider layers, longer sequences.

Each function returns a new model and the pseudo-perplexities of both models on the same documents. They show how much
was kept, before training continues. The old model is left as it is.

Shapes: V vocabulary, D hidden size, E embedding size, F feed-forward size, H heads, K head size, P positions.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from ...configuration.configuration_clozebert import ClozeBertConfig
from ...modeling.modeling_clozebert import ClozeBertForMaskedLM
from ...utils.errors import UserError
from ...utils.input_length import beginning_of
from ..pseudo_likelihood import Documents
from .new_tokens import Enlarged, check_new_tokens, fit_to_enlarged
from .pseudo_perplexity import WarmStart, check_masked_lm, check_several, mask_token_of, measure
from .rebuilding import POSITION_TABLE, changed, model_like, take_layers

_Size = int | None
# Tokens of a document that show what a step kept. Each predicted token is a forward pass over all of them.
_SCORED = 512


# Depth


def grow_depth(model: ClozeBertForMaskedLM, num_hidden_layers: int, *, documents: Documents) -> WarmStart:
    """Repeat layers in place: layer i of m is a copy of layer floor(i n / m) of n, its kind of attention included.

    Args:
        documents: token ids of some texts, special tokens included, to measure pseudo-perplexity on.

    Raises:
        UserError: fewer layers than there are.
    """
    _check_depth(model, num_hidden_layers)
    old_layers = model.config.num_hidden_layers
    sources = [index * old_layers // num_hidden_layers for index in range(num_hidden_layers)]
    return measure(model, take_layers(model, sources), documents)


def _check_depth(model: ClozeBertForMaskedLM, num_hidden_layers: int) -> None:
    check_masked_lm(model)
    old = model.config.num_hidden_layers
    if num_hidden_layers < old:
        raise UserError(f"num_hidden_layers={num_hidden_layers} is less than the model's {old}: grow only adds layers")
    if old == 1 and num_hidden_layers > 1 and not model.config.first_attention_norm:
        raise UserError("first_attention_norm=False and a single layer: there is no norm to copy for a second")


# Width

# The sizes that the rows and columns of a weight depend on; a bias or a norm is like rows. `None`: it does not grow.
_AXES: dict[str, tuple[str | None, str | None]] = {
    "q_proj": ("heads", "hidden"),
    "k_proj": ("key_heads", "hidden"),
    "v_proj": ("key_heads", "hidden"),
    "o_proj": ("hidden", "heads"),
    "gate_proj": ("feed_forward", "hidden"),
    "up_proj": ("feed_forward", "hidden"),
    "down_proj": ("hidden", "feed_forward"),
    "attention_norm": ("hidden", None),
    "mlp_norm": ("hidden", None),
    "final_norm": ("hidden", None),
    "q_norm": (None, None),
    "k_norm": (None, None),
    "projection": ("hidden", None),
    "dense": ("embedding", "hidden"),
    "norm": ("embedding", None),
    # Embeddings are looked up, so their columns are outputs.
    "word_embeddings": (None, "embedding"),
    "token_type_embeddings": (None, "embedding"),
    "table": (None, "embedding"),
    "decoder": (None, "embedding"),
}
_LOOKED_UP = ("word_embeddings", "token_type_embeddings", "table")


def grow_width(
    model: ClozeBertForMaskedLM,
    *,
    hidden_size: int | None = None,
    num_attention_heads: int | None = None,
    intermediate_size: int | None = None,
    documents: Documents,
    noise: float = 0.01,
    seed: int = 0,
) -> WarmStart:
    """Tile weights to a larger size: unit j is a copy of unit j mod n.

    A weight on an input with c copies is divided by c (Net2Net, Chen et al. 2016), so that sums stay the same. Apart
    from `noise`, the new model computes exactly what the old one did if sizes are whole multiples. Otherwise norms over
    units with different numbers of copies differ a little. The head size stays, so heads grow with the hidden size.

    Args:
        hidden_size, num_attention_heads, intermediate_size: the new sizes; None: as before.
        noise: standard deviation of normal noise on the weights that grow, relative to that of their tensor. Exact
            copies would get the same gradients and stay the same for ever.
        seed: of the noise.

    Raises:
        UserError: a size shrinks, a head's size changes, noise is negative, or positions or embeddings cannot be tiled.
    """
    config = _check_width(model, hidden_size, num_attention_heads, intermediate_size, noise)
    index_of = _copies(model.config, config)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        module = name.split(".")[-2]
        rows, columns = _AXES[module]
        tied_decoder = module == "decoder" and config.tie_word_embeddings
        tile = _tile(
            tensor,
            index_of[rows],
            index_of[columns] if tensor.dim() > 1 else None,
            share=module not in _LOOKED_UP and not tied_decoder,
        )
        if name.startswith("head.norm.") and config.tie_word_embeddings:
            # The tied decoder sums over copies, but it is also the embedding table, so the norm before it is divided.
            tile = tile / _multiplicity(index_of["embedding"], tile)
        if noise and tensor.shape != tile.shape:
            deviation = float(tensor.float().std()) if tensor.numel() > 1 else 0.0
            tile = tile + noise * deviation * torch.randn(tile.shape, generator=generator).to(tile)
        tensors[name] = tile.to(tensor.dtype)
    return measure(model, model_like(model, config, tensors), documents)


def _check_width(
    model: ClozeBertForMaskedLM, hidden_size: _Size, num_attention_heads: _Size, intermediate_size: _Size, noise: float
) -> ClozeBertConfig:
    check_masked_lm(model)
    if not 0 <= noise < float("inf"):
        raise UserError(f"noise={noise} must be at least 0 and finite")
    old = model.config
    given = {
        "hidden_size": hidden_size, "num_attention_heads": num_attention_heads, "intermediate_size": intermediate_size
    }  # fmt: skip
    sizes: dict[str, int] = {name: getattr(old, name) if size is None else size for name, size in given.items()}
    for name, size in sizes.items():
        if size < getattr(old, name):
            raise UserError(
                f"{name}={size} is less than the model's {getattr(old, name)}: grow only makes models larger"
            )
    heads, size = sizes["num_attention_heads"], sizes["hidden_size"]
    head_size = old.hidden_size // old.num_attention_heads
    if size != heads * head_size:
        below = size // head_size
        way_out = f"give num_attention_heads={below}"
        if size % head_size:
            way_out = f"give hidden_size={below * head_size} or {(below + 1) * head_size}"
        raise UserError(
            f"hidden_size={size} and num_attention_heads={heads} do not fit together: a head of this model has "
            f"{head_size} channels, so {way_out}"
        )
    if size != old.hidden_size:
        _check_can_widen(old)
    if size == old.embedding_size != old.hidden_size:
        raise UserError(
            f"hidden_size={size} is the model's embedding_size, and the layer between the two would be lost: give "
            f"another size"
        )
    # Embeddings that are as wide as the layers grow with them.
    embedding_size = None if old.embedding_size == old.hidden_size else old.embedding_size
    return changed(old, **sizes, num_key_value_heads=_key_heads_for(heads, old), embedding_size=embedding_size)


def _check_can_widen(old: ClozeBertConfig) -> None:
    if old.position_embedding_type == "sinusoidal":
        raise UserError("position_embedding_type='sinusoidal' is a function of hidden_size: it cannot be tiled")
    if old.tie_word_embeddings and not old.prediction_dense:
        raise UserError("tie_word_embeddings needs prediction_dense: a layer before the decoder that can be scaled")


def _key_heads_for(heads: int, old: ClozeBertConfig) -> int:
    """The number of key heads for `heads` query heads, with groups of the same size as before."""
    old_key_heads = old.num_key_value_heads or old.num_attention_heads
    if old_key_heads == old.num_attention_heads:
        return heads
    if heads % old.num_attention_heads:
        raise UserError(
            f"num_attention_heads={heads} must be a multiple of the model's {old.num_attention_heads}, as groups of "
            f"heads share num_key_value_heads={old_key_heads}"
        )
    return old_key_heads * heads // old.num_attention_heads


def _copies(old: ClozeBertConfig, new: ClozeBertConfig) -> dict[str | None, torch.Tensor | None]:
    """For each kind of axis, the old unit that each new unit is a copy of."""

    def wrap(old_size: int, new_size: int) -> torch.Tensor:
        return torch.arange(new_size) % old_size

    size = old.hidden_size // old.num_attention_heads
    old_keys, new_keys = (c.num_key_value_heads or c.num_attention_heads for c in (old, new))
    hidden = wrap(old.hidden_size, new.hidden_size)
    return {
        None: None,
        "hidden": hidden,
        "embedding": hidden if old.embedding_size in (None, old.hidden_size) else torch.arange(old.embedding_size),
        # Heads are copied whole: new head j is old head j mod H, which is the same as wrapping the channels.
        "heads": wrap(old.num_attention_heads * size, new.num_attention_heads * size),
        "key_heads": wrap(old_keys * size, new_keys * size),
        "feed_forward": wrap(old.intermediate_size, new.intermediate_size),
    }


def _tile(
    tensor: torch.Tensor, rows: torch.Tensor | None, columns: torch.Tensor | None, *, share: bool
) -> torch.Tensor:
    """Copies of rows and columns. With `share`, columns are inputs, and their copies share the weight evenly."""
    tile = tensor if rows is None else tensor[rows]
    if columns is None:
        return tile.clone()
    tile = tile[:, columns]
    return tile / _multiplicity(columns, tile) if share else tile


def _multiplicity(index: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """For each new unit, how many copies its old unit has."""
    assert index is not None
    return torch.bincount(index)[index].to(like)


# Length


def extend_positions(
    model: ClozeBertForMaskedLM,
    max_position_embeddings: int,
    *,
    rope_theta: float | None = None,
    documents: Documents,
) -> WarmStart:
    """Extend positions: rotary ones rotate more slowly, learned ones are interpolated, sinusoidal ones just continue.

    Rotary: the base theta of layers with full attention becomes `rope_theta`, by default theta * s^(K / (K - 2)) for s
    times the length (NTK-aware scaling): at the new end, the slowest pair of channels has rotated as far as at the old
    end before. Windows see no further than before, so their base stays. Learned: row p of the P' new rows is
    interpolated linearly at p (P - 1) / (P' - 1) in the P old rows.

    Raises:
        UserError: not longer than before, or `rope_theta` for a model without rotary positions.
    """
    _check_length(model, max_position_embeddings, rope_theta)
    old = model.config
    length, kind = old.max_position_embeddings, old.position_embedding_type
    changes: dict[str, Any] = {"max_position_embeddings": max_position_embeddings}
    tensors = dict(model.state_dict())
    if kind == "rope":
        changes["rope_parameters"] = _slower(old, max_position_embeddings / length, rope_theta)
    elif kind == "absolute":
        table_PE, offset = tensors[POSITION_TABLE], old.position_offset
        longer = F.interpolate(
            table_PE[offset:].T[None].float(), size=max_position_embeddings, mode="linear", align_corners=True
        )
        tensors[POSITION_TABLE] = torch.cat([table_PE[:offset], longer[0].T.to(table_PE.dtype)])
    return measure(model, model_like(model, changed(old, **changes), tensors), documents)


def _check_length(model: ClozeBertForMaskedLM, max_position_embeddings: int, rope_theta: float | None) -> None:
    check_masked_lm(model)
    length, kind = model.config.max_position_embeddings, model.config.position_embedding_type
    if max_position_embeddings <= length:
        raise UserError(f"max_position_embeddings={max_position_embeddings} must exceed the model's {length}")
    if rope_theta is not None and not rope_theta > 0:
        raise UserError(f"rope_theta={rope_theta} must be above 0")
    if rope_theta is not None and kind != "rope":
        raise UserError(f"rope_theta={rope_theta} needs rotary positions, but position_embedding_type={kind!r}")
    if rope_theta is not None and "full_attention" not in (model.config.layer_types or ["full_attention"]):
        raise UserError(f"rope_theta={rope_theta} is that of layers with full attention, and the model has none")


def _slower(config: ClozeBertConfig, factor: float, rope_theta: float | None) -> dict[str, Any]:
    """The rotary parameters with another base in layers with full attention."""
    parameters: Any = copy.deepcopy(config.rope_parameters)
    size = config.hidden_size // config.num_attention_heads
    of_full = parameters if config.layer_types is None else parameters.get("full_attention")
    if of_full is not None:
        of_full["rope_theta"] = float(rope_theta or of_full["rope_theta"] * factor ** (size / max(size - 2, 1)))
    return parameters


# All of them


def grow(
    model: ClozeBertForMaskedLM,
    tokenizer: Any,
    *,
    texts: Sequence[str],
    new_tokens: Sequence[str] = (),
    hidden_size: int | None = None,
    num_attention_heads: int | None = None,
    intermediate_size: int | None = None,
    num_hidden_layers: int | None = None,
    max_position_embeddings: int | None = None,
    rope_theta: float | None = None,
    noise: float = 0.01,
    seed: int = 0,
) -> Iterator[tuple[str, WarmStart]]:
    """Grow vocabulary, width, depth and length, one after the other. Yields the name and the result of each step.

    Args:
        tokenizer: the model's; each result has the tokenizer that fits it.
        texts: to measure pseudo-perplexity on; they are truncated to the model's longest input.
        Others: those of `grow_width`, `grow_depth`, `extend_positions` and `fit_to_enlarged`. None or empty leaves that
            part as it is.

    Raises:
        UserError: at the call, before any step: one of them is impossible, or there is nothing to do.
    """
    check_masked_lm(model)
    check_several(new_tokens=new_tokens, texts=texts)
    if not texts:
        raise UserError("texts is empty: give some text, to measure pseudo-perplexity on")
    mask_token_of(model.config)
    if rope_theta is not None and max_position_embeddings is None:
        raise UserError(f"rope_theta={rope_theta} goes with max_position_embeddings: give that too")
    enlarged = check_new_tokens(tokenizer, new_tokens) if new_tokens else None
    sizes: dict[str, Any] = {
        "hidden_size": hidden_size, "num_attention_heads": num_attention_heads, "intermediate_size": intermediate_size
    }  # fmt: skip
    steps: dict[str, Callable[..., WarmStart]] = {}
    if any(size is not None for size in sizes.values()):
        _check_width(model, **sizes, noise=noise)
        steps["width"] = functools.partial(grow_width, **sizes, noise=noise, seed=seed)
    if num_hidden_layers is not None:
        _check_depth(model, num_hidden_layers)
        steps["depth"] = functools.partial(grow_depth, num_hidden_layers=num_hidden_layers)
    if max_position_embeddings is not None:
        _check_length(model, max_position_embeddings, rope_theta)
        steps["length"] = functools.partial(
            extend_positions, max_position_embeddings=max_position_embeddings, rope_theta=rope_theta
        )
    if not new_tokens and not steps:
        raise UserError("nothing to grow: give new_tokens, a size, num_hidden_layers or max_position_embeddings")
    return _take(steps, model, tokenizer, texts, enlarged)


def _take(
    steps: Mapping[str, Callable[..., WarmStart]],
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    enlarged: Enlarged | None,
) -> Iterator[tuple[str, WarmStart]]:
    length = model.config.max_position_embeddings
    if enlarged is not None:
        result = fit_to_enlarged(model, tokenizer, enlarged, texts=texts)
        model, tokenizer = result.model, result.tokenizer
        yield "vocabulary", result
    documents = [beginning_of(tokenizer, text, min(length, _SCORED))[0] for text in texts]
    for name, step in steps.items():
        result = step(model, documents=documents)
        model = result.model
        if name == "length":
            tokenizer = copy.deepcopy(tokenizer)
            tokenizer.model_max_length = model.config.max_position_embeddings
        yield name, dataclasses.replace(result, tokenizer=tokenizer)
