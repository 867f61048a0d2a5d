"""Configurations: what is refused, what survives a round trip, names and recipes."""

import json
import math

import pytest
import torch
import transformers

from clozebert import ClozeBertConfig
from clozebert.configuration import ARCHITECTURES, list_recipes, load_recipe

CONTRADICTIONS = {
    "misspelt key": ({"hiden_size": 32}, "unknown configuration key 'hiden_size'; did you mean 'hidden_size'"),
    "unknown key": ({"quux": 1}, "unknown configuration key 'quux'"),
    "choice": ({"norm_position": "mid"}, "norm_position='mid' must be one of post, pre"),
    "near choice": ({"norm_type": "rms_norm"}, "norm_type='rms_norm' .* did you mean 'rmsnorm'"),
    "pooling": ({"classifier_pooling": "first"}, "classifier_pooling='first' must be one of cls, mean, max, attention"),
    "dtype by no name": ({"dtype": []}, r"dtype=\[\] must be a floating-point type"),
    "dtype by another name": ({"dtype": "abs"}, "dtype='abs' must be a floating-point type"),
    "dtype by its old name": ({"torch_dtype": "torch.float32"}, "dtype='torch.float32' must be a floating-point type"),
    "dropout": ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob=1.5 is a probability"),
    "negative dropout": ({"mlp_dropout": -0.1}, "mlp_dropout=-0.1 is a probability"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers=0 must be at least 1"),
    "no vocabulary": ({"vocab_size": 0, "pad_token_id": None}, "vocab_size=0 must be at least 1"),
    "negative types": ({"type_vocab_size": -1}, "type_vocab_size=-1 must not be negative"),
    "negative eps": ({"norm_eps": -1e-5}, "norm_eps=-1e-05 must not be negative"),
    "no number": ({"norm_eps": float("nan")}, "norm_eps=nan must not be negative"),
    "negative offset": ({"position_offset": -1}, "position_offset=-1 must not be negative"),
    "negative deviation": ({"initializer_range": -0.02}, "initializer_range=-0.02 must not be negative"),
    "layers and layer types": (
        {"num_hidden_layers": 3, "layer_types": ["full_attention"]},
        "layer_types names 1 layers, but num_hidden_layers=3",
    ),
    "layer type": ({"num_hidden_layers": 1, "layer_types": ["full"]}, "layer_types holds 'full'"),
    "window": ({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}, "sliding_window must be set"),
    "first norm": ({"norm_position": "post", "first_attention_norm": False}, "first_attention_norm=False needs"),
    "image without patches": (
        {"image_size": 32, "position_embedding_type": "none"},
        "image_size=32 and patch_size=None",
    ),
    "patches without image": ({"patch_size": 4}, "image_size=None and patch_size=4 must be set together"),
    "image and rope": ({"image_size": 32, "patch_size": 4}, "image_size is set: images take position_embedding_type"),
    "rule without padding": ({"position_rule": "non_pad", "pad_token_id": None}, "set pad_token_id"),
    "rule without offset": (
        {"position_rule": "non_pad", "position_embedding_type": "absolute"},
        "set position_offset to at least 1",
    ),
    "rope parameters without rope": (
        {"position_embedding_type": "absolute", "rope_parameters": {"rope_theta": 5.0}},
        "needs position_embedding_type='rope'",
    ),
    "rope type": ({"rope_parameters": {"rope_type": "linar"}}, "rope_type='linar' must be one of default, linear"),
    "rope key": ({"rope_parameters": {"rope_thetta": 5.0}}, "unknown key 'rope_thetta' .* did you mean 'rope_theta'"),
    "rope factor": ({"rope_parameters": {"rope_type": "linear"}}, "rope_type='linear' need factor"),
    "rope factors": (
        {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}},
        "'llama3' need low_freq_factor, high_freq_factor",
    ),
    "rope base": ({"rope_parameters": {"rope_theta": None}}, "rope_theta=None must be a number above 0"),
    "rope for a misspelt layer type": (
        {"rope_parameters": {"full_attention": {"rope_theta": 5.0}, "sliding_atention": {"rope_theta": 7.0}}},
        "rope_parameters holds sliding_atention beside layer types",
    ),
    "rope for layers that are not there": (
        {"rope_parameters": {"sliding_attention": {"rope_theta": 7.0}}},
        "rope_parameters are for sliding_attention, and the layers have full_attention",
    ),
    "rope for all and for a layer type": (
        {"rope_parameters": {"full_attention": {"rope_theta": 5.0}, "rope_theta": 7.0}},
        "holds rope_theta beside layer types: give one dict for each of full_attention and sliding_attention",
    ),
    "two rope bases": (
        {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 7.0}},
        "rope_theta=5.0 contradicts rope_parameters={'rope_theta': 7.0}",
    ),
    "part of a head": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor must be 1.0"),
}


@pytest.mark.parametrize(("values", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_contradictions_are_value_errors_that_name_the_field(values, message):
    with pytest.raises(ValueError, match=message):
        ClozeBertConfig(**values)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "half", "double"])
