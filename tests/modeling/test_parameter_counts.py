"""How many parameters the architectures have: by formula, as published, and as transformers' own models have."""

import pytest
import torch
import transformers

from clozebert import ClozeBertConfig, ClozeBertForImageClassification, ClozeBertForMaskedLM, ClozeBertModel
from clozebert.modeling.blocks import EncoderLayer


def parameters_of(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("d", [16, 24, 512])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_a_block_has_12_d_squared_plus_13_d_parameters(d, norm_position):
    """4 d² + 4 d of attention, 8 d² + 5 d of feed-forward at d_ff = 4 d, 4 d of two norms."""
    sizes = {
        "num_hidden_layers": 1, "hidden_size": d, "num_attention_heads": 8, "intermediate_size": 4 * d,
        "norm_position": norm_position, "mlp_type": "mlp", "norm_bias": True, "mlp_bias": True, "attention_bias": True,
    }  # fmt: skip
    assert parameters_of(EncoderLayer(ClozeBertConfig(**sizes), 0)) == 12 * d**2 + 13 * d
    assert parameters_of(EncoderLayer(ClozeBertConfig(**{**sizes, "attention_bias": False}), 0)) == 12 * d**2 + 9 * d


def count(model_class, name, **overrides):
    with torch.device("meta"):
        return parameters_of(model_class(ClozeBertConfig.from_name(name, **overrides)))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bert-base", 109_514_298),
        ("bert-large", 335_174_458),
        ("roberta-base", 124_697_433),
        ("modernbert-base", 149_655_232),
        ("modernbert-large", 395_881_664),
    ],
)
def test_published_parameter_counts_with_the_masked_lm_head(name, parameters):
    assert count(ClozeBertForMaskedLM, name) == parameters


def test_published_parameter_count_of_vit_base():
    assert count(ClozeBertForImageClassification, "vit-base", num_labels=1000) == 86_567_656


def test_parameter_count_of_the_first_transformer_by_formula():
    d, layers = 512, 6
    vocabulary = ClozeBertConfig.from_name("transformer-base").vocab_size
    assert count(ClozeBertModel, "transformer-base") == layers * (12 * d**2 + 13 * d) + vocabulary * d


@pytest.mark.parametrize(("name", "layers", "f", "vocabulary"), [("tiny", 4, 512, 8192), ("small", 6, 768, 32768)])
def test_parameter_counts_of_small_models_by_formula(name, layers, f, vocabulary):
    d = 256
    norms = 2 * layers - 1 + 2  # two a block but for the first attention, one of the embeddings, one at the end
    assert count(ClozeBertModel, name) == vocabulary * d + layers * (4 * d * d + 3 * d * f) + norms * d


@pytest.mark.parametrize(
    ("name", "native"),
    [
        ("bert-base", transformers.BertConfig()),
        ("roberta-base", transformers.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)),
        ("modernbert-base", transformers.ModernBertConfig()),
    ],
)
def test_parameter_counts_of_transformers_own(name, native):
    with torch.device("meta"):
        wanted = parameters_of(transformers.AutoModelForMaskedLM.from_config(native))
    assert count(ClozeBertForMaskedLM, name) == wanted
