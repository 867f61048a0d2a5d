# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""What stands on the encoder: pooling, the dense head, and the losses that all heads share.

Shapes: B sequences, T tokens, N tokens of a packed run, D hidden size, C labels, M predicted items.
"""

from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from ..configuration.configuration_clozebert import ClozeBertConfig
from .blocks import make_activation, make_norm

IGNORED_LABEL = -100
ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]


class Pooling(nn.Module):
    """One vector for each sequence. Padding on either side, or holes in the mask, change nothing.

    `cls`: the first token. `mean`: sum of the tokens / max(1, their number). `max`: of each channel. `attention`:
    sum of softmax(u . x) x with a learned u.
    """

    def __init__(self, config: ClozeBertConfig):
        super().__init__()
        self.kind = config.classifier_pooling
        self.score = nn.Linear(config.hidden_size, 1, bias=False) if self.kind == "attention" else None

    def forward(self, x_BTD: torch.Tensor, mask_BT: torch.Tensor | None = None) -> torch.Tensor:
        """Shape: [B, T, D], mask [B, T] (nonzero: a token) -> [B, D]."""
        if mask_BT is None:
            mask_BT = torch.ones(x_BTD.shape[:2], dtype=torch.bool, device=x_BTD.device)
        is_token_BT1 = mask_BT.bool().unsqueeze(-1)
        if self.kind == "cls":
            first_B = is_token_BT1.squeeze(-1).to(torch.uint8).argmax(dim=1)
            return x_BTD[torch.arange(x_BTD.shape[0], device=x_BTD.device), first_B]
        if self.kind == "mean":
            total_BD = x_BTD.masked_fill(~is_token_BT1, 0).sum(dim=1)
            return total_BD / is_token_BT1.sum(dim=1).clamp(min=1).to(x_BTD.dtype)
        lowest = torch.finfo(x_BTD.dtype).min
        if self.kind == "max":
            highest_BD = x_BTD.masked_fill(~is_token_BT1, lowest).amax(dim=1)
            return highest_BD.masked_fill(~is_token_BT1.any(dim=1), 0)  # of a row without tokens
        assert self.score is not None
        scores_BT1 = self.score(x_BTD).masked_fill(~is_token_BT1, lowest)
        return (scores_BT1.softmax(dim=1) * x_BTD.masked_fill(~is_token_BT1, 0)).sum(dim=1)


class DenseHead(nn.Module):
    """norm(act(W x)): what stands before the vocabulary projection and, by configuration, before classifiers."""

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
    """The dense head of a classifier, or nothing, as `classifier_dense` says."""
    if config.classifier_dense == "all" or (pooled and config.classifier_dense == "pooled"):
        return DenseHead(
            config, size=config.hidden_size, activation=config.classifier_activation, norm=config.classifier_norm
        )
    return nn.Identity()


def pad_packed(x_1ND: torch.Tensor, cu_seq_lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shape: a packed run [1, N, D] -> documents [B, T, D] and their mask [B, T]."""
    lengths_B = cu_seq_lens.diff().long()
    columns_T = torch.arange(int(lengths_B.max()), device=x_1ND.device)
    mask_BT = columns_T < lengths_B[:, None]
    index_BT = (cu_seq_lens[:-1, None] + columns_T).clamp(max=x_1ND.shape[1] - 1)
    return x_1ND[0][index_BT], mask_BT


def cross_entropy(
    logits_MC: torch.Tensor,
    labels_M: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    *,
    class_weights_C: torch.Tensor | None = None,
) -> torch.Tensor:
    """-sum w[label] log softmax(logits)[label] / items. Labels of -100 count nowhere; with no label the loss is 0.

    `items` is the number of labels in the whole global batch where the training loop gives it, else that of this
    batch; so any split of a batch gives the same gradient. `w` is 1 without class weights, which do not change `items`.
    """
    _check_labels(labels_M, rows=logits_MC.shape[0], classes=logits_MC.shape[-1])
    labels_M = labels_M.to(logits_MC.device).long()
    if class_weights_C is None and logits_MC.dtype in (torch.bfloat16, torch.float16):
        total = _HalfPrecisionCrossEntropy.apply(logits_MC, labels_M)
    else:
        logits_MC = widen(logits_MC)
        weight_C = None if class_weights_C is None else class_weights_C.to(logits_MC)
        total = F.cross_entropy(logits_MC, labels_M, weight=weight_C, ignore_index=IGNORED_LABEL, reduction="sum")
    return _divide(total, (labels_M != IGNORED_LABEL).sum(), num_items_in_batch)


