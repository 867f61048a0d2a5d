# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Named architectures (`bert-base`, `modernbert-base`, …), each as changes to the defaults of `ClozeBertConfig`."""

from typing import Any

# Devlin et al. 2018.
_BERT: dict[str, Any] = {
    "vocab_size": 30522,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "norm_position": "post",
    "norm_eps": 1e-12,
    "norm_bias": True,
    "mlp_type": "mlp",
    "mlp_bias": True,
    "attention_bias": True,
    "position_embedding_type": "absolute",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "classifier_dense": "pooled",
    "classifier_activation": "tanh",
    "classifier_norm": False,
    "head_bias": True,
}

# Warner et al. 2024. Full attention in every third layer, RoPE base 160,000 there and 10,000 in the windows of 128.
_MODERNBERT: dict[str, Any] = {
    "vocab_size": 50368,
    "first_attention_norm": False,
    "sliding_window": 64,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 160_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "output_projection_init": "scaled",
    "pad_token_id": 50283,
    "bos_token_id": 50281,
    "eos_token_id": 50282,
    "cls_token_id": 50281,
    "sep_token_id": 50282,
}


def every_third_full(num_hidden_layers: int) -> list[str]:
    """The layer types of ModernBERT: full attention in layers 0, 3, 6, …, sliding windows in the others."""
    return ["sliding_attention" if layer % 3 else "full_attention" for layer in range(num_hidden_layers)]


# Narrow windows in most layers and a small RoPE base make short training runs learn faster (docs/learning.md).
_SMALL_MODERNBERT: dict[str, Any] = {
    **_MODERNBERT,
    "vocab_size": 8192,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
    "layer_types": every_third_full(4),
    "sliding_window": 4,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    },
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "cls_token_id": None,
    "sep_token_id": None,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    # Vaswani et al. 2017, the encoder of the base model.
    "transformer-base": {
        **_BERT,
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "hidden_act": "relu",
        "type_vocab_size": 0,
        "position_embedding_type": "sinusoidal",
        "embedding_norm": False,
        "norm_eps": 1e-5,
    },
    # Small models for a CPU, with the layers of ModernBERT, so that they can be exported as one.
    "nano": {
        **_SMALL_MODERNBERT,
        "hidden_size": 96,
        "num_attention_heads": 3,
        "intermediate_size": 256,
    },
    "tiny": {
        **_SMALL_MODERNBERT,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 512,
    },
    "small": {
        **_SMALL_MODERNBERT,
        "vocab_size": 32768,
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 768,
        "layer_types": every_third_full(6),
    },
    "bert-base": _BERT,
    "bert-large": {
        **_BERT,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    # Liu et al. 2019: 514 rows of position embeddings; the first two never belong to a token.
    "roberta-base": {
        **_BERT,
        "vocab_size": 50265,
        "type_vocab_size": 1,
        "norm_eps": 1e-5,
        "position_rule": "non_pad",
        "position_offset": 2,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    "modernbert-base": {
        **_MODERNBERT,
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "layer_types": every_third_full(22),
    },
    "modernbert-large": {
        **_MODERNBERT,
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 2624,
        "layer_types": every_third_full(28),
    },
    # Dosovitskiy et al. 2020.
    "vit-base": {
        **_BERT,
        "type_vocab_size": 0,
        "image_size": 224,
        "patch_size": 16,
        "norm_position": "pre",
        "embedding_norm": False,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dense": "none",
    },
}

__all__ = ["ARCHITECTURES", "every_third_full"]
