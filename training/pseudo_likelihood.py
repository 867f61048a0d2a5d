"""Pseudo-log-likelihood (Salazar et al. 2020): PLL(x) = sum_t log p(x_t | x without x_t), each token masked in turn.

Every (document, position) becomes a sequence with one mask in it. Sequences of similar length are packed into one row,
and only the masked positions are projected onto the vocabulary.

Shapes: D documents of N tokens in all; R masked sequences; B of them in one packed row of L tokens.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import chain

import torch
from torch import nn

from ..modeling.evaluation_mode import evaluation_mode
from ..modeling.packed import Packed
from ..modeling.packed_view import fewer_if_eager, packed_view

Documents = Sequence[Sequence[int]]
_TOKENS_ON_CPU, _TOKENS_ON_DEVICE = 8192, 131_072
_MOST_LOGITS = 1 << 27  # of one forward pass: 512 MiB in float32


@torch.no_grad()
def masked_log_likelihoods(
    model: nn.Module,
    documents: Documents,
    *,
    mask_token_id: int,
    never_masked: Collection[int],
    positions_per_document: int | None = None,
    tokens_per_batch: int | None = None,
    report: Callable[[int, int], object] | None = None,
) -> list[torch.Tensor]:
    """log p(x_t | x without x_t) of each document's tokens, in float64 on the CPU.

    Args:
        model: any masked-LM model; it keeps its training or evaluation mode.
        documents: token ids, special tokens included.
        never_masked: ids of special tokens, which are in the input but not scored.
        positions_per_document: at most this many tokens of a document, evenly spaced; None: all.
        tokens_per_batch: of one forward pass; None: what suits the device.
        report: called after each batch with the number of tokens scored so far, and of all to be scored.

    Returns:
        one tensor for each document, [its scored tokens].
    """
    device = next(model.parameters()).device
    most = _TOKENS_ON_CPU if device.type == "cpu" else _TOKENS_ON_DEVICE
    budget = tokens_per_batch or fewer_if_eager(model, most)
    ids_N = torch.tensor(list(chain.from_iterable(documents)), dtype=torch.long)
    lengths_D = torch.tensor([len(document) for document in documents], dtype=torch.long)
    starts_D = lengths_D.cumsum(0) - lengths_D
    scored_N = ~torch.isin(ids_N, torch.tensor(sorted(never_masked), dtype=torch.long))
    documents_N = torch.repeat_interleave(torch.arange(len(documents)), lengths_D)
    places_R = scored_N.nonzero().squeeze(1)
    if positions_per_document is not None:
        places_R = places_R[_evenly(documents_N[places_R], len(documents), positions_per_document)]
    documents_R = documents_N[places_R]

    view = packed_view(model)
    scores_R = torch.empty(len(places_R), dtype=torch.float64)
    order_R = lengths_D[documents_R].argsort(descending=True, stable=True)
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", 1)
    first = 0
    with evaluation_mode(model):
        while first < len(order_R):
            count = budget // int(lengths_D[documents_R[order_R[first]]])
            count = max(1, min(count, _MOST_LOGITS // vocabulary))
            now_B = order_R[first : first + count]
            first += count
            starts_B, lengths_B = starts_D[documents_R[now_B]], lengths_D[documents_R[now_B]]
            ends_B = lengths_B.cumsum(0)
            # Token l of the row is token l - (start of its sequence) of that sequence's document.
            shift_L = torch.repeat_interleave(starts_B - (ends_B - lengths_B), lengths_B)
            ids_L = ids_N[torch.arange(int(ends_B[-1])) + shift_L]
            masked_B = ends_B - lengths_B + places_R[now_B] - starts_B
            labels_B = ids_L[masked_B]
            ids_L[masked_B] = mask_token_id
            logits_BV = view(
                input_ids=ids_L[None].to(device),
                packed=Packed.from_lengths(lengths_B.tolist(), device),
                masked_positions=masked_B.to(device),
            ).logits
            log_p_B = logits_BV.float().log_softmax(dim=-1).gather(1, labels_B.to(device)[:, None]).squeeze(1)
            scores_R[now_B] = log_p_B.cpu().double()
            if report is not None:
                report(min(first, len(order_R)), len(order_R))
    return list(scores_R.split(torch.bincount(documents_R, minlength=len(documents)).tolist()))


def _evenly(documents_R: torch.Tensor, documents: int, most: int) -> torch.Tensor:
    """The indices of the candidates to keep, at most `most` per document, evenly spaced; documents_R is sorted."""
    counts = torch.bincount(documents_R, minlength=documents).tolist()
    kept: list[int] = []
    first = 0
    for count in counts:
        taken = min(count, most)
        kept.extend(first + index * count // taken for index in range(taken))
        first += count
    return torch.tensor(kept, dtype=torch.long)


__all__ = ["Documents", "masked_log_likelihoods"]
