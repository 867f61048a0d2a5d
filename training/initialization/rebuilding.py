"""Rebuilds a masked-LM model from parts of another: other layers, or other rows of the vocabulary.

Shapes: V old vocabulary, W new vocabulary, E embedding size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...configuration.configuration_clozebert import ClozeBertConfig
from ...modeling.modeling_clozebert import ClozeBertForMaskedLM
from ...utils.weights import fill, make_empty

# The tensors that have a row for each token.
_BY_TOKEN = ("model.embeddings.word_embeddings.weight", "decoder.weight", "decoder.bias")
POSITION_TABLE = "model.embeddings.positions.table.weight"


def changed(config: ClozeBertConfig, **changes: Any) -> ClozeBertConfig:
    """A copy of the configuration with some values changed, checked like any new one."""
    return ClozeBertConfig.from_dict({**config.to_dict(), **changes})


def model_like(
    old: ClozeBertForMaskedLM, config: ClozeBertConfig, tensors: Mapping[str, torch.Tensor]
) -> ClozeBertForMaskedLM:
    """A model of that configuration with copies of these tensors, in the mode and with the attention of the old one.

    All its parameters can be trained, as most of them have changed.
    """
    model = make_empty(ClozeBertForMaskedLM, config)
    fill(model, {name: tensor.clone().contiguous() for name, tensor in tensors.items()})
    model.set_attn_implementation(old.config._attn_implementation)
    return model.train(old.training)


def evenly_spaced(layers: int, count: int) -> list[int]:
    """`count` evenly spaced indices of `layers` layers, from the first to the last."""
    return [round(index * (layers - 1) / max(1, count - 1)) for index in range(count)]


def take_layers(model: ClozeBertForMaskedLM, sources: Sequence[int]) -> ClozeBertForMaskedLM:
    """A model whose layer i is a copy of layer `sources[i]`, its type of attention included; all else is copied.

    The old model is left as it is.

    Args:
        sources: the first of them is 0.
    """
    config = model.config
    old = model.state_dict()
    tensors = {name: tensor for name, tensor in old.items() if not name.startswith("model.layers.")}
    for layer, source in enumerate(sources):
        tensors |= _renamed(old, f"model.layers.{source}.", f"model.layers.{layer}.")
        if layer > 0 and source == 0 and not config.first_attention_norm:
            # Layer 0 has no norm before its attention; a copy further up, where activations are larger, needs one.
            tensors |= _renamed(old, "model.layers.1.attention_norm.", f"model.layers.{layer}.attention_norm.")
    return model_like(model, config_of_layers(config, sources), tensors)


def config_of_layers(config: ClozeBertConfig, sources: Sequence[int]) -> ClozeBertConfig:
    """The configuration of a model whose layer i is layer `sources[i]`."""
    changes: dict[str, Any] = {"num_hidden_layers": len(sources)}
    if config.layer_types is not None:
        changes["layer_types"] = [config.layer_types[source] for source in sources]
    return changed(config, **changes)


def _renamed(tensors: Mapping[str, torch.Tensor], before: str, after: str) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `before`; `after` takes its place."""
    return {after + name.removeprefix(before): tensor for name, tensor in tensors.items() if name.startswith(before)}


def take_rows(
    model: ClozeBertForMaskedLM, sources: Sequence[Sequence[int]], *, pad_token_id: int | None = None
) -> ClozeBertForMaskedLM:
    """A model whose row w, of embeddings and of the decoder, is the mean of the old rows `sources[w]`.

    A row with one source is copied bitwise. One without any is zero. The old model is left as it is.

    Args:
        sources: old ids for each new id [W].
        pad_token_id: the new id of padding (None: as before). If the first position is the row after this id, as in
            RoBERTa, the rows of positions move with it.
    """
    tensors = dict(model.state_dict())
    for name in _BY_TOKEN:
        if name in tensors:
            tensors[name] = _rows_of(tensors[name], sources)
    config = model.config
    changes: dict[str, Any] = {"vocab_size": len(sources)}
    pad = (config.pad_token_id or 0) if pad_token_id is None else pad_token_id
    if pad_token_id is not None:
        changes["pad_token_id"] = pad
    follows_padding = config.position_rule == "non_pad" and config.position_offset == (config.pad_token_id or 0) + 1
    if follows_padding and POSITION_TABLE in tensors:
        table = tensors[POSITION_TABLE]
        unused = table.new_zeros(pad + 1, table.shape[1])
        tensors[POSITION_TABLE] = torch.cat([unused, table[config.position_offset :]])
        changes["position_offset"] = pad + 1
    return model_like(model, changed(config, **changes), tensors)


def _rows_of(old_VE: torch.Tensor, sources: Sequence[Sequence[int]]) -> torch.Tensor:
    """Shape: [V, E], or [V] of a bias -> [W, E] or [W]."""
    first = torch.tensor([ids[0] if ids else 0 for ids in sources])
    new_WE = old_VE[first.to(old_VE.device)]
    for row, ids in enumerate(sources):
        if len(ids) != 1:
            new_WE[row] = old_VE[list(ids)].float().mean(dim=0).to(old_VE.dtype) if ids else 0
    return new_WE
