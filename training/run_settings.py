"""Merges a recipe and the flags that override it into the settings of a run and its model."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from ..configuration import ARCHITECTURES, ClozeBertConfig, describe_recipe, list_recipes, load_recipe, read_yaml
from ..configuration.recipes import merge_nested
from ..utils.command_line import Flag, flags_of
from ..utils.errors import UserError, as_user_errors, reject_unknown_keys
from ..utils.values import read_number
from .arguments import SHARES, Phase, PretrainingArguments, with_same_share

_OWN_KEYS = ("architecture", "model")
_TEXT_MODELS = [name for name, fields in ARCHITECTURES.items() if "image_size" not in fields]
_IDLE = "accepted, without effect here"
_MODEL = "model (not with --model_name_or_path)"
# The fields of the model that are flags. The others can be set in a recipe file.
MODEL_FLAGS = {
    "hidden_size": "width: the size of each token's vector",
    "num_hidden_layers": "layers",
    "num_attention_heads": "attention heads of each layer",
    "num_key_value_heads": "heads of keys and values; fewer: grouped-query attention",
    "intermediate_size": "width inside the feed-forward",
    "hidden_act": "activation: gelu, relu, silu …",
    "mlp_type": "feed-forward: mlp, or gated: glu",
    "max_position_embeddings": "longest input, in tokens",
    "position_embedding_type": "absolute (learned), sinusoidal, rope or none",
    "rope_parameters": "rotary positions, in transformers' form: {rope_theta: 1e4}",
    "layer_types": "attention of each layer: full_attention or sliding_attention; null: all full",
    "sliding_window": "tokens that sliding attention sees on each side",
    "norm_position": "norms before (pre) or after (post) each part of a layer",
    "norm_type": "layernorm or rmsnorm",
    "qk_norm": "norms of queries and keys",
    "hidden_dropout_prob": "dropout after each part of a layer",
    "attention_probs_dropout_prob": "dropout of attention weights",
    "output_projection_init": "initial weights of projections into the residual stream: normal, scaled or zero",
}
# What the constructor of a configuration raises for wrong values of the user.
_MISTAKES = (ValueError, TypeError, AttributeError, KeyError, OverflowError, StrictDataclassError)
# The peak learning rate of a run that continues from a model, as a share of that from random weights.
_CONTINUED_RATE = 0.2


def split_settings(name: str | None, flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A recipe and the flags that override it, as fields of the run and of the model (with its `architecture`).

    Raises:
        ValueError: a key that belongs to neither.
    """
    recipe, model = _read_recipe(name)
    of_run = PretrainingArguments.field_names()
    run_flags = {key: value for key, value in flags.items() if key in of_run}
    model_flags = {key: value for key, value in flags.items() if key not in of_run}
    continued = {**recipe, **run_flags}.get("model_name_or_path")
    if continued and model_flags:
        raise UserError(
            f"model_name_or_path={continued!r} brings its own configuration: leave out "
            f"{', '.join(f'--{key}' for key in model_flags)}"
        )
    _refuse_two_lengths(flags, "max_minutes", "num_train_epochs")
    if flags.keys().isdisjoint(("max_steps", "num_train_epochs")):
        _refuse_two_lengths(recipe, "num_train_epochs", where=f"recipe {name}: ")
    _refuse_unused({**recipe, **run_flags}, run_flags)
    keep_schedule_shape(recipe, flags)
    if flags.get("lr_scheduler_type", "wsd") != "wsd":  # a recipe's decay_steps are for wsd
        recipe.pop("decay_steps", None)
        for phase in recipe.get("phases") or []:
            if isinstance(phase, dict) and "lr_scheduler_type" not in phase:
                phase.pop("decay_steps", None)
    return {**recipe, **run_flags}, {**model, **model_flags}


def _refuse_two_lengths(given: dict[str, Any], *others: str, where: str = "") -> None:
    for other in others:
        if "max_steps" in given and other in given:
            raise UserError(
                f"{where}max_steps={given['max_steps']} and {other}={given[other]} both say how long the run is: give "
                f"one of them"
            )