def test_a_dtype_by_any_of_its_names(name, tmp_path):
    assert ClozeBertConfig(dtype=name).dtype == getattr(torch, name)
    ClozeBertConfig().save_pretrained(tmp_path)
    assert ClozeBertConfig.from_pretrained(tmp_path, dtype="auto").dtype == "auto"  # the loader chooses


def test_a_value_of_another_type_is_refused_by_name():
    with pytest.raises(Exception, match="hidden_size"):
        ClozeBertConfig(hidden_size="big")


def test_a_key_of_a_newer_version_is_a_warning_when_loading():
    values = {**ClozeBertConfig(hidden_size=32, num_attention_heads=4).to_dict(), "knob_of_tomorrow": 7}
    with pytest.warns(UserWarning, match="knob_of_tomorrow; they are kept .* a newer version"):
        config = ClozeBertConfig.from_dict(values)
    assert config.hidden_size == 32
    assert config.to_dict()["knob_of_tomorrow"] == 7


def test_what_a_newer_version_saved_loads_with_a_warning(tmp_path):
    ClozeBertConfig(hidden_size=32, num_attention_heads=4).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "knob_of_tomorrow": 7}))
    with pytest.warns(UserWarning, match="knob_of_tomorrow"):
        assert transformers.AutoConfig.from_pretrained(tmp_path).hidden_size == 32


def test_a_key_that_is_not_a_field_may_be_overridden(tmp_path):
    config = ClozeBertConfig()
    config.softness = 0.7
    config.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="softness"):
        assert ClozeBertConfig.from_pretrained(tmp_path, softness=0.9).softness == 0.9


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_round_trip_changes_nothing(name, tmp_path):
    config = ClozeBertConfig.from_name(name, num_labels=3)
    config.save_pretrained(tmp_path)
    for again in (ClozeBertConfig.from_pretrained(tmp_path), transformers.AutoConfig.from_pretrained(tmp_path)):
        assert isinstance(again, ClozeBertConfig)
        values, wanted = again.to_dict(), config.to_dict()
        assert {**values, "_name_or_path": ""} == {**wanted, "_name_or_path": ""}


@pytest.mark.parametrize(
    "rope_parameters",
    [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0},
        {"full_attention": {"rope_theta": 9.0}, "sliding_attention": {"rope_theta": 8.0}},
    ],
)
def test_rope_parameters_survive_a_round_trip(rope_parameters):
    layers = {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}
    config = ClozeBertConfig(rope_parameters=rope_parameters, **layers)
    again = ClozeBertConfig.from_dict(config.to_dict())
    assert again.rope_parameters == config.rope_parameters
    assert set(config.rope_parameters) == {"full_attention", "sliding_attention"}


