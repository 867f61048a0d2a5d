"""Rebuilds a masked-LM model for another vocabulary: each new embedding row is made from old ones.

Shapes: V old vocabulary, W new vocabulary, E embedding size.
"""

import copy
from collections.abc import Sequence

import torch

from ..configuration.configuration_clozebert import ClozeBertConfig
from ..modeling.modeling_clozebert import ClozeBertForMaskedLM
from ..utils.weights import fill, make_empty

# The tensors that have a row for each token.
_BY_TOKEN = ("model.embeddings.word_embeddings.weight", "decoder.weight", "decoder.bias")
_POSITIONS = "model.embeddings.positions.table.weight"


def take_rows(
    model: ClozeBertForMaskedLM, sources: Sequence[Sequence[int]], *, pad_token_id: int | None = None
) -> ClozeBertForMaskedLM:
    """A model whose row w, of embeddings and of the decoder, is the mean of the old rows `sources[w]`.

    A row with one source is copied to the bit. One without any is zero. The old model is left as it is.

    Args:
        sources: old ids for each new id [W].
        pad_token_id: the new id of padding (None: as before). Where positions are counted from behind it, as RoBERTa
            does, the rows of the positions move along.
    """
    tensors = dict(model.state_dict())
    for name in _BY_TOKEN:
        if name in tensors:
            tensors[name] = _rows_of(tensors[name], sources)
    config = model.config
    values = {**copy.deepcopy(config.to_dict()), "vocab_size": len(sources)}
    pad = (config.pad_token_id or 0) if pad_token_id is None else pad_token_id
    if pad_token_id is not None:
        values["pad_token_id"] = pad
    if config.position_rule == "non_pad" and config.position_offset == (config.pad_token_id or 0) + 1:
        table = tensors[_POSITIONS]
        unused = table.new_zeros(pad + 1, table.shape[1])
        tensors[_POSITIONS] = torch.cat([unused, table[config.position_offset :]])
        values["position_offset"] = pad + 1
    new = make_empty(ClozeBertForMaskedLM, ClozeBertConfig.from_dict(values))
    fill(new, {name: tensor.clone().contiguous() for name, tensor in tensors.items()})
    return new.train(model.training)


def _rows_of(old_VE: torch.Tensor, sources: Sequence[Sequence[int]]) -> torch.Tensor:
    """Shape: [V, E], or [V] of a bias -> [W, E] or [W]."""
    first = torch.tensor([ids[0] if ids else 0 for ids in sources])
    new_WE = old_VE[first.to(old_VE.device)]
    for row, ids in enumerate(sources):
        if len(ids) != 1:
            new_WE[row] = old_VE[list(ids)].float().mean(dim=0).to(old_VE.dtype) if ids else 0
    return new_WE
