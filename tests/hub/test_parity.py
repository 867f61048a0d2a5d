"""Every architecture, every head: the outputs, hidden states and gradients of transformers' own, and back again."""

import pytest
import torch
import transformers
from natives import (
    CLASSES,
    CLASSES_OF_RELATIVES,
    FLOAT64_TOLERANCE,
    HAS_TYPES,
    SIZES,
    all_full_is_possible,
    difference,
    gradients,
    make_inputs,
    make_native,
    run,
)

from clozebert.hub import from_native, to_native
from clozebert.hub.natives import NATIVE, POOLED

# Largest measured: 3e-6 of float32, 0 of float64 without RoPE and 8e-7 with it.
FLOAT32_TOLERANCE = 1e-5


def kinds_of_inputs(model_type: str, class_name: str) -> list[str]:
    """Which inputs a class is compared on; heads over padding on the left have a test of their own."""
    if model_type == "vit":
        return ["plain"]
    kinds = ["plain", "right", "embeds"]
    if NATIVE[model_type].heads[class_name].ours not in (*POOLED, "Model"):
        kinds.append("left")
    return [*kinds, "types"] if model_type in HAS_TYPES else kinds


CASES = [(*case, kind) for case in CLASSES for kind in kinds_of_inputs(*case)]
CASES += [(*case, "right") for case in CLASSES_OF_RELATIVES]


def compare(model_type, class_name, kind, *, dtype, tolerance, **changes):
    native = make_native(model_type, class_name, dtype=dtype, **changes)
    ours = from_native(native)
    inputs = make_inputs(model_type, class_name, kind, dtype=dtype)
    said_there, hidden_there = run(native, inputs)
    said_here, hidden_here = run(ours, inputs)
    for name, value in said_there.items():
        assert difference(value, said_here[name]) < tolerance, name
    assert len(hidden_there) == len(hidden_here)
    if model_type == "vit":  # lists its last hidden state before the final norm
        hidden_there, hidden_here = hidden_there[:-1], hidden_here[:-1]
    for index, (there, here) in enumerate(zip(hidden_there, hidden_here, strict=True)):
        assert difference(there, here) < tolerance, f"hidden state {index}"
    for name, (there, here) in gradients(model_type, class_name, native, ours).items():
        assert difference(there, here) < tolerance, f"gradient of {name}"


@pytest.mark.parametrize(("model_type", "class_name", "kind"), CASES)
def test_float32(model_type, class_name, kind):
    compare(model_type, class_name, kind, dtype=torch.float32, tolerance=FLOAT32_TOLERANCE)


@pytest.mark.parametrize(("model_type", "class_name"), CLASSES)
def test_float64(model_type, class_name):
    kind = "plain" if model_type == "vit" else "right"
    tolerance = FLOAT64_TOLERANCE.get(model_type, 1e-10)
    compare(model_type, class_name, kind, dtype=torch.float64, tolerance=tolerance)


@pytest.mark.parametrize(
    ("model_type", "class_name", "changes"),
    [
        ("bert", "BertModel", {}),
        ("roberta", "RobertaForSequenceClassification", {}),
        ("nomic_bert", "NomicBertForSequenceClassification", {}),
        ("modernbert", "ModernBertForSequenceClassification", {"classifier_pooling": "mean"}),
    ],
)
def test_pooled_heads_do_not_read_padding_on_the_left(model_type, class_name, changes):
    """Natives read column 0, a padding token there; ours reads the first token, as if the padding were on the right.

    That is compared with the native itself, given the rows without padding.
    """
    native = make_native(model_type, class_name, **changes)
    ours = from_native(native)
    inputs = make_inputs(model_type, class_name, "left")
    # Positions counted from the row's start differ with padding before it; given, they are those of the tokens alone.
    positions = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    extra = {} if model_type == "roberta" else {"position_ids": positions}
    outputs = ours(**inputs, **extra)
    here = outputs["pooler_output" if class_name.endswith("Model") else "logits"]
    for row, mask in enumerate(inputs["attention_mask"]):
        there = native(input_ids=inputs["input_ids"][row][mask != 0][None])
        there = there["pooler_output" if class_name.endswith("Model") else "logits"]
        assert difference(there, here[row][None]) < FLOAT32_TOLERANCE


