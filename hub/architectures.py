"""What the architectures of transformers call the parts of this encoder.

One table for each: names of tensors, names of configuration fields, and what the architecture has at one value only.
Both directions read the same table, so what goes in comes out again.

A tensor name's `{i}` is the layer. On the left is our module, or several of ours that the architecture keeps fused, in
the order in which it stacks their rows; on the right is its module. `.weight` and `.bias` follow where they exist.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Rename = tuple[str | tuple[str, ...], str]
Values = dict[str, Any]

# The endings of our classes' names: what a head is for.
POOLED = ("ForSequenceClassification", "ForMultipleChoice", "ForImageClassification")
PER_TOKEN = ("ForTokenClassification", "ForQuestionAnswering")


@dataclass(frozen=True)
class Head:
    """One class of an architecture: the ending of our class's name, and the renames beside the encoder's."""

    ours: str
    renames: tuple[Rename, ...] = ()


@dataclass(frozen=True)
class Architecture:
    """A `model_type` of transformers.

    Attributes:
        prefix: what its heads call the encoder. heads: its classes by name.
        renames: the encoder's modules. twins: a tensor that is always the same as another, by their names.
        fields: our configuration fields -> its, where the values are the same.
        fixed: our fields that the architecture has at one value.
        to_ours, to_native: what takes more than a name: (its values, ending) -> ours, and (ours, ending) -> its.
        inert: fields of its own that change nothing it computes; they are kept beside our configuration.
        optional_pooler: its model without a head takes `add_pooling_layer`.
    """

    model_type: str
    config_class: str
    prefix: str
    heads: Mapping[str, Head]
    renames: tuple[Rename, ...]
    fields: Mapping[str, str]
    fixed: Mapping[str, Any]
    to_ours: Callable[[Values, str], Values]
    to_native: Callable[[Values, str], Values]
    twins: Mapping[str, str] = field(default_factory=dict)
    inert: tuple[str, ...] = ()
    optional_pooler: bool = False


def _heads(stem: str, **modules: str | tuple[str, ...]) -> dict[str, Head]:
    """Class name -> head, of the classes that begin with `stem`; the one without a head is always there.

    For each ending: what it calls the last map, our `decoder` or `classifier`; then, where there are any, `head.dense`
    and `head.norm`.
    """
    heads = {f"{stem}Model": Head("Model")}
    for ending, given in modules.items():
        theirs = (given,) if isinstance(given, str) else given
        ours = ("decoder" if ending == "ForMaskedLM" else "classifier", "head.dense", "head.norm")
        heads[f"{stem}{ending}"] = Head(ending, tuple(zip(ours, theirs, strict=False)))
    return heads


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _nothing(values: Values, ending: str) -> Values:
    return {}


def _has_types(native: Values, ending: str) -> Values:
    # A table of token types without rows cannot be looked up, so theirs have one at least.
    return {"type_vocab_size": max(1, native["type_vocab_size"])}


def _refuse(name: str, value: Any, need: str) -> ValueError:
    return ValueError(f"{name}={value!r} of the native configuration has no counterpart here: {need}")


# Every knob that no architecture below translates has this value in all of them, unless its own table says otherwise.
_PLAIN: Values = {
    "num_key_value_heads": None,
    "embedding_size": None,
    "norm_position": "post",
    "norm_type": "layernorm",
    "norm_bias": True,
    "embedding_norm": True,
    "final_norm": None,
    "first_attention_norm": True,
    "mlp_type": "mlp",
    "mlp_bias": True,
    "attention_bias": True,
    "qk_norm": False,
    "layer_types": None,
    "sliding_window": None,
    "position_embedding_type": "absolute",
    "position_rule": "row",
    "position_offset": 0,
    "rope_parameters": None,
    "embedding_dropout": None,
    "mlp_dropout": 0.0,
    "classifier_dropout": None,
    "classifier_pooling": "cls",
    "classifier_dense": "pooled",
    "classifier_activation": "tanh",
    "classifier_norm": False,
    "prediction_activation": None,
    "prediction_dense": True,
    "head_bias": True,
    "classifier_bias": True,
    "decoder_bias": True,
    "sparse_prediction": False,
    "base_pooler": False,
    "image_size": None,
    "patch_size": None,
    "num_channels": 3,
    "output_projection_init": "normal",
    "cls_token_id": None,
    "sep_token_id": None,
    "mask_token_id": None,
}

_SIZES = _same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_TOKENS = _same("pad_token_id", "bos_token_id", "eos_token_id")
_BERT_FIELDS = {
    **_SIZES,
    **_TOKENS,
    **_same(
        "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings",
        "type_vocab_size", "initializer_range", "classifier_dropout", "tie_word_embeddings",
    ),
    "norm_eps": "layer_norm_eps",
}  # fmt: skip


def _activation(name: str, values: Values) -> str | None:
    """`prediction_activation` of a head that uses `name`: None stands for the encoder's own."""
    return None if name == values["hidden_act"] else name


