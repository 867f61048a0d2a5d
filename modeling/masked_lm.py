# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""`ClozeBertForMaskedLM`: the encoder with its masked-LM head, which predicts at the masked positions only.

Shapes: B rows, T tokens of a row, D hidden size, V vocabulary, M masked positions.
"""

import torch
from torch import nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..configuration.configuration_clozebert import ClozeBertConfig
from .encoder import ClozeBertModel, ClozeBertPreTrainedModel, asks_for_states
from .heads import DenseHead
from .inputs import check_ids, leading_shape
from .losses import IGNORED_LABEL, check_label_shape, cross_entropy, sampled_cross_entropy


class ClozeBertForMaskedLM(ClozeBertPreTrainedModel):
    """The encoder with a masked-LM head: dense, activation, norm, and the (tied) projection onto the vocabulary."""

    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}

    def __init__(self, config: ClozeBertConfig):
        super().__init__(config)
        if config.image_size is not None:
            raise ValueError(f"ClozeBertForMaskedLM is a text model, but image_size={config.image_size} is set")
        self.model = ClozeBertModel(config, add_pooling_layer=False)
        size = config.embedding_size or config.hidden_size
        activation = config.prediction_activation or config.hidden_act
        self.head: nn.Module = nn.Identity()
        if config.prediction_dense:
            self.head = DenseHead(config, size=size, activation=activation, norm=True)
        elif size != config.hidden_size:
            raise ValueError(
                f"prediction_dense=False leaves nothing between hidden_size={config.hidden_size} and "
                f"embedding_size={size}: make them equal"
            )
        self.decoder = nn.Linear(size, config.vocab_size, bias=config.decoder_bias)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.decoder = new_embeddings

    @can_return_tuple
    def forward(  # type: ignore[misc]  # some of the names below are in TransformersKwargs too
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        masked_positions: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        loss_only: bool = False,
        sampled_ids: torch.Tensor | None = None,
        sampled_log_rates: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """The loss and logits of a batch. Takes the inputs of `ClozeBertModel` and those below.

        Args:
            labels: [B, T] ids, -100 where nothing is to be predicted; with `masked_positions`, [M].
            masked_positions: [M] indices into the B * T tokens: logits are computed there only.
            num_items_in_batch: labels in the whole global batch; the loss is divided by it.
            loss_only: return no logits. For training steps, since Accelerate copies what is returned to float32.
            sampled_ids: [S] tokens of the vocabulary, the only ones that labels are compared with; then there are no
                logits, and the loss is an estimate (`sampled_cross_entropy`).
            sampled_log_rates: [S] logarithms of the probabilities that a sample holds each of these tokens.

        Returns:
            loss; logits [B, T, V], or [M, V] at `masked_positions`, or at the labelled positions with
            `sparse_prediction`.
        """
        shape_BT = leading_shape(input_ids, inputs_embeds)
        if masked_positions is None and labels is not None:
            check_label_shape(labels, shape_BT)
        if masked_positions is None and labels is not None and self.config.sparse_prediction:
            masked_positions = (labels.flatten() != IGNORED_LABEL).nonzero().squeeze(1)
            labels = labels.flatten()[masked_positions]
        elif masked_positions is not None and labels is not None and labels.shape != masked_positions.shape:
            raise ValueError(
                f"labels of shape {tuple(labels.shape)} must have masked_positions' shape, "
                f"{tuple(masked_positions.shape)}"
            )
        if masked_positions is not None and len(shape_BT) == 2:  # else the encoder refuses the input
            check_ids(masked_positions, shape_BT.numel(), name="masked_positions", limit="batch * length")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        read = None if asks_for_states(self.config, kwargs) else masked_positions  # states are those of all tokens
        outputs = self.model(*inputs, read_positions=read, return_dict=True, **kwargs)
        x = outputs.last_hidden_state
        if masked_positions is not None:
            x = x[0] if read is not None else x.flatten(0, 1)[masked_positions.to(x.device)]
        if sampled_ids is None:
            loss, logits = self.predict(x, labels, num_items_in_batch, loss_only=loss_only)
        else:
            loss, logits = self.predict_among(x, labels, num_items_in_batch, sampled_ids, sampled_log_rates), None
        return MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def predict(
        self,
        x: torch.Tensor,
        labels: torch.Tensor | None,
        num_items_in_batch: torch.Tensor | int | None,
        *,
        loss_only: bool = False,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Loss and logits at states [..., D].

        One function, so that it compiles into one graph. Logits that a graph returns would get a gradient of zeros.
        """
        logits = self.decoder(self.head(x))
        loss = None
        if labels is not None:
            loss = cross_entropy(logits.flatten(0, -2), labels.flatten(), num_items_in_batch)
        return loss, None if loss_only else logits

    def predict_among(
        self,
        x: torch.Tensor,
        labels: torch.Tensor | None,
        num_items_in_batch: torch.Tensor | int | None,
        sampled_ids_S: torch.Tensor,
        sampled_log_rates_S: torch.Tensor | None,
    ) -> torch.Tensor:
        """The loss at states [..., D], estimated from a sample of the vocabulary."""
        if labels is None or sampled_log_rates_S is None:
            raise ValueError("sampled_ids need labels and sampled_log_rates: they give a loss, and no logits")
        x_MD = self.head(x).flatten(0, -2)
        return sampled_cross_entropy(
            x_MD, self.decoder, labels.flatten(), sampled_ids_S, sampled_log_rates_S, num_items_in_batch
        )


__all__ = ["ClozeBertForMaskedLM"]
