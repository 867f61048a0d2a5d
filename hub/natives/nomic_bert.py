"""Nomic BERT (Nussbaum et al. 2024): post-norm with rotary positions and a gated feed-forward."""

from .architecture import (
    COMMON_VALUES,
    FULL,
    LLAMA_LAYERS,
    Architecture,
    Values,
    at_least_one_type,
    check_head_size,
    heads_of,
    rope_by_layer_type,
)
from .bert import BERT_FIELDS


def _to_ours(native: Values, ending: str) -> Values:
    check_head_size(native)
    return {
        **at_least_one_type(native, ending),
        "rope_parameters": dict(native["rope_parameters"]),
        "tie_word_embeddings": native.get("tie_word_embeddings", True),
    }


def _to_native(ours: Values, ending: str) -> Values:
    return {
        "rope_parameters": rope_by_layer_type(ours["rope_parameters"], ours["layer_types"]).get(FULL, {}),
        "head_dim": ours["hidden_size"] // ours["num_attention_heads"],
        # Not a declared field there, so it is written only if it differs from the class's default.
        **({} if ours["tie_word_embeddings"] else {"tie_word_embeddings": False}),
    }


NOMIC_BERT = Architecture(
    model_type="nomic_bert",
    config_class="NomicBertConfig",
    prefix="nomic_bert",
    heads=heads_of(
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
        *LLAMA_LAYERS,
        ("layers.{i}.attention_norm", "layers.{i}.post_attention_layernorm"),
        ("layers.{i}.mlp_norm", "layers.{i}.post_mlp_layernorm"),
        ("pooler.dense", "pooler.dense"),
    ),
    fields={ours: native for ours, native in BERT_FIELDS.items() if ours != "tie_word_embeddings"},
    fixed={
        **COMMON_VALUES,
        "mlp_type": "glu",
        "mlp_bias": False,
        "attention_bias": False,
        "position_embedding_type": "rope",
    },
    to_ours=_to_ours,
    to_native=_to_native,
    tied={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    optional_pooler=True,
)
