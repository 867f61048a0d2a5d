# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""The encoder and its heads, as transformers models.

Shapes: B rows, T tokens of a row, N tokens of a packed run (B = 1), D hidden size, V vocabulary, C labels, M masked
positions.

A packed run holds several documents, `input_ids` [1, N], with `position_ids` that restart at each, or with
`cu_seq_lens_q` (cumulative lengths, [documents + 1]) as transformers' flattening collator gives them. No document sees
another, and heads over pooled vectors return one row for each document.
"""

import itertools
import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    ImageClassifierOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..configuration.configuration_clozebert import ClozeBertConfig
from .attention import Attention
from .blocks import EncoderLayer, make_norm
from .bundle import auto_map, write_code
from .dropout import Dropout
from .embeddings import ImageEmbeddings, RotaryEmbedding, TextEmbeddings, check_ids
from .heads import (
    DenseHead,
    Pooling,
    cross_entropy,
    find_problem_type,
    make_classifier_head,
    pad_packed,
    sequence_loss,
)
from .products import is_recorded
from .ragged_attention import RaggedPlan, plan_ragged_attention

_MASK_MAKERS = {
    "full_attention": create_bidirectional_mask,
    "sliding_attention": create_bidirectional_sliding_window_mask,
}


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
        """Normal with `initializer_range`; biases, padding rows and tables of positions nobody stands on are zero."""
        super()._init_weights(module)
        std = self.config.initializer_range
        if isinstance(module, ImageEmbeddings):
            init.zeros_(module.class_token)
            if module.table is not None:
                init.trunc_normal_(module.table, mean=0.0, std=std)
        elif getattr(module, "is_output_projection", False):
            # By a mark of their own: transformers calls this for modules that hold parameters, which no block does.
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
        """As transformers' own, with the model's code beside the weights and every Auto class in config.json."""
        self.config.auto_map = auto_map()
        super().save_pretrained(save_directory, is_main_process, state_dict, False, *args, **kwargs)
        if is_main_process and os.path.isdir(save_directory):
            code_files = write_code(save_directory)
            if push_to_hub:
                self._push_folder(save_directory, code_files, kwargs)

    @staticmethod
    def _push_folder(directory: str | os.PathLike, code_files: list[str], options: dict[str, Any]) -> None:
        """Upload what `save_pretrained` wrote and the code, which is not there yet when the stock upload runs."""
        from huggingface_hub import HfApi

        api = HfApi(token=options.get("token") if isinstance(options.get("token"), str) else None)
        repo_id = options.get("repo_id") or os.path.basename(os.path.normpath(directory))
        repo_id = api.create_repo(repo_id, private=options.get("private"), exist_ok=True).repo_id
        api.upload_folder(
            repo_id=repo_id,
            folder_path=os.fspath(directory),
            allow_patterns=["config.json", "*.safetensors", "*.safetensors.index.json", *code_files],
            commit_message=options.get("commit_message") or "Upload model",
            revision=options.get("revision"),
            create_pr=options.get("create_pr", False),
        )

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing to do: `save_pretrained` writes the code and the whole auto_map for every class anyway."""


