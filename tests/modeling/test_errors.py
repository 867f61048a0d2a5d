"""A person's mistake is a `ValueError` that names the field and the value, before any layer runs."""

import pytest
import torch
from encoder_cases import PAD, build, random_ids, tiny_config

from clozebert import (
    ClozeBertForImageClassification,
    ClozeBertForMaskedLM,
    ClozeBertForMultipleChoice,
    ClozeBertForQuestionAnswering,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
    ClozeBertModel,
)
from clozebert.modeling.losses import sequence_loss
from clozebert.modeling.packed import Packed

IDS = torch.as_tensor(random_ids(2, 9))
LONG = torch.as_tensor(random_ids(1, 42))
IMAGE = {"image_size": 12, "patch_size": 4, "num_channels": 2, "positions": "absolute"}


def whole(*values):
    return torch.tensor(values)


def ones(*shape):
    return torch.ones(shape, dtype=torch.long)


def bounds(*values):
    return {"input_ids": IDS[:1], "cu_seq_lens_q": torch.tensor(values, dtype=torch.int32)}


INPUTS = {
    "one dimension": ({}, {"input_ids": IDS[0]}, r"input_ids of shape \(9,\) must be \[batch, length\]"),
    "three dimensions": ({}, {"input_ids": IDS[None]}, r"input_ids of shape \(1, 2, 9\)"),
    "two inputs": (
        {},
        {"input_ids": IDS, "inputs_embeds": torch.zeros(2, 9, 24)},
        "exactly one of input_ids and inputs_embeds",
    ),
    "no input": ({}, {}, "exactly one of input_ids and inputs_embeds"),
    "no token": ({}, {"input_ids": IDS[:, :0]}, r"shape \(2, 0\) holds no token"),
    "no row": ({}, {"input_ids": IDS[:0]}, r"shape \(0, 9\) holds no token"),
    "id too large": ({}, {"input_ids": IDS * 0 + 53}, "input_ids holds 53, outside the 53 rows that vocab_size"),
    "id negative": ({}, {"input_ids": IDS * 0 - 1}, "input_ids holds -1"),
    "ids not whole": ({}, {"input_ids": IDS.double()}, "input_ids must be whole numbers"),
    "type too large": (
        {"type_vocab_size": 3},
        {"input_ids": IDS, "token_type_ids": IDS * 0 + 3},
        "token_type_ids holds 3, outside the 3",
    ),
    "types of another shape": (
        {"type_vocab_size": 3},
        {"input_ids": IDS, "token_type_ids": ones(2, 8)},
        r"token_type_ids of shape \(2, 8\) must be \(2, 9\)",
    ),
    "position too large": (
        {},
        {"input_ids": IDS, "position_ids": torch.arange(40, 49)[None]},
        "position_ids holds 48, outside the 41 rows that max_position_embeddings",
    ),
    "position negative": ({}, {"input_ids": IDS, "position_ids": torch.arange(-1, 8)[None]}, "position_ids holds -1"),
    "positions of another length": (
        {},
        {"input_ids": IDS, "position_ids": torch.arange(8)[None]},
        r"position_ids of shape \(1, 8\) must be \(2, 9\)",
    ),
    "positions of other rows": (
        {},
        {"input_ids": IDS, "position_ids": torch.arange(9).expand(3, 9)},
        r"position_ids of shape \(3, 9\)",
    ),
    "positions of one dimension": (
        {},
        {"input_ids": IDS, "position_ids": torch.arange(9)},
        r"position_ids of shape \(9,\)",
    ),
    "mask of another length": (
        {},
        {"input_ids": IDS, "attention_mask": ones(2, 8)},
        r"attention_mask of shape \(2, 8\) must be \(2, 9\)",
    ),
    "mask of other rows": ({}, {"input_ids": IDS, "attention_mask": ones(1, 9)}, r"attention_mask of shape \(1, 9\)"),
    "mask of one dimension": ({}, {"input_ids": IDS, "attention_mask": ones(9)}, r"attention_mask of shape \(9,\)"),
    "mask of three": ({}, {"input_ids": IDS, "attention_mask": ones(2, 9, 9)}, r"attention_mask of shape \(2, 9, 9\)"),
    "mask of four, too short": (
        {},
        {"input_ids": IDS, "attention_mask": ones(2, 1, 8, 8).bool()},
        r"attention_mask of shape \(2, 1, 8, 8\)",
    ),
    "too long": ({}, {"input_ids": LONG}, "42 tokens is longer than max_position_embeddings=41"),
    "too long for sinusoids": (
        {"positions": "sinusoidal"},
        {"input_ids": LONG},
        "42 tokens is longer than max_position_embeddings=41",
    ),
    "a packed document too long": (
        {},
        {"input_ids": torch.cat([LONG, LONG], 1), "cu_seq_lens_q": whole(0, 42, 84)},
        "42 tokens is longer than",
    ),
    "boundaries that end early": ({}, bounds(0, 4, 8), "cu_seq_lens_q runs from 0 to 8; the row has tokens 0 to 9"),
    "boundaries that begin late": ({}, bounds(2, 9), "cu_seq_lens_q runs from 2 to 9"),
    "boundaries that go back": ({}, bounds(0, 6, 4, 9), r"cu_seq_lens_q=\[0, 6, 4, 9\] must not decrease"),
    "boundaries in two dimensions": (
        {},
        {"input_ids": IDS[:1], "cu_seq_lens_q": whole([0, 9])},
        r"cu_seq_lens_q of shape \(1, 2\)",
    ),
    "boundaries of two rows": (
        {},
        {"input_ids": IDS, "cu_seq_lens_q": whole(0, 9)},
        "cu_seq_lens_q .* the batch has 2",
    ),
    "documents of another length": (
        {},
        {"input_ids": IDS[:1], "packed": Packed.from_lengths([3, 4])},
        "packed describes 7 tokens, and the row has 9",
    ),
    "documents of one row for two": (
        {},
        {"input_ids": IDS, "packed": Packed.from_lengths([5, 4])},
        "packed ends at token 9, and the batch has 18 tokens",
    ),
    "boundaries and a mask": (
        {},
        {**bounds(0, 9), "attention_mask": ones(1, 9)},
        "either attention_mask or cu_seq_lens_q",
    ),
    "documents and a mask": (
        {},
        {"input_ids": IDS[:1], "packed": Packed.from_lengths([5, 4]), "attention_mask": ones(1, 9)},
        "either attention_mask or packed",
    ),
    "embeddings of another width": (
        {},
        {"inputs_embeds": torch.zeros(2, 9, 23)},
        r"inputs_embeds of shape \(2, 9, 23\) must be \[batch, length, 24\]",
    ),
    "embeddings of two dimensions": ({}, {"inputs_embeds": torch.zeros(9, 24)}, r"inputs_embeds of shape \(9, 24\)"),
    "embeddings of another type": (
        {},
        {"inputs_embeds": torch.zeros(2, 9, 24, dtype=torch.float32)},
        "inputs_embeds are torch.float32, the model's weights torch.float64",
    ),
    "whole numbers as embeddings": ({}, {"inputs_embeds": ones(2, 9, 24)}, r"inputs_embeds are torch\.int64"),
    "a mask elsewhere": (
        {},
        {"input_ids": IDS, "attention_mask": ones(2, 9).to("meta")},
        "attention_mask lies on meta, the input on cpu",
    ),
    "types elsewhere": (
        {"type_vocab_size": 3},
        {"input_ids": IDS, "token_type_ids": ones(2, 9).to("meta")},
        "token_type_ids lies on meta, the input on cpu",
    ),
    "ids in a list": ({}, {"input_ids": IDS.tolist()}, "input_ids is a list; give a tensor"),
    "pixels for a text model": ({}, {"pixel_values": torch.zeros(1, 3, 8, 8)}, "pixel_values .* image_size=None"),
    "ids for an image model": (IMAGE, {"input_ids": IDS}, "input_ids given to an image model .* pixel_values"),
    "nothing for an image model": (IMAGE, {}, "image model .* one of pixel_values and inputs_embeds"),
    "pixels and embeddings": (
        IMAGE,
        {"pixel_values": torch.zeros(1, 2, 12, 12), "inputs_embeds": torch.zeros(1, 10, 24)},
        "image model .* one of pixel_values and inputs_embeds",
    ),
    "embeddings of an image in two dimensions": (
        IMAGE,
        {"inputs_embeds": torch.zeros(10, 24)},
        r"inputs_embeds of shape \(10, 24\) must be \[batch, length, size\]",
    ),
    "no image": (IMAGE, {"pixel_values": torch.zeros(0, 2, 12, 12)}, r"shape \(0, 2, 12, 12\) hold no image"),
    "a causal model": ({}, {"input_ids": IDS, "is_causal": True}, "is_causal=True: a token of an encoder sees those"),
    "pixels of other channels": (
        IMAGE,
        {"pixel_values": torch.zeros(1, 3, 12, 12)},
        r"pixel_values .* \[batch, 2, height",
    ),
    "pixels of three dimensions": (
        IMAGE,
        {"pixel_values": torch.zeros(2, 12, 12)},
        r"pixel_values of shape \(2, 12, 12\)",
    ),
    "pixels that patches do not fill": (
        IMAGE,
        {"pixel_values": torch.zeros(1, 2, 12, 13)},
        "multiples of patch_size=4",
    ),
    "mask of an image": (
        IMAGE,
        {"pixel_values": torch.zeros(1, 2, 12, 12), "attention_mask": ones(1, 9)},
        r"must be \(1, 10\)",
    ),
}


