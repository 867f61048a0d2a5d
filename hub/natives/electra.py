"""ELECTRA (Clark et al. 2020), its generator and its classifiers: BERT whose embeddings may be narrower."""

from .architecture import (
    COMMON_VALUES,
    Architecture,
    Values,
    at_least_one_type,
    heads_of,
    no_counterpart,
    prediction_activation,
    value_or,
)
from .bert import BERT_ENCODER, BERT_FIELDS


def _to_ours(native: Values, ending: str) -> Values:
    same_size = native["embedding_size"] == native["hidden_size"]
    ours = {
        **at_least_one_type(native, ending),
        "embedding_size": None if same_size else native["embedding_size"],
        "prediction_activation": prediction_activation("gelu", native),
        "classifier_activation": "gelu",
    }
    if ending == "ForMultipleChoice":
        for name, value in {"summary_type": "first", "summary_use_proj": True}.items():
            if native[name] != value:
                raise no_counterpart(name, native[name], f"multiple choice needs {name}={value!r}")
        for name in ("summary_proj_to_labels", "summary_first_dropout"):
            if native.get(name):
                raise no_counterpart(name, native[name], f"multiple choice needs it unset or {type(native[name])()!r}")
        ours["classifier_activation"] = native["summary_activation"] or "linear"
        ours["classifier_dropout"] = native["summary_last_dropout"]
    return ours


def _to_native(ours: Values, ending: str) -> Values:
    native = {"embedding_size": ours["embedding_size"] or ours["hidden_size"]}
    if ending == "ForMultipleChoice":
        native["summary_activation"] = ours["classifier_activation"]
        native["summary_last_dropout"] = value_or(ours["classifier_dropout"], ours["hidden_dropout_prob"])
        native["classifier_dropout"] = None
    return native


ELECTRA = Architecture(
    model_type="electra",
    config_class="ElectraConfig",
    prefix="electra",
    heads=heads_of(
        "Electra",
        ForMaskedLM=("generator_lm_head", "generator_predictions.dense", "generator_predictions.LayerNorm"),
        ForSequenceClassification=("classifier.out_proj", "classifier.dense"),
        ForMultipleChoice=("classifier", "sequence_summary.summary"),
        ForTokenClassification="classifier",
        ForQuestionAnswering="qa_outputs",
    ),
    renames=(*BERT_ENCODER[:-1], ("embeddings.projection", "embeddings_project")),
    fields=BERT_FIELDS,
    fixed=COMMON_VALUES,
    to_ours=_to_ours,
    to_native=_to_native,
    no_effect=(
        "use_cache", "summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout",
        "classifier_dropout",
    ),
)  # fmt: skip
