# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""The encoder with a classifier: for sequences, tokens, question answering, multiple choice, images.

Shapes: B rows, T tokens of a row, D hidden size, C labels.
"""

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    ImageClassifierOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..configuration.configuration_clozebert import ClozeBertConfig
from .encoder import ClozeBertModel, ClozeBertPreTrainedModel, asks_for_states
from .fast_paths import Dropout
from .heads import PairComparison, Pooling, make_classifier_head, spans_among_tokens
from .inputs import leading_shape, row_mask
from .losses import check_label_shape, cross_entropy, find_problem_type, position_loss, sequence_loss
from .packed import Packed, find_packed


class _Classifier(ClozeBertPreTrainedModel):
    """What all classifiers share: encoder, pooling (for one vector per sequence), head, dropout and last layer."""

    pools = True
    outputs: int | None = None  # size of the last layer; None: one for each label

    def __init__(self, config: ClozeBertConfig):
        super().__init__(config)
        assert config.num_labels is not None
        self.num_labels = config.num_labels if self.outputs is None else self.outputs
        self.model = ClozeBertModel(config, add_pooling_layer=False)
        if self.pools:
            self.pooling = Pooling(config)
            self.comparison = PairComparison(config) if config.compare_pairs else None
        self.head = make_classifier_head(config, pooled=self.pools)
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = Dropout(float(dropout))
        self.classifier = nn.Linear(config.hidden_size, self.num_labels, bias=config.classifier_bias)
        self.post_init()

    def _classify(self, x: torch.Tensor) -> torch.Tensor:
        """Shape: [..., D] -> [..., C]."""
        return self.classifier(self.dropout(self.head(x)))

    def _encode_and_pool(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: Any,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, BaseModelOutputWithPooling]:
        """One vector for each row, or for each packed document, [B, D]; and the encoder's output."""
        if self.comparison is not None and input_ids is None:
            raise ValueError("compare_pairs=True finds the two texts by their ids: give input_ids, not inputs_embeds")
        packed = _take_packed(input_ids, attention_mask, position_ids, inputs_embeds, kwargs)
        shows_states = asks_for_states(self.config, kwargs)  # of all tokens
        reads_first = self.pooling.kind == "cls" and self.comparison is None and not shows_states
        first_tokens = packed.first_tokens() if packed is not None and reads_first else None
        kwargs |= {"packed": packed, "read_positions": first_tokens, "return_dict": True}
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        x_BTD = outputs.last_hidden_state
        if packed is not None and first_tokens is not None:
            is_empty_B1 = packed.lengths().unsqueeze(1) == 0
            return x_BTD[0].masked_fill(is_empty_B1.to(x_BTD.device), 0), outputs
        mask_BT = row_mask(attention_mask)
        pooled_BD = self.pooling(x_BTD, mask_BT, packed)
        if self.comparison is not None:
            assert input_ids is not None
            pooled_BD = pooled_BD + self.comparison(x_BTD, input_ids, mask_BT, packed)
        return pooled_BD, outputs

    def _sequence_loss(
        self, logits_BC: torch.Tensor, labels: torch.Tensor | None, num_items_in_batch: torch.Tensor | int | None
    ) -> torch.Tensor | None:
        """The loss by `problem_type`. If the configuration has none, the first labels set it, as in transformers' own
        heads. Pipelines read from the configuration what the scores mean.
        """
        if labels is None:
            return None
        problem_type = self.config.problem_type or find_problem_type(labels, outputs=logits_BC.shape[-1])
        loss = sequence_loss(logits_BC, labels, problem_type=problem_type, num_items_in_batch=num_items_in_batch)
        self.config.problem_type = problem_type  # only now: labels that do not fit decide nothing
        return loss


def _take_packed(
    input_ids: torch.Tensor | None,
    attention_mask: Any,
    position_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    kwargs: Any,
) -> Packed | None:
    """The documents of a batch if it is packed, else None. Removes `packed` from `kwargs`."""
    packed = kwargs.pop("packed", None)
    shape_BT = leading_shape(input_ids, inputs_embeds)
    # The encoder reports what is wrong with other shapes.
    return find_packed(packed, attention_mask, position_ids, shape_BT, kwargs) if len(shape_BT) == 2 else packed