@pytest.mark.parametrize(("changes", "inputs", "message"), INPUTS.values(), ids=INPUTS.keys())
def test_inputs(changes, inputs, message):
    model = build(ClozeBertModel, tiny_config(**{"positions": "absolute", **changes}))
    ran = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda *_: ran.append(True))
    with pytest.raises(ValueError, match=message):
        model(**inputs)
    assert not ran


def test_an_encoder_that_is_said_not_to_be_causal_is_none():
    model = build(ClozeBertModel, tiny_config(positions="absolute"))
    found, expected = (model(IDS, **more).last_hidden_state for more in ({"is_causal": False}, {}))
    assert torch.equal(found, expected)


def test_documents_as_long_as_the_maximum_may_add_up_to_more():
    model = build(ClozeBertModel, tiny_config(positions="absolute"))
    run = torch.cat([LONG, LONG], 1)
    assert model(run, cu_seq_lens_q=whole(0, 41, 82, 84)).last_hidden_state.shape == (1, 84, 24)


def test_relative_positions_have_no_maximum():
    for positions in ("rope", "none"):
        model = build(ClozeBertModel, tiny_config(positions=positions))
        assert model(LONG).last_hidden_state.shape == (1, 42, 24)


HEADS = {
    "labels of another shape": (
        ClozeBertForMaskedLM,
        {"labels": IDS[:, :8]},
        r"labels of shape \(2, 8\) must be \(2, 9\), as the input",
    ),
    "labels that are transposed": (
        ClozeBertForMaskedLM,
        {"labels": IDS.T},
        r"labels of shape \(9, 2\) must be \(2, 9\)",
    ),
    "flat labels, too few": (ClozeBertForMaskedLM, {"labels": IDS[0]}, "labels hold 9 numbers, .* 18 predictions"),
    "label too large": (ClozeBertForMaskedLM, {"labels": IDS * 0 + 53}, "labels hold 53, outside the 53 classes"),
    "label negative": (
        ClozeBertForMaskedLM,
        {"labels": IDS * 0 - 1},
        "labels hold -1, outside the 53 classes; -100 marks",
    ),
    "masked position too large": (ClozeBertForMaskedLM, {"masked_positions": whole(18)}, "masked_positions holds 18"),
    "masked position negative": (ClozeBertForMaskedLM, {"masked_positions": whole(-1)}, "masked_positions holds -1"),
    "labels without positions": (
        ClozeBertForMaskedLM,
        {"masked_positions": whole(3), "labels": IDS},
        r"labels of shape \(2, 9\)",
    ),
    "too few classes": (
        ClozeBertForSequenceClassification,
        {"labels": whole(1)},
        "labels hold 1 numbers, .* 2 predictions",
    ),
    "class too large": (
        ClozeBertForSequenceClassification,
        {"labels": whole(1, 5)},
        "labels hold 5, outside the 5 classes",
    ),
    "several labels of another shape": (
        ClozeBertForSequenceClassification,
        {"labels": torch.rand(2, 4)},
        r"labels of shape \(2, 4\) do not fit",
    ),
    "tags of another shape": (ClozeBertForTokenClassification, {"labels": IDS[:, :8] % 5}, r"labels of shape \(2, 8\)"),
    "transposed tags": (ClozeBertForTokenClassification, {"labels": IDS.T % 5}, r"labels of shape \(9, 2\) must be"),
    "tag too large": (ClozeBertForTokenClassification, {"labels": IDS * 0 + 5}, "labels hold 5, outside the 5 classes"),
    "a start without an end": (
        ClozeBertForQuestionAnswering,
        {"start_positions": whole(1, 2)},
        "and end_positions, or neither",
    ),
    "an answer for one of two": (
        ClozeBertForQuestionAnswering,
        {"start_positions": whole(1), "end_positions": whole(1)},
        "labels hold 1 numbers",
    ),
    "an answer for one of two, and a mask": (
        ClozeBertForQuestionAnswering,
        {"start_positions": whole(1), "end_positions": whole(1), "attention_mask": ones(2, 9)},
        "labels hold 1 numbers",
    ),
    "no choices": (ClozeBertForMultipleChoice, {}, r"\[batch, choices, length\]"),
}


