"""EuroBERT (Boizard et al. 2025): pre-norm with RMS norm, rotary positions and grouped key-value heads."""

from .architecture import (
    COMMON_VALUES,
    FULL,
    LLAMA_LAYERS,
    SIZES,
    TOKEN_IDS,
    Architecture,
    Values,
    check_head_size,
    heads_of,
    no_counterpart,
    rope_by_layer_type,
    same,
    value_or,
)

_POOLING = {"bos": "cls", "mean": "mean"}


def _to_ours(native: Values, ending: str) -> Values:
    check_head_size(native)
    pooling = native["classifier_pooling"]
    if ending == "ForSequenceClassification" and pooling not in _POOLING:
        raise no_counterpart(
            "classifier_pooling", pooling, "it averages the logits of all tokens; sequences are pooled before the head"
        )
    return {
        "rope_parameters": dict(native["rope_parameters"]),
        "classifier_pooling": _POOLING.get(pooling, "cls"),
        "mask_token_id": None if native["mask_token_id"] == native["pad_token_id"] else native["mask_token_id"],
        "decoder_bias": native["mlp_bias"],  # its decoder has a bias if its feed-forward layers do
    }


def _to_native(ours: Values, ending: str) -> Values:
    return {
        "rope_parameters": rope_by_layer_type(ours["rope_parameters"], ours["layer_types"]).get(FULL, {}),
        "num_key_value_heads": ours["num_key_value_heads"],
        "head_dim": ours["hidden_size"] // ours["num_attention_heads"],
        "classifier_pooling": "mean" if ours["classifier_pooling"] == "mean" else "bos",
        # There it must be a number, and the default is outside small vocabularies: use the padding id for None.
        "mask_token_id": value_or(ours["mask_token_id"], ours["pad_token_id"] or 0),
    }


EUROBERT = Architecture(
    model_type="eurobert",
    config_class="EuroBertConfig",
    prefix="model",
    heads=heads_of(
        "EuroBert",
        ForMaskedLM="lm_head",
        ForSequenceClassification=("classifier", "dense"),
        ForTokenClassification="classifier",
    ),
    renames=(
        ("embeddings.word_embeddings", "embed_tokens"),
        *LLAMA_LAYERS,
        ("layers.{i}.attention_norm", "layers.{i}.input_layernorm"),
        ("layers.{i}.mlp_norm", "layers.{i}.post_attention_layernorm"),
        ("final_norm", "norm"),
    ),
    fields={
        **SIZES,
        **TOKEN_IDS,
        **same(
            "num_key_value_heads", "hidden_act", "max_position_embeddings", "initializer_range", "attention_bias",
            "mlp_bias", "tie_word_embeddings",
        ),
        "norm_eps": "rms_norm_eps",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    fixed={
        **COMMON_VALUES,
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
    to_ours=_to_ours,
    to_native=_to_native,
    no_effect=("use_cache", "pretraining_tp", "classifier_pooling", "mask_token_id"),
)  # fmt: skip
