"""RoBERTa (Liu et al. 2019): BERT whose positions start after the padding id.

XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020) are RoBERTas with other vocabularies.
"""

from .architecture import COMMON_VALUES, Architecture, Values, at_least_one_type, heads_of, prediction_activation
from .bert import BERT_ENCODER, BERT_FIELDS


def _to_ours(native: Values, ending: str) -> Values:
    # Positions start at pad_token_id + 1: no token uses the rows before it.
    offset = (native["pad_token_id"] or 0) + 1
    return {
        **at_least_one_type(native, ending),
        "position_offset": offset,
        "max_position_embeddings": native["max_position_embeddings"] - offset,
        "prediction_activation": prediction_activation("gelu", native),
    }


def _to_native(ours: Values, ending: str) -> Values:
    return {"max_position_embeddings": ours["max_position_embeddings"] + ours["position_offset"]}


def _roberta(model_type: str, stem: str) -> Architecture:
    """The table of a family whose classes begin with `stem`."""
    return Architecture(
        model_type=model_type,
        config_class=f"{stem}Config",
        prefix="roberta",
        heads=heads_of(
            stem,
            ForMaskedLM=("lm_head.decoder", "lm_head.dense", "lm_head.layer_norm"),
            ForSequenceClassification=("classifier.out_proj", "classifier.dense"),
            ForMultipleChoice=("classifier", "roberta.pooler.dense"),
            ForTokenClassification="classifier",
            ForQuestionAnswering="qa_outputs",
        ),
        renames=BERT_ENCODER,
        fields={ours: native for ours, native in BERT_FIELDS.items() if ours != "max_position_embeddings"},
        fixed={**COMMON_VALUES, "position_rule": "non_pad"},
        to_ours=_to_ours,
        to_native=_to_native,
        tied={"lm_head.bias": "lm_head.decoder.bias"},
        no_effect=("use_cache",),
        optional_pooler=True,
    )


ROBERTA = _roberta("roberta", "Roberta")
XLM_ROBERTA = _roberta("xlm-roberta", "XLMRoberta")
CAMEMBERT = _roberta("camembert", "Camembert")
