"""Distillation: a smaller model, the student, learns what its teacher predicts, beside the tokens themselves.

Over the M masked tokens of a step, with p and q the distributions of teacher and student, h and g their last hidden
states, w the teacher's share:

    L = 1/M sum [ (1 - w) (-log q(token)) + w KL(p || q) + 1 - cos(h, g) ]

(Hinton et al. 2015, https://arxiv.org/abs/1503.02531; the cosine as in Sanh et al. 2019, https://arxiv.org/abs/1910.01108).
The cosine is left out where the two have hidden states of different sizes.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import MaskedLMOutput

from ..modeling import ClozeBertForMaskedLM
from ..modeling.heads import IGNORED_LABEL
from ..modeling.packed import Packed
from .initial_model import load_configuration, make_model

# w: the teacher's share of what the logits learn.
TEACHER_SHARE = 0.5


class Distillation(nn.Module):
    """Student and teacher, called as a masked-LM model is: while training, the loss is L; else, the student's own.

    Shapes: M masked tokens, D hidden size, V vocabulary.
    """

    def __init__(self, student: ClozeBertForMaskedLM, teacher: ClozeBertForMaskedLM) -> None:
        super().__init__()
        self.student = student
        self.teacher = teacher.requires_grad_(False)
        self.compares_states = student.config.hidden_size == teacher.config.hidden_size
        # Rows beyond those of the tokenizer may differ in number.
        self.common = min(student.config.vocab_size, teacher.config.vocab_size)
        self.train(student.training)

    def train(self, mode: bool = True) -> "Distillation":
        """The teacher never drops anything out."""
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
        loss, logits_MV = self.student.predict(found_MD, labels, num_items_in_batch)
        # There are labels, so there is a loss.
        assert loss is not None
        assert logits_MV is not None
        assert wanted_MV is not None
        divergence_M = F.kl_div(
            F.log_softmax(logits_MV[:, : self.common].float(), dim=-1),
            F.log_softmax(wanted_MV[:, : self.common].float(), dim=-1),
            log_target=True,
            reduction="none",
        ).sum(dim=-1)
        follows_M = TEACHER_SHARE * divergence_M
        if self.compares_states:
            follows_M = follows_M + 1 - F.cosine_similarity(found_MD.float(), states_MD.float(), dim=-1)
        # Tokens that a batch was filled up with count here no more than in the student's own loss.
        follows = follows_M.masked_fill(labels == IGNORED_LABEL, 0).sum()
        # At least 1: where nothing is masked, the loss would be NaN.
        follows = follows / torch.as_tensor(num_items_in_batch).clamp(min=1).to(follows.device)
        return MaskedLMOutput(loss=(1 - TEACHER_SHARE) * loss + follows, logits=None if loss_only else logits_MV)


def with_teacher(student: ClozeBertForMaskedLM, name_or_path: str) -> Distillation:
    """The student beside the teacher of a folder or the Hub, on the student's device."""
    config = load_configuration(name_or_path, flag="teacher_name_or_path")
    return Distillation(student, make_model(config, name_or_path, strict=True))