@pytest.mark.parametrize(
    ("model_type", "class_name", "first"), [("bert", "BertModel", 0), ("roberta", "RobertaModel", 2)]
)
def test_given_positions_count_from_0_here(model_type, class_name, first):
    """RoBERTa's own are rows of its table, which begin behind the padding id, 1."""
    native = make_native(model_type, class_name)
    ours = from_native(native)
    ids, positions = make_inputs(model_type, class_name, "plain")["input_ids"], torch.arange(3, 14)[None]
    there = native(input_ids=ids, position_ids=positions + first).last_hidden_state
    assert difference(there, ours(input_ids=ids, position_ids=positions).last_hidden_state) < FLOAT32_TOLERANCE


@pytest.mark.parametrize(
    ("model_type", "class_name", "changes"),
    [
        ("modernbert", "ModernBertForSequenceClassification", {"classifier_pooling": "mean"}),
        ("modernbert", "ModernBertForMaskedLM", {"attention_bias": True, "mlp_bias": True, "norm_bias": True}),
        ("modernbert", "ModernBertForMaskedLM", {"classifier_bias": True, "classifier_activation": "silu"}),
        ("modernbert", "ModernBertForMaskedLM", {"decoder_bias": False, "layer_types": ["full_attention"] * 3}),
        ("bert", "BertForMaskedLM", {"hidden_act": "relu", "tie_word_embeddings": False}),
        ("roberta", "RobertaForMaskedLM", {"hidden_act": "silu", "pad_token_id": 3, "max_position_embeddings": 33}),
        ("electra", "ElectraForMultipleChoice", {"summary_activation": "tanh", "embedding_size": 24}),
        ("eurobert", "EuroBertForSequenceClassification", {"classifier_pooling": "mean"}),
        ("eurobert", "EuroBertForMaskedLM", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("vit", "ViTModel", {"pooler_act": "relu"}),
        ("nomic_bert", "NomicBertForMaskedLM",
         {"rope_parameters": {"rope_type": "linear", "rope_theta": 77.0, "factor": 3.0}}),
        ("eurobert", "EuroBertModel",
         {"rope_parameters": {"rope_type": "yarn", "rope_theta": 99.0, "factor": 2.0,
                              "original_max_position_embeddings": 13}}),
    ],
)  # fmt: skip
def test_other_values_of_the_knobs(model_type, class_name, changes):
    if "layer_types" in changes and not all_full_is_possible():
        pytest.skip("this transformers has no ModernBERT of full attention only")
    kind = "plain" if model_type == "vit" else "right"
    compare(model_type, class_name, kind, dtype=torch.float32, tolerance=FLOAT32_TOLERANCE, **changes)
    assert_round_trip(make_native(model_type, class_name, **changes))


def assert_round_trip(native):
    back = to_native(from_native(native))
    assert type(back) is type(native)
    there, here = native.state_dict(), back.state_dict()
    assert there.keys() == here.keys()
    for name, tensor in there.items():
        assert tensor.dtype == here[name].dtype, name
        assert torch.equal(tensor, here[name]), name
    assert native.config.to_dict() == back.config.to_dict()


@pytest.mark.parametrize(("model_type", "class_name"), CLASSES)
def test_round_trip_is_exact(model_type, class_name):
    assert_round_trip(make_native(model_type, class_name))


INERT = {
    "bert": {"use_cache": False, "hidden_dropout_prob": 0.3, "classifier_dropout": 0.4, "layer_norm_eps": 1e-7},
    "roberta": {"use_cache": False, "bos_token_id": 7},
    "modernbert": {"initializer_cutoff_factor": 3.0, "local_attention": 5, "deterministic_flash_attn": True,
                   "attention_dropout": 0.2, "embedding_dropout": 0.3, "mlp_dropout": 0.4, "classifier_dropout": 0.5,
                   "layer_types": ["full_attention"] * 3, "global_attn_every_n_layers": 1, "sparse_prediction": True,
                   "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 50.0},
                                       "sliding_attention": {"rope_type": "default", "rope_theta": 60.0}}},
    "vit": {"encoder_stride": 3, "image_size": [21, 21], "hidden_dropout_prob": 0.1, "pooler_act": "relu"},
    "distilbert": {"sinusoidal_pos_embds": True, "qa_dropout": 0.3, "seq_classif_dropout": 0.4, "dropout": 0.5},
    "electra": {"summary_last_dropout": 0.7, "classifier_dropout": 0.2, "use_cache": False, "embedding_size": 24},
    "nomic_bert": {"classifier_dropout": 0.2},
    "eurobert": {"pretraining_tp": 2, "use_cache": False, "mask_token_id": 9},
}  # fmt: skip


