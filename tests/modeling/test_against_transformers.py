"""The same weights give the same outputs and gradients as transformers' BERT, RoBERTa, ModernBERT and ViT and torch's
`nn.TransformerEncoderLayer`, in float64.

Errors are the largest difference over the largest magnitude. Measured: 0 for BERT, RoBERTa and ViT, bit for bit; 9e-16
for torch; 6e-7 for ModernBERT, whose rotary tables transformers keeps in float32.
"""

import re

import numpy as np
import pytest
import torch
import transformers
from encoder_cases import PAD, VOCABULARY, build, gradients, random_ids, relative_error, same_gradients, tiny_config
from torch import nn

from clozebert import (
    ClozeBertConfig,
    ClozeBertForImageClassification,
    ClozeBertForMaskedLM,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
    ClozeBertModel,
)
from clozebert.configuration import ARCHITECTURES

EXACT, ROTARY = 1e-10, 1e-5
NATIVE = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 37, "num_labels": 5,
}  # fmt: skip
TEXT = {**NATIVE, "pad_token_id": PAD, "bos_token_id": 4, "eos_token_id": 5, "cls_token_id": 4, "sep_token_id": 5}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

_OF_BERT = (
    (r"^(bert|roberta)\.", "model."),
    (r"embeddings\.LayerNorm", "embeddings.norm"),
    (r"embeddings\.position_embeddings", "embeddings.positions.table"),
    (r"encoder\.layer\.", "layers."),
    (r"attention\.self\.(query|key|value)", lambda match: f"attention.{match[1][0]}_proj"),
    (r"attention\.output\.dense", "attention.o_proj"),
    (r"attention\.output\.LayerNorm", "attention_norm"),
    (r"intermediate\.dense", "mlp.up_proj"),
    (r"(layers\.\d+)\.output\.dense", r"\1.mlp.down_proj"),
    (r"(layers\.\d+)\.output\.LayerNorm", r"\1.mlp_norm"),
    (r"cls\.predictions\.transform\.dense|lm_head\.dense", "head.dense"),
    (r"cls\.predictions\.transform\.LayerNorm|lm_head\.layer_norm", "head.norm"),
    (r"cls\.predictions\.bias|lm_head\.bias", "decoder.bias"),
    (r"model\.pooler\.dense|classifier\.dense", "head.dense"),
    (r"classifier\.out_proj", "classifier"),
)
_OF_MODERNBERT = (
    (r"tok_embeddings", "word_embeddings"),
    (r"\.attn\.Wo", ".attention.o_proj"),
    (r"\.mlp\.Wo", ".mlp.down_proj"),
    (r"attn_norm", "attention_norm"),
)
_OF_VIT = (
    (r"^vit\.", "model."),
    (r"embeddings\.cls_token", "embeddings.class_token"),
    (r"embeddings\.position_embeddings", "embeddings.table"),
    (r"patch_embeddings\.", ""),
    (r"layernorm_before", "attention_norm"),
    (r"layernorm_after", "mlp_norm"),
    (r"mlp\.fc1", "mlp.up_proj"),
    (r"mlp\.fc2", "mlp.down_proj"),
    (r"model\.layernorm", "model.final_norm"),
)


def renamed(tensors, rules):
    """Native names to ours; what ModernBERT fuses is cut apart."""
    ours = {}
    for name, tensor in tensors.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        if ".attn.Wqkv." in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                ours[name.replace("attn.Wqkv", f"attention.{part}_proj")] = piece
        elif ".mlp.Wi." in name:
            for part, piece in zip(("gate", "up"), tensor.chunk(2), strict=True):
                ours[name.replace("Wi", f"{part}_proj")] = piece
        else:
            ours[name] = tensor
    return ours


def pair(native_class, native_config, our_class, our_config, rules):
    """A native model with random weights, and ours with the same."""
    native = build(native_class, native_config, seed=3)
    ours = build(our_class, our_config)
    weights = renamed(dict(native.named_parameters()), rules)
    assert weights.keys() == dict(ours.named_parameters()).keys()
    ours.load_state_dict({name: tensor.detach() for name, tensor in weights.items()}, strict=False)
    return native, ours


