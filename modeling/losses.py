# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""The losses of all heads: cross-entropy over labelled tokens (masked LM) or classes, over a sample of the vocabulary,
and the losses of regression and of several labels at once.

Every loss is a sum over labels divided by their number in the whole batch.

Shapes: B sequences, T tokens, D hidden size, C classes, V vocabulary, S tokens of a sample of it, M predicted items.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch.nn import functional as F

from .fast_paths import is_plain, is_traced, value_outside, widen

IGNORED_LABEL = -100
# How many logits are widened to float32 at once.
WIDENED_ON_CPU, WIDENED = 1 << 20, 1 << 28
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]


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
        total = _CrossEntropyOfRows.apply(logits_MC, labels_M)
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
    is_label_M, labels_M = labels_M != IGNORED_LABEL, _class_of(labels_M)
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


def position_loss(
    logits_BT: torch.Tensor,
    positions_B: torch.Tensor,
    is_token_BT: torch.Tensor | None,
    num_items_in_batch: torch.Tensor | int | None,
) -> torch.Tensor:
    """Cross-entropy over the tokens of a row; positions without a token are ignored."""
    positions_B = positions_B.flatten().to(logits_BT.device)
    _check_count(positions_B, logits_BT.shape[0])
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
    problem_type: str,
    num_items_in_batch: torch.Tensor | int | None = None,
    class_weights_C: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean squared error (`regression`), cross-entropy (`single_label_classification`) or binary cross-entropy of each
    label (`multi_label_classification`), summed and divided by the number of labels.

    Class weights are for single labels.

    Raises:
        ValueError: an unknown problem type, or labels whose shape or type does not fit it.
    """
    labels = labels.to(logits_BC.device)
    if problem_type == "single_label_classification":
        if labels.is_floating_point():
            raise ValueError(
                f"labels of type {labels.dtype} do not fit problem_type={problem_type!r}: give whole numbers, or set "
                f"problem_type in the configuration"
            )
        if labels.dim() == 2 and labels.shape == logits_BC.shape and logits_BC.shape[1] > 1:
            raise ValueError(
                f"labels of shape {tuple(labels.shape)} are several for each text: give them as floats, and set "
                f"problem_type='multi_label_classification'"
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


class _CrossEntropyOfRows(torch.autograd.Function):
    """-sum log softmax(logits)[label], in float32 or better; labels of -100 are left out.

    There is no tensor of all log-probabilities, and no float32 copy of half-precision logits. A few rows at a time are
    read and widened, once in the forward and once in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, logits_MC: torch.Tensor, labels_M: torch.Tensor) -> torch.Tensor:
        log_sums_M = torch.cat([softmax_and_log_sum(widen(rows))[1] for (rows,) in few_rows_at_once(logits_MC)])
        ctx.save_for_backward(logits_MC, labels_M)
        counted_M = labels_M != IGNORED_LABEL
        chosen_M = widen(logits_MC.gather(1, _class_of(labels_M)[:, None]).squeeze(1))
        return (log_sums_M - chosen_M).masked_fill(~counted_M, 0).sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits_MC, labels_M = ctx.saved_tensors
        scale_M = grad * (labels_M != IGNORED_LABEL)
        # d(-log softmax(x)[label]) / dx = softmax(x) - 1[label]
        if torch.is_grad_enabled() or _is_batched(grad):  # the gradient itself will be differentiated, or is several
            probabilities = widen(logits_MC).softmax(dim=-1)
            probabilities = probabilities - F.one_hot(_class_of(labels_M), logits_MC.shape[1])
            return (probabilities * scale_M[:, None]).to(logits_MC.dtype), None
        grad_MC = torch.empty_like(logits_MC)
        wide = torch.promote_types(logits_MC.dtype, torch.float32)
        for rows, out, labels, scale in few_rows_at_once(logits_MC, grad_MC, labels_M, scale_M):
            is_wide = out.dtype == wide
            probabilities = torch.softmax(rows, dim=-1, dtype=wide, out=out if is_wide else None)
            probabilities.scatter_add_(1, _class_of(labels)[:, None], probabilities.new_full((len(labels), 1), -1))
            probabilities.mul_(scale[:, None])
            if not is_wide:
                out.copy_(probabilities)
        return grad_MC, None