@pytest.mark.parametrize("model_type", INERT)
def test_round_trip_keeps_what_changes_nothing(model_type):
    """Fields without effect, dropout rates, labels, the problem type and unknown keys come back as they were."""
    labels = {
        "id2label": {0: "no", 1: "yes"},
        "label2id": {"no": 0, "yes": 1},
        "problem_type": "single_label_classification",
    }
    if model_type == "modernbert" and not all_full_is_possible():
        pytest.skip("this transformers has no ModernBERT of full attention only")
    for class_name in NATIVE[model_type].heads:
        native = make_native(model_type, class_name, **INERT[model_type], custom_note="kept")
        for name, value in labels.items():
            setattr(native.config, name, value)
        if class_name.endswith(("SequenceClassification", "TokenClassification", "ImageClassification")):
            continue  # their output size is that of the labels they were made with
        assert_round_trip(native)


@pytest.mark.parametrize("model_type", SIZES)
def test_every_field_is_translated(model_type):
    """A knob that a table forgets would silently take our default, which is no native's."""
    from transformers import PreTrainedConfig

    from clozebert import ClozeBertConfig

    architecture = NATIVE[model_type]
    native = make_native(model_type, next(iter(architecture.heads))).config.to_dict()
    told = {*architecture.fixed, *architecture.fields, *architecture.to_ours(native, "Model"), "native_config"}
    ours = set(ClozeBertConfig.__dataclass_fields__) - set(PreTrainedConfig.__dataclass_fields__)
    text_only = {"vocab_size", "type_vocab_size", "max_position_embeddings", "pad_token_id", "bos_token_id",
                 "eos_token_id", "tie_word_embeddings"}  # fmt: skip
    assert ours - told == (text_only if model_type == "vit" else set())


def test_training_mode_labels_and_names_come_along():
    native = make_native("bert", "BertForSequenceClassification").train()
    native.config.id2label = {i: f"class {i}" for i in range(5)}
    native.config.architectures = ["BertForSequenceClassification"]
    ours = from_native(native)
    assert ours.training
    assert ours.config.id2label[3] == "class 3"
    assert ours.config.architectures == ["ClozeBertForSequenceClassification"]
    assert to_native(ours).config.architectures == ["BertForSequenceClassification"]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("tied", [True, False])
def test_frozen_weights_and_the_attention_implementation_come_along(tied, implementation):
    native = make_native("modernbert", "ModernBertForMaskedLM", tie_word_embeddings=tied)
    native.set_attn_implementation(implementation)
    native.requires_grad_(False)
    native.head.requires_grad_(True)
    native.model.layers[1].attn.Wqkv.requires_grad_(True)
    ours = from_native(native)
    trained = {name.removesuffix(".weight") for name, tensor in ours.named_parameters() if tensor.requires_grad}
    of_layer = {f"model.layers.1.attention.{part}_proj" for part in "qkv"}
    assert trained == {"head.dense", "head.norm", *of_layer}
    assert ours.config._attn_implementation == implementation
    back = to_native(ours)
    assert {n: p.requires_grad for n, p in back.named_parameters()} == {
        n: p.requires_grad for n, p in native.named_parameters()
    }
    assert back.config._attn_implementation == implementation


def test_a_bias_that_is_frozen_under_one_of_its_names_is_frozen_under_both():
    native = make_native("bert", "BertForMaskedLM", tie_word_embeddings=False)
    native.cls.predictions.requires_grad_(False)
    back = to_native(from_native(native))
    assert not any(tensor.requires_grad for tensor in back.cls.predictions.parameters())


