"""The encoder, its heads, and what calls them. Importing it registers them with the Auto classes.

What each file is for:

    models      encoder: from token ids to vectors; masked_lm; classifiers: all other models with a head
    parts       embeddings: tokens, positions, RoPE's tables, patches of images; blocks: the layer; attention; heads:
                what stands on the encoder, with the poolings; losses; inputs: checks
    packed      packed: the documents of a batch; packed_attention: masks and plans; attention_tiles for a CPU;
                window_attention and triton_kernels for CUDA; packed_view: other models on packed documents
    speed       fast_paths; joined: linear layers in one matmul, on CUDA
    uses        sentence_embeddings: `encode`; evaluation_mode
    Hub         modeling_clozebert: what a checkpoint's auto_map names; bundle: copies the code beside a model
"""

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