def compare(native, ours, inputs, rules, *, tolerance, mask=None, output="logits"):
    """Outputs where there are tokens, loss, and the gradient of every parameter."""
    found, wanted = ours(**inputs), native(**inputs)
    where = slice(None) if mask is None else mask.bool()
    assert relative_error(found[output][where], wanted[output][where]) <= tolerance
    if wanted.get("loss") is not None:
        assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=tolerance)
        theirs = renamed(gradients(wanted.loss, native), rules)
        assert same_gradients(gradients(found.loss, ours), theirs) <= tolerance


def text_batch(types):
    """Padded by less than a window: else eager ModernBERT of transformers gives NaN."""
    mask = torch.ones(3, 13, dtype=torch.long)
    mask[1, 12:], mask[2, 10:] = 0, 0
    ids = torch.as_tensor(random_ids(3, 13)).masked_fill(mask == 0, PAD)
    labels = torch.as_tensor(random_ids(3, 13, seed=1)).masked_fill((mask == 0) | (ids % 3 != 0), -100)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if types:
        inputs["token_type_ids"] = torch.as_tensor(np.random.default_rng(2).integers(0, types, (3, 13)))
    return inputs, mask, labels


def our_config(name, **changes):
    return ClozeBertConfig(**{**ARCHITECTURES[name], **TEXT, **NO_DROPOUT, **changes})


BERT = (
    lambda **more: transformers.BertConfig(**TEXT, **NO_DROPOUT, max_position_embeddings=41, **more),
    our_config("bert-base", max_position_embeddings=41),
    _OF_BERT,
    2,
    EXACT,
)
ROBERTA = (
    lambda **more: transformers.RobertaConfig(
        **TEXT, **NO_DROPOUT, max_position_embeddings=41, type_vocab_size=1, layer_norm_eps=1e-5, **more
    ),
    our_config("roberta-base", max_position_embeddings=41 - PAD - 1, position_offset=PAD + 1),
    _OF_BERT,
    1,
    EXACT,
)
MODERNBERT = (
    lambda **more: transformers.ModernBertConfig(
        **TEXT, max_position_embeddings=41, local_attention=6, classifier_pooling="mean", **more
    ),
    our_config(
        "modernbert-base",
        max_position_embeddings=41,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        sliding_window=3,
        classifier_pooling="mean",
    ),
    _OF_MODERNBERT,
    0,
    ROTARY,
)
FAMILIES = pytest.mark.parametrize(
    ("family", "prefix"), [(BERT, "Bert"), (ROBERTA, "Roberta"), (MODERNBERT, "ModernBert")],
    ids=["bert", "roberta", "modernbert"],
)  # fmt: skip


@FAMILIES
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_masked_lm(family, prefix, implementation):
    native_config, config, rules, types, tolerance = family
    native_class = getattr(transformers, f"{prefix}ForMaskedLM")
    native, ours = pair(native_class, native_config(), ClozeBertForMaskedLM, config, rules)
    native.set_attn_implementation(implementation)
    ours.set_attn_implementation(implementation)
    inputs, mask, labels = text_batch(types)
    compare(native, ours, {**inputs, "labels": labels}, rules, mask=mask, tolerance=tolerance)


@FAMILIES
def test_sequence_classification(family, prefix):
    native_config, config, rules, types, tolerance = family
    native_class = getattr(transformers, f"{prefix}ForSequenceClassification")
    native, ours = pair(native_class, native_config(), ClozeBertForSequenceClassification, config, rules)
    inputs, _, _ = text_batch(types)
    compare(native, ours, {**inputs, "labels": torch.tensor([4, 0, 2])}, rules, tolerance=tolerance)


@FAMILIES
def test_token_classification(family, prefix):
    native_config, config, rules, types, tolerance = family
    native_class = getattr(transformers, f"{prefix}ForTokenClassification")
    native, ours = pair(native_class, native_config(), ClozeBertForTokenClassification, config, rules)
    inputs, mask, labels = text_batch(types)
    labels = labels.where(labels < 0, labels % 5)
    compare(native, ours, {**inputs, "labels": labels}, rules, mask=mask, tolerance=tolerance)


