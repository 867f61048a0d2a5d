# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""`ClozeBertConfig`, the encoder's configuration. This file travels inside every checkpoint."""

import copy
import warnings
from typing import Any, TypeGuard

import transformers

# Checked before the imports that older releases lack, so that the error states the cause.
if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < (5, 4):
    raise ImportError(
        f"the code of this model needs transformers 5.4 or newer, and {transformers.__version__} is installed: "
        f"pip install --upgrade transformers"
    )

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig

from .field_checks import (
    LAYER_TYPES,
    check_rope_of_layers,
    check_value,
    nearest_key,
    refuse_parts_of_rope,
    suggestion,
    unknown_key_message,
)
from .named_architectures import ARCHITECTURES, every_third_full

# Keys that a configuration file may hold besides the fields below: transformers and sentence-transformers write these.
_KEYS_OF_OTHERS = {
    "_attn_implementation", "_attn_implementation_internal", "_experts_implementation_internal", "_name_or_path",
    "attn_implementation", "auto_map", "experts_implementation", "model_type", "name_or_path", "num_labels",
    "output_attentions", "per_layer_config", "quantization_config", "rope_scaling", "rope_theta",
    "sentence_transformers", "tokenizer_class", "torch_dtype", "transformers_weights", "use_cache", "_commit_hash",
}  # fmt: skip


