# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""`ClozeBertModel`, the encoder without a head, and the base class that loads, saves and initialises models.

Shapes: B rows, T tokens of a row, D hidden size, V vocabulary, M masked positions, R tokens whose output is read.

A batch is padded rows with an `attention_mask`, or documents packed end to end (packed.py). Packed documents do not see
one another, and heads on pooled vectors return one row for each document.
"""

import os
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..configuration.configuration_clozebert import ClozeBertConfig
from .attention import Attention
from .blocks import EncoderLayer, make_norm
from .bundle import auto_map, files_in, is_class_of_ours, push_saved_files, write_code
from .embeddings import ImageEmbeddings, RotaryEmbedding, TextEmbeddings
from .fast_paths import HALF_PRECISION, is_autocast, is_plain, is_traced, matmul_dtype
from .heads import DenseHead, Pooling
from .inputs import check_ids, check_length, check_mask, check_text, refuse_causal, row_mask
from .packed import Packed, find_packed
from .packed_attention import is_flash, make_masks, read_in_last_layer


class ClozeBertPreTrainedModel(PreTrainedModel):
    """Loading, saving and initialisation. A saved folder carries this code, so it opens without clozebert too."""

    config: ClozeBertConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TextEmbeddings", "ImageEmbeddings", "EncoderLayer"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": Attention}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Normal with `initializer_range`; biases, and the rows of padding of both tables, are zero."""
        super()._init_weights(module)
        std = self.config.initializer_range
        if isinstance(module, ImageEmbeddings):
            init.zeros_(module.class_token)
            if module.table is not None:
                init.trunc_normal_(module.table, mean=0.0, std=std)
        elif getattr(module, "is_output_projection", False):
            # Marked by an attribute: transformers calls this only for modules with own parameters, so not for blocks.
            self._init_output_projection(module)

    def _init_output_projection(self, projection: nn.Module) -> None:
        """The two projections that write into the residual stream may start smaller (Radford et al. 2019) or at 0."""
        if self.config.output_projection_init == "zero":
            init.zeros_(projection.weight)  # type: ignore[arg-type]
        elif self.config.output_projection_init == "scaled":
            std = self.config.initializer_range / (2 * self.config.num_hidden_layers) ** 0.5
            init.normal_(projection.weight, mean=0.0, std=std)  # type: ignore[arg-type]

    def save_pretrained(
        self,
        save_directory: str | os.PathLike,
        is_main_process: bool = True,
        state_dict: dict[str, torch.Tensor] | None = None,
        push_to_hub: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """As transformers' own, with the model's code beside the weights and every Auto class in config.json.

        A subclass with a model type of its own is saved without them: our code would refuse its configuration.
        """
        is_adapter = getattr(self, "_hf_peft_config_loaded", False)  # then only an adapter is saved
        if is_adapter or self.config.model_type != ClozeBertConfig.model_type:
            super().save_pretrained(save_directory, is_main_process, state_dict, push_to_hub, *args, **kwargs)
            return
        self.config.auto_map = auto_map()
        before = files_in(save_directory) if push_to_hub else {}
        super().save_pretrained(save_directory, is_main_process, state_dict, False, *args, **kwargs)
        if is_main_process and os.path.isdir(save_directory):
            write_code(save_directory)
            if push_to_hub:
                written = files_in(save_directory).items() - before.items()
                push_saved_files(save_directory, written, kwargs, tags=self.model_tags)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """For a class of another file, as transformers: it is saved with the model.

        For our own classes, nothing: `save_pretrained` writes their code and the whole auto_map anyway.
        """
        if not is_class_of_ours(cls):
            super().register_for_auto_class(auto_class)


class ClozeBertModel(ClozeBertPreTrainedModel):
    """The encoder without a head: token ids (or pixels) to one vector for each token (or patch).

    With `base_pooler` in the configuration it also pools, unless `add_pooling_layer` is False, as it is under a head.

    Attributes:
        residual_dtype: of the sum that runs through pre-norm layers, under autocast.
    """

    residual_dtype = torch.float32

    def __init__(self, config: ClozeBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        config.check_together()
        self.embeddings = TextEmbeddings(config) if config.image_size is None else ImageEmbeddings(config)
        if config.image_size is not None:
            self.main_input_name = "pixel_values"
            self.input_modalities = ("image",)  # type: ignore[assignment]  # a tuple in transformers too
        self.layers = nn.ModuleList(EncoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.final_norm = make_norm(config, config.hidden_size) if config.has_final_norm else nn.Identity()
        self.rotary_emb = RotaryEmbedding(config) if config.position_embedding_type == "rope" else None
        self.pooling = self.pooler = None
        if config.base_pooler and add_pooling_layer:
            self.pooling = Pooling(config)
            self.pooler = DenseHead(
                config, size=config.hidden_size, activation=config.classifier_activation, norm=config.classifier_norm
            )
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        embeddings: Any = self.embeddings  # an adapter may have wrapped them, so their class is not asked
        return embeddings.word_embeddings if self.config.image_size is None else embeddings.projection

    def set_input_embeddings(self, value: nn.Module) -> None:
        name = "word_embeddings" if self.config.image_size is None else "projection"
        setattr(self.embeddings, name, value)

    @merge_with_config_defaults
    @capture_outputs
    def forward(  # type: ignore[misc]  # some of the names below are in TransformersKwargs too
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | dict[str, Any] | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        packed: Packed | None = None,
        read_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Encode a batch.

        Args:
            input_ids: [B, T] token ids; or `inputs_embeds` [B, T, E]; or, for an image model, `pixel_values`
                [B, channels, height, width].
            attention_mask: [B, T], nonzero at tokens, holes allowed; None: all are tokens. Also as [B, 1, 1, T]:
                boolean, or floats that are 0 at tokens. Or a mask [B, 1, T, T], or one for each layer type, in the form
                that the attention implementation takes; it replaces the window of a layer, too.
            token_type_ids: [B or 1, T]; None: all 0.
            position_ids: [B or 1, T], counted from 0; None: by the configuration's rule.
            packed: the documents of a packed batch, instead of a mask. Or give `cu_seq_lens_q` [documents + 1], as
                transformers' flattening collator does, or position_ids that restart within a row.
            read_positions: [R] indices into the B * T tokens: return the last hidden states of these only. For packed
                documents, a last layer without a window then computes only these (docs/architecture.md says where).

        Returns:
            last_hidden_state [B, T, D], zero at padding, and with `base_pooler` pooler_output [B, D] (a row for each
            packed document); or last_hidden_state [1, R, D] at `read_positions`. hidden_states (the last of which is
            last_hidden_state) and attentions if they are requested.

        Raises:
            ValueError: inputs that contradict one another or the configuration, before anything is computed.
        """
        refuse_causal(kwargs)
        mask_BT = row_mask(attention_mask)
        attention_mask = attention_mask if mask_BT is None else mask_BT
        shape_BT = self._check_inputs(input_ids, attention_mask, token_type_ids, inputs_embeds, pixel_values)
        packed = find_packed(packed, attention_mask, position_ids, shape_BT, kwargs)
        if read_positions is not None:
            check_ids(read_positions, shape_BT.numel(), name="read_positions", limit="batch * length")
        position_ids = self._positions(input_ids, inputs_embeds, position_ids, packed, shape_BT)
        ids = input_ids if self.config.image_size is None else pixel_values
        x_BTD = self.embeddings(
            ids, inputs_embeds=inputs_embeds, token_type_ids=token_type_ids, position_ids=position_ids
        )
        # Under autocast the residual stream has its own type, unless the weights themselves are in half precision. A
        # norm's weight tells; the type of the embeddings does not, as FSDP gathers them in half precision.
        norm: Any = self.layers[0].mlp_norm
        if x_BTD.dtype != torch.float64 and is_autocast(x_BTD) and norm.weight.dtype not in HALF_PRECISION:
            x_BTD = x_BTD.to(self.residual_dtype)

        shows_states = asks_for_states(self.config, kwargs)  # of all tokens, and without padding
        filled = packed  # with padding behind the documents, where sizes should recur
        if filled is not None and not shows_states and self._sizes_should_recur(x_BTD):
            x_BTD, filled = filled.fill_up(x_BTD)
            position_ids = filled.position_ids
        layers: Any = self.layers
        layer_types = [layer.attention_type for layer in layers]
        tables: dict[str, Any] = dict.fromkeys(layer_types)
        if self.rotary_emb is not None:
            tables = {kind: self.rotary_emb(x_BTD, position_ids, kind, filled, mask_BT) for kind in tables}
        dropout = max(layer.attention.dropout.p if layer.attention.training else 0.0 for layer in layers)
        masks = make_masks(self.config, layer_types, x_BTD, attention_mask, filled, dropout=dropout)
        index_R = read_positions  # in what the last layer returns
        if read_positions is not None and not shows_states:
            masks[-1], index_R = read_in_last_layer(masks[-1], x_BTD, filled, read_positions, self.config)
        if filled is not None and is_flash(self.config):
            kwargs = {**kwargs, **filled.flash_arguments()}

        for layer, mask in zip(layers, masks, strict=True):
            x_BTD = layer(x_BTD, attention_mask=mask, position_embeddings=tables[layer.attention_type], **kwargs)
        x_BTD = self.final_norm(_read(x_BTD, index_R))

        if mask_BT is not None:
            hidden_BT1 = _read(mask_BT, index_R).unsqueeze(-1) == 0
            x_BTD = x_BTD.masked_fill(hidden_BT1.to(x_BTD.device), 0)  # the last layer may lie on another device
        if index_R is not None:
            return BaseModelOutputWithPooling(last_hidden_state=x_BTD)
        x_BTD, pooled_BD = x_BTD[:, : shape_BT[1]], None
        if self.pooling is not None and self.pooler is not None:
            pooled_BD = self.pooler(self.pooling(x_BTD, mask_BT, packed))
        return BaseModelOutputWithPooling(last_hidden_state=x_BTD, pooler_output=pooled_BD)

    def _check_inputs(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: Any,
        token_type_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        pixel_values: torch.Tensor | None,
    ) -> torch.Size:
        """Refuse inputs that contradict one another or the configuration; return the batch's shape [B, T]."""
        if self.config.image_size is None:
            return check_text(input_ids, attention_mask, token_type_ids, inputs_embeds, pixel_values)
        for name, value in (("input_ids", input_ids), ("token_type_ids", token_type_ids)):
            if value is not None:
                raise ValueError(f"{name} given to an image model (image_size is set): give pixel_values")
        embeddings: Any = self.embeddings
        shape_BT = embeddings.shape_of(pixel_values, inputs_embeds)
        check_mask(attention_mask, shape_BT)
        return shape_BT

    def _positions(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        packed: Packed | None,
        shape_BT: torch.Size,
    ) -> torch.Tensor | None:
        """Positions [B or 1, T], none for images; where they are added, sequences must not be longer than they reach.

        The embeddings may be wrapped by an adapter, so their class is not asked.
        """
        embeddings: Any = self.embeddings
        if getattr(embeddings, "positions", None) is not None:
            check_length(self.config, shape_BT, packed)
        if packed is not None:
            return packed.position_ids
        if position_ids is None and self.config.image_size is None:
            return embeddings.count_positions(input_ids, inputs_embeds)
        return position_ids

    def _sizes_should_recur(self, x_BTD: torch.Tensor) -> bool:
        """Whether oneDNN would compile new half-precision kernels for this batch's size."""
        return (
            x_BTD.device.type == "cpu"
            and matmul_dtype(x_BTD) in HALF_PRECISION
            and x_BTD.shape[0] == 1
            and self.config._attn_implementation == "sdpa"
            and not is_plain()
            and not is_traced()
        )


def asks_for_states(config: ClozeBertConfig, kwargs: dict[str, Any]) -> bool:
    """Whether the outputs should hold the states of all layers."""
    asked = kwargs.get("output_hidden_states", config.output_hidden_states)
    return asked is not None and asked is not False


def _read(x_BT: torch.Tensor, index_R: torch.Tensor | None) -> torch.Tensor:
    """The tokens at `index_R`, all of them if it is None. Shape: [B, T, ...] -> [1, R, ...]."""
    return x_BT if index_R is None else x_BT.flatten(0, 1)[index_R.to(x_BT.device)].unsqueeze(0)


__all__ = ["ClozeBertModel", "ClozeBertPreTrainedModel"]