@pytest.mark.parametrize(("model_class", "inputs", "message"), HEADS.values(), ids=HEADS.keys())
def test_heads(model_class, inputs, message):
    model = build(model_class, tiny_config())
    with pytest.raises(ValueError, match=message):
        model(IDS, **inputs)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ["no input", "ids in a list", "one dimension"])
def test_inputs_are_named_before_the_labels_of_their_tokens(name, sparse):
    model = build(ClozeBertForMaskedLM, tiny_config(sparse_prediction=sparse))
    _, inputs, message = INPUTS[name]
    with pytest.raises(ValueError, match=message):
        model(**inputs, labels=IDS)


def test_sparse_prediction_refuses_labels_of_another_shape():
    model = build(ClozeBertForMaskedLM, tiny_config(sparse_prediction=True))
    for labels in (IDS[:1], IDS.T):
        with pytest.raises(ValueError, match=r"labels of shape .* must be \(2, 9\), as the input"):
            model(IDS, labels=labels)


def test_an_unknown_problem_type():
    with pytest.raises(ValueError, match="problem_type='ranking' must be"):
        sequence_loss(torch.zeros(2, 5), torch.zeros(2, 5), problem_type="ranking")
    with pytest.raises(ValueError, match="class weights are for single_label_classification"):
        sequence_loss(torch.zeros(2, 1), torch.zeros(2), problem_type="regression", class_weights_C=torch.ones(1))


