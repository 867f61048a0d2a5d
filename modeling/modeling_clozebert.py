# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""The classes that `AutoModel` opens, from this one file, as transformers expects it.

`encoder.py` has the model without a head, `masked_lm.py` and `classifiers.py` the models with one.
"""

from .classifiers import (
    ClozeBertForImageClassification,
    ClozeBertForMultipleChoice,
    ClozeBertForQuestionAnswering,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
)
from .encoder import ClozeBertModel, ClozeBertPreTrainedModel
from .masked_lm import ClozeBertForMaskedLM

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
