"""ModernBERT (Warner et al. 2024): pre-norm, rotary positions, gated feed-forward, sliding windows."""

from .architecture import (
    COMMON_VALUES,
    FULL,
    SIZES,
    SLIDING,
    TOKEN_IDS,
    Architecture,
    Values,
    heads_of,
    no_counterpart,
    prediction_activation,
    rope_by_layer_type,
    same,
    value_or,
)

_CLASSIFIER = ("classifier", "head.dense", "head.norm")


def _to_ours(native: Values, ending: str) -> Values:
    layer_types = native["layer_types"]
    if SLIDING in layer_types and native["local_attention"] < 2:
        raise no_counterpart("local_attention", native["local_attention"], "a window reaches one token or more")
    return {
        "sliding_window": native["local_attention"] // 2 if SLIDING in layer_types else None,
        "rope_parameters": rope_by_layer_type(native["rope_parameters"], layer_types),
        "classifier_activation": native["classifier_activation"],
        "prediction_activation": prediction_activation(
            native["classifier_activation"], {"hidden_act": native["hidden_activation"]}
        ),
    }


def _to_native(ours: Values, ending: str) -> Values:
    layer_types = ours["layer_types"] or [FULL] * ours["num_hidden_layers"]
    predicts = ending == "ForMaskedLM"
    native = {
        "layer_types": layer_types,
        "embedding_dropout": value_or(ours["embedding_dropout"], ours["hidden_dropout_prob"]),
        "classifier_dropout": value_or(ours["classifier_dropout"], ours["hidden_dropout_prob"]),
        "classifier_pooling": "mean" if ours["classifier_pooling"] == "mean" else "cls",
        # All its heads share one activation.
        "classifier_activation": (ours["prediction_activation"] or ours["hidden_act"])
        if predicts
        else ours["classifier_activation"],
        "rope_parameters": {**rope_by_layer_type(ours["rope_parameters"], layer_types)},
    }
    if ours["sliding_window"] is not None:
        native["local_attention"] = 2 * ours["sliding_window"]
    return native


MODERNBERT = Architecture(
    model_type="modernbert",
    config_class="ModernBertConfig",
    prefix="model",
    heads=heads_of(
        "ModernBert",
        ForMaskedLM=("decoder", "head.dense", "head.norm"),
        ForSequenceClassification=_CLASSIFIER,
        ForMultipleChoice=_CLASSIFIER,
        ForTokenClassification=_CLASSIFIER,
        ForQuestionAnswering=_CLASSIFIER,
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
        **SIZES,
        **TOKEN_IDS,
        **same(
            "max_position_embeddings", "initializer_range", "norm_eps", "norm_bias", "cls_token_id", "sep_token_id",
            "attention_bias", "layer_types", "embedding_dropout", "mlp_bias", "mlp_dropout", "decoder_bias",
            "classifier_pooling", "classifier_dropout", "sparse_prediction", "tie_word_embeddings",
        ),
        "hidden_act": "hidden_activation",
        "attention_probs_dropout_prob": "attention_dropout",
        "head_bias": "classifier_bias",
    },
    fixed={
        **COMMON_VALUES,
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
    to_ours=_to_ours,
    to_native=_to_native,
    no_effect=(
        "initializer_cutoff_factor", "deterministic_flash_attn", "sparse_pred_ignore_index", "local_attention",
        "rope_parameters", "classifier_activation",
    ),
)  # fmt: skip