def test_tensors_are_copies():
    native = make_native("bert", "BertForMaskedLM")
    before = native.bert.embeddings.word_embeddings.weight.clone()
    ours = from_native(native)
    with torch.no_grad():
        ours.model.embeddings.word_embeddings.weight.add_(1)
    assert torch.equal(native.bert.embeddings.word_embeddings.weight, before)
    back = to_native(ours)
    with torch.no_grad():
        back.bert.embeddings.word_embeddings.weight.add_(1)
    assert torch.equal(ours.model.embeddings.word_embeddings.weight, before + 1)


@pytest.mark.parametrize("class_name", ["BertForMaskedLM", "ModernBertForMaskedLM"])
def test_tied_weights_stay_tied(class_name):
    ours = from_native(make_native(class_name[:-11].lower(), class_name))
    assert ours.decoder.weight is ours.model.embeddings.word_embeddings.weight
    back = to_native(ours)
    assert back.get_output_embeddings().weight is back.get_input_embeddings().weight


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "class_name", "changes"),
    [
        ("bert", "BertForMaskedLM", {}),
        ("roberta", "RobertaForMaskedLM",
         {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
        ("modernbert", "ModernBertForMaskedLM", {}),
        ("vit", "ViTForImageClassification", {}),
    ],
)  # fmt: skip
def test_published_base_shapes(model_type, class_name, changes):
    """The shapes of bert-base, roberta-base, ModernBERT-base and vit-base, with random weights."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, NATIVE[model_type].config_class)(**changes)
    native = getattr(transformers, class_name)(config).eval()
    ours = from_native(native)
    if model_type == "vit":
        inputs = {"pixel_values": torch.randn(2, 3, 224, 224)}
    else:
        inputs = {"input_ids": torch.randint(5, 30_000, (2, 160)), "attention_mask": torch.ones(2, 160).long()}
        inputs["attention_mask"][1, 90:] = 0
    said_there, hidden_there = run(native, inputs)
    said_here, hidden_here = run(ours, inputs)
    for name, value in said_there.items():
        assert difference(value, said_here[name]) < FLOAT32_TOLERANCE, name
    for there, here in list(zip(hidden_there, hidden_here, strict=True))[:-1]:
        assert difference(there, here) < FLOAT32_TOLERANCE
    for name, (there, here) in gradients(model_type, class_name, native, ours).items():
        assert difference(there, here) < FLOAT32_TOLERANCE, name
    assert_round_trip(native)


@pytest.mark.parametrize("name", ["bert-base", "roberta-base", "modernbert-base", "vit-base"])
def test_named_architectures_are_the_published_ones(name):
    """The recipes' configurations equal those that the published models' own configurations come to."""
    import transformers

    from clozebert import ClozeBertConfig
    from clozebert.hub.convert_config import choose_architecture, config_from_native

    ending = "ForImageClassification" if name == "vit-base" else "ForMaskedLM"
    published = {
        "bert-base": transformers.BertConfig(),
        "roberta-base": transformers.RobertaConfig(max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5),
        "modernbert-base": transformers.ModernBertConfig(),
        "vit-base": transformers.ViTConfig(),
    }[name]
    ours = ClozeBertConfig.from_name(name)
    assert choose_architecture(ours, ending).model_type == published.model_type
    converted = config_from_native(published, ending).to_dict()
    administrative = {"native_config", "_name_or_path", "architectures"}
    spelled_otherwise = {"embedding_dropout", "classifier_dropout"}  # 0.0 for None, where hidden_dropout_prob is 0
    unused = {"vocab_size", "type_vocab_size", "max_position_embeddings", "pad_token_id", "classifier_activation",
              "classifier_norm", "head_bias", "norm_bias"} if name == "vit-base" else set()  # fmt: skip
    differing = {
        key: (value, converted[key])
        for key, value in ours.to_dict().items()
        if converted[key] != value and key not in administrative | spelled_otherwise | unused
    }
    assert not differing


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_an_untied_output_bias_is_saved(kind, tmp_path):
    """It shares no memory with the other bias, so that saving leaves neither out."""
    shape = {"vocab_size": 64, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, f"{kind}Config")(**shape, intermediate_size=32, tie_word_embeddings=False)
    native = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    with torch.no_grad():
        for parameter in native.parameters():
            parameter.normal_()
    to_native(from_native(native)).save_pretrained(tmp_path)
    again = type(native).from_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(again(ids).logits, native(ids).logits)