# ---------------------------------------------------------------------------------------------------------------- BERT

_BERT_ENCODER: tuple[Rename, ...] = (
    ("embeddings.word_embeddings", "embeddings.word_embeddings"),
    ("embeddings.positions.table", "embeddings.position_embeddings"),
    ("embeddings.token_type_embeddings", "embeddings.token_type_embeddings"),
    ("embeddings.norm", "embeddings.LayerNorm"),
    ("layers.{i}.attention.q_proj", "encoder.layer.{i}.attention.self.query"),
    ("layers.{i}.attention.k_proj", "encoder.layer.{i}.attention.self.key"),
    ("layers.{i}.attention.v_proj", "encoder.layer.{i}.attention.self.value"),
    ("layers.{i}.attention.o_proj", "encoder.layer.{i}.attention.output.dense"),
    ("layers.{i}.attention_norm", "encoder.layer.{i}.attention.output.LayerNorm"),
    ("layers.{i}.mlp.up_proj", "encoder.layer.{i}.intermediate.dense"),
    ("layers.{i}.mlp.down_proj", "encoder.layer.{i}.output.dense"),
    ("layers.{i}.mlp_norm", "encoder.layer.{i}.output.LayerNorm"),
    ("pooler.dense", "pooler.dense"),
)

BERT = Architecture(
    model_type="bert",
    config_class="BertConfig",
    prefix="bert",
    heads=_heads(
        "Bert",
        ForMaskedLM=(
            "cls.predictions.decoder",
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
        ),
        ForSequenceClassification=("classifier", "bert.pooler.dense"),
        ForMultipleChoice=("classifier", "bert.pooler.dense"),
        ForTokenClassification="classifier",
        ForQuestionAnswering="qa_outputs",
    ),
    renames=_BERT_ENCODER,
    fields=_BERT_FIELDS,
    fixed=_PLAIN,
    to_ours=_has_types,
    to_native=_nothing,
    twins={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    inert=("use_cache",),
    optional_pooler=True,
)

# ------------------------------------------------------------------------------------------------------------- RoBERTa


def _roberta_to_ours(native: Values, ending: str) -> Values:
    # Its table of positions begins with a row for each id up to that of padding, where no token stands.
    offset = (native["pad_token_id"] or 0) + 1
    return {
        **_has_types(native, ending),
        "position_offset": offset,
        "max_position_embeddings": native["max_position_embeddings"] - offset,
        "prediction_activation": _activation("gelu", native),
    }


def _roberta_to_native(ours: Values, ending: str) -> Values:
    return {"max_position_embeddings": ours["max_position_embeddings"] + ours["position_offset"]}


ROBERTA = Architecture(
    model_type="roberta",
    config_class="RobertaConfig",
    prefix="roberta",
    heads=_heads(
        "Roberta",
        ForMaskedLM=("lm_head.decoder", "lm_head.dense", "lm_head.layer_norm"),
        ForSequenceClassification=("classifier.out_proj", "classifier.dense"),
        ForMultipleChoice=("classifier", "roberta.pooler.dense"),
        ForTokenClassification="classifier",
        ForQuestionAnswering="qa_outputs",
    ),
    renames=_BERT_ENCODER,
    fields={ours: native for ours, native in _BERT_FIELDS.items() if ours != "max_position_embeddings"},
    fixed={**_PLAIN, "position_rule": "non_pad"},
    to_ours=_roberta_to_ours,
    to_native=_roberta_to_native,
    twins={"lm_head.bias": "lm_head.decoder.bias"},
    inert=("use_cache",),
    optional_pooler=True,
)

# ---------------------------------------------------------------------------------------------------------- ModernBERT

_MODERNBERT_CLASSIFIER = ("classifier", "head.dense", "head.norm")
_FULL, _SLIDING = "full_attention", "sliding_attention"


def rope_by_layer_type(rope_parameters: Values | None, layer_types: list[str] | None) -> Values:
    """`rope_parameters` with one entry for each layer type, whichever of its two forms they are in."""
    parameters = rope_parameters or {}
    kinds = sorted(set(layer_types or [_FULL]))
    nested = _FULL in parameters or _SLIDING in parameters
    return {kind: dict(parameters[kind] if nested else parameters) for kind in kinds}


def _modernbert_to_ours(native: Values, ending: str) -> Values:
    layer_types = native["layer_types"]
    return {
        "sliding_window": native["local_attention"] // 2 if _SLIDING in layer_types else None,
        "rope_parameters": rope_by_layer_type(native["rope_parameters"], layer_types),
        "classifier_activation": native["classifier_activation"],
        "prediction_activation": _activation(
            native["classifier_activation"], {"hidden_act": native["hidden_activation"]}
        ),
    }


def _modernbert_to_native(ours: Values, ending: str) -> Values:
    layer_types = ours["layer_types"] or [_FULL] * ours["num_hidden_layers"]
    predicts = ending == "ForMaskedLM"
    native = {
        "layer_types": layer_types,
        "embedding_dropout": _or(ours["embedding_dropout"], ours["hidden_dropout_prob"]),
        "classifier_dropout": _or(ours["classifier_dropout"], ours["hidden_dropout_prob"]),
        "classifier_pooling": "mean" if ours["classifier_pooling"] == "mean" else "cls",
        # One activation serves all of its heads.
        "classifier_activation": (ours["prediction_activation"] or ours["hidden_act"])
        if predicts
        else ours["classifier_activation"],
        "rope_parameters": {**rope_by_layer_type(ours["rope_parameters"], layer_types)},
    }
    if ours["sliding_window"] is not None:
        native["local_attention"] = 2 * ours["sliding_window"]
    return native


def _or(value: Any, other: Any) -> Any:
    return other if value is None else value


MODERNBERT = Architecture(
    model_type="modernbert",
    config_class="ModernBertConfig",
    prefix="model",
    heads=_heads(
        "ModernBert",
        ForMaskedLM=("decoder", "head.dense", "head.norm"),
        ForSequenceClassification=_MODERNBERT_CLASSIFIER,
        ForMultipleChoice=_MODERNBERT_CLASSIFIER,
        ForTokenClassification=_MODERNBERT_CLASSIFIER,
        ForQuestionAnswering=_MODERNBERT_CLASSIFIER,
    ),
    renames=(
        ("embeddings.word_embeddings", "embeddings.tok_embeddings"),
        ("embeddings.norm", "embeddings.norm"),
        ("layers.{i}.attention_norm", "layers.{i}.attn_norm"),
        (
            ("layers.{i}.attention.q_proj", "layers.{i}.attention.k_proj", "layers.{i}.attention.v_proj"),
            "layers.{i}.attn.Wqkv",
        ),
        ("layers.{i}.attention.o_proj", "layers.{i}.attn.Wo"),
        ("layers.{i}.mlp_norm", "layers.{i}.mlp_norm"),
        (("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.up_proj"), "layers.{i}.mlp.Wi"),
        ("layers.{i}.mlp.down_proj", "layers.{i}.mlp.Wo"),
        ("final_norm", "final_norm"),
    ),
    fields={
        **_SIZES,
        **_TOKENS,
        **_same(
            "max_position_embeddings", "initializer_range", "norm_eps", "norm_bias", "cls_token_id", "sep_token_id",
            "attention_bias", "layer_types", "embedding_dropout", "mlp_bias", "mlp_dropout", "decoder_bias",
            "classifier_pooling", "classifier_dropout", "sparse_prediction", "tie_word_embeddings",
        ),
        "hidden_act": "hidden_activation",
        "attention_probs_dropout_prob": "attention_dropout",
        "head_bias": "classifier_bias",
    },
    fixed={
        **_PLAIN,
        "norm_position": "pre",
        "first_attention_norm": False,
        "mlp_type": "glu",
        "type_vocab_size": 0,
        "position_embedding_type": "rope",
        "hidden_dropout_prob": 0.0,
        "classifier_dense": "all",
        "classifier_norm": True,
        "output_projection_init": "scaled",
    },
    to_ours=_modernbert_to_ours,
    to_native=_modernbert_to_native,
    inert=(
        "initializer_cutoff_factor", "deterministic_flash_attn", "sparse_pred_ignore_index", "local_attention",
        "rope_parameters", "classifier_activation",
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------------------------------------------- ViT


def _square(name: str, size: Any) -> int:
    sides = [size] if isinstance(size, int) else list(size)
    if len(set(sides)) != 1:
        raise _refuse(name, size, "images and patches are square")
    return sides[0]


def _vit_to_ours(native: Values, ending: str) -> Values:
    if not native["qkv_bias"]:
        raise _refuse("qkv_bias", False, "attention_bias is of all four projections or of none")
    if ending == "ForImageClassification" and not native["id2label"]:
        raise _refuse("num_labels", 0, "use ViTModel where there is no classifier")
    return {
        "image_size": _square("image_size", native["image_size"]),
        "patch_size": _square("patch_size", native["patch_size"]),
        "classifier_dropout": 0.0 if native["hidden_dropout_prob"] else None,
        "classifier_activation": native["pooler_act"],
    }


def _vit_to_native(ours: Values, ending: str) -> Values:
    return {
        "qkv_bias": True,
        "pooler_act": ours["classifier_activation"],
        "pooler_output_size": ours["hidden_size"],
        # Sizes of a text model are none of its: it takes the default then, and the fields are named as differing.
        **{name: ours[name] for name in ("image_size", "patch_size") if ours[name] is not None},
    }


VIT = Architecture(
    model_type="vit",
    config_class="ViTConfig",
    prefix="vit",
    heads=_heads("ViT", ForImageClassification="classifier"),
    renames=(
        ("embeddings.class_token", "embeddings.cls_token"),
        ("embeddings.table", "embeddings.position_embeddings"),
        ("embeddings.projection", "embeddings.patch_embeddings.projection"),
        ("layers.{i}.attention_norm", "layers.{i}.layernorm_before"),
        ("layers.{i}.attention.q_proj", "layers.{i}.attention.q_proj"),
        ("layers.{i}.attention.k_proj", "layers.{i}.attention.k_proj"),
        ("layers.{i}.attention.v_proj", "layers.{i}.attention.v_proj"),
        ("layers.{i}.attention.o_proj", "layers.{i}.attention.o_proj"),
        ("layers.{i}.mlp_norm", "layers.{i}.layernorm_after"),
        ("layers.{i}.mlp.up_proj", "layers.{i}.mlp.fc1"),
        ("layers.{i}.mlp.down_proj", "layers.{i}.mlp.fc2"),
        ("final_norm", "layernorm"),
        ("pooler.dense", "pooler.dense"),
    ),
    fields={
        **_same(
            "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
            "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "num_channels",
        ),
        "norm_eps": "layer_norm_eps",
    },
    fixed={
        **_PLAIN,
        "norm_position": "pre",
        "embedding_norm": False,
        "classifier_dense": "none",
    },
    to_ours=_vit_to_ours,
    to_native=_vit_to_native,
    inert=("encoder_stride", "image_size", "patch_size", "pooler_output_size"),
    optional_pooler=True,
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- DistilBERT

# Its heads drop out at rates of their own.
_DISTILBERT_DROPOUT = {"ForQuestionAnswering": "qa_dropout", "ForTokenClassification": "dropout"}


def _distilbert_to_ours(native: Values, ending: str) -> Values:
    rate = native[_DISTILBERT_DROPOUT.get(ending, "seq_classif_dropout")]
    return {"classifier_dropout": None if rate == native["dropout"] else rate}


def _distilbert_to_native(ours: Values, ending: str) -> Values:
    name = _DISTILBERT_DROPOUT.get(ending, "seq_classif_dropout")
    rate = _or(ours["classifier_dropout"], ours["hidden_dropout_prob"])
    return {} if name == "dropout" else {name: rate}


DISTILBERT = Architecture(
    model_type="distilbert",
    config_class="DistilBertConfig",
    prefix="distilbert",
    heads=_heads(
        "DistilBert",
        ForMaskedLM=("vocab_projector", "vocab_transform", "vocab_layer_norm"),
        ForSequenceClassification=("classifier", "pre_classifier"),
        ForMultipleChoice=("classifier", "pre_classifier"),
        ForTokenClassification="classifier",
        ForQuestionAnswering="qa_outputs",
    ),
    renames=(
        ("embeddings.word_embeddings", "embeddings.word_embeddings"),
        ("embeddings.positions.table", "embeddings.position_embeddings"),
        ("embeddings.norm", "embeddings.LayerNorm"),
        ("layers.{i}.attention.q_proj", "transformer.layer.{i}.attention.q_lin"),
        ("layers.{i}.attention.k_proj", "transformer.layer.{i}.attention.k_lin"),
        ("layers.{i}.attention.v_proj", "transformer.layer.{i}.attention.v_lin"),
        ("layers.{i}.attention.o_proj", "transformer.layer.{i}.attention.out_lin"),
        ("layers.{i}.attention_norm", "transformer.layer.{i}.sa_layer_norm"),
        ("layers.{i}.mlp.up_proj", "transformer.layer.{i}.ffn.lin1"),
        ("layers.{i}.mlp.down_proj", "transformer.layer.{i}.ffn.lin2"),
        ("layers.{i}.mlp_norm", "transformer.layer.{i}.output_layer_norm"),
    ),
    fields={
        **_TOKENS,
        **_same("vocab_size", "max_position_embeddings", "initializer_range", "tie_word_embeddings"),
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "hidden_act": "activation",
    },
    fixed={**_PLAIN, "norm_eps": 1e-12, "type_vocab_size": 0, "classifier_activation": "relu"},
    to_ours=_distilbert_to_ours,
    to_native=_distilbert_to_native,
    inert=("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout"),
)

# ------------------------------------------------------------------------------------------------------------- ELECTRA


def _electra_to_ours(native: Values, ending: str) -> Values:
    same_size = native["embedding_size"] == native["hidden_size"]
    ours = {
        **_has_types(native, ending),
        "embedding_size": None if same_size else native["embedding_size"],
        "prediction_activation": _activation("gelu", native),
        "classifier_activation": "gelu",
    }
    if ending == "ForMultipleChoice":
        for name, value in {"summary_type": "first", "summary_use_proj": True}.items():
            if native[name] != value:
                raise _refuse(name, native[name], f"multiple choice needs {name}={value!r}")
        for name in ("summary_proj_to_labels", "summary_first_dropout"):
            if native.get(name):
                raise _refuse(name, native[name], f"multiple choice needs it unset or {type(native[name])()!r}")
        ours["classifier_activation"] = native["summary_activation"] or "linear"
        ours["classifier_dropout"] = native["summary_last_dropout"]
    return ours


def _electra_to_native(ours: Values, ending: str) -> Values:
    native = {"embedding_size": ours["embedding_size"] or ours["hidden_size"]}
    if ending == "ForMultipleChoice":
        native["summary_activation"] = ours["classifier_activation"]
        native["summary_last_dropout"] = _or(ours["classifier_dropout"], ours["hidden_dropout_prob"])
        native["classifier_dropout"] = None
    return native


ELECTRA = Architecture(
    model_type="electra",
    config_class="ElectraConfig",
    prefix="electra",
    heads=_heads(
        "Electra",
        ForMaskedLM=("generator_lm_head", "generator_predictions.dense", "generator_predictions.LayerNorm"),
        ForSequenceClassification=("classifier.out_proj", "classifier.dense"),
        ForMultipleChoice=("classifier", "sequence_summary.summary"),
        ForTokenClassification="classifier",
        ForQuestionAnswering="qa_outputs",
    ),
    renames=(*_BERT_ENCODER[:-1], ("embeddings.projection", "embeddings_project")),
    fields=_BERT_FIELDS,
    fixed=_PLAIN,
    to_ours=_electra_to_ours,
    to_native=_electra_to_native,
    inert=(
        "use_cache", "summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout",
        "classifier_dropout",
    ),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- Nomic BERT

_LLAMA_LIKE: tuple[Rename, ...] = (
    ("layers.{i}.attention.q_proj", "layers.{i}.self_attn.q_proj"),
    ("layers.{i}.attention.k_proj", "layers.{i}.self_attn.k_proj"),
    ("layers.{i}.attention.v_proj", "layers.{i}.self_attn.v_proj"),
    ("layers.{i}.attention.o_proj", "layers.{i}.self_attn.o_proj"),
    ("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.gate_proj"),
    ("layers.{i}.mlp.up_proj", "layers.{i}.mlp.up_proj"),
    ("layers.{i}.mlp.down_proj", "layers.{i}.mlp.down_proj"),
)


def _check_head_size(native: Values) -> None:
    size = native["hidden_size"] // native["num_attention_heads"]
    if native["head_dim"] not in (None, size):
        raise _refuse("head_dim", native["head_dim"], f"a head has hidden_size / num_attention_heads = {size} channels")


def _nomic_to_ours(native: Values, ending: str) -> Values:
    _check_head_size(native)
    return {
        **_has_types(native, ending),
        "rope_parameters": dict(native["rope_parameters"]),
        "tie_word_embeddings": native.get("tie_word_embeddings", True),
    }


def _nomic_to_native(ours: Values, ending: str) -> Values:
    return {
        "rope_parameters": rope_by_layer_type(ours["rope_parameters"], ours["layer_types"]).get(_FULL, {}),
        "head_dim": ours["hidden_size"] // ours["num_attention_heads"],
        # Not a field there, so it is named only where it differs from what the class says.
        **({} if ours["tie_word_embeddings"] else {"tie_word_embeddings": False}),
    }


NOMIC_BERT = Architecture(
    model_type="nomic_bert",
    config_class="NomicBertConfig",
    prefix="nomic_bert",
    heads=_heads(
        "NomicBert",
        ForMaskedLM=(
            "cls.predictions.decoder",
            "cls.predictions.transform.dense",
            "cls.predictions.transform.layer_norm",
        ),
        ForSequenceClassification=("classifier", "nomic_bert.pooler.dense"),
        ForTokenClassification="classifier",
    ),
    renames=(
        ("embeddings.word_embeddings", "embeddings.word_embeddings"),
        ("embeddings.token_type_embeddings", "embeddings.token_type_embeddings"),
        ("embeddings.norm", "embeddings.LayerNorm"),
        *_LLAMA_LIKE,
        ("layers.{i}.attention_norm", "layers.{i}.post_attention_layernorm"),
        ("layers.{i}.mlp_norm", "layers.{i}.post_mlp_layernorm"),
        ("pooler.dense", "pooler.dense"),
    ),
    fields={ours: native for ours, native in _BERT_FIELDS.items() if ours != "tie_word_embeddings"},
    fixed={
        **_PLAIN,
        "mlp_type": "glu",
        "mlp_bias": False,
        "attention_bias": False,
        "position_embedding_type": "rope",
    },
    to_ours=_nomic_to_ours,
    to_native=_nomic_to_native,
    twins={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    optional_pooler=True,
)

# ------------------------------------------------------------------------------------------------------------ EuroBERT

_EUROBERT_POOLING = {"bos": "cls", "mean": "mean"}


def _eurobert_to_ours(native: Values, ending: str) -> Values:
    _check_head_size(native)
    pooling = native["classifier_pooling"]
    if ending == "ForSequenceClassification" and pooling not in _EUROBERT_POOLING:
        raise _refuse(
            "classifier_pooling", pooling, "it averages the logits of all tokens; sequences are pooled before the head"
        )
    return {
        "rope_parameters": dict(native["rope_parameters"]),
        "classifier_pooling": _EUROBERT_POOLING.get(pooling, "cls"),
        "mask_token_id": None if native["mask_token_id"] == native["pad_token_id"] else native["mask_token_id"],
        "decoder_bias": native["mlp_bias"],  # its decoder has a bias where its feed-forwards have
    }


def _eurobert_to_native(ours: Values, ending: str) -> Values:
    return {
        "rope_parameters": rope_by_layer_type(ours["rope_parameters"], ours["layer_types"]).get(_FULL, {}),
        "num_key_value_heads": ours["num_key_value_heads"] or ours["num_attention_heads"],
        "head_dim": ours["hidden_size"] // ours["num_attention_heads"],
        "classifier_pooling": "mean" if ours["classifier_pooling"] == "mean" else "bos",
        # Its mask token is a number always, and its default lies beyond other vocabularies: none is padding.
        "mask_token_id": _or(ours["mask_token_id"], ours["pad_token_id"] or 0),
    }


EUROBERT = Architecture(
    model_type="eurobert",
    config_class="EuroBertConfig",
    prefix="model",
    heads=_heads(
        "EuroBert",
        ForMaskedLM="lm_head",
        ForSequenceClassification=("classifier", "dense"),
        ForTokenClassification="classifier",
    ),
    renames=(
        ("embeddings.word_embeddings", "embed_tokens"),
        *_LLAMA_LIKE,
        ("layers.{i}.attention_norm", "layers.{i}.input_layernorm"),
        ("layers.{i}.mlp_norm", "layers.{i}.post_attention_layernorm"),
        ("final_norm", "norm"),
    ),
    fields={
        **_SIZES,
        **_TOKENS,
        **_same(
            "num_key_value_heads", "hidden_act", "max_position_embeddings", "initializer_range", "attention_bias",
            "mlp_bias", "tie_word_embeddings",
        ),
        "norm_eps": "rms_norm_eps",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    fixed={
        **_PLAIN,
        "norm_position": "pre",
        "norm_type": "rmsnorm",
        "norm_bias": False,
        "embedding_norm": False,
        "mlp_type": "glu",
        "type_vocab_size": 0,
        "position_embedding_type": "rope",
        "hidden_dropout_prob": 0.0,
        "classifier_activation": "gelu",
        "prediction_dense": False,
    },
    to_ours=_eurobert_to_ours,
    to_native=_eurobert_to_native,
    inert=("use_cache", "pretraining_tp", "classifier_pooling", "mask_token_id"),
)  # fmt: skip

# Where a configuration equals several, the first is written.
NATIVE: dict[str, Architecture] = {
    architecture.model_type: architecture
    for architecture in (BERT, ROBERTA, MODERNBERT, VIT, DISTILBERT, ELECTRA, NOMIC_BERT, EUROBERT)
}

__all__ = ["NATIVE", "PER_TOKEN", "POOLED", "Architecture", "Head", "Rename", "rope_by_layer_type"]
