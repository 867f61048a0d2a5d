"""A recipe and the flags over it: what a pretraining run and its model are made from. Needs no torch."""

import dataclasses
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from ..configuration import ClozeBertConfig, load_recipe
from ..utils.errors import UserError, as_user_errors, reject_unknown_keys
from .arguments import Phase, PretrainingArguments

_OWN_KEYS = ("architecture", "model")


def split_settings(name: str | None, flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A recipe and the flags that override it, as fields of the run and of the model (with its `architecture`).

    Raises:
        ValueError: a key that neither knows.
    """
    with as_user_errors(ValueError, OSError):
        recipe = load_recipe(name) if name is not None else {}
    where = f"recipe {name}"
    of_run = PretrainingArguments.field_names()
    reject_unknown_keys(recipe, [*of_run, *_OWN_KEYS], where=where)
    model = recipe.pop("model", None) or {}
    if not isinstance(model, dict):
        raise UserError(f"{where}: model={model!r} must be `name: value` lines")
    model = dict(model)
    reject_unknown_keys(model, ClozeBertConfig.field_names(), where=f"{where}, under `model`")
    model["architecture"] = recipe.pop("architecture", None)
    of_model = {key: value for key, value in flags.items() if key not in of_run}
    if flags.get("model_name_or_path") and of_model:
        raise UserError(
            f"model_name_or_path={flags['model_name_or_path']!r} brings its own configuration: leave out "
            f"{', '.join(f'--{key}' for key in of_model)}"
        )
    if "max_steps" in flags and "max_minutes" in flags:
        raise UserError(
            f"max_steps={flags['max_steps']} and max_minutes={flags['max_minutes']} both say how long the run is: "
            f"give one of them"
        )
    keep_schedule_shape(recipe, flags)
    recipe.update({key: value for key, value in flags.items() if key in of_run})
    model.update(of_model)
    return recipe, model


def keep_schedule_shape(recipe: dict[str, Any], flags: dict[str, Any]) -> None:
    """Where `--max_steps` changes a recipe's length, its warm-ups and decay keep their share of it."""
    if "max_steps" not in flags or "max_steps" not in recipe:
        return
    for name in ("warmup_steps", "decay_steps", "batch_warmup_steps"):
        if name in recipe and name not in flags:
            recipe[name] = int(recipe[name]) * flags["max_steps"] // int(recipe["max_steps"])


def make_config(model: dict[str, Any]) -> ClozeBertConfig:
    """The configuration that the fields of `model` describe, over those of its `architecture`."""
    architecture = model.pop("architecture", None)
    with as_user_errors(ValueError, TypeError, AttributeError, KeyError, OverflowError, StrictDataclassError):
        return ClozeBertConfig(**model) if architecture is None else ClozeBertConfig.from_name(architecture, **model)


def phase_configuration(config: ClozeBertConfig, phase: Phase) -> ClozeBertConfig:
    """The model's configuration in a phase; of nested values only what the phase names is different.

    Raises:
        ValueError: a field that the configuration has not.
    """
    if not phase.model:
        return config
    reject_unknown_keys(phase.model, ClozeBertConfig.field_names(), where=f"phases[{phase.index - 1}], under `model`")
    with as_user_errors(ValueError, TypeError, AttributeError, KeyError, OverflowError, StrictDataclassError):
        return ClozeBertConfig.from_dict(merge_nested(config.to_dict(), phase.model))


def merge_nested(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`values` with `changes` in their places, mapping by mapping."""
    merged = dict(values)
    for name, change in changes.items():
        before = merged.get(name)
        if isinstance(before, dict) and isinstance(change, dict):
            merged[name] = merge_nested(before, change)
        else:
            merged[name] = change
    return merged


def flags_class(*more: tuple[str, Any, str]) -> type:
    """A dataclass of all flags, each None unless given: the recipe, then the run's fields, then the model's.

    Args:
        more: a program's own flags: name, type, help.
    """
    flags: list[tuple[str, Any, Any]] = [
        _flag("config", str, "a recipe: its name, or a YAML file"),
        _flag("architecture", str, "a named architecture, instead of the recipe's"),
        *(_flag(*flag) for flag in more),
    ]
    for item in dataclasses.fields(PretrainingArguments):
        default = "" if item.default in ("", None, dataclasses.MISSING) else f" (default: {item.default})"
        kind = str if item.name == "phases" else item.type
        flags.append(_flag(item.name, kind, item.metadata["help"] + default))
    for name in ClozeBertConfig.__annotations__:
        flags.append(_flag(name, str, f"of the model (default: the recipe's, else {getattr(ClozeBertConfig, name)})"))
    return dataclasses.make_dataclass("Flags", flags)


def _flag(name: str, kind: Any, text: str) -> tuple[str, Any, Any]:
    # The formatter adds "(default: None)" unless the text names the default; this names it in no letters.
    metadata: dict[str, Any] = {"help": text.replace("%", "%%") + "%(default).0s"}
    if kind is bool:
        metadata |= {"nargs": "?", "const": True}
    return name, kind | None, dataclasses.field(default=None, metadata=metadata)


def read_flag(name: str, value: Any) -> Any:
    """The model's fields and `phases` come as text, read as a recipe's value is: `12`, `1e-5`, `{rope_theta: 1e4}`."""
    if name not in (*ClozeBertConfig.__annotations__, "phases"):
        return value
    import yaml

    with as_user_errors(yaml.YAMLError, about=f"--{name} {value}"):
        read = yaml.safe_load(value)
    if isinstance(read, str):
        try:
            return float(read)
        except ValueError:
            return read
    return read
