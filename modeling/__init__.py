"""Everything that runs in `forward`. Importing it tells transformers' Auto classes of the architecture."""

import transformers
from transformers import AutoConfig

from ..configuration.configuration_clozebert import ClozeBertConfig
from . import modeling_clozebert
from .bundle import class_of_auto_class
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

AutoConfig.register(ClozeBertConfig.model_type, ClozeBertConfig, exist_ok=True)
for _auto_class, _class in class_of_auto_class().items():
    getattr(transformers, _auto_class).register(
        ClozeBertConfig, getattr(modeling_clozebert, _class), exist_ok=True
    )

__all__ = [
    "ClozeBertForImageClassification",
    "ClozeBertForMaskedLM",
    "ClozeBertForMultipleChoice",
    "ClozeBertForQuestionAnswering",
    "ClozeBertForSequenceClassification",
    "ClozeBertForTokenClassification",
    "ClozeBertModel",
    "ClozeBertPreTrainedModel",
]
