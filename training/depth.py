"""A masked-LM model made of layers of another one: repeated, or some of them."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ..configuration.configuration_clozebert import ClozeBertConfig
from ..modeling.modeling_clozebert import ClozeBertForMaskedLM
from ..utils.weights import fill, make_empty


def evenly_spaced(layers: int, count: int) -> list[int]:
    """The indices of `count` of so many layers: the first, the last, and others between them."""
    return [round(index * (layers - 1) / max(1, count - 1)) for index in range(count)]


def take_layers(model: ClozeBertForMaskedLM, sources: Sequence[int]) -> ClozeBertForMaskedLM:
    """A model whose layer i is a copy of layer `sources[i]`, its kind of attention included; all else is copied.

    The old model is left as it is.

    Args:
        sources: the first of them is 0.
    """
    config = model.config
    changes: dict[str, Any] = {"num_hidden_layers": len(sources)}
    if config.layer_types is not None:
        changes["layer_types"] = [config.layer_types[source] for source in sources]
    old = model.state_dict()
    tensors = {name: tensor for name, tensor in old.items() if not name.startswith("model.layers.")}
    for layer, source in enumerate(sources):
        tensors.update(_layer_copy(old, f"model.layers.{source}.", layer))
        if layer > 0 and source == 0 and not config.first_attention_norm:
            # Layer 0 has no norm before its attention; a copy further up, where activations are larger, needs one.
            tensors.update(_layer_copy(old, "model.layers.1.attention_norm.", layer))
    new = make_empty(ClozeBertForMaskedLM, ClozeBertConfig.from_dict({**copy.deepcopy(config.to_dict()), **changes}))
    fill(new, {name: tensor.clone().contiguous() for name, tensor in tensors.items()})
    return new.train(model.training)


def _layer_copy(tensors: dict[str, torch.Tensor], prefix: str, layer: int) -> dict[str, torch.Tensor]:
    """The tensors whose names begin so, under their names in another layer."""
    return {_at_layer(name, layer): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _at_layer(name: str, layer: int) -> str:
    parts = name.split(".")
    parts[2] = str(layer)
    return ".".join(parts)


__all__ = ["evenly_spaced", "take_layers"]
