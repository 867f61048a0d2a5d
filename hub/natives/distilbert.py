"""DistilBERT (Sanh et al. 2019): BERT without token types, with other names."""

from .architecture import COMMON_VALUES, TOKEN_IDS, Architecture, Values, heads_of, same, value_or

# Two of its heads have their own dropout rates.
_DROPOUT = {"ForQuestionAnswering": "qa_dropout", "ForTokenClassification": "dropout"}


def _to_ours(native: Values, ending: str) -> Values:
    rate = native[_DROPOUT.get(ending, "seq_classif_dropout")]
    return {"classifier_dropout": None if rate == native["dropout"] else rate}


def _to_native(ours: Values, ending: str) -> Values:
    name = _DROPOUT.get(ending, "seq_classif_dropout")
    rate = value_or(ours["classifier_dropout"], ours["hidden_dropout_prob"])
    return {} if name == "dropout" else {name: rate}


DISTILBERT = Architecture(
    model_type="distilbert",
    config_class="DistilBertConfig",
    prefix="distilbert",
    heads=heads_of(
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
        **TOKEN_IDS,
        **same("vocab_size", "max_position_embeddings", "initializer_range", "tie_word_embeddings"),
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "hidden_act": "activation",
    },
    fixed={**COMMON_VALUES, "norm_eps": 1e-12, "type_vocab_size": 0, "classifier_activation": "relu"},
    to_ours=_to_ours,
    to_native=_to_native,
    no_effect=("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout"),
)
