"""Everything that runs in `forward`: the encoder and its heads. Importing it registers them with the Auto classes."""

from .modeling_clozebert import (
    ClozeBertForImageClassification,
    ClozeBertForMaskedLM,
    ClozeBertForMultipleChoice,
    ClozeBertForQuestionAnswering,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
    ClozeBertModel,
    ClozeBertPreTrainedModel,
)
from .sentence_embeddings import encode, encode_ids

from . import registration as registration  # isort: skip  # last: it needs the classes above

__all__ = [
    "ClozeBertForImageClassification",
    "ClozeBertForMaskedLM",
    "ClozeBertForMultipleChoice",
    "ClozeBertForQuestionAnswering",
    "ClozeBertForSequenceClassification",
    "ClozeBertForTokenClassification",
    "ClozeBertModel",
    "ClozeBertPreTrainedModel",
    "encode",
    "encode_ids",
]
