"""Initial token embeddings, from counts of which tokens occur near which in the text.

With random embeddings, most of a short run goes into finding out which tokens are alike. Counting finds much of that in
seconds. Tokens are compared by their positive pointwise mutual information with contexts. The embeddings are its best
low-rank approximation (Levy and Goldberg 2014, with the square root of the singular values):

    PPMI(i, j) = max(0, log(n(i, j) n / (n(i) n(j))))        PPMI = U S Vᵀ        E = U √S

A context j is a frequent token in one of four places: directly before, directly after, two to four tokens before, two
to four after. n(i, j) counts how often token i has context j, n(i) and n(j) are its sums, n the sum of all. The
decoder's bias is initialised to the logarithm of each token's frequency.

Shapes: N tokens that are counted, V vocabulary, C contexts, E embedding size.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...corpus import Mixture
from ...corpus.text_sample import sample_text
from ...modeling import ClozeBertForMaskedLM

# Where a context token is. Counted separately, the four places say more than together (docs/LOG.md).
_PLACES = ((-4, -3, -2), (-1,), (1,), (2, 3, 4))
_FREQUENT, _CELLS = 1024, 1 << 27  # context tokens, at most; the table takes 4 bytes for each cell
# Norm of an embedding, so that the size of logits does not depend on the width. At width 96 this is a standard
# deviation of 0.2, about that of trained models; 0.1 learned slower there, and so did 0.2 at width 384 (docs/LOG.md).
_NORM = 2.0


@torch.no_grad()
def embed_by_text(model: ClozeBertForMaskedLM, corpora: Mixture, *, max_seq_length: int, seed: int) -> None:
    """Replace the token embeddings of a new model, and its decoder's bias, by values computed from the text.

    Tokens that are not in the text keep their random embeddings.
    """
    embeddings: Any = model.get_input_embeddings()
    decoder: Any = model.get_output_embeddings()
    table_VE = embeddings.weight
    blocks = [_numbered(ids, lengths) for ids, lengths in sample_text(corpora, max_seq_length=max_seq_length)]
    counts_V = torch.stack([torch.bincount(ids_N, minlength=len(table_VE)) for ids_N, _ in blocks]).sum(dim=0)
    found_VE = _factorise(_ppmi(_count_contexts(blocks, counts_V)), size=table_VE.shape[1], seed=seed)
    seen = counts_V.nonzero().squeeze(1)
    table_VE[seen, : found_VE.shape[1]] = found_VE[seen]
    if decoder.weight is not table_VE:
        decoder.weight.copy_(table_VE)
    if decoder.bias is not None:
        decoder.bias.copy_(((counts_V + 1) / (counts_V.sum() + len(counts_V))).log())


def _numbered(ids: np.ndarray, lengths: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [N], and the number of the piece of a document that each belongs to, [N]."""
    return torch.from_numpy(ids), torch.from_numpy(np.repeat(np.arange(len(lengths), dtype=np.int32), lengths))


def _count_contexts(blocks: Sequence[tuple[torch.Tensor, torch.Tensor]], counts_V: torch.Tensor) -> torch.Tensor:
    """n(i, j): how often token i has context j, float32 [V, C]; the contexts of one place are adjacent."""
    most = max(1, _CELLS // len(counts_V) // len(_PLACES))
    frequent = min(_FREQUENT, most, int((counts_V > 0).sum()))
    contexts = frequent * len(_PLACES)
    column_V = torch.full((len(counts_V),), -1, dtype=torch.int32)
    column_V[counts_V.argsort(descending=True, stable=True)[:frequent]] = torch.arange(frequent, dtype=torch.int32)
    found = torch.zeros(len(counts_V) * contexts)
    for ids_N, piece_N in blocks:
        columns_N = column_V[ids_N]
        for place, distances in enumerate(_PLACES):
            for distance in distances:
                token, context = slice(None, -abs(distance)), slice(abs(distance), None)
                token, context = (token, context) if distance > 0 else (context, token)
                counted = (piece_N[token] == piece_N[context]) & (columns_N[context] >= 0)
                columns = columns_N[context][counted] + place * frequent
                found.index_add_(0, ids_N[token][counted] * contexts + columns, torch.ones(len(columns)))
    return found.view(len(counts_V), contexts)


def _ppmi(counts_VC: torch.Tensor) -> torch.Tensor:
    """Positive pointwise mutual information of each pair, 0 if it was not seen; computed in place."""
    # At least 1: a text of single tokens has no contexts.
    of_tokens_V1, of_contexts_C = (counts_VC.sum(dim=dim, keepdim=True).clamp(min=1) for dim in (1, 0))
    counts_VC /= of_tokens_V1
    counts_VC /= of_contexts_C / of_contexts_C.sum()
    return counts_VC.log_().clamp_(min=0.0)


def _factorise(ppmi_VC: torch.Tensor, *, size: int, seed: int) -> torch.Tensor:
    """E = U √S, centred, each entry about `_NORM` / √E: [V, E], or fewer columns if there are fewer contexts."""
    std = _NORM / math.sqrt(size)
    size = min(size, *ppmi_VC.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left_VE, singular_E, _ = torch.svd_lowrank(ppmi_VC, q=min(size + 32, *ppmi_VC.shape), niter=3)
        # A random rotation, so that all channels are alike.
        turn_EE, _ = torch.linalg.qr(torch.randn(size, size))
    left_VE = left_VE[:, :size]
    # The sign of a singular vector is arbitrary. Making its largest entry positive gives the same on every machine.
    left_VE = left_VE * left_VE.gather(0, left_VE.abs().argmax(dim=0, keepdim=True)).sign()
    found_VE = left_VE * singular_E[:size].sqrt()
    found_VE = (found_VE - found_VE.mean(dim=0)) @ turn_EE
    return found_VE * (std / found_VE.std().clamp(min=1e-6))
