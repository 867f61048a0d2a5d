"""What a program may read from a model or its configuration is there under transformers' names, of the same type.

Compared by `dir`, field by field, with BERT, ModernBERT and ViT of the same weights: a name that they have and ours has
not, or has with another type or value, stands below with its reason, or is an error.
"""

import inspect
import re

import pytest
import torch
import transformers
from encoder_cases import tiny_config
from stock_training import CASES, STEMS, TASKS, make_native, make_trainer
from transformers import PreTrainedConfig, PreTrainedModel

from clozebert import ClozeBertConfig, ClozeBertModel
from clozebert.hub import from_native
from clozebert.hub.convert import tensor_names
from clozebert.hub.convert_config import config_from_native
from clozebert.hub.natives import NATIVE

# Fields of one architecture, which only its own modelling code reads, and what is our name for them.
OTHER_NAMES = {
    "layer_norm_eps": "norm_eps",
    "attention_dropout": "attention_probs_dropout_prob",
    "hidden_activation": "hidden_act",
    "local_attention": "sliding_window",
    "qkv_bias": "attention_bias",
    "pooler_act": "classifier_activation",
    "pooler_output_size": "hidden_size",
}
NOT_HERE = {
    "is_decoder", "add_cross_attention", "use_cache",  # BERT as a decoder; Trainer sets use_cache, and nobody reads it
    "deterministic_flash_attn", "initializer_cutoff_factor", "sparse_pred_ignore_index", "encoder_stride",
}  # fmt: skip
OTHER_VALUES = {
    "model_type", "transformers_weights", "name_or_path",
    "base_model_tp_plan", "base_model_fsdp_plan",  # name modules
    "default_theta",  # ModernBERT's depends on the layer type
    "keys_to_ignore_at_inference",  # a list; nothing of ours has to be ignored
    "classifier_bias",  # ModernBERT's is that of the dense layer before the classifier, our head_bias
}  # fmt: skip
OTHER_TYPES = {"base_model_tp_plan": "BERT and ViT have none", "default_theta": "one for each layer type in ModernBERT"}

MODEL_NOT_HERE = {"sparse_prediction", "sparse_pred_ignore_index"}  # copies of configuration fields, which we have
MODEL_OTHER_VALUES = {
    "base_model_prefix", "name_or_path",
    "supports_tp_plan", "tp_plan", "fsdp_plan", "_tp_plan", "_fsdp_plan",  # name modules; BERT and ViT have no tp_plan
    "_no_split_modules", "_tied_weights_keys", "all_tied_weights_keys",  # name classes and tensors
    "_can_compile_fullgraph",  # for generation
    "_can_record_outputs", "can_record_outputs",  # name classes; their keys are compared below
    "_input_embed_layer",  # a name for get_input_embeddings, which we have as a method
}  # fmt: skip
FORWARD_NOT_HERE = {
    "encoder_hidden_states", "encoder_attention_mask", "past_key_values", "cache", "use_cache",  # BERT as a decoder
    "bool_masked_pos", "interpolate_pos_encoding",  # masked images are no task here; positions are interpolated always
}  # fmt: skip

PLAIN = (bool, int, float, str, list, tuple, set, dict, type(None))
EVERY_CASE = pytest.mark.parametrize(("model_type", "name"), CASES)


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def read(thing, name):
    """A value, or that reading it is an error (as of rope_scaling without rope_parameters)."""
    try:
        return getattr(thing, name)
    except AttributeError as error:
        return error


def compare(ours, native, names, *, not_here, other_types=(), other_values=()):
    missing = {name for name in names if not hasattr(ours, name)} - not_here
    types, values = {}, {}
    for name in names:
        here, there = read(ours, name), read(native, name)
        if (callable(here) and callable(there)) or isinstance(there, AttributeError) or not hasattr(ours, name):
            continue
        if type(here) is not type(there):
            types[name] = (here, there)
        elif isinstance(there, PLAIN) and here != there:
            values[name] = (here, there)
    assert not missing
    assert not {name: pair for name, pair in types.items() if name not in other_types}
    assert not {name: pair for name, pair in values.items() if name not in other_values}


@pytest.mark.parametrize("model_type", STEMS)
def test_configurations_have_the_native_names_types_and_values(model_type):
    name = "image classification" if model_type == "vit" else "single label"
    native = make_native(model_type, name).config
    ours = config_from_native(native, TASKS[name].auto_class.removeprefix("AutoModel"))
    compare(
        ours, native, public(native), not_here=NOT_HERE | set(OTHER_NAMES), other_types=OTHER_TYPES,
        other_values=OTHER_VALUES,
    )  # fmt: skip
    for theirs, mine in OTHER_NAMES.items():
        if hasattr(native, theirs) and theirs != "local_attention":  # counts both sides
            assert getattr(ours, mine) == getattr(native, theirs), theirs
    # What is written to config.json.
    here, there = ours.to_dict(), native.to_dict()
    assert there.keys() - here.keys() <= NOT_HERE | set(OTHER_NAMES)
    assert {key for key in there.keys() & here.keys() if type(here[key]) is not type(there[key])} <= set(OTHER_TYPES)


