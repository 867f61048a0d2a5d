# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Pooling (CLS, mean, max, attention), the dense head, and the losses that all heads share.

Shapes: B sequences, T tokens, N tokens of S packed documents, D hidden size, C labels, M predicted items.
"""

from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from ..configuration.configuration_clozebert import ClozeBertConfig
from .blocks import make_activation, make_norm
from .kernels import CrossEntropyOfRows, is_plain, is_traced, value_outside, widen
from .packed import Packed

IGNORED_LABEL = -100
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]


class Pooling(nn.Module):
    """One vector for each sequence, from its tokens only: padding on either side and holes in the mask are ignored.

    `cls`: the first token. `mean`: over the tokens. `max`: of each channel. `attention`: sum of softmax(u . x) x with a
    learned u. A sequence without tokens gives zeros.
    """

    def __init__(self, config: ClozeBertConfig):
        super().__init__()
        self.kind = config.classifier_pooling
        self.score = nn.Linear(config.hidden_size, 1, bias=False) if self.kind == "attention" else None

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


def cross_entropy(
    logits_MC: torch.Tensor,
    labels_M: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    *,
    class_weights_C: torch.Tensor | None = None,
) -> torch.Tensor:
    """-sum w[label] log softmax(logits)[label] / items. Labels of -100 are ignored; without any label the loss is 0.

    `items` is the number of labels in the whole global batch if the training loop gives it, else in this batch. So any
    split of a batch gives the same gradient. `w` is 1 without class weights, which do not change `items`.
    """
    _check_labels(labels_M, rows=logits_MC.shape[0], classes=logits_MC.shape[-1])
    labels_M = labels_M.to(logits_MC.device).long()
    if class_weights_C is None and not is_plain() and not is_traced():
        total = CrossEntropyOfRows.apply(logits_MC, labels_M, IGNORED_LABEL)
    else:
        logits_MC = widen(logits_MC)
        weight_C = None if class_weights_C is None else class_weights_C.to(logits_MC)
        total = F.cross_entropy(logits_MC, labels_M, weight=weight_C, ignore_index=IGNORED_LABEL, reduction="sum")
    return _divide(total, (labels_M != IGNORED_LABEL).sum(), num_items_in_batch)


def sampled_cross_entropy(
    x_MD: torch.Tensor,
    decoder: Any,
    labels_M: torch.Tensor,
    sampled_ids_S: torch.Tensor,
    sampled_log_rates_S: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """`cross_entropy` of decoder(x), with the sum over the vocabulary estimated from a sample of it:

        exp(logit[label]) + sum over i in the sample, i != label, of exp(logit[i]) / rate[i]

    (importance sampling: Jean et al. 2015, https://arxiv.org/abs/1412.2007). A rate is the probability that a sample
    holds the token. The estimate of the sum is unbiased; that of the loss is a little too low.

    Args:
        decoder: a linear layer onto the vocabulary.
    """
    vocab_size = decoder.weight.shape[0]
    _check_labels(labels_M, rows=x_MD.shape[0], classes=vocab_size)
    labels_M, sampled_ids_S = labels_M.to(x_MD.device).long(), sampled_ids_S.long()
    is_label_M, labels_M = labels_M != IGNORED_LABEL, labels_M.clamp(min=0)
    ids, sizes = torch.cat([sampled_ids_S, labels_M]), [len(sampled_ids_S), len(labels_M)]
    weight_SD, weight_MD = F.embedding(ids, decoder.weight).split(sizes)
    # Rates in float32, whatever the type of the matmul: in bf16 each would be off by up to 3 %.
    offset_S = -sampled_log_rates_S
    of_labels_M = (x_MD * weight_MD).sum(dim=-1)
    if decoder.bias is not None:
        bias_S, bias_M = decoder.bias[ids].split(sizes)
        offset_S, of_labels_M = offset_S + bias_S, of_labels_M + bias_M
    logits_MS = F.linear(x_MD, weight_SD) + offset_S
    # If the sample holds the label, its logit is removed: e^(min / 2) is 0.
    index_V = ids.new_full((vocab_size,), -1).scatter(0, sampled_ids_S, torch.arange(sizes[0], device=ids.device))
    index_M = index_V[labels_M]
    removed_M = (index_M >= 0).to(logits_MS.dtype) * (torch.finfo(logits_MS.dtype).min / 2)
    logits_MS.scatter_add_(1, index_M.clamp(min=0)[:, None], removed_M[:, None])
    # Not torch.logsumexp, whose gradient computes all exponentials a second time.
    highest_M1 = logits_MS.detach().amax(dim=1, keepdim=True)
    of_others_M = (logits_MS - highest_M1).exp_().sum(dim=1).log() + highest_M1.squeeze(1)
    losses_M = F.softplus(of_others_M - of_labels_M)  # log(e^label + e^others) - label
    return _divide(losses_M.masked_fill(~is_label_M, 0).sum(), is_label_M.sum(), num_items_in_batch)


def spans_among_tokens(
    logits_BT2: torch.Tensor, mask_BT: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Start scores and end scores, [B, T] each, and which positions are tokens. Padding gets the lowest score."""
    is_token_BT = None if mask_BT is None else mask_BT.to(logits_BT2.device) != 0
    if is_token_BT is not None:
        logits_BT2 = logits_BT2.masked_fill(~is_token_BT.unsqueeze(-1), torch.finfo(logits_BT2.dtype).min)
    start_BT, end_BT = (x.contiguous() for x in logits_BT2.unbind(-1))
    return start_BT, end_BT, is_token_BT


def position_loss(
    logits_BT: torch.Tensor,
    positions_B: torch.Tensor,
    is_token_BT: torch.Tensor | None,
    num_items_in_batch: torch.Tensor | int | None,
) -> torch.Tensor:
    """Cross-entropy over the tokens of a row; positions without a token are ignored."""
    positions_B = positions_B.flatten().to(logits_BT.device)
    last = logits_BT.shape[1] - 1
    outside_B = (positions_B < 0) | (positions_B > last)
    if is_token_BT is not None:
        outside_B |= ~is_token_BT.gather(1, positions_B.clamp(0, last).long().unsqueeze(1)).squeeze(1)
    return cross_entropy(logits_BT, positions_B.masked_fill(outside_B, IGNORED_LABEL), num_items_in_batch)


def find_problem_type(labels: torch.Tensor, *, outputs: int) -> ProblemType:
    """One output means regression. With more, integer labels mean one label per sequence, and other types several."""
    if outputs == 1:
        return "regression"
    is_class = labels.dtype in (torch.long, torch.int, torch.int16, torch.int8, torch.uint8)
    return "single_label_classification" if is_class else "multi_label_classification"


def sequence_loss(
    logits_BC: torch.Tensor,
    labels: torch.Tensor,
    *,
    problem_type: str | None,
    num_items_in_batch: torch.Tensor | int | None = None,
    class_weights_C: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean squared error (`regression`), cross-entropy (`single_label_classification`) or binary cross-entropy of each
    label (`multi_label_classification`), summed and divided by the number of labels.

    Without a problem type, `find_problem_type` derives it from the labels. Class weights are for single labels.

    Raises:
        ValueError: an unknown problem type, or labels whose shape or type does not fit it.
    """
    problem_type = problem_type or find_problem_type(labels, outputs=logits_BC.shape[-1])
    labels = labels.to(logits_BC.device)
    if problem_type == "single_label_classification":
        if labels.is_floating_point():
            raise ValueError(
                f"labels of type {labels.dtype} do not fit problem_type={problem_type!r}: give whole numbers, or set "
                f"problem_type in the configuration"
            )
        return cross_entropy(logits_BC, labels.reshape(-1), num_items_in_batch, class_weights_C=class_weights_C)
    if class_weights_C is not None:
        raise ValueError(f"class weights are for single_label_classification, not for problem_type={problem_type!r}")
    # One-dimensional labels are a number for each sequence. Two-dimensional ones must not be transposed.
    if labels.numel() != logits_BC.numel() or (labels.dim() > 1 and labels.shape != logits_BC.shape):
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(logits_BC.shape)} "
            f"under problem_type={problem_type!r}"
        )
    logits, targets = widen(logits_BC).flatten(), labels.flatten()
    if problem_type == "regression":
        total = F.mse_loss(logits, targets.to(logits.dtype), reduction="sum")
    elif problem_type == "multi_label_classification":
        total = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="sum")
    else:
        raise ValueError(
            f"problem_type={problem_type!r} must be regression, single_label_classification or "
            f"multi_label_classification"
        )
    return _divide(total, targets.numel(), num_items_in_batch)


def _check_labels(labels_M: torch.Tensor, *, rows: int, classes: int) -> None:
    """Raise `ValueError` for a wrong number of labels, for floats and, on a CPU, for labels outside the classes."""
    if labels_M.numel() != rows:
        raise ValueError(f"labels hold {labels_M.numel()} numbers, but there are {rows} predictions: give one for each")
    if labels_M.is_floating_point():
        raise ValueError(f"labels of type {labels_M.dtype} must be whole numbers: each is the number of a class")
    wrong = value_outside(labels_M, classes, ignored=IGNORED_LABEL)
    if wrong is not None:
        raise ValueError(f"labels hold {wrong}, outside the {classes} classes; {IGNORED_LABEL} marks no label")


def _divide(total: torch.Tensor, here: Any, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor:
    items = here if num_items_in_batch is None else num_items_in_batch
    if isinstance(items, torch.Tensor):
        return total / items.to(total.device).clamp(min=1)
    return total / max(items, 1)


__all__ = [
    "IGNORED_LABEL", "DenseHead", "Pooling", "cross_entropy", "find_problem_type", "make_classifier_head",
    "position_loss", "sequence_loss", "spans_among_tokens",
]  # fmt: skip