@strict
class ClozeBertConfig(PreTrainedConfig):
    r"""Configuration of the encoder and its heads.

    The defaults are a modern base-size model: pre-norm, rotary positions, gated feed-forward, no biases, no dropout.
    `from_name` gives the published architectures.

    Attributes:
        vocab_size: entries of the vocabulary.
        hidden_size: width of the model, d.
        num_hidden_layers: number of layers.
        num_attention_heads: number of attention heads, h; each has the size d / h.
        num_key_value_heads: number of key and value heads, shared by neighbouring query heads; None: h.
        intermediate_size: width of the feed-forward, f.
        hidden_act: activation of the feed-forward, any of transformers' ACT2FN.
        max_position_embeddings: the longest sequence, in tokens. Only learned and sinusoidal positions enforce it.
        type_vocab_size: number of token types; 0: none.
        embedding_size: size of the embeddings, projected to d, as in ELECTRA; None: d.
        norm_position: `post`, x = norm(x + f(x)) (Vaswani et al. 2017), or `pre`, x = x + f(norm(x)) (Xiong et al.
            2020).
        norm_type: `layernorm` or `rmsnorm` (Zhang & Sennrich 2019).
        norm_eps: added to the variance in a norm.
        norm_bias: biases in norms; `layernorm` only.
        embedding_norm: a norm after the embeddings.
        final_norm: a norm after the last layer; None: for pre-norm only.
        first_attention_norm: False leaves out the norm before the first attention (ModernBERT; pre-norm only).
        mlp_type: `mlp`, W_down act(W_up x), or `glu`, W_down (act(W_gate x) * W_up x) (Shazeer 2020).
        mlp_bias: biases in the feed-forward.
        attention_bias: biases in the four projections of attention.
        qk_norm: an RMS norm of each head's queries and keys (Henry et al. 2020).
        layer_types: `full_attention` or `sliding_attention` for each layer; None: all full.
        sliding_window: in a `sliding_attention` layer, a token attends to the tokens at most this many positions away,
            on either side.
        position_embedding_type: `absolute` (learned), `sinusoidal` (Vaswani et al. 2017), `rope` (Su et al. 2021), or
            `none`.
        position_rule: `row` counts from the start of the row, `non_pad` counts tokens that are not padding (RoBERTa).
        position_offset: row of the learned table that belongs to the first position (RoBERTa: pad_token_id + 1).
        rope_parameters: rotary positions, in transformers' form: one dict, or one for each layer type if
            `layer_types` is given.
        hidden_dropout_prob: dropout on the output of attention and feed-forward, before the residual addition.
        attention_probs_dropout_prob: dropout on attention weights.
        embedding_dropout: dropout on embeddings; None: `hidden_dropout_prob`.
        mlp_dropout: dropout inside the feed-forward.
        classifier_dropout: dropout before a classifier; None: `hidden_dropout_prob`.
        classifier_pooling: how a sequence becomes one vector: `cls` (first token), `mean`, `max` or `attention`.
        compare_pairs: classifiers of sequences add a linear map of how the two texts of a pair compare to the pooled
            vector. The second text begins behind the first `sep_token_id`.
        classifier_dense: which classifiers have a dense layer, an activation and (`classifier_norm`) a norm before the
            last linear layer: `none`, `pooled` (those on a pooled vector: BERT, RoBERTa) or `all` (ModernBERT).
        classifier_activation: activation of that dense layer.
        classifier_norm: whether a norm follows it.
        prediction_activation: activation of the masked-LM head's dense layer; None: `hidden_act`.
        prediction_dense: False leaves out that dense layer and its norm.
        head_bias: biases of the heads' dense layers.
        classifier_bias: bias of the last layer of a classifier.
        decoder_bias: bias of the masked-LM decoder.
        tie_word_embeddings: the masked-LM decoder shares its weights with the token embeddings.
        sparse_prediction: given labels, the masked-LM head computes logits at labelled positions only.
        base_pooler: the model without a head ends with the classifiers' pooling and dense layer.
        image_size: side of an image, in pixels. If set, the model reads images and has no token embeddings.
        patch_size: side of a patch, in pixels (ViT, Dosovitskiy et al. 2020).
        num_channels: channels of an image.
        initializer_range: standard deviation of initial weights.
        output_projection_init: initial weights of the two projections that write into the residual stream: `normal`
            like the others, `scaled` divided by sqrt(2 * num_hidden_layers), or `zero`.
        native_config: fields of a native configuration that have no counterpart above. `hub.from_native` stores them,
            `hub.to_native` writes them back, and nothing else reads them.
        pad_token_id: id of the padding token; likewise bos_token_id, eos_token_id, cls_token_id, sep_token_id and
            mask_token_id.

    Raises:
        ValueError: an unknown key (with the nearest known one), or a value that contradicts another.
    """

    model_type = "clozebert"
    keys_to_ignore_at_inference = []  # type: ignore[var-annotated]  # an annotation would make it a field
    default_theta = 10_000.0
    base_model_tp_plan = {
        "layers.*.attention.q_proj": "colwise",
        "layers.*.attention.k_proj": "colwise",
        "layers.*.attention.v_proj": "colwise",
        "layers.*.attention.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }
    base_model_fsdp_plan = {"embeddings": "free_full_weight", "layers.*": "free_full_weight"}

    vocab_size: int = 32768
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    intermediate_size: int = 2048
    hidden_act: str = "gelu"
    max_position_embeddings: int = 8192
    type_vocab_size: int = 0
    embedding_size: int | None = None

    norm_position: str = "pre"
    norm_type: str = "layernorm"
    norm_eps: float = 1e-5
    norm_bias: bool = False
    embedding_norm: bool = True
    final_norm: bool | None = None
    first_attention_norm: bool = True
    mlp_type: str = "glu"
    mlp_bias: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    layer_types: list[str] | None = None
    sliding_window: int | None = None

    position_embedding_type: str = "rope"
    position_rule: str = "row"
    position_offset: int = 0
    rope_parameters: dict | None = None

    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    embedding_dropout: float | int | None = None
    mlp_dropout: float | int = 0.0
    classifier_dropout: float | int | None = None

    classifier_pooling: str = "cls"
    compare_pairs: bool = False
    classifier_dense: str = "all"
    classifier_activation: str = "gelu"
    classifier_norm: bool = True
    prediction_activation: str | None = None
    prediction_dense: bool = True
    head_bias: bool = False
    classifier_bias: bool = True
    decoder_bias: bool = True
    tie_word_embeddings: bool = True
    sparse_prediction: bool = False
    base_pooler: bool = False

    image_size: int | None = None
    patch_size: int | None = None
    num_channels: int = 3

    initializer_range: float = 0.02
    output_projection_init: str = "normal"
    native_config: dict | None = None

    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    cls_token_id: int | None = None
    sep_token_id: int | None = None
    mask_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for key in kwargs:
            if key not in _KEYS_OF_OTHERS:
                raise ValueError(unknown_key_message(key, self.field_names()))
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        self._check_contradictions()
        super().__post_init__(**kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field, and refuse a value that is invalid on its own, from the constructor, a file or an override."""
        check_value(name, value)
        super().__setattr__(name, value)

    @classmethod
    def field_names(cls) -> list[str]:
        """The names of all fields, ours and those of the base class."""
        return list(cls.__dataclass_fields__)

    @classmethod
    def from_name(cls, name: str, **overrides: Any) -> "ClozeBertConfig":
        """A named architecture (`bert-base`, `modernbert-base`, …), with some fields changed.

        If `num_hidden_layers` is changed, the layer types continue the architecture's pattern. If the positions are no
        longer rotary, its `rope_parameters` are left out.

        Raises:
            ValueError: no architecture has that name.
        """
        if name not in ARCHITECTURES:
            hint = suggestion(name, ARCHITECTURES, otherwise=f"known: {', '.join(ARCHITECTURES)}")
            raise ValueError(f"unknown architecture {name!r}; {hint}")
        fields = copy.deepcopy(ARCHITECTURES[name])
        if "rope_parameters" in fields:
            refuse_parts_of_rope(overrides)
        layers = overrides.get("num_hidden_layers")
        if "layer_types" in fields and isinstance(layers, int):  # the constructor refuses anything else
            fields["layer_types"] = every_third_full(layers)
        if overrides.get("position_embedding_type", "rope") != "rope":
            fields.pop("rope_parameters", None)  # they are of the positions that are replaced
        base, given = fields.get("rope_parameters"), overrides.get("rope_parameters")
        if _is_by_layer_type(base) and _is_by_layer_type(given):  # what is not named stays
            overrides["rope_parameters"] = {x: {**base.get(x, {}), **(given.get(x) or {})} for x in {**base, **given}}
        return cls(**{**fields, **overrides})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As the base class, with checks.

        Unknown keys in `config_dict` are kept, with a warning. An unknown override that resembles a field is an error.
        A subclass with a model type of its own also reads the configuration of its parent.

        Raises:
            ValueError: the configuration of another architecture, an override that resembles a field, or values that
                contradict one another.
        """
        kind = config_dict.get("model_type") or cls.model_type
        if kind not in {getattr(parent, "model_type", None) for parent in cls.__mro__}:
            raise ValueError(
                f"this is the configuration of a {kind} model: open it with AutoModel, or as a ClozeBERT with "
                "clozebert.hub.from_native"
            )
        known = {*cls.field_names(), *_KEYS_OF_OTHERS}
        foreign = {key: kwargs.pop(key, config_dict[key]) for key in config_dict if key not in known}
        if foreign:
            _warn_of_foreign(list(foreign), cls.field_names())
        for key in kwargs.keys() - known:
            if nearest_key(key, cls.field_names(), cutoff=0.85):
                raise ValueError(unknown_key_message(key, cls.field_names()))
        values = {key: config_dict[key] for key in config_dict if key in known}
        if kind != cls.model_type:
            values = {key: values[key] for key in values if key not in ("model_type", "auto_map")}  # the parent's
        _follow_heads(values, kwargs)
        _follow_layers(values, kwargs)
        refuse_parts_of_rope(kwargs)
        # Overrides go to the constructor, which checks them. The base class would set them afterwards, unchecked.
        own = {**ClozeBertConfig.__annotations__, **cls.__annotations__}  # cls may be a subclass
        values |= {key: kwargs.pop(key) for key in own if key in kwargs}
        found = super().from_dict(values, **kwargs)
        config = found[0] if isinstance(found, tuple) else found
        for key, value in foreign.items():
            setattr(config, key, value)
        config.check_together()
        return found

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last layer."""
        return self.norm_position == "pre" if self.final_norm is None else self.final_norm

    def attention_type(self, layer_idx: int) -> str:
        """The attention of one layer: `full_attention` or `sliding_attention`."""
        return self.layer_types[layer_idx] if self.layer_types is not None else "full_attention"

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Complete `rope_parameters`: one dict, or one for each layer type. The base class calls this."""
        scaling, theta = kwargs.pop("rope_scaling", None), kwargs.pop("rope_theta", None)
        if self.position_embedding_type != "rope":
            if (self.rope_parameters, scaling, theta) != (None, None, None):
                raise ValueError(
                    f"rope_parameters={self.rope_parameters} needs position_embedding_type='rope', "
                    f"not {self.position_embedding_type!r}"
                )
            return kwargs
        given = scaling or self.rope_parameters or {}
        if theta is not None and given.get("rope_theta", theta) != theta:
            raise ValueError(f"rope_theta={theta} contradicts rope_parameters={given}: give rope_parameters alone")
        is_by_layer_type = _is_by_layer_type(given)
        if is_by_layer_type and (others := sorted(given.keys() - set(LAYER_TYPES))):
            raise ValueError(
                f"rope_parameters holds {', '.join(others)} beside layer types: give one dict for each of "
                f"{' and '.join(LAYER_TYPES)}, or one for all"
            )
        used = sorted(set(self.layer_types or ["full_attention"]))
        if is_by_layer_type and given.keys().isdisjoint(used):
            raise ValueError(f"rope_parameters are for {', '.join(given)}, and the layers have {' and '.join(used)}")
        default = {"rope_type": "default", "rope_theta": theta or self.default_theta}
        parameters = {}
        for layer_type in used:
            values = {**default, **((given.get(layer_type) or {}) if is_by_layer_type else given)}
            check_rope_of_layers(values)
            if values["rope_type"] in ("llama3", "yarn"):
                values.setdefault("original_max_position_embeddings", self.max_position_embeddings)
            parameters[layer_type] = values
        self.rope_parameters = parameters if self.layer_types is not None else parameters["full_attention"]
        return kwargs

    def check_together(self) -> None:
        """Refuse values that contradict one another. `from_dict` and every model call this.

        The model, not this, checks that sizes are divisible: transformers builds configurations in steps.

        Raises:
            ValueError: names the fields.
        """
        self._check_contradictions()
        self._check_rope_parameters()

    def _check_contradictions(self) -> None:
        if self.layer_types is not None:
            self._check_layer_types(self.layer_types)
        if self.norm_position == "post" and not self.first_attention_norm:
            raise ValueError("first_attention_norm=False needs norm_position='pre': post-norm has no norm there")
        if (self.image_size is None) != (self.patch_size is None):
            raise ValueError(f"image_size={self.image_size} and patch_size={self.patch_size} must be set together")
        if self.image_size is not None and self.position_embedding_type == "rope":
            raise ValueError("image_size is set: images take position_embedding_type absolute, sinusoidal or none")
        if self.compare_pairs and self.image_size is not None:
            raise ValueError("image_size is set: compare_pairs=True is for two texts")
        if self.compare_pairs and self.sep_token_id is None:
            raise ValueError("compare_pairs=True needs the id of the token between the two texts: set sep_token_id")
        if self.position_rule == "non_pad":
            self._check_non_pad_positions()

    def _check_rope_parameters(self) -> None:
        """Refuse what only the constructor completes, if it was set later."""
        way_out = "give it to the constructor, or to from_pretrained"
        if self.position_embedding_type != "rope":
            if self.rope_parameters is not None:
                raise ValueError(
                    f"rope_parameters={self.rope_parameters} needs position_embedding_type='rope', not "
                    f"{self.position_embedding_type!r}: {way_out}"
                )
            return
        given = self.rope_parameters or {}
        parts = {f" for {layer_type}": given.get(layer_type) or {} for layer_type in self.layer_types or ()}
        for where, part in (parts or {"": given}).items():
            if "rope_theta" not in part:
                raise ValueError(f"rope_parameters={self.rope_parameters} has no rope_theta{where}: {way_out}")

    def _check_layer_types(self, layer_types: list[str]) -> None:
        if len(layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types names {len(layer_types)} layers, but num_hidden_layers={self.num_hidden_layers}: give "
                f"both, or layer_types=None for full attention in every layer"
            )
        if "sliding_attention" in layer_types and self.sliding_window is None:
            raise ValueError("layer_types holds sliding_attention, so sliding_window must be set (tokens on each side)")

    def _check_non_pad_positions(self) -> None:
        if self.pad_token_id is None:
            raise ValueError("position_rule='non_pad' counts the tokens that are not padding: set pad_token_id")
        if self.position_embedding_type == "absolute" and not self.position_offset:
            raise ValueError(
                "position_rule='non_pad' lets padding stand on row position_offset - 1 of the learned positions: set "
                "position_offset to at least 1"
            )


def _warn_of_foreign(keys: list[str], known: list[str]) -> None:
    nearest = {key: nearest_key(key, known, cutoff=0.85) for key in keys}
    named = [f"{key} (is {near} meant?)" if near else key for key, near in nearest.items()]
    warnings.warn(
        f"the configuration holds keys that this version of clozebert does not know: {', '.join(named)}; they are kept "
        f"and have no effect here; a newer version or another program may have written them",
        stacklevel=3,
    )


def _follow_heads(values: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Override `num_key_value_heads` along with `num_attention_heads`, if the two were equal."""
    is_overridden = "num_attention_heads" in overrides and "num_key_value_heads" not in overrides
    if is_overridden and values.get("num_key_value_heads") == values.get("num_attention_heads"):
        overrides["num_key_value_heads"] = overrides["num_attention_heads"]


def _follow_layers(values: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Override `layer_types` along with `num_hidden_layers`: the first layers keep their types."""
    wanted, types = overrides.get("num_hidden_layers"), values.get("layer_types")
    if isinstance(wanted, int) and types is not None and wanted < len(types) and "layer_types" not in overrides:
        overrides["layer_types"] = types[:wanted]


def _is_by_layer_type(rope_parameters: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(rope_parameters, dict) and not rope_parameters.keys().isdisjoint(LAYER_TYPES)


__all__ = ["ClozeBertConfig"]
