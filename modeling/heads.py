# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""What models with a head share: pooling (CLS, mean, max, attention), the comparison of pairs, and the dense head.

The losses are in losses.py.

Shapes: B sequences, T tokens, N tokens of S packed documents, D hidden size.
"""

import torch
from torch import nn
from torch.nn import functional as F

from ..configuration.configuration_clozebert import ClozeBertConfig
from .blocks import make_activation, make_norm
from .fast_paths import widen
from .packed import Packed


class Pooling(nn.Module):
    """One vector for each sequence, from its tokens only: padding on either side and holes in the mask are ignored.

    `cls`: the first token. `mean`: over the tokens. `max`: of each channel. `attention`: sum of softmax(u . x) x with a
    learned u. A sequence without tokens gives zeros.
    """

    def __init__(self, config: ClozeBertConfig):
        super().__init__()
        self.config = config
        attends = config.classifier_pooling == "attention"
        self.score = nn.Linear(config.hidden_size, 1, bias=False) if attends else None

    @property
    def kind(self) -> str:
        """What the configuration that the model was built with says now: a value that was set later is saved, too."""
        kind = self.config.classifier_pooling
        if (kind == "attention") != (self.score is not None):
            raise ValueError(
                f"classifier_pooling={kind!r} was set after the model was built: pooling by attention has weights of "
                f"its own, so build the model anew"
            )
        return kind

    def forward(
        self, x_BTD: torch.Tensor, mask_BT: torch.Tensor | None = None, packed: Packed | None = None
    ) -> torch.Tensor:
        """Shape: [B, T, D] with the mask [B, T] (nonzero: a token) -> [B, D]; packed documents -> [documents, D]."""
        if packed is not None:
            return self._of_documents(x_BTD.flatten(0, 1), packed)
        if mask_BT is None:
            mask_BT = torch.ones(x_BTD.shape[:2], dtype=torch.bool, device=x_BTD.device)
        is_token_BT1 = mask_BT.bool().unsqueeze(-1)
        if self.kind == "cls":
            first_B = is_token_BT1.squeeze(-1).to(torch.uint8).argmax(dim=1)
            return x_BTD[torch.arange(x_BTD.shape[0], device=x_BTD.device), first_B]
        if self.kind == "mean":
            # In float32 or better: the sum of thousands of tokens may overflow fp16.
            wide = torch.promote_types(x_BTD.dtype, torch.float32)
            total_BD = x_BTD.masked_fill(~is_token_BT1, 0).sum(dim=1, dtype=wide)
            return (total_BD / is_token_BT1.sum(dim=1).clamp(min=1)).to(x_BTD.dtype)
        if self.kind == "max":
            highest_BD = x_BTD.masked_fill(~is_token_BT1, torch.finfo(x_BTD.dtype).min).amax(dim=1)
            return highest_BD.masked_fill(~is_token_BT1.any(dim=1), 0)
        assert self.score is not None
        scores_BT1 = self.score(x_BTD)  # under autocast its type may differ from x's
        scores_BT1 = scores_BT1.masked_fill(~is_token_BT1, torch.finfo(scores_BT1.dtype).min)
        return (scores_BT1.softmax(dim=1) * x_BTD.masked_fill(~is_token_BT1, 0)).sum(dim=1)

    def _of_documents(self, x_ND: torch.Tensor, packed: Packed) -> torch.Tensor:
        """Pool packed documents, by sums over segments in float32 or better: in bf16, 256 + 1 is 256."""
        lengths_S, documents_N = packed.lengths(), packed.document_ids(x_ND.shape[0])
        is_empty_S1 = (lengths_S == 0).unsqueeze(1)
        if self.kind == "cls":
            return x_ND[packed.first_tokens()].masked_fill(is_empty_S1, 0)
        zeros_SD = x_ND.new_zeros(packed.num_documents, x_ND.shape[1])
        if self.kind == "max":
            return self._highest_of_documents(x_ND, documents_N, zeros_SD)
        sums_SD = widen(zeros_SD)
        if self.kind == "mean":
            sums_SD = sums_SD.index_add(0, documents_N, widen(x_ND))
            return (sums_SD / lengths_S.clamp(min=1).unsqueeze(1)).to(x_ND.dtype)
        assert self.score is not None
        scores_N = widen(self.score(x_ND)).squeeze(1)
        highest_S = scores_N.new_zeros(packed.num_documents)
        highest_S = highest_S.scatter_reduce(0, documents_N, scores_N, "amax", include_self=False).detach()
        weights_N = (scores_N - highest_S[documents_N]).exp()
        totals_S = weights_N.new_zeros(packed.num_documents).index_add(0, documents_N, weights_N)
        weights_N = weights_N / totals_S[documents_N]
        return sums_SD.index_add(0, documents_N, weights_N.unsqueeze(1) * x_ND).to(x_ND.dtype)

    def _highest_of_documents(
        self, x_ND: torch.Tensor, documents_N: torch.Tensor, zeros_SD: torch.Tensor
    ) -> torch.Tensor:
        """The highest value of each channel; equal values share the gradient, as in `amax`.

        The gradient of `scatter_reduce` needs five tensors [N, D], and is too small where the highest value is 0,
        because it counts the zero that the reduction starts from.
        """
        of_documents_ND = documents_N.unsqueeze(1).expand_as(x_ND)
        highest_SD = zeros_SD.scatter_reduce(0, of_documents_ND, x_ND.detach(), "amax", include_self=False)
        is_highest_ND = x_ND.detach() == highest_SD.index_select(0, documents_N)
        counts_SD = zeros_SD.index_add(0, documents_N, is_highest_ND.to(x_ND.dtype)).clamp(min=1)
        # Zeros with a gradient: a sum of the values themselves may overflow fp16.
        zeros_ND = (x_ND - x_ND.detach()).masked_fill_(~is_highest_ND, 0)
        return highest_SD + zeros_SD.index_add(0, documents_N, zeros_ND) / counts_SD


class PairComparison(nn.Module):
    """How the two texts of a pair compare: W [|u - v|, u * v, sqrt(D) cos(u, v)], u and v the means of their tokens.

    The first text is all before the first separator, [CLS] too, the second all behind it, without separators and
    padding. A sequence without a separator, or with nothing on one side of it, gives zeros. After Reimers and Gurevych
    2019, who encode the two texts apart; here each sees the other.
    """

    def __init__(self, config: ClozeBertConfig):
        super().__init__()
        assert config.sep_token_id is not None  # the configuration checks it
        self.separator = config.sep_token_id
        self.dense = nn.Linear(2 * config.hidden_size + 1, config.hidden_size, bias=False)

    def forward(
        self,
        x_BTD: torch.Tensor,
        input_ids_BT: torch.Tensor,
        mask_BT: torch.Tensor | None = None,
        packed: Packed | None = None,
    ) -> torch.Tensor:
        """Shape: [B, T, D] with the ids and the mask [B, T] -> [B, D]; packed documents -> [documents, D]."""
        text_BT = self._text_of_tokens(input_ids_BT, mask_BT, packed)
        means_S2D, counts_S21 = _means_of_texts(x_BTD, text_BT, packed)
        u_SD, v_SD = means_S2D.unbind(1)
        cosine_S1 = F.cosine_similarity(u_SD, v_SD, dim=-1).unsqueeze(1) * u_SD.shape[1] ** 0.5
        compared = torch.cat([(u_SD - v_SD).abs(), u_SD * v_SD, cosine_S1], dim=1)
        return self.dense(compared.masked_fill((counts_S21 == 0).any(1), 0).to(x_BTD.dtype))

    def _text_of_tokens(
        self, input_ids_BT: torch.Tensor, mask_BT: torch.Tensor | None, packed: Packed | None
    ) -> torch.Tensor:
        """0 for a token of the first text, 1 of the second, 2 for separators and padding: [B, T]."""
        is_separator_BT = torch.eq(input_ids_BT, self.separator)
        is_hidden_BT = torch.zeros_like(is_separator_BT) if mask_BT is None else mask_BT == 0
        is_separator_BT = is_separator_BT & ~is_hidden_BT
        if packed is None:
            separators_BT = is_separator_BT.long().cumsum(1)
        else:
            is_separator_N = is_separator_BT.flatten().long()
            before_N = is_separator_N.cumsum(0) - is_separator_N
            document_N = packed.document_ids(before_N.shape[0])
            separators_BT = (before_N - before_N[packed.first_tokens()][document_N]).view_as(input_ids_BT)
        return separators_BT.clamp(max=1).masked_fill(is_separator_BT | is_hidden_BT, 2)


def _means_of_texts(
    x_BTD: torch.Tensor, text_BT: torch.Tensor, packed: Packed | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of each sequence's two texts in float32 or better, [S, 2, D], and their numbers of tokens, [S, 2, 1]."""
    x_BTD = widen(x_BTD)
    if packed is None:
        of_text_BT1 = [(text_BT == text).unsqueeze(-1) for text in (0, 1)]
        sums_S2D = torch.stack([x_BTD.masked_fill(~one, 0).sum(1) for one in of_text_BT1], dim=1)
        counts_S21 = torch.stack([one.sum(1) for one in of_text_BT1], dim=1)
    else:
        x_ND, groups = x_BTD.flatten(0, 1), 3 * packed.num_documents  # three: the two texts, and what is of neither
        group_N = 3 * packed.document_ids(x_ND.shape[0]) + text_BT.flatten()
        sums = x_ND.new_zeros(groups, x_ND.shape[1]).index_add(0, group_N, x_ND)
        counts = group_N.new_zeros(groups).index_add(0, group_N, torch.ones_like(group_N))
        sums_S2D, counts_S21 = sums.view(-1, 3, x_ND.shape[1])[:, :2], counts.view(-1, 3, 1)[:, :2]
    return sums_S2D / counts_S21.clamp(min=1), counts_S21


