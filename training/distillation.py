"""Distillation: a smaller model, the student, learns what its teacher predicts, in addition to the tokens themselves.

Over the M masked tokens of a step, with p and q the distributions of teacher and student, h and g their last hidden
states, w the teacher's share:

    L = 1/M sum [ (1 - w) (-log q(token)) + w KL(p || q) + 1 - cos(h, g) ]

(Hinton et al. 2015, https://arxiv.org/abs/1503.02531; the cosine as in Sanh et al. 2019, https://arxiv.org/abs/1910.01108).
The cosine is left out if the two have hidden states of different sizes.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import MaskedLMOutput

from ..modeling import ClozeBertForMaskedLM
from ..modeling.losses import IGNORED_LABEL, few_rows_at_once, softmax_and_log_sum
from ..modeling.packed import Packed
from .initialization.initial_model import load_configuration, make_model

# w: the teacher's share of what the logits learn.
TEACHER_SHARE = 0.8
_NEVER = -1e4  # a logit whose probability is 0 in float32; a number in half precision


class Distillation(nn.Module):
    """Student and teacher, called like a masked-LM model. In training the loss is L, otherwise the student's own.

    Shapes: M masked tokens, D hidden size, V vocabulary.
    """

    def __init__(self, student: ClozeBertForMaskedLM, teacher: ClozeBertForMaskedLM) -> None:
        super().__init__()
        self.student = student
        self.teacher = teacher.requires_grad_(False)
        self.compares_states = student.config.hidden_size == teacher.config.hidden_size
        # The two may have different numbers of rows beyond the tokenizer's. The teacher gives 0 to those it lacks.
        self.rows_more = student.config.vocab_size - teacher.config.vocab_size
        self.train(student.training)

    def train(self, mode: bool = True) -> "Distillation":
        """Set the student's mode. The teacher stays in evaluation mode, without dropout."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(
        self,
        input_ids: torch.Tensor,
        packed: Packed,
        masked_positions: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int,
        loss_only: bool = False,
    ) -> MaskedLMOutput:
        """The loss of a packed batch, summed over its masked tokens and divided by `num_items_in_batch`."""
        inputs: dict[str, Any] = {"input_ids": input_ids, "packed": packed}
        if not self.training:
            return self.student(
                **inputs, masked_positions=masked_positions, labels=labels, num_items_in_batch=num_items_in_batch
            )
        inputs["read_positions"] = masked_positions
        with torch.no_grad():
            states_MD = self.teacher.model(**inputs).last_hidden_state[0]
            wanted_MV = self.teacher.predict(states_MD, None, None)[1]
        found_MD = self.student.model(**inputs).last_hidden_state[0]
        logits_MV = self.student.predict(found_MD, None, None)[1]
        assert logits_MV is not None
        assert wanted_MV is not None
        if self.rows_more:
            wanted_MV = F.pad(wanted_MV, (0, self.rows_more), value=_NEVER)
        loss = _Imitation.apply(logits_MV, wanted_MV, labels, TEACHER_SHARE)
        if self.compares_states:
            apart_M = 1 - F.cosine_similarity(found_MD.float(), states_MD.float(), dim=-1)
            # Positions that only pad the batch are left out here too.
            loss = loss + apart_M.masked_fill(labels == IGNORED_LABEL, 0).sum()
        # At least 1: if nothing is masked, the loss would be NaN.
        loss = loss / torch.as_tensor(num_items_in_batch).clamp(min=1).to(loss.device)
        return MaskedLMOutput(loss=loss, logits=None if loss_only else logits_MV)


class _Imitation(torch.autograd.Function):
    """(1 - w) (-log q(token)) + w KL(p || q), summed over rows, in float32 or better.

    A few rows at a time are widened, so that they stay in a CPU's cache. Their gradient is computed in the same pass.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_MV: torch.Tensor, wanted_MV: torch.Tensor, labels_M: torch.Tensor, share: float
    ) -> torch.Tensor:
        wide = torch.promote_types(logits_MV.dtype, torch.float32)
        total = logits_MV.new_zeros((), dtype=wide)
        # fp16 would lose small gradients before they are multiplied by the loss scale.
        grad_MV = torch.empty_like(logits_MV, dtype=wide if logits_MV.dtype == torch.float16 else None)
        for narrow, wanted, labels, grad in few_rows_at_once(logits_MV, wanted_MV, labels_M, grad_MV):
            logits, token, counts = narrow.to(wide), labels.clamp(min=0)[:, None], labels != IGNORED_LABEL
            q, log_sum_q = softmax_and_log_sum(logits)
            p, log_sum_p = softmax_and_log_sum(wanted.to(wide))
            surprise = log_sum_q - logits.gather(1, token).squeeze(1)
            # Autocast would compute a dot product in half precision.
            divergence = (p * (wanted - logits)).sum(-1) - log_sum_p + log_sum_q
            total += torch.lerp(surprise, divergence, share).masked_fill(~counts, 0).sum()
            # The gradient of each logit: q - w p, and - (1 - w) at the token.
            q.sub_(p, alpha=share).scatter_add_(1, token, q.new_full(token.shape, share - 1))
            grad.copy_(q.mul_(counts[:, None]))
        ctx.save_for_backward(grad_MV)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return ctx.saved_tensors[0] * grad, None, None, None


def with_teacher(student: ClozeBertForMaskedLM, name_or_path: str) -> Distillation:
    """The student with the teacher from a folder or the Hub."""
    config = load_configuration(name_or_path, flag="teacher_name_or_path")
    return Distillation(student, make_model(config, name_or_path, strict=True))
