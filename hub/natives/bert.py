"""Parameter names and fields of BERT (Devlin et al. 2018), and what its descendants share with it."""

from .architecture import (
    COMMON_VALUES,
    SIZES,
    TOKEN_IDS,
    Architecture,
    Rename,
    at_least_one_type,
    heads_of,
    no_changes,
    same,
)

BERT_FIELDS = {
    **SIZES,
    **TOKEN_IDS,
    **same(
        "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings",
        "type_vocab_size", "initializer_range", "classifier_dropout", "tie_word_embeddings",
    ),
    "norm_eps": "layer_norm_eps",
}  # fmt: skip

BERT_ENCODER: tuple[Rename, ...] = (
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
    heads=heads_of(
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
    renames=BERT_ENCODER,
    fields=BERT_FIELDS,
    fixed=COMMON_VALUES,
    to_ours=at_least_one_type,
    to_native=no_changes,
    tied={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    no_effect=("use_cache",),
    optional_pooler=True,
)