class ClozeBertModel(ClozeBertPreTrainedModel):
    """The encoder without a head: token ids (or pixels) to one vector for each token (or patch).

    With `base_pooler` in the configuration it pools, too, unless `add_pooling_layer` is False, as under a head.
    """

    def __init__(self, config: ClozeBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = TextEmbeddings(config) if config.image_size is None else ImageEmbeddings(config)
        if config.image_size is not None:
            self.main_input_name = "pixel_values"
            self.input_modalities = ("image",)  # type: ignore[assignment]  # a tuple in transformers too
        self.layers = nn.ModuleList(EncoderLayer(config, index) for index in range(config.num_hidden_layers))
        has_final_norm = config.norm_position == "pre" if config.final_norm is None else config.final_norm
        self.final_norm = make_norm(config, config.hidden_size) if has_final_norm else nn.Identity()
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
        if isinstance(self.embeddings, ImageEmbeddings):
            return self.embeddings.projection
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        if isinstance(self.embeddings, ImageEmbeddings):
            self.embeddings.projection = value  # type: ignore[assignment]
        else:
            self.embeddings.word_embeddings = value  # type: ignore[assignment]

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
        read_positions: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Encode a batch.

        Args:
            input_ids: [B, T] token ids; or `inputs_embeds` [B, T, E]; or, for an image model, `pixel_values`
                [B, channels, height, width].
            attention_mask: [B, T], nonzero at tokens, holes allowed; None: all are tokens. Or a mask [B, 1, T, T], or
                one for each layer type, in the form that the attention implementation takes.
            token_type_ids: [B, T], 0 where not given.
            position_ids: [B or 1, T], counted from 0; by the configuration's rule where not given.
            cu_seq_lens_q: [documents + 1] of a packed run, in place of a mask.
            read_positions: [R] indices into the B * T tokens, the only ones whose last hidden state is wanted: of a
                packed run, the last layer then works for these only.

        Returns:
            last_hidden_state [B, T, D], zero at padding, and with `base_pooler` pooler_output [B, D] (a row for each
            document of a packed run); or last_hidden_state [1, R, D] at `read_positions`. hidden_states (the last of
            which is last_hidden_state) and attentions where asked for.

        Raises:
            ValueError: inputs that contradict one another or the configuration, before anything is computed.
        """
        x_BTD, position_ids, boundaries = self._embed(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, pixel_values, kwargs
        )
        run, tokens = boundaries, x_BTD.shape[1]
        if run is not None and position_ids is not None and self._sizes_should_recur(x_BTD, kwargs):
            x_BTD, position_ids, run = _fill_up(x_BTD, position_ids, run)
        masks = self._masks(x_BTD, attention_mask, run, kwargs)
        tables: dict[str, Any] = dict.fromkeys(masks)
        if self.rotary_emb is not None:
            tables = {layer_type: self.rotary_emb(x_BTD, position_ids, layer_type) for layer_type in masks}
        mask_of_layer: list[Any] = [masks[str(layer.attention_type)] for layer in self.layers]
        if read_positions is not None:
            check_ids(read_positions, x_BTD.shape[0] * tokens, name="read_positions", limit="batch * length")
            mask_of_layer[-1], read_positions = self._read_in_last_layer(
                x_BTD, run, mask_of_layer[-1], read_positions, kwargs
            )
        layer: Any
        for layer, mask in zip(self.layers, mask_of_layer, strict=True):
            x_BTD = layer(x_BTD, attention_mask=mask, position_embeddings=tables[layer.attention_type], **kwargs)
        x_BTD = self.final_norm(x_BTD)
        if isinstance(attention_mask, torch.Tensor) and _is_row_mask(attention_mask):
            x_BTD = x_BTD.masked_fill(attention_mask.unsqueeze(-1) == 0, 0)
        if read_positions is not None:
            return BaseModelOutputWithPooling(last_hidden_state=x_BTD.flatten(0, 1)[read_positions].unsqueeze(0))
        if run is not boundaries:
            x_BTD = x_BTD[:, :tokens]
        if self.pooling is None or self.pooler is None:
            return BaseModelOutputWithPooling(last_hidden_state=x_BTD)
        if boundaries is None:
            pooled_BD = self.pooling(x_BTD, attention_mask if _is_row_mask(attention_mask) else None)
        else:
            pooled_BD = self.pooling(*pad_packed(x_BTD.flatten(0, 1).unsqueeze(0), boundaries.to(x_BTD.device)))
        return BaseModelOutputWithPooling(last_hidden_state=x_BTD, pooler_output=self.pooler(pooled_BD))

    def _embed(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: Any,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        pixel_values: torch.Tensor | None,
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Check the inputs; embeddings [B, T, D], positions [B or 1, T] and, for a packed run, its boundaries."""
        if isinstance(self.embeddings, ImageEmbeddings):
            if pixel_values is None and inputs_embeds is None:
                raise ValueError("this is an image model (image_size is set): give pixel_values or inputs_embeds")
            x_BTD = self.embeddings(pixel_values) if inputs_embeds is None else inputs_embeds
            _check_mask(attention_mask, x_BTD.shape[:2])
            return x_BTD, None, None
        if pixel_values is not None:
            raise ValueError("pixel_values given to a text model: its configuration has image_size=None")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        given: torch.Tensor = input_ids if input_ids is not None else inputs_embeds  # type: ignore[assignment]
        if given.dim() != (2 if inputs_embeds is None else 3):
            raise ValueError(
                f"{'input_ids' if inputs_embeds is None else 'inputs_embeds'} of shape {tuple(given.shape)} must be "
                f"[batch, length{'' if inputs_embeds is None else ', size'}]"
            )
        shape_BT = given.shape[:2]
        if not torch.compiler.is_compiling() and 0 in shape_BT:
            raise ValueError(f"input of shape {tuple(given.shape)} holds no token: leave an empty batch out")
        _check_shape(token_type_ids, shape_BT, name="token_type_ids")
        _check_mask(attention_mask, shape_BT)
        boundaries = _boundaries(position_ids, attention_mask, shape_BT, kwargs.get("cu_seq_lens_q"))
        if boundaries is not None and position_ids is None:
            steps = torch.arange(shape_BT[1], device=given.device)
            position_ids = (steps - boundaries.to(given.device)[_document_ids(boundaries, steps)]).unsqueeze(0)
        self._check_length(shape_BT[1] if boundaries is None else int(boundaries.diff().max()))
        x_BTD = self.embeddings(
            input_ids, inputs_embeds=inputs_embeds, token_type_ids=token_type_ids, position_ids=position_ids
        )
        if position_ids is None:
            position_ids = self.embeddings.positions.count(x_BTD, input_ids)
        return x_BTD, position_ids, boundaries

    def _sizes_should_recur(self, x_BTD: torch.Tensor, kwargs: dict[str, Any]) -> bool:
        """Whether a run is filled up to a size that comes again: oneDNN compiles half-precision products for each."""
        product_type = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x_BTD.dtype
        return (
            x_BTD.device.type == "cpu"
            and product_type in (torch.bfloat16, torch.float16)
            and x_BTD.shape[0] == 1
            and self.config._attn_implementation == "sdpa"
            and not is_recorded()
            and not self._shows_states(kwargs)
        )

    def _check_length(self, length: int) -> None:
        has_end = self.config.position_embedding_type in ("absolute", "sinusoidal")
        if has_end and length > self.config.max_position_embeddings:
            raise ValueError(
                f"a sequence of {length} tokens is longer than max_position_embeddings="
                f"{self.config.max_position_embeddings}; truncate it or split it into windows"
            )

    def _masks(
        self, x_BTD: torch.Tensor, attention_mask: Any, boundaries: torch.Tensor | None, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """For each layer type of the model, what its attention needs to know of the batch."""
        if isinstance(attention_mask, dict):
            return attention_mask
        layer_types = {str(layer.attention_type) for layer in self.layers}
        implementation = self.config._attn_implementation
        if implementation == "flex_attention" and x_BTD.device.type == "cpu" and x_BTD.requires_grad:
            raise ValueError(
                "attn_implementation='flex_attention' has no gradient on a CPU; train with 'sdpa' or 'eager' there"
            )
        if boundaries is not None and implementation == "sdpa":
            return {kind: self._ragged_plan(x_BTD, boundaries, kind) for kind in layer_types}
        document_BT = None
        if boundaries is not None and implementation.startswith("flash"):
            bounds = boundaries.to(x_BTD.device, torch.int32)
            longest = int(bounds.diff().max())
            kwargs.update(cu_seq_lens_q=bounds, cu_seq_lens_k=bounds, max_length_q=longest, max_length_k=longest)
        elif boundaries is not None:
            steps = torch.arange(x_BTD.shape[:2].numel(), device=x_BTD.device)
            document_BT = _document_ids(boundaries, steps).view(x_BTD.shape[:2])
        masks: dict[str, Any] = {}
        for kind in layer_types:
            if kind == "sliding_attention" and self._tiles_pay(x_BTD, attention_mask, document_BT):
                masks[kind] = self._tile_rows(x_BTD, attention_mask)
                continue
            masks[kind] = _MASK_MAKERS[kind](
                config=self.config,
                inputs_embeds=x_BTD,
                attention_mask=attention_mask,
                and_mask_function=None if document_BT is None else _same_document(document_BT),
            )
        return masks

    def _read_in_last_layer(
        self,
        x_BTD: torch.Tensor,
        boundaries: torch.Tensor | None,
        mask: Any,
        read_positions: torch.Tensor,
        kwargs: dict[str, Any],
    ) -> tuple[Any, torch.Tensor]:
        """The last layer's mask, where possible a plan that reads these positions alone, and where they stand in what
        the layer gives."""
        can_read = isinstance(mask, RaggedPlan) and bool(mask.groups) and mask.window is None
        if (
            boundaries is None
            or x_BTD.shape[0] != 1
            or not can_read
            or not len(read_positions)
            or self._shows_states(kwargs)
        ):
            return mask, read_positions
        order_R = read_positions.argsort()
        return self._ragged_plan(x_BTD, boundaries, "full_attention", read_positions[order_R]), order_R.argsort()

    def _shows_states(self, kwargs: dict[str, Any]) -> bool:
        """Whether the states of the layers are asked for: then they are those of all tokens, and of nothing else."""
        return bool(kwargs.get("output_hidden_states") or self.config.output_hidden_states)

    def _ragged_plan(
        self, x_BTD: torch.Tensor, boundaries: torch.Tensor, kind: str, read_R: torch.Tensor | None = None
    ) -> RaggedPlan:
        window = self.config.sliding_window if kind == "sliding_attention" else None
        use_tiles = not _has_varlen_kernel(
            x_BTD,
            head_size=self.config.hidden_size // self.config.num_attention_heads,
            dropout=self.config.attention_probs_dropout_prob if self.training else 0.0,
        )
        return plan_ragged_attention(
            boundaries.to(x_BTD.device),
            heads=self.config.num_attention_heads,
            window=window,
            read_R=read_R,
            use_tiles=use_tiles,
        )

    def _tiles_pay(self, x_BTD: torch.Tensor, attention_mask: Any, document_BT: torch.Tensor | None) -> bool:
        """Whether a windowed layer is cheaper in tiles than under a mask: long rows, and nothing that needs it."""
        assert self.config.sliding_window is not None
        return (
            self.config._attn_implementation == "sdpa"
            and document_BT is None
            and (attention_mask is None or attention_mask.dim() == 2)
            # Before the length is looked at: a compiled or exported graph would be tied to one side of the bound.
            and not is_recorded()
            and x_BTD.shape[1] >= 8 * self.config.sliding_window
        )

    def _tile_rows(self, x_BTD: torch.Tensor, attention_mask: torch.Tensor | None) -> RaggedPlan:
        rows, length = x_BTD.shape[:2]
        boundaries = torch.arange(0, (rows + 1) * length, length, device=x_BTD.device)
        valid_N = None if attention_mask is None else attention_mask.flatten() != 0
        return plan_ragged_attention(
            boundaries,
            heads=self.config.num_attention_heads,
            window=self.config.sliding_window,
            valid_N=valid_N,
        )


def _boundaries(
    position_ids: torch.Tensor | None, attention_mask: Any, shape_BT: torch.Size, cu_seq_lens: torch.Tensor | None
) -> torch.Tensor | None:
    """Cumulative document lengths [documents + 1] over all B * T tokens, or None where rows are ordinary sequences.

    Rows are packed where the caller says so, or where, without a mask, the positions within a row restart.
    """
    if cu_seq_lens is not None:
        if attention_mask is not None:
            raise ValueError("give either attention_mask or cu_seq_lens_q: a packed run has no padding to mask")
        if shape_BT[0] != 1:
            raise ValueError(f"cu_seq_lens_q describes one packed row, but the batch has {shape_BT[0]}")
        if not torch.compiler.is_compiling():
            _check_boundaries(cu_seq_lens, shape_BT[1])
        return cu_seq_lens
    if position_ids is None:
        return None
    if position_ids.dim() != 2 or position_ids.shape[1] != shape_BT[1] or position_ids.shape[0] not in (1, shape_BT[0]):
        raise ValueError(f"position_ids of shape {tuple(position_ids.shape)} must be {tuple(shape_BT)}, as the input")
    if attention_mask is not None:
        return None
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        raise ValueError(
            "position_ids may restart, which a traced graph does not follow: give attention_mask with them"
        )
    return _restarts(position_ids, shape_BT)


def _fill_up(
    x_1ND: torch.Tensor, position_ids: torch.Tensor, boundaries: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A run with up to 63 tokens more, of zeros, as one more document: their number is a multiple of 64."""
    filling = -x_1ND.shape[1] % 64
    if not filling:
        return x_1ND, position_ids, boundaries
    steps = torch.arange(filling, device=position_ids.device)[None]
    return (
        F.pad(x_1ND, (0, 0, 0, filling)),
        torch.cat([position_ids, steps], dim=1),
        torch.cat([boundaries, boundaries[-1:] + filling]),
    )


@torch.compiler.disable
def _restarts(position_ids: torch.Tensor, shape_BT: torch.Size) -> torch.Tensor | None:
    """Cumulative lengths of the documents whose positions restart, or None. Outside of graphs: it looks at values."""
    restarts_BT = position_ids.diff(dim=1, prepend=position_ids[:, :1] - 1) != 1
    if not bool(restarts_BT.any()):
        return None
    restarts_BT[:, 0] = True
    starts = restarts_BT.expand(shape_BT).flatten().nonzero().squeeze(1)
    return torch.cat([starts, starts.new_tensor([shape_BT.numel()])])


def _check_boundaries(cu_seq_lens: torch.Tensor, length: int) -> None:
    if cu_seq_lens.dim() != 1 or len(cu_seq_lens) < 2:
        raise ValueError(f"cu_seq_lens_q of shape {tuple(cu_seq_lens.shape)} must be [documents + 1], with documents")
    bounds = cu_seq_lens.tolist()
    if bounds[0] != 0 or bounds[-1] != length:
        raise ValueError(f"cu_seq_lens_q runs from {bounds[0]} to {bounds[-1]}; the row has tokens 0 to {length}")
    if any(end < start for start, end in itertools.pairwise(bounds)):
        raise ValueError(f"cu_seq_lens_q={bounds} must not decrease: it holds cumulative lengths")


def _check_shape(value: torch.Tensor | None, shape_BT: torch.Size, *, name: str) -> None:
    if value is not None and value.shape != shape_BT:
        raise ValueError(f"{name} of shape {tuple(value.shape)} must be {tuple(shape_BT)}, as the input")


def _check_mask(attention_mask: Any, shape_BT: torch.Size) -> None:
    """A mask of tokens is [B, T]; one for the attention itself fits [B, heads, T, T]."""
    if not isinstance(attention_mask, torch.Tensor):
        return
    if attention_mask.dim() != 4:
        _check_shape(attention_mask, shape_BT, name="attention_mask")
    elif attention_mask.shape[0] not in (1, shape_BT[0]) or attention_mask.shape[2:] != (shape_BT[1], shape_BT[1]):
        raise ValueError(
            f"attention_mask of shape {tuple(attention_mask.shape)} must be [batch, heads or 1, {shape_BT[1]}, "
            f"{shape_BT[1]}], or {tuple(shape_BT)}"
        )


def _document_ids(boundaries: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Which document each of the tokens `steps` belongs to, counted from 0."""
    return torch.bucketize(steps, boundaries[1:].to(steps.device), right=True)


def _same_document(document_BT: torch.Tensor) -> Any:
    """A mask function of transformers: two tokens see each other where their documents are the same."""

    def same_document(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return document_BT[batch, query] == document_BT[batch, key]

    return same_document


def _has_varlen_kernel(x_BTD: torch.Tensor, *, head_size: int, dropout: float) -> bool:
    """Whether `torch.nn.attention.varlen` can: half precision on CUDA, no dropout, from torch 2.11 (with windows)."""
    if x_BTD.device.type != "cuda" or dropout or head_size % 8 or head_size > 256:
        return False
    half = (torch.float16, torch.bfloat16)
    in_half = x_BTD.dtype in half or (torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") in half)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return in_half and version >= (2, 11)


class ClozeBertForMaskedLM(ClozeBertPreTrainedModel):
    """The encoder with a masked-LM head: dense, activation, norm, and the (tied) projection onto the vocabulary."""

    _tied_weights_keys = {"decoder.weight": "model.embeddings.word_embeddings.weight"}

    def __init__(self, config: ClozeBertConfig):
        super().__init__(config)
        _refuse_images(config, type(self).__name__)
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
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """The inputs of `ClozeBertModel`, and

        Args:
            labels: [B, T] ids, -100 where nothing is to be predicted; with `masked_positions`, [M].
            masked_positions: [M] indices into the B * T tokens: logits are computed there only.
            num_items_in_batch: labels in the whole global batch; the loss is divided by it.

        Returns:
            loss; logits [B, T, V], or [M, V] at `masked_positions`, or at the labelled positions with
            `sparse_prediction`.
        """
        if masked_positions is None and labels is not None and self.config.sparse_prediction:
            masked_positions = (labels.flatten() != -100).nonzero().squeeze(1)
            labels = labels.flatten()[masked_positions]
        elif masked_positions is not None and labels is not None and labels.shape != masked_positions.shape:
            raise ValueError(
                f"labels of shape {tuple(labels.shape)} must have masked_positions' shape, "
                f"{tuple(masked_positions.shape)}"
            )
        given = input_ids if input_ids is not None else inputs_embeds
        if masked_positions is not None and given is not None:
            check_ids(masked_positions, given.shape[:2].numel(), name="masked_positions", limit="batch * length")
        outputs = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds=inputs_embeds,
            read_positions=masked_positions,
            **kwargs,
        )
        x = outputs.last_hidden_state
        logits = self.decoder(self.head(x if masked_positions is None else x[0]))
        loss = None
        if labels is not None:
            loss = cross_entropy(logits.flatten(0, -2), labels.flatten(), num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class ClozeBertForSequenceClassification(ClozeBertPreTrainedModel):
    """The encoder with a classifier (or regressor) over the pooled sequence."""

    def __init__(self, config: ClozeBertConfig):
        super().__init__(config)
        self.num_labels = _num_labels(config)
        self.model = ClozeBertModel(config, add_pooling_layer=False)
        self.pooling = Pooling(config)
        self.head = make_classifier_head(config, pooled=True)
        self.dropout = Dropout(_classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, self.num_labels, bias=config.classifier_bias)
        self.post_init()

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
        several values). For a packed run B is its number of documents. Returns loss and logits [B, C].
        """
        given = input_ids if input_ids is not None else inputs_embeds
        first_B = None
        if self.pooling.kind == "cls" and given is not None:
            first_B = _first_tokens(position_ids, attention_mask, given.shape[:2], kwargs)
        outputs = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds=inputs_embeds,
            read_positions=first_B,
            **kwargs,
        )
        x_BTD = outputs.last_hidden_state
        if first_B is not None:
            pooled_BD = x_BTD[0]
        else:
            pooled_BD = self.pooling(*_documents(x_BTD, attention_mask, position_ids, kwargs))
        logits = self.classifier(self.dropout(self.head(pooled_BD)))
        loss = None
        if labels is not None:
            problem_type = _problem_type(self.config, labels, outputs=logits.shape[-1])
            loss = sequence_loss(logits, labels, problem_type=problem_type, num_items_in_batch=num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class ClozeBertForTokenClassification(ClozeBertPreTrainedModel):
    """The encoder with a classifier over each token."""

    def __init__(self, config: ClozeBertConfig):
        super().__init__(config)
        self.num_labels = _num_labels(config)
        self.model = ClozeBertModel(config, add_pooling_layer=False)
        self.head = make_classifier_head(config, pooled=False)
        self.dropout = Dropout(_classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, self.num_labels, bias=config.classifier_bias)
        self.post_init()

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
        """The inputs of `ClozeBertModel`, and labels [B, T] with -100 where none. Returns loss and logits [B, T, C]."""
        outputs = self.model(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds=inputs_embeds, **kwargs
        )
        logits = self.classifier(self.dropout(self.head(outputs.last_hidden_state)))
        loss = None
        if labels is not None:
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class ClozeBertForQuestionAnswering(ClozeBertPreTrainedModel):
    """The encoder with two scores for each token: that an answer starts, and that it ends there."""

    def __init__(self, config: ClozeBertConfig):
        super().__init__(config)
        self.num_labels = 2  # the start and the end
        self.model = ClozeBertModel(config, add_pooling_layer=False)
        self.head = make_classifier_head(config, pooled=False)
        self.dropout = Dropout(_classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, self.num_labels, bias=config.classifier_bias)
        self.post_init()

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
        """The inputs of `ClozeBertModel`, and start_positions and end_positions [B]. One outside [0, T), or on padding,
        counts nowhere.

        Returns loss (the mean of the two) and start_logits, end_logits [B, T]. Those of padding are the lowest number
        there is: an answer is looked for among the tokens alone, so padding changes neither loss nor scores.
        """
        outputs = self.model(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds=inputs_embeds, **kwargs
        )
        logits_BT2 = self.classifier(self.dropout(self.head(outputs.last_hidden_state)))
        is_token_BT = None
        if isinstance(attention_mask, torch.Tensor) and _is_row_mask(attention_mask):
            is_token_BT = attention_mask.to(logits_BT2.device) != 0
            logits_BT2 = logits_BT2.masked_fill(~is_token_BT.unsqueeze(-1), torch.finfo(logits_BT2.dtype).min)
        start_BT, end_BT = (x.contiguous() for x in logits_BT2.unbind(-1))
        loss = None
        if (start_positions is None) != (end_positions is None):
            raise ValueError("give start_positions and end_positions, or neither: the loss is the mean of both")
        if start_positions is not None and end_positions is not None:
            targets = [_inside(x, start_BT, is_token_BT) for x in (start_positions, end_positions)]
            losses = [
                cross_entropy(logits_BT, target_B, num_items_in_batch)
                for logits_BT, target_B in zip((start_BT, end_BT), targets, strict=True)
            ]
            loss = (losses[0] + losses[1]) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_BT,
            end_logits=end_BT,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ClozeBertForMultipleChoice(ClozeBertPreTrainedModel):
    """The encoder with one score for each of several sequences, of which one is right."""

    def __init__(self, config: ClozeBertConfig):
        super().__init__(config)
        self.model = ClozeBertModel(config, add_pooling_layer=False)
        self.pooling = Pooling(config)
        self.head = make_classifier_head(config, pooled=True)
        self.dropout = Dropout(_classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, 1, bias=config.classifier_bias)
        self.post_init()

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
        """The inputs of `ClozeBertModel` with a dimension of choices after the first, and labels [B].

        Returns loss and logits [B, choices].
        """
        given = input_ids if input_ids is not None else inputs_embeds
        if given is None or given.dim() < 3:
            raise ValueError("give input_ids of shape [batch, choices, length], or inputs_embeds with a size after it")
        choices = given.shape[1]
        ids, mask, types, positions, embeds = (
            None if x is None else x.flatten(0, 1)
            for x in (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        )
        outputs = self.model(ids, mask, types, positions, inputs_embeds=embeds, **kwargs)
        scores = self.classifier(self.dropout(self.head(self.pooling(outputs.last_hidden_state, mask))))
        logits = scores.view(-1, choices)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class ClozeBertForImageClassification(ClozeBertPreTrainedModel):
    """The encoder over the patches of an image, with a classifier over the pooled patches: a ViT."""

    main_input_name = "pixel_values"
    input_modalities = ("image",)  # type: ignore[assignment]  # a tuple in transformers too

    def __init__(self, config: ClozeBertConfig):
        super().__init__(config)
        if config.image_size is None:
            raise ValueError("ClozeBertForImageClassification needs image_size and patch_size in its configuration")
        self.num_labels = _num_labels(config)
        self.model = ClozeBertModel(config, add_pooling_layer=False)
        self.pooling = Pooling(config)
        self.head = make_classifier_head(config, pooled=True)
        self.dropout = Dropout(_classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, self.num_labels, bias=config.classifier_bias)
        self.post_init()

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
        outputs = self.model(attention_mask=attention_mask, pixel_values=pixel_values, **kwargs)
        row_mask = attention_mask if _is_row_mask(attention_mask) else None
        logits = self.classifier(self.dropout(self.head(self.pooling(outputs.last_hidden_state, row_mask))))
        loss = None
        if labels is not None:
            problem_type = _problem_type(self.config, labels, outputs=logits.shape[-1])
            loss = sequence_loss(logits, labels, problem_type=problem_type, num_items_in_batch=num_items_in_batch)
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def _num_labels(config: ClozeBertConfig) -> int:
    assert config.num_labels is not None
    return config.num_labels


def _problem_type(config: ClozeBertConfig, labels: torch.Tensor, *, outputs: int) -> str:
    """What the labels are. Where the configuration does not say, the first ones set it, as in transformers' own heads:
    pipelines read there, and in the saved folder, what the scores mean."""
    if config.problem_type is None:
        config.problem_type = find_problem_type(labels, outputs=outputs)
    return str(config.problem_type)


def _classifier_dropout(config: ClozeBertConfig) -> float:
    return float(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)


def _is_row_mask(attention_mask: Any) -> bool:
    """Whether a mask tells tokens from padding, [B, T], and is not already one for the attention itself."""
    return isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 2


def _refuse_images(config: ClozeBertConfig, name: str) -> None:
    if config.image_size is not None:
        raise ValueError(f"{name} is a text model, but image_size={config.image_size} makes this an image encoder")


def _documents(
    x_BTD: torch.Tensor, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None, kwargs: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The sequences to pool and their mask: the rows of the batch, or the documents of a packed run."""
    boundaries = _boundaries(position_ids, attention_mask, x_BTD.shape[:2], kwargs.get("cu_seq_lens_q"))
    if boundaries is None:
        return x_BTD, attention_mask if attention_mask is None or attention_mask.dim() == 2 else None
    return pad_packed(x_BTD.flatten(0, 1).unsqueeze(0), boundaries.to(x_BTD.device))


def _first_tokens(
    position_ids: torch.Tensor | None, attention_mask: Any, shape_BT: torch.Size, kwargs: dict[str, Any]
) -> torch.Tensor | None:
    """Where the documents of a packed run begin, [B]; None of an ordinary batch."""
    boundaries = _boundaries(position_ids, attention_mask, shape_BT, kwargs.get("cu_seq_lens_q"))
    return None if boundaries is None else boundaries[:-1].long().clamp(max=shape_BT.numel() - 1)


def _inside(positions_B: torch.Tensor, logits_BT: torch.Tensor, is_token_BT: torch.Tensor | None) -> torch.Tensor:
    """The positions, -100 where there is no token."""
    positions_B = positions_B.flatten().to(logits_BT.device)
    last = logits_BT.shape[1] - 1
    outside_B = (positions_B < 0) | (positions_B > last)
    if is_token_BT is not None:
        outside_B |= ~is_token_BT.gather(1, positions_B.clamp(0, last).long().unsqueeze(1)).squeeze(1)
    return positions_B.masked_fill(outside_B, -100)


__all__ = [
    "ClozeBertForImageClassification",
    "ClozeBertForMaskedLM",
    "ClozeBertForMultipleChoice",
    "ClozeBertForQuestionAnswering",
    "ClozeBertForSequenceClassification",
    "ClozeBertForTokenClassification",
    "ClozeBertModel",
    "ClozeBertPreTrainedModel",
]