def _is_batched(grad: torch.Tensor) -> bool:
    """Whether this is several gradients at once (`is_grads_batched` of `torch.autograd.grad`), not to be written into.

    PyTorch has no public way to ask.
    """
    functorch = getattr(torch._C, "_functorch", None)
    asks = (getattr(functorch, name, None) for name in ("is_legacy_batchedtensor", "is_batchedtensor"))
    return any(ask is not None and ask(grad) for ask in asks)


def _class_of(labels_M: torch.Tensor) -> torch.Tensor:
    """0 for ignored labels. Other negative ones stay: on a CUDA device, nothing but its kernels refuses them."""
    return labels_M.masked_fill(labels_M == IGNORED_LABEL, 0)


def few_rows_at_once(logits_MC: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same few rows of each tensor, part by part.

    A part has about 4 MB of widened logits on a CPU, where they stay in its cache, and 1 GB elsewhere.
    """
    widened = WIDENED_ON_CPU if logits_MC.device.type == "cpu" else WIDENED
    rows = max(1, widened // max(1, logits_MC.shape[1]))
    return zip(*(tensor.split(rows) for tensor in (logits_MC, *others)), strict=True)


def softmax_and_log_sum(x_MC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax [M, C] and log-sum-exp [M]. The largest probability is e^largest / sum, which gives the sum.

    On a CPU, PyTorch's softmax takes less time than its exponentials alone (docs/LOG.md).
    """
    probabilities_MC = x_MC.softmax(dim=-1)
    return probabilities_MC, x_MC.amax(dim=-1) - probabilities_MC.amax(dim=-1).log()


def _check_labels(labels_M: torch.Tensor, *, rows: int, classes: int) -> None:
    """Raise `ValueError` for a wrong number of labels, for floats and, on a CPU, for labels outside the classes."""
    _check_count(labels_M, rows)
    if labels_M.is_floating_point():
        raise ValueError(f"labels of type {labels_M.dtype} must be whole numbers: each is the number of a class")
    wrong = value_outside(labels_M, classes, ignored=IGNORED_LABEL)
    if wrong is not None:
        raise ValueError(f"labels hold {wrong}, outside the {classes} classes; {IGNORED_LABEL} marks no label")


def _check_count(labels_M: torch.Tensor, rows: int) -> None:
    if labels_M.numel() != rows:
        raise ValueError(f"labels hold {labels_M.numel()} numbers, but there are {rows} predictions: give one for each")


def check_label_shape(labels: torch.Tensor, shape_BT: torch.Size) -> None:
    """Raise `ValueError` for labels of tokens in another shape, such as transposed ones; flat ones are taken.

    An input that is not [B, T] is the encoder's to refuse.
    """
    if labels.dim() > 1 and len(shape_BT) == 2 and labels.shape != shape_BT:
        raise ValueError(f"labels of shape {tuple(labels.shape)} must be {tuple(shape_BT)}, as the input")


def _divide(total: torch.Tensor, here: Any, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor:
    items = here if num_items_in_batch is None else num_items_in_batch
    if isinstance(items, torch.Tensor):
        return total / items.to(total.device).clamp(min=1)
    return total / max(items, 1)


__all__ = [
    "IGNORED_LABEL", "WIDENED", "WIDENED_ON_CPU", "check_label_shape", "cross_entropy", "few_rows_at_once",
    "find_problem_type", "position_loss", "sampled_cross_entropy", "sequence_loss", "softmax_and_log_sum",
]  # fmt: skip