@pytest.mark.parametrize("native", [transformers.BertConfig, transformers.ModernBertConfig, transformers.ViTConfig])
def test_configuration_classes_have_the_native_names_and_types(native):
    """Also of a class, before anything is made: what `AutoConfig` and Trainer look up there."""
    names = public(native) - NOT_HERE - set(OTHER_NAMES) - set(native.__dataclass_fields__)
    assert not {name for name in names if not hasattr(ClozeBertConfig, name)}
    for name in names - set(OTHER_TYPES) - {"sliding_window"}:  # a field here, computed in ModernBERT
        here, there = getattr(ClozeBertConfig, name), getattr(native, name)
        assert type(here) is type(there) or (callable(here) and callable(there)), name


def test_a_new_configuration_has_the_defaults_of_transformers():
    ours, base = ClozeBertConfig(), PreTrainedConfig()
    for name in set(PreTrainedConfig.__dataclass_fields__) - OTHER_VALUES:
        assert type(read(ours, name)) is type(read(base, name)), name
        assert read(ours, name) == read(base, name), name
    assert (ours.num_labels, ours.id2label) == (2, {0: "LABEL_0", 1: "LABEL_1"})


@EVERY_CASE
def test_models_have_the_native_names_types_and_values(model_type, name):
    head = make_native(model_type, name)
    ours_head = from_native(head)
    for ours, native in ((ours_head, head), (ours_head.base_model, head.base_model)):
        modules = {child for child, _ in native.named_children()}  # each architecture has its own
        names = public(native) | {n for n in set(dir(PreTrainedModel)) - set(dir(torch.nn.Module)) if n[:2] != "__"}
        compare(
            ours, native, names - modules - {"config", "dummy_inputs"}, not_here=MODEL_NOT_HERE,
            other_values=MODEL_OTHER_VALUES,
        )  # fmt: skip
        assert ours.can_record_outputs.keys() == native.can_record_outputs.keys() - {"cross_attentions"}
        shapes = [{key: x.shape for key, x in model.dummy_inputs.items()} for model in (ours, native)]
        assert shapes[0] == shapes[1]


@EVERY_CASE
def test_forward_takes_the_native_arguments_in_their_order(model_type, name):
    native = make_native(model_type, name)
    ours = from_native(native)
    pairs = [(ours, native)]
    if model_type != "vit":  # our encoder is one for text and images, and has the arguments of text first
        pairs.append((ours.base_model, native.base_model))
    for here, there in pairs:
        mine, theirs = (list(inspect.signature(model.forward).parameters) for model in (here, there))
        wanted = [argument for argument in theirs if argument not in FORWARD_NOT_HERE]
        assert [argument for argument in mine if argument in wanted] == wanted


@EVERY_CASE
def test_trainer_sees_in_a_model_what_it_sees_in_the_native_one(model_type, name, tmp_path):
    """Which parameters decay, what an input costs, which names are labels, who divides the loss."""
    native = make_native(model_type, name)
    ours = from_native(native)
    here, there = (make_trainer(model, name, tmp_path) for model in (ours, native))
    mine, theirs = (set(trainer.get_decay_parameter_names(trainer.model)) for trainer in (here, there))
    held = dict(ours.named_parameters())  # tied weights once
    assert 0 < len(mine) < len(held)
    for names, native_name in tensor_names(NATIVE[model_type], type(native).__name__, ours.state_dict()):
        assert {part in mine for part in names if part in held} <= {native_name in theirs}, native_name
    batch = next(iter(here.get_train_dataloader()))
    assert here.floating_point_ops(batch) == there.floating_point_ops(batch) > 0
    for attribute in ("label_names", "can_return_loss", "model_accepts_loss_kwargs"):
        assert getattr(here, attribute) == getattr(there, attribute)
    assert ours.loss_type == native.loss_type
    assert ours.num_parameters() == native.num_parameters()


@pytest.mark.parametrize("kind", ["glu", "mlp"])
def test_tensor_parallelism_has_a_plan_for_every_matrix_of_a_layer(kind):
    """A matrix without one stays whole, and its output does not fit to the parts of the others."""
    model = ClozeBertModel(tiny_config(mlp_type=kind))
    matrices = {re.sub(r"\d+", "*", name) for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    planned = set(ClozeBertConfig.base_model_tp_plan)
    assert matrices == (planned if kind == "glu" else planned - {"layers.*.mlp.gate_proj"})