class ClozeBertForSequenceClassification(_Classifier):
    """The encoder with a classifier (or regressor) over the pooled sequence."""

    @can_return_tuple
    def forward(  # type: ignore[misc]  # some of the names below are in TransformersKwargs too
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """The inputs of `ClozeBertModel`, and labels [B] (classes, or values to regress) or [B, C] (several labels, or
        several values). For packed documents, B is their number. Returns loss and logits [B, C].
        """
        pooled_BD, outputs = self._encode_and_pool(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs
        )
        logits = self._classify(pooled_BD)
        return SequenceClassifierOutput(
            loss=self._sequence_loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ClozeBertForTokenClassification(_Classifier):
    """The encoder with a classifier over each token."""

    pools = False

    @can_return_tuple
    def forward(  # type: ignore[misc]  # some of the names below are in TransformersKwargs too
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """The inputs of `ClozeBertModel`, and labels [B, T], -100 for none. Returns loss and logits [B, T, C]."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, return_dict=True, **kwargs)
        logits = self._classify(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            check_label_shape(labels, logits.shape[:2])
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class ClozeBertForQuestionAnswering(_Classifier):
    """The encoder with two scores for each token: that an answer starts, and that it ends there."""

    pools = False
    outputs = 2  # the start and the end

    @can_return_tuple
    def forward(  # type: ignore[misc]  # some of the names below are in TransformersKwargs too
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """The inputs of `ClozeBertModel`, and start_positions and end_positions [B]. Positions outside [0, T) or on
        padding are ignored.

        Returns loss (the mean of the two) and start_logits, end_logits [B, T]. Logits of padding are the lowest number
        of their type, so that padding changes neither the loss nor the scores of tokens.
        """
        if (start_positions is None) != (end_positions is None):
            raise ValueError("give start_positions and end_positions, or neither: the loss is the mean of both")
        packed = _take_packed(input_ids, attention_mask, position_ids, inputs_embeds, kwargs)
        if packed is not None and start_positions is not None:
            raise ValueError(
                "an answer is looked for in one text, but these rows are packed: give start_positions with padded rows"
            )
        kwargs |= {"packed": packed, "return_dict": True}
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        start_BT, end_BT, is_token_BT = spans_among_tokens(
            self._classify(outputs.last_hidden_state), row_mask(attention_mask)
        )
        loss = None
        if start_positions is not None and end_positions is not None:
            of_start = position_loss(start_BT, start_positions, is_token_BT, num_items_in_batch)
            of_end = position_loss(end_BT, end_positions, is_token_BT, num_items_in_batch)
            loss = (of_start + of_end) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_BT,
            end_logits=end_BT,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ClozeBertForMultipleChoice(_Classifier):
    """The encoder with one score for each of several sequences, one of which is right."""

    outputs = 1

    @can_return_tuple
    def forward(  # type: ignore[misc]  # some of the names below are in TransformersKwargs too
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        """The inputs of `ClozeBertModel` with a dimension of choices after the first, and labels [B]. Positions may
        also be [1, T], the same for all choices.

        Returns loss and logits [B, choices].
        """
        given = input_ids if input_ids is not None else inputs_embeds
        if given is None or given.dim() < 3:
            raise ValueError("give input_ids of shape [batch, choices, length], or inputs_embeds with a size after it")
        ids, mask, types, embeds = (
            None if x is None else x.flatten(0, 1) for x in (input_ids, attention_mask, token_type_ids, inputs_embeds)
        )
        positions = None if position_ids is None else position_ids.flatten(0, -2)
        pooled_BD, outputs = self._encode_and_pool(ids, mask, types, positions, embeds, kwargs)
        logits = self._classify(pooled_BD).view(-1, given.shape[1])
        return MultipleChoiceModelOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ClozeBertForImageClassification(_Classifier):
    """The encoder over the patches of an image, with a classifier over the pooled patches: a ViT."""

    main_input_name = "pixel_values"
    input_modalities = ("image",)  # type: ignore[assignment]  # a tuple in transformers too

    def __init__(self, config: ClozeBertConfig):
        if config.image_size is None:
            raise ValueError("ClozeBertForImageClassification needs image_size and patch_size in its configuration")
        super().__init__(config)

    @can_return_tuple
    def forward(  # type: ignore[misc]  # some of the names below are in TransformersKwargs too
        self,
        pixel_values: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """pixel_values [B, channels, height, width], labels [B] or [B, C], attention_mask [B, 1 + patches], nonzero at
        the class token and the patches to look at (None: all). Returns loss and logits [B, C].
        """
        outputs = self.model(attention_mask=attention_mask, pixel_values=pixel_values, return_dict=True, **kwargs)
        logits = self._classify(self.pooling(outputs.last_hidden_state, row_mask(attention_mask)))
        return ImageClassifierOutput(
            loss=self._sequence_loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


__all__ = [
    "ClozeBertForImageClassification",
    "ClozeBertForMultipleChoice",
    "ClozeBertForQuestionAnswering",
    "ClozeBertForSequenceClassification",
    "ClozeBertForTokenClassification",
]