def test_flex_attention_does_not_train_on_a_cpu():
    model = build(ClozeBertModel, tiny_config("flex_attention"), dtype=torch.float32)
    with pytest.raises(ValueError, match="'flex_attention' has no gradient on a CPU"):
        model(IDS)


SIZES = {
    "heads": (ClozeBertModel, {"num_attention_heads": 5}, "hidden_size=24 must be a multiple of num_attention_heads=5"),
    "key heads": (ClozeBertModel, {"num_key_value_heads": 3}, "num_attention_heads=4 .* num_key_value_heads=3"),
    "odd heads under rope": (ClozeBertModel, {"num_attention_heads": 8}, "rope needs an even head size"),
    "activation": (ClozeBertModel, {"hidden_act": "gelo"}, "unknown activation 'gelo'"),
    "padding id": (ClozeBertModel, {"pad_token_id": 53}, "pad_token_id=53 must lie between 0 and vocab_size - 1 = 52"),
    "patches": (ClozeBertModel, {**IMAGE, "patch_size": 5}, "image_size=12 must be a multiple of patch_size=5"),
    "decoder of another width": (
        ClozeBertForMaskedLM,
        {"prediction_dense": False, "embedding_size": 20},
        "prediction_dense=False .* embedding_size=20",
    ),
    "masked LM of images": (ClozeBertForMaskedLM, IMAGE, "ClozeBertForMaskedLM is a text model"),
    "images without a size": (ClozeBertForImageClassification, {}, "needs image_size and patch_size"),
}


@pytest.mark.parametrize(("model_class", "changes", "message"), SIZES.values(), ids=SIZES.keys())
def test_sizes_that_no_model_can_have(model_class, changes, message):
    with pytest.raises(ValueError, match=message):
        model_class(tiny_config(**changes))


def test_padding_ids_are_no_error_under_the_rule_of_roberta():
    model = build(ClozeBertModel, tiny_config(positions="absolute", position_rule="non_pad"))
    ids = torch.tensor([[PAD, PAD, 9, 8, PAD]])
    assert bool(model(ids, attention_mask=(ids != PAD).long()).last_hidden_state.isfinite().all())