@FAMILIES
def test_hidden_states_and_attentions_of_every_layer(family, prefix):
    native_config, config, rules, types, tolerance = family
    native_class = getattr(transformers, f"{prefix}ForMaskedLM")
    native, ours = pair(native_class, native_config(), ClozeBertForMaskedLM, config, rules)
    inputs, mask, _ = text_batch(types)
    for model in (native, ours):
        model.set_attn_implementation("eager")
    wanted, found = (model(**inputs, output_hidden_states=True, output_attentions=True) for model in (native, ours))
    assert len(found.hidden_states) == len(wanted.hidden_states) == NATIVE["num_hidden_layers"] + 1
    # The last ones differ by what follows the layers: the final norm, and the zeros at padding.
    for ours_TD, theirs_TD in zip(found.hidden_states[:-1], wanted.hidden_states[:-1], strict=True):
        assert relative_error(ours_TD[mask.bool()], theirs_TD[mask.bool()]) <= tolerance
    for ours_BHTT, theirs_BHTT in zip(found.attentions, wanted.attentions, strict=True):
        ours_BTHT, theirs_BTHT = ours_BHTT.transpose(1, 2), theirs_BHTT.transpose(1, 2)
        assert relative_error(ours_BTHT[mask.bool()], theirs_BTHT[mask.bool()]) <= tolerance


@pytest.mark.parametrize("size", [12, 20], ids=["own size", "interpolated"])
def test_vit(size):
    sizes = {"image_size": 12, "patch_size": 4, "num_channels": 2}
    native_config = transformers.ViTConfig(**NATIVE, **NO_DROPOUT, **sizes)
    config = ClozeBertConfig(**{**ARCHITECTURES["vit-base"], **NATIVE, **sizes})
    native, ours = pair(
        transformers.ViTForImageClassification, native_config, ClozeBertForImageClassification, config, _OF_VIT
    )
    pixels = torch.randn(2, 2, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    native_inputs = {"interpolate_pos_encoding": True} if size != 12 else {}
    labels = torch.tensor([3, 1])
    found, wanted = ours(pixels, labels=labels), native(pixels, labels=labels, **native_inputs)
    assert relative_error(found.logits, wanted.logits) <= EXACT
    theirs = renamed(gradients(wanted.loss, native), _OF_VIT)
    assert same_gradients(gradients(found.loss, ours), theirs) <= EXACT


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_encoder_layer_of_torch(norm_position, activation):
    """`nn.TransformerEncoderLayer` and the encoder of Vaswani et al. around it."""
    config = tiny_config(
        norm_position=norm_position, hidden_act=activation, mlp_type="mlp", position_embedding_type="none",
        embedding_norm=False, norm_bias=True, mlp_bias=True, attention_bias=True,
    )  # fmt: skip
    ours = build(ClozeBertModel, config)
    layer = nn.TransformerEncoderLayer(
        24, 4, 37, dropout=0.0, activation=activation, layer_norm_eps=1e-5, batch_first=True,
        norm_first=norm_position == "pre",
    )  # fmt: skip
    final_norm = nn.LayerNorm(24, eps=1e-5) if norm_position == "pre" else None
    theirs = nn.TransformerEncoder(layer, 2, norm=final_norm, enable_nested_tensor=False).double()

    def as_torch(tensors):
        names = {
            "self_attn.out_proj": "attention.o_proj", "linear1": "mlp.up_proj", "linear2": "mlp.down_proj",
            "norm1": "attention_norm", "norm2": "mlp_norm",
        }  # fmt: skip
        fused = {}
        for index in range(2):
            at = f"layers.{index}."
            for kind in ("weight", "bias"):
                parts = [tensors[f"{at}attention.{name}_proj.{kind}"] for name in "qkv"]
                fused[f"{at}self_attn.in_proj_{kind}"] = torch.cat(parts)
                fused.update({f"{at}{name}.{kind}": tensors[f"{at}{our}.{kind}"] for name, our in names.items()})
        if final_norm is not None:
            fused.update({f"norm.{kind}": tensors[f"final_norm.{kind}"] for kind in ("weight", "bias")})
        return fused

    theirs.load_state_dict({name: x.detach() for name, x in as_torch(dict(ours.named_parameters())).items()})
    x_BTD = torch.randn(3, 13, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    _, mask, _ = text_batch(0)
    probe = torch.randn(3, 13, 24, dtype=torch.float64) * mask[..., None]
    found = ours(inputs_embeds=x_BTD, attention_mask=mask).last_hidden_state
    wanted = theirs(x_BTD, src_key_padding_mask=mask == 0)
    assert relative_error(found[mask.bool()], wanted[mask.bool()]) <= EXACT
    slopes = as_torch(gradients((found * probe).sum(), ours))
    assert same_gradients(gradients((wanted * probe).sum(), theirs), slopes) <= EXACT
