"""What is no native architecture is refused by the names of the fields that stand in the way."""

import pytest
import torch
import transformers
from natives import make_native

from clozebert import ClozeBertConfig
from clozebert.hub import from_native, to_native
from clozebert.hub.natives import NATIVE
from clozebert.modeling import modeling_clozebert

SMALL = {
    "vocab_size": 47,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 29,
}


def make(name="bert-base", head="ForMaskedLM", **changes):
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None, "cls_token_id": None, "sep_token_id": None}
    ids["position_offset"] = 1 if name == "roberta-base" else 0
    config = ClozeBertConfig.from_name(name, **{**SMALL, **ids, **changes})
    return getattr(modeling_clozebert, f"ClozeBert{head}")(config)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"norm_position": "pre"}, "norm_position='pre'"),
        ({"norm_type": "rmsnorm"}, "norm_type='rmsnorm'"),
        ({"norm_bias": False}, "norm_bias=False"),
        ({"embedding_norm": False}, "embedding_norm=False"),
        ({"final_norm": True}, "final_norm=True"),
        ({"mlp_type": "glu"}, "mlp_type='glu'"),
        ({"mlp_bias": False}, "mlp_bias=False"),
        ({"attention_bias": False}, "attention_bias=False"),
        ({"qk_norm": True}, "qk_norm=True"),
        ({"num_key_value_heads": 2}, "num_key_value_heads=2"),
        ({"position_embedding_type": "sinusoidal"}, "position_embedding_type='sinusoidal'"),
        ({"position_embedding_type": "none"}, "position_embedding_type='none'"),
        ({"position_offset": 3}, "position_offset=3"),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3}, "layer_types"),
        ({"prediction_activation": "silu"}, "prediction_activation='silu'"),
        ({"prediction_dense": False}, "prediction_dense=False"),
        ({"head_bias": False}, "head_bias=False"),
        ({"decoder_bias": False}, "decoder_bias=False"),
        ({"type_vocab_size": 0}, "type_vocab_size=0"),
    ],
)
def test_field_is_named(changes, field):
    with pytest.raises(ValueError, match="instead") as error:
        to_native(make(**changes), architecture="bert")
    assert field in str(error.value)


def test_all_fields_are_named():
    with pytest.raises(ValueError) as error:
        to_native(make(qk_norm=True, mlp_dropout=0.25, decoder_bias=False))
    assert all(part in str(error.value) for part in ("qk_norm=True", "mlp_dropout=0.25", "decoder_bias=False"))


@pytest.mark.parametrize(
    ("head", "changes", "field"),
    [
        ("ForSequenceClassification", {"classifier_pooling": "mean"}, "classifier_pooling='mean'"),
        ("ForSequenceClassification", {"compare_pairs": True, "sep_token_id": 3}, "compare_pairs=True"),
        ("ForSequenceClassification", {"classifier_dense": "none"}, "classifier_dense='none'"),
        ("ForSequenceClassification", {"classifier_activation": "silu"}, "classifier_activation='silu'"),
        ("ForSequenceClassification", {"classifier_norm": True}, "classifier_norm=True"),
        ("ForTokenClassification", {"classifier_dense": "all"}, "classifier_dense"),
        ("ForTokenClassification", {"classifier_bias": False}, "classifier_bias=False"),
        ("ForQuestionAnswering", {"num_labels": 3}, "num_labels=3"),
    ],
)
def test_fields_of_heads(head, changes, field):
    with pytest.raises(ValueError) as error:
        to_native(make(head=head, **changes))
    assert field in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"classifier_pooling": "attention"},
        {"compare_pairs": True, "sep_token_id": 3},
        {"classifier_dense": "all"},
        {"output_projection_init": "zero"},
        {"initializer_range": 0.01},
        {"mask_token_id": 7},
        {"num_key_value_heads": 4},
    ],
)
def test_fields_that_the_head_does_not_use_do_not_stand_in_the_way(changes):
    assert type(to_native(make(**changes))).__name__ == "BertForMaskedLM"


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("bert-base", {}, "BertForMaskedLM"),
        ("small", {"layer_types": ["full_attention", "sliding_attention"]}, "ModernBertForMaskedLM"),
        ("bert-base", {"type_vocab_size": 0}, "DistilBertForMaskedLM"),
        ("bert-base", {"embedding_size": 10}, "ElectraForMaskedLM"),
        ("roberta-base", {}, "RobertaForMaskedLM"),
        ("modernbert-base", {"layer_types": ["full_attention", "sliding_attention"]}, "ModernBertForMaskedLM"),
    ],
)
def test_first_architecture_that_fits(name, changes, expected):
    assert type(to_native(make(name, **changes))).__name__ == expected


@pytest.mark.parametrize("mask_token_id", [None, 4])
def test_no_special_token_lies_beyond_the_vocabulary(mask_token_id):
    """EuroBERT's mask token has a number always; its default is 128,002."""
    base = make_native("eurobert", "EuroBertForMaskedLM")
    ours = from_native(base)
    ours.config.mask_token_id = mask_token_id
    native = to_native(ours)
    ids = {key: value for key, value in native.config.to_dict().items() if key.endswith("_token_id")}
    assert all(value is None or value < native.config.vocab_size for value in ids.values()), ids
    assert from_native(native).config.mask_token_id == mask_token_id