def _refuse_unused(run: dict[str, Any], flags: dict[str, Any]) -> None:
    """Refuse flags that have no effect in this run. A recipe's values may stay: flags may have switched them off."""
    for name in ("embedding_init", "position_init"):
        if run.get("model_name_or_path") and flags.get(name, "random") != "random":
            raise UserError(f"{name}={flags[name]!r} is for new models: leave it out with model_name_or_path")
    unused = [name for name in flags if name.startswith("muon_")]
    if unused and run.get("optimizer", "adamw") != "muon":
        raise UserError(f"{unused[0]}={flags[unused[0]]} needs optimizer='muon': leave it out")


def _read_recipe(name: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """A recipe's fields of the run and of the model (with its `architecture`); without a name, none."""
    with as_user_errors(ValueError, OSError):
        recipe = load_recipe(name) if name is not None else {}
    where = f"recipe {name}"
    of_run = PretrainingArguments.field_names()
    if misplaced := [key for key in recipe if key in ClozeBertConfig.__annotations__]:
        way_out = "leave it out, the tokenizer says it" if misplaced[0] == "vocab_size" else "put it under `model:`"
        raise UserError(f"{where}: {misplaced[0]} is a field of the model: {way_out}")
    reject_unknown_keys(recipe, [*of_run, *_OWN_KEYS], where=where)
    model = recipe.pop("model", None) or {}
    if not isinstance(model, dict):
        raise UserError(f"{where}: model={model!r} must be `name: value` lines")
    if misplaced := [key for key in model if key in of_run]:
        raise UserError(f"{where}: {misplaced[0]} is a field of the run: move it out of `model:`")
    _reject_unknown_fields(model, where=f"{where}, under `model`")
    return recipe, {**model, "architecture": recipe.pop("architecture", None)}


def keep_schedule_shape(recipe: dict[str, Any], flags: dict[str, Any]) -> None:
    """If a flag changes a recipe's length, its warm-ups and decay keep their share of it."""
    if "max_steps" in flags:
        recipe.pop("max_minutes", None)  # with epochs it stays: the shorter of the two ends the run
    # With max_minutes, the recipe's max_steps stays: warm-ups and decay are shares of it.
    if "max_steps" not in flags and "num_train_epochs" not in flags:
        return
    recipe.pop("num_train_epochs", None)
    before = recipe.pop("max_steps", None)
    if before is None:
        return
    before = read_number("max_steps", before, int)
    if before < 1:
        raise UserError(f"max_steps={before} must be at least 1")
    for name in SHARES:
        if name in flags or recipe.get(name) is None:
            continue
        steps = read_number(name, recipe[name], float)
        if steps >= 1:
            # 1 would be read as one step.
            recipe[name] = math.nextafter(1.0, 0.0) if steps == before else steps / before
            if "max_steps" in flags:
                recipe[name] = with_same_share(name, steps, before, flags["max_steps"])


def check_model_is_named(settings: dict[str, Any], model: dict[str, Any]) -> None:
    """Refuse a run of which nothing says what it trains.

    Args:
        settings: fields of the run.
        model: fields of the model, with its `architecture`.
    """
    if settings.get("model_name_or_path") is None and all(value is None for value in model.values()):
        raise UserError(
            f"say what to train: --config NAME for a recipe ({', '.join(list_recipes())}), --architecture NAME, or "
            f"--model_name_or_path NAME to go on from a model"
        )


def suit_continuing(settings: dict[str, Any], flags: dict[str, Any]) -> list[str]:
    """Lower the peak learning rates of a run that continues from a model, unless flags set them.

    Args:
        settings: fields of the run; changed in place.
        flags: the flags that were given.

    Returns:
        Lines for the user.
    """
    if settings.get("model_name_or_path") is None:
        return []
    lines = []
    phases = [] if "phases" in flags else settings.get("phases") or []
    phases = phases if isinstance(phases, list) else [phases]  # a single one may stand without a list
    for name in ("learning_rate", "muon_learning_rate"):
        of_adamw = name == "learning_rate"
        if name in flags or not (of_adamw or settings.get("optimizer") == "muon"):
            continue
        usual = read_number(name, settings.get(name, PretrainingArguments.__dataclass_fields__[name].default), float)
        settings[name] = float(f"{usual * _CONTINUED_RATE:.4g}")
        lines.append(f"--{name} {settings[name]:g} instead of {usual:g}")
        for phase in phases:
            if isinstance(phase, dict) and name in phase:
                phase[name] = float(f"{read_number(name, phase[name], float) * _CONTINUED_RATE:.4g}")
    if not lines:
        return []
    if phases:
        lines.append("the same in each phase")
    if settings.get("max_steps") is None and settings.get("num_train_epochs") is None:
        lines.append("fewer epochs")
    return [f"continuing from {settings['model_name_or_path']}: {', '.join(lines)}; flags change it"]


def make_config(model: dict[str, Any], *, recipe: str | None = None) -> ClozeBertConfig:
    """The configuration that the fields of `model` describe, over those of its `architecture`.

    Args:
        recipe: the recipe of the run. A message names it if the mistake is in the recipe, and not in a flag.
    """
    with as_user_errors(*_MISTAKES):
        try:
            return _configure(**model)
        except _MISTAKES:
            with as_user_errors(*_MISTAKES, about=f"recipe {recipe}"):
                _configure(**_read_recipe(recipe)[1])
            raise


def _configure(*, architecture: Any = None, **fields: Any) -> ClozeBertConfig:
    if not isinstance(architecture, str | None):
        raise ValueError(f"architecture={architecture!r} must be the name of one, as text")
    return ClozeBertConfig(**fields) if architecture is None else ClozeBertConfig.from_name(architecture, **fields)


def phase_configuration(config: ClozeBertConfig, phase: Phase) -> ClozeBertConfig:
    """The model's configuration in a phase. In nested values, only what the phase names changes.

    Raises:
        ValueError: a field that the configuration does not have.
    """
    if not phase.model:
        return config
    where = f"phases[{phase.index - 1}], under `model`"
    _reject_unknown_fields(phase.model, where=where)
    model = phase.model
    rope, is_of_one_type = model.get("rope_parameters"), config.layer_types is None and "layer_types" not in model
    if is_of_one_type and isinstance(rope, dict) and "full_attention" in rope:
        model = {**model, "rope_parameters": rope["full_attention"]}  # the model keeps one dict for all
    with as_user_errors(*_MISTAKES, about=where):
        return ClozeBertConfig.from_dict(merge_nested(config.to_dict(), model))


def _reject_unknown_fields(model: dict[str, Any], *, where: str) -> None:
    """Refuse unknown fields. The error suggests our own fields only, not those of the base class."""
    known = ClozeBertConfig.field_names()
    unknown = [name for name in model if name not in known]
    reject_unknown_keys(unknown, ClozeBertConfig.__annotations__, where=where)


def pretraining_flags(
    *more: Flag,
    more_of_model: dict[str, str] | None = None,
    shown: dict[str, Any] | None = None,
    needed: Sequence[str] = (),
    idle: Sequence[str] = (),
) -> list[Flag]:
    """All flags of a run, each None unless given: the recipe, then the run's fields, then the model's.

    Args:
        more: a program's own flags; they come first.
        more_of_model: fields of the model besides `MODEL_FLAGS`, with their help.
        shown: the values of a recipe, which the help shows as defaults.
        needed: the fields of the run that the program cannot do without.
        idle: the fields of the run that the program has no use for; they come last.
    """
    shown = shown or {}
    flags = [
        Flag("config", str, "a recipe: one of those below, or a YAML file", metavar="NAME"),
        *more,
    ]
    for item in flags_of(PretrainingArguments):
        flags.append(
            dataclasses.replace(
                item,
                kind=(str if item.name == "phases" else item.kind) | None,
                default=None,
                shown=shown.get(item.name, item.default),
                section=_IDLE if item.name in idle else item.section,
                is_needed=item.name in needed,
            )
        )
    flags.append(Flag("architecture", str, f"a named architecture, instead of the recipe's: {', '.join(_TEXT_MODELS)}",
                      section=_MODEL, shown=shown.get("architecture")))  # fmt: skip
    for name, text in {**MODEL_FLAGS, **(more_of_model or {})}.items():
        flags.append(Flag(name, str, text, section=_MODEL, shown=shown.get(name), metavar="VALUE"))
    return sorted(flags, key=lambda flag: (bool(flag.section), flag.section == _IDLE))


def shown_values(name: str | None, architecture: str | None) -> dict[str, Any]:
    """What a recipe and its architecture set, for the help: fields of the run and of the model."""
    flags = {} if architecture is None else {"architecture": architecture}
    settings, model = split_settings(name, flags)
    config = make_config(model, recipe=name)
    return {**settings, "architecture": model.get("architecture"), **{key: getattr(config, key) for key in MODEL_FLAGS}}


def values_for_help(words: Sequence[str]) -> dict[str, Any]:
    """`shown_values` of the recipe and the architecture that a command line with `--help` names; else nothing."""
    if not {"-h", "--help"} & set(words):
        return {}
    named = {}
    for before, word in itertools.pairwise(["", *words]):
        for name in ("config", "architecture"):
            if (before == f"--{name}" and not word.startswith("-")) or word.startswith(f"--{name}="):
                named[name] = word.split("=", 1)[-1]
    return shown_values(named.get("config"), named.get("architecture")) if named else {}


def recipe_notes() -> list[str]:
    """A line for each recipe."""
    width = max(map(len, list_recipes()))
    return ["recipes:", *(f"  {name:{width}}  {describe_recipe(name)}" for name in list_recipes())]


def hints() -> dict[str, str]:
    """For flags that pretraining does not have, by name: what to do instead."""
    found = dict.fromkeys(
        (name for name in ClozeBertConfig.__annotations__ if name not in MODEL_FLAGS),
        "set it in a recipe file, under `model:`",
    )
    of_tokenizer = "it is the tokenizer's"
    found |= dict.fromkeys((name for name in found if name.endswith("_token_id")), of_tokenizer)
    found["vocab_size"] = "it is the tokenizer's size, rounded up to a multiple of 64; train another tokenizer"
    found |= {
        "gradient_accumulation_steps": "it follows from global_batch_size, per_device_train_batch_size and the number "
        "of processes",
        "per_gpu_train_batch_size": "give --per_device_train_batch_size",
        "batch_size": "give --global_batch_size (rows in a step) or --per_device_train_batch_size (rows at once)",
        "train_batch_size": "give --global_batch_size (rows in a step) or --per_device_train_batch_size (rows at once)",
        "train_file": "prepare the text first (clozebert prepare-corpus), then give --corpus",
        "train_data": "prepare the text first (clozebert prepare-corpus), then give --corpus",
        "dataset_name": "prepare the dataset first (clozebert prepare-corpus --input NAME), then give --corpus",
        "input": "prepare the text first (clozebert prepare-corpus), then give --corpus",
        "line_by_line": "it is prepare-corpus' --document_separator line",
        "validation_file": "it is prepare-corpus' --validation_input",
        "validation_split_percentage": "it is prepare-corpus' --validation_fraction",
        "preprocessing_num_workers": "it is prepare-corpus' --num_processes",
        "pad_to_max_length": "rows are packed, without padding: leave it out",
        "model_type": "give --config NAME, a recipe, such as bert-base",
        "config_name": "give --config NAME, a recipe, such as bert-base",
        "config_overrides": "the model's fields are flags, such as --hidden_size 384",
        "do_train": "a run trains and evaluates: leave it out",
        "do_eval": "a run trains and evaluates: leave it out",
        "bf16": "give --mixed_precision bf16",
        "fp16": "give --mixed_precision fp16",
        "warmup_ratio": "give --warmup_steps a number below 1",
        "optim": "give --optimizer adamw or muon",
        "push_to_hub": "publish the folder afterwards (clozebert publish)",
    }
    return found


def read_flag(name: str, value: Any) -> Any:
    """A flag's value. Text for the model's fields and `phases` is YAML: `12`, `1e-5`, `{rope_theta: 1e4}`."""
    if name not in (*ClozeBertConfig.__annotations__, "phases"):
        return value
    with as_user_errors(ValueError, about=f"--{name} {value}"):
        return read_yaml(value)