class _HalfPrecisionCrossEntropy(torch.autograd.Function):
    """The summed cross-entropy of half-precision logits, computed in float32 without a float32 copy of them all.

    In bf16 itself the loss shifts in its third decimal. A few rows at a time are widened, once in each direction.
    """

    @staticmethod
    def forward(ctx: Any, logits_MC: torch.Tensor, labels_M: torch.Tensor) -> torch.Tensor:
        log_sums_M = torch.cat([rows.float().logsumexp(dim=-1) for rows in logits_MC.split(_rows_at_once(logits_MC))])
        ctx.save_for_backward(logits_MC, labels_M, log_sums_M)
        counted_M = labels_M != IGNORED_LABEL
        chosen_M = logits_MC.gather(1, labels_M.clamp(min=0)[:, None]).squeeze(1).float()
        return (log_sums_M - chosen_M).masked_fill(~counted_M, 0).sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits_MC, labels_M, log_sums_M = ctx.saved_tensors
        scale_M = grad * (labels_M != IGNORED_LABEL)
        grad_MC = torch.empty_like(logits_MC)
        tensors = (logits_MC, grad_MC, log_sums_M, labels_M, scale_M)
        chunks = (x.split(_rows_at_once(logits_MC)) for x in tensors)
        for rows, out, log_sums, labels, scale in zip(*chunks, strict=True):
            # d(-log softmax(x)[label]) / dx = softmax(x) - 1[label]
            probabilities = (rows.float() - log_sums[:, None]).exp_()
            probabilities.scatter_add_(1, labels.clamp(min=0)[:, None], -torch.ones_like(log_sums)[:, None])
            out.copy_(probabilities.mul_(scale[:, None]))
        return grad_MC, None


def _rows_at_once(logits_MC: torch.Tensor) -> int:
    """Rows that are widened together: about 4 MB on a CPU, where they stay in its cache, and 1 GB elsewhere."""
    return max(1, (1 << 20 if logits_MC.device.type == "cpu" else 1 << 28) // max(1, logits_MC.shape[-1]))


def find_problem_type(labels: torch.Tensor, *, outputs: int) -> ProblemType:
    """One output means regression; with more, whole-number labels mean one label a sequence, others several."""
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

    Without a problem type, it is what `find_problem_type` says of the labels. Class weights are for single labels.

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
    if labels.numel() != logits_BC.numel():
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
    """Raise `ValueError` for labels of another number or, on a CPU, outside the classes."""
    if labels_M.numel() != rows:
        raise ValueError(f"labels hold {labels_M.numel()} numbers, but there are {rows} predictions: give one for each")
    if labels_M.device.type != "cpu" or torch.compiler.is_compiling() or not labels_M.numel():
        return
    low, high = (int(value) for value in torch.aminmax(labels_M.masked_fill(labels_M == IGNORED_LABEL, 0)))
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise ValueError(f"labels hold {wrong}, outside the {classes} classes; {IGNORED_LABEL} marks no label")


def widen(x: torch.Tensor) -> torch.Tensor:
    """Half precision to float32; wider types stay."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _divide(total: torch.Tensor, here: Any, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor:
    items = here if num_items_in_batch is None else num_items_in_batch
    if isinstance(items, torch.Tensor):
        return total / items.to(total.device).clamp(min=1)
    return total / max(items, 1)


__all__ = [
    "IGNORED_LABEL", "DenseHead", "Pooling", "cross_entropy", "find_problem_type", "make_classifier_head", "pad_packed",
    "sequence_loss",
]  # fmt: skip
