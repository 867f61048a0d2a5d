"""Runs any masked-LM model on packed batches, by padding them, so that all models are evaluated alike.

Shapes: N tokens in S sequences, M of them to be predicted, V vocabulary; B rows of T tokens in one padded chunk.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import MaskedLMOutput

from .packed import Packed, batches_by_length

# Models without a packed path return logits at every token, so chunks are kept small.
_PADDED_TOKENS = 4096
_TOKENS_IF_EAGER = 512
# Models of transformers whose tokens see the padding, whatever the mask says.
_READ_PADDING = ("convbert", "fnet", "funnel", "nystromformer", "yoso")


def fewer_if_eager(model: nn.Module, tokens: int) -> int:
    """How many tokens to pack into a row: a few if the attention is `eager`, which computes all pairs of a row."""
    config = getattr(model, "config", None)
    if config is None or config.model_type != "clozebert" or config._attn_implementation != "eager":
        return tokens
    return min(tokens, _TOKENS_IF_EAGER)


class PackedView(nn.Module):
    """Runs a model that takes only padded rows on packed batches, in chunks of rows of similar length.

    Args:
        model: any `AutoModelForMaskedLM`.
        pad_token_id: pads the rows, and is masked from attention.
    """

    def __init__(self, model: nn.Module, *, pad_token_id: int = 0) -> None:
        super().__init__()
        self.model = model
        self.pad_token_id = pad_token_id

    def forward(
        self,
        input_ids: torch.Tensor,
        packed: Packed,
        masked_positions: torch.Tensor,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int = 1,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits and loss for input_ids [1, N] of S packed sequences, masked_positions [M] and labels [M].

        The model counts positions itself, as for any input.

        Returns:
            logits [M, V] and, with labels, loss = the sum of -log p(label) / `num_items_in_batch`.
        """
        starts_S, lengths_S = packed.cu_seq_lens[:-1].long(), packed.lengths()
        sequences_M = packed.document_ids(input_ids.shape[1])[masked_positions]
        lengths = lengths_S.tolist()
        rows_S = input_ids[0, : sum(lengths)].split(lengths)
        batches = batches_by_length(lengths, _PADDED_TOKENS, padded=True)
        parts, places = [], []
        for chosen in cut_if_padding_is_read(self.model, batches, lengths):
            row_of_S = torch.full_like(lengths_S, -1)
            row_of_S[chosen] = torch.arange(len(chosen), device=lengths_S.device)
            here = (row_of_S[sequences_M] >= 0).nonzero().squeeze(1)
            if len(here) == 0:
                continue
            rows = [rows_S[row] for row in chosen]
            logits_BTV = self.model(**pad_rows(rows, self.pad_token_id)).logits
            sequences = sequences_M[here]
            parts.append(logits_BTV[row_of_S[sequences], masked_positions[here] - starts_S[sequences]])
            places.append(here)
        if parts:  # back into the order of the positions
            logits_MV = torch.cat(parts)[torch.cat(places).argsort()]
        else:  # a short batch in which nothing is masked
            config: Any = self.model.config
            logits_MV = torch.zeros(0, config.vocab_size, device=input_ids.device)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits_MV.float(), labels, reduction="sum") / num_items_in_batch
        return MaskedLMOutput(loss=loss, logits=logits_MV)


def pad_rows(rows: Sequence[torch.Tensor], pad_token_id: int) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask` [B, T] of rows of token ids, padded on the right."""
    masks = [torch.ones_like(row) for row in rows]
    return {
        "input_ids": pad_sequence(list(rows), batch_first=True, padding_value=pad_token_id),
        "attention_mask": pad_sequence(masks, batch_first=True),
    }


def cut_if_padding_is_read(
    model: nn.Module, batches: Sequence[Sequence[int]], lengths: Sequence[int]
) -> list[Sequence[int]]:
    """Batches of indices of sequences, sorted by length; cut into equal lengths if the model would see padding.

    So what it answers for a sequence does not depend on the others.
    """
    config: Any = model.config
    if config.model_type not in _READ_PADDING:
        return list(batches)
    return [list(alike) for batch in batches for _, alike in groupby(batch, lengths.__getitem__)]


def packed_view(model: nn.Module) -> nn.Module:
    """The model itself if it takes packed rows, else a view of it that does."""
    config: Any = model.config
    if config.model_type == "clozebert":
        return model
    return PackedView(model, pad_token_id=config.pad_token_id or 0)


__all__ = ["PackedView", "cut_if_padding_is_read", "fewer_if_eager", "packed_view", "pad_rows"]
