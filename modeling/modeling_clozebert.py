# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""The classes that `AutoModel` opens, from this one file, as transformers expects it.

`encoder.py` has the model without a head, `masked_lm.py` and `classifiers.py` the models with one.

From a folder on disk, transformers 5.4 copies only the files that this one imports directly. So it imports from all.
"""

import contextlib

from ..configuration.configuration_clozebert import ClozeBertConfig as ClozeBertConfig
from ..configuration.field_checks import check_value as check_value
from ..configuration.named_architectures import ARCHITECTURES as ARCHITECTURES
from .attention import Attention as Attention
from .attention_tiles import tiled_attention as tiled_attention
from .blocks import EncoderLayer as EncoderLayer
from .bundle import write_code as write_code
from .classifiers import (
    ClozeBertForImageClassification,
    ClozeBertForMultipleChoice,
    ClozeBertForQuestionAnswering,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
)
from .embeddings import TextEmbeddings as TextEmbeddings
from .encoder import ClozeBertModel, ClozeBertPreTrainedModel
from .fast_paths import attend as attend
from .heads import Pooling as Pooling
from .inputs import row_mask as row_mask
from .joined import can_join as can_join
from .losses import cross_entropy as cross_entropy
from .masked_lm import ClozeBertForMaskedLM
from .packed import Packed as Packed
from .packed_attention import padded_attention as padded_attention
from .window_attention import window_attention as window_attention

with contextlib.suppress(ImportError):  # needs Triton
    from .triton_kernels import ALL_KERNELS as ALL_KERNELS

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