def test_where_it_came_from_goes_first():
    """An ELECTRA whose embeddings are as wide as its layers equals a BERT; it goes back as what it was."""
    ours = from_native(make_native("electra", "ElectraModel", embedding_size=24))
    assert type(to_native(ours)).__name__ == "ElectraModel"
    assert type(to_native(ours, architecture="bert")).__name__ == "BertModel"


def test_changed_since_it_came():
    ours = from_native(make_native("modernbert", "ModernBertForMaskedLM", local_attention=5))
    ours.config.sliding_window = 3
    assert to_native(ours).config.local_attention == 6  # not the 5 that was kept beside the window of 2


def test_heads_and_names_without_a_counterpart():
    with pytest.raises(ValueError, match=r"BertForNextSentencePrediction has no counterpart here; of bert"):
        from_native(transformers.BertForNextSentencePrediction(make_native("bert", "BertModel").config))
    with pytest.raises(ValueError, match="model_type='gpt2' cannot be converted"):
        from_native(transformers.GPT2Model(transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11)))
    with pytest.raises(ValueError, match="architecture='brt' is not known"):
        to_native(make(), architecture="brt")
    with pytest.raises(ValueError, match="ForQuestionAnswering has no native counterpart in eurobert"):
        to_native(make(head="ForQuestionAnswering"), architecture="eurobert")


@pytest.mark.parametrize(
    ("model_type", "class_name", "changes", "field"),
    [
        ("bert", "BertForMaskedLM", {"is_decoder": True}, "is_decoder=True"),
        ("bert", "BertModel", {"add_cross_attention": True, "is_decoder": True}, "add_cross_attention=True"),
        ("vit", "ViTModel", {"qkv_bias": False}, "qkv_bias=False"),
        ("vit", "ViTModel", {"image_size": [21, 14]}, "image_size="),
        ("vit", "ViTModel", {"pooler_output_size": 12}, "pooler_output_size=12"),
        ("modernbert", "ModernBertForMaskedLM", {"local_attention": 1}, "local_attention=1"),
        ("bert", "BertForMaskedLM", {"hidden_act": "prelu"}, "hidden_act='prelu'"),
        ("nomic_bert", "NomicBertModel", {"head_dim": 8}, "head_dim=8"),
        ("eurobert", "EuroBertForSequenceClassification", {"classifier_pooling": "late"}, "classifier_pooling='late'"),
        ("electra", "ElectraForMultipleChoice", {"summary_type": "mean"}, "summary_type='mean'"),
        ("electra", "ElectraForMultipleChoice", {"summary_use_proj": False}, "summary_use_proj=False"),
    ],
)
def test_native_fields_without_a_counterpart(model_type, class_name, changes, field):
    with pytest.raises(ValueError) as error:
        from_native(make_native(model_type, class_name, **changes))
    assert field in str(error.value)


def test_an_activation_with_weights_of_its_own_stands_in_the_way():
    with pytest.raises(ValueError, match="hidden_act='prelu' has weights of its own"):
        to_native(make(hidden_act="prelu"))


def test_tables_name_every_class_of_theirs_or_leave_it_out_on_purpose():
    """Other tasks' heads are known to have no counterpart; a class that transformers adds shows up here."""
    left_out = {"ForCausalLM", "LMHeadModel", "ForPreTraining", "ForNextSentencePrediction",
                "ForMaskedImageModeling", "PreTrainedModel"}  # fmt: skip
    for architecture in NATIVE.values():
        stem = architecture.config_class.removesuffix("Config")
        there = {name for name in dir(transformers) if name.startswith((f"{stem}For", f"{stem}Model", f"{stem}LM"))}
        missing = {name.removeprefix(stem) for name in there - set(architecture.heads)}
        assert missing <= left_out, architecture.model_type


def test_nothing_is_written_where_something_is_in_the_way(tmp_path):
    from clozebert.hub import save_native

    with pytest.raises(ValueError, match="qk_norm"):
        save_native(make(qk_norm=True), tmp_path / "native")
    assert not (tmp_path / "native").exists()


def test_exported_model_computes_the_same():
    model = make("roberta-base", "ForSequenceClassification", pad_token_id=1, position_offset=2).eval()
    native = to_native(model)
    ids = torch.tensor([[0, 5, 9, 2, 1, 1], [0, 6, 7, 8, 9, 2]])
    outputs = [m(input_ids=ids, attention_mask=(ids != 1).long()).logits for m in (model, native)]
    assert torch.allclose(*outputs, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "field"),
    [("bert-base", "embedding_dropout"), ("bert-base", "mlp_dropout"), ("modernbert-base", "hidden_dropout_prob")],
)
def test_a_rate_of_dropout_alone_is_left_out_with_a_warning(name, field, caplog):
    """A model that was trained with it computes the same without."""
    ours = make(name, **{field: 0.4}).eval()
    native = to_native(ours).eval()
    assert native.config.model_type == name.removesuffix("-base")
    assert f"{field}=0.4" in caplog.text
    ids = torch.arange(1, 13).reshape(2, 6)
    torch.testing.assert_close(native(ids).logits, ours(ids).logits, rtol=1e-5, atol=1e-5)