def test_positions_that_were_changed_later_are_refused_before_they_are_saved():
    rotary, learned = ClozeBertConfig(), ClozeBertConfig(position_embedding_type="absolute")
    rotary.position_embedding_type = "sinusoidal"
    with pytest.raises(
        ValueError, match="needs position_embedding_type='rope', not 'sinusoidal': give it to the const"
    ):
        rotary.check_together()
    learned.position_embedding_type = "rope"
    with pytest.raises(ValueError, match="rope_parameters=None has no rope_theta: give it to the constructor"):
        learned.check_together()
    by_layer = ClozeBertConfig(num_hidden_layers=1, layer_types=["full_attention"])
    by_layer.rope_parameters = {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(ValueError, match="has no rope_theta for full_attention"):
        by_layer.check_together()


def test_a_subclass_completes_overrides_as_its_parent_does():
    class Own(ClozeBertConfig):
        model_type = "own"

    values, override = Own().to_dict(), {"rope_type": "linear", "factor": 2.0}
    assert Own.from_dict(values, rope_parameters=override).rope_parameters["rope_theta"] == 10_000.0
    with pytest.raises(ValueError, match="liner"):
        Own.from_dict(values, rope_parameters={**override, "rope_type": "liner"})


def test_the_old_forms_of_rope_are_understood():
    config = ClozeBertConfig(rope_theta=123.0)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 123.0}
    config = ClozeBertConfig(rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert config.rope_parameters == {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}


def test_names_and_their_overrides():
    assert ClozeBertConfig.from_name("bert-base").hidden_size == 768
    config = ClozeBertConfig.from_name("bert-base", hidden_size=96, vocab_size=211)
    assert (config.hidden_size, config.vocab_size, config.norm_position) == (96, 211, "post")
    with pytest.raises(ValueError, match="unknown architecture 'bert_base'; did you mean 'bert-base'"):
        ClozeBertConfig.from_name("bert_base")
    with pytest.raises(ValueError, match="unknown configuration key"):
        ClozeBertConfig.from_name("bert-base", hiden_size=96)


def test_changing_one_configuration_leaves_the_named_architecture():
    config = ClozeBertConfig.from_name("modernbert-base")
    config.layer_types[0] = "sliding_attention"
    config.rope_parameters["full_attention"]["rope_theta"] = 1.0
    assert ClozeBertConfig.from_name("modernbert-base").layer_types[0] == "full_attention"
    assert ClozeBertConfig.from_name("modernbert-base").rope_parameters["full_attention"]["rope_theta"] == 160_000.0


def test_a_named_architecture_with_other_positions_has_no_rotary_parameters():
    config = ClozeBertConfig.from_name("modernbert-base", position_embedding_type="absolute")
    assert config.rope_parameters is None
    with pytest.raises(ValueError, match="needs position_embedding_type='rope'"):
        ClozeBertConfig.from_name(
            "modernbert-base", position_embedding_type="absolute", rope_parameters={"rope_theta": 7.0}
        )


def test_modernbert_has_full_attention_in_every_third_layer():
    config = ClozeBertConfig.from_name("modernbert-base")
    assert [index for index in range(22) if config.attention_type(index) == "full_attention"] == list(range(0, 22, 3))


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_names_an_architecture_and_known_keys(name):
    from clozebert.training import PretrainingArguments
    from clozebert.utils.errors import reject_unknown_keys

    recipe = load_recipe(name)
    architecture, model = recipe.pop("architecture"), recipe.pop("model", {})
    assert isinstance(ClozeBertConfig.from_name(architecture, **model), ClozeBertConfig)
    reject_unknown_keys(recipe, PretrainingArguments.__dataclass_fields__, where=name)


def test_recipes_from_files_and_their_mistakes(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("architecture: tiny\nmodel:\n  hidden_size: 128\n")
    assert load_recipe(str(path)) == {"architecture": "tiny", "model": {"hidden_size": 128}}
    path.write_text("max_steps: 1e5\nphases: [{model: {rope_theta: 1.6E+5}}]\nname: e5\nquoted: '1e5'\nsmall: -.5e-3\n")
    assert load_recipe(str(path)) == {
        "max_steps": 1e5,
        "phases": [{"model": {"rope_theta": 1.6e5}}],
        "name": "e5",
        "quoted": "1e5",
        "small": -0.5e-3,
    }
    with pytest.raises(ValueError, match="unknown recipe 'tinny'; did you mean 'tiny'"):
        load_recipe("tinny")
    with pytest.raises(FileNotFoundError, match=r"gone\.yaml"):
        load_recipe(str(tmp_path / "gone.yaml"))
    path.write_text(
        "a: 1:30\nb: 1:30.5\nc: 1.5\nd: 1_000.5\ne: -.inf\nf: 5.\ng: .nan\nh: 1_0:30.5\ni: 1.5_0\nj: .5_5\n"
    )
    values = load_recipe(str(path))
    assert math.isnan(values.pop("g"))
    assert values == {
        "a": "1:30",
        "b": "1:30.5",
        "c": 1.5,
        "d": 1000.5,
        "e": -math.inf,
        "f": 5.0,
        "h": "1_0:30.5",
        "i": 1.5,
        "j": 0.55,
    }
    path.write_text("a: 1.5_0\nb: .5_5\n")
    assert load_recipe(str(path)) == {"a": 1.5, "b": 0.55}
    path.write_text("- a list\n")
    with pytest.raises(ValueError, match="must hold `name: value` lines"):
        load_recipe(str(path))
    path.write_text("a: [1\n")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_recipe(str(path))
    for twice in ("max_steps: 3\nseed: 1\nmax_steps: 4\n", "model:\n  max_steps: 3\n\n  max_steps: 4\n"):
        path.write_text(twice)
        with pytest.raises(ValueError, match=r"'max_steps' occurs twice, the second time in line [34]$"):
            load_recipe(str(path))


def test_of_rope_parameters_by_layer_type_what_is_not_named_stays():
    base = ClozeBertConfig.from_name("nano").rope_parameters
    assert base["sliding_attention"]["rope_theta"] != 10_000
    config = ClozeBertConfig.from_name("nano", rope_parameters={"full_attention": {"rope_theta": 5.0}})
    assert config.rope_parameters == {**base, "full_attention": {**base["full_attention"], "rope_theta": 5.0}}


@pytest.mark.parametrize("name", ["modernbert-base", "tiny"])
@pytest.mark.parametrize("part", [{"rope_theta": 5e5}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}])
def test_a_named_architecture_keeps_its_bases_or_refuses(name, part):
    """By themselves these would change nothing, or the bases of all layers to the default."""
    with pytest.raises(ValueError, match="cannot be set by itself: give rope_parameters"):
        ClozeBertConfig.from_name(name, **part)
    config = ClozeBertConfig.from_name(name)
    with pytest.raises(ValueError, match="cannot be set by itself: give rope_parameters"):
        setattr(config, *next(iter(part.items())))


def test_a_problem_type_that_no_head_has_is_refused():
    assert ClozeBertConfig(problem_type="regression").problem_type == "regression"
    with pytest.raises(ValueError, match=r"problem_type='regresion' must be one of .*did you mean 'regression'"):
        ClozeBertConfig(problem_type="regresion")