class DenseHead(nn.Module):
    """norm(act(W x)), before the vocabulary projection and, depending on the configuration, before classifiers."""

    def __init__(self, config: ClozeBertConfig, *, size: int, activation: str, norm: bool):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, size, bias=config.head_bias)
        self.activation = make_activation(activation)
        self.norm = make_norm(config, size) if norm else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape: [..., D] -> [..., size]."""
        x = self.activation(self.dense(x))
        return x if self.norm is None else self.norm(x)


def make_classifier_head(config: ClozeBertConfig, *, pooled: bool) -> nn.Module:
    """The dense head of a classifier, or the identity, as `classifier_dense` says."""
    if config.classifier_dense == "all" or (pooled and config.classifier_dense == "pooled"):
        return DenseHead(
            config, size=config.hidden_size, activation=config.classifier_activation, norm=config.classifier_norm
        )
    return nn.Identity()


def spans_among_tokens(
    logits_BT2: torch.Tensor, mask_BT: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Start scores and end scores, [B, T] each, and which positions are tokens. Padding gets the lowest score."""
    is_token_BT = None if mask_BT is None else mask_BT.to(logits_BT2.device) != 0
    if is_token_BT is not None:
        logits_BT2 = logits_BT2.masked_fill(~is_token_BT.unsqueeze(-1), torch.finfo(logits_BT2.dtype).min)
    start_BT, end_BT = (x.contiguous() for x in logits_BT2.unbind(-1))
    return start_BT, end_BT, is_token_BT


__all__ = ["DenseHead", "PairComparison", "Pooling", "make_classifier_head", "spans_among_tokens"]
