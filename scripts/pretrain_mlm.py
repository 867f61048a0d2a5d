#!/usr/bin/env python
"""Pretrain an encoder by masked-language modelling.

    pretrain_mlm.py --config tiny --corpus CORPUS --tokenizer_name TOKENIZER --output_dir DIR
    accelerate launch --config_file LAUNCH.yaml scripts/pretrain_mlm.py --config tiny …

A recipe (`--config`, a name or a YAML file) holds everything a run needs but its paths; every field of a recipe, and
every field of the model's configuration, is a flag that overrides it.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozebert.scripts._program import parse, run

DESCRIPTION = "Pretrain an encoder by masked-language modelling, from a corpus that prepare_corpus wrote."
_OWN_KEYS = ("architecture", "model")


def main(argv: Sequence[str] | None = None) -> None:
    """Read recipe and flags, then train."""
    flags = _parse_flags(argv)
    name = flags.pop("config", None)
    settings, model = split_settings(name, flags)

    from clozebert.training.arguments import PretrainingArguments

    arguments = PretrainingArguments(**settings)
    config = _make_config(model)

    from clozebert.hub.card import write_card
    from clozebert.training.pretraining import pretrain

    results = pretrain(arguments, config, write_card=write_card, recipe=name and Path(name).stem)
    if "stopped_by" in results:
        # As a shell reports a process that a signal ended: whoever started the run sees that it is not done.
        sys.exit(128 + results["stopped_by"])


def split_settings(name: str | None, flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A recipe and the flags that override it, as fields of the run and of the model (with its `architecture`).

    Raises:
        ValueError: a key that neither knows.
    """
    from clozebert.configuration import ClozeBertConfig, load_recipe, reject_unknown_keys
    from clozebert.training.arguments import PretrainingArguments

    recipe = load_recipe(name) if name is not None else {}
    where = f"recipe {name}"
    of_run = PretrainingArguments.field_names()
    reject_unknown_keys(recipe, [*of_run, *_OWN_KEYS], where=where)
    model = dict(recipe.pop("model", None) or {})
    reject_unknown_keys(model, ClozeBertConfig.field_names(), where=f"{where}, under `model`")
    model["architecture"] = recipe.pop("architecture", None)
    of_model = {key: value for key, value in flags.items() if key not in of_run}
    if flags.get("model_name_or_path") and of_model:
        raise ValueError(
            f"model_name_or_path={flags['model_name_or_path']!r} brings its own configuration: leave out "
            f"{', '.join(f'--{key}' for key in of_model)}"
        )
    keep_schedule_shape(recipe, flags)
    recipe.update({key: value for key, value in flags.items() if key in of_run})
    model.update(of_model)
    return recipe, model


def keep_schedule_shape(recipe: dict[str, Any], flags: dict[str, Any]) -> None:
    """Where `--max_steps` changes a recipe's length, its warm-up and decay keep their share of it."""
    if "max_steps" not in flags or "max_steps" not in recipe:
        return
    for name in ("warmup_steps", "decay_steps"):
        if name in recipe and name not in flags:
            recipe[name] = int(recipe[name]) * flags["max_steps"] // int(recipe["max_steps"])


def _make_config(model: dict[str, Any]) -> Any:
    from clozebert.configuration import ClozeBertConfig

    architecture = model.pop("architecture", None)
    return ClozeBertConfig(**model) if architecture is None else ClozeBertConfig.from_name(architecture, **model)


def _parse_flags(argv: Sequence[str] | None) -> dict[str, Any]:
    """The flags that were given, by name; the others keep the recipe's value."""
    values = vars(parse(_flags_class(), argv, prog="pretrain_mlm", description=DESCRIPTION))
    return {key: _from_yaml(key, value) for key, value in values.items() if value is not None}


def _flags_class() -> type:
    """A dataclass of all flags, each None unless given: the recipe, then the run's fields, then the model's."""
    from clozebert.configuration import ClozeBertConfig
    from clozebert.training.arguments import PretrainingArguments

    flags: list[tuple[str, Any, Any]] = [
        _flag("config", str, "a recipe: its name, or a YAML file"),
        _flag("architecture", str, "a named architecture, instead of the recipe's"),
    ]
    for item in dataclasses.fields(PretrainingArguments):
        default = "" if item.default in ("", None, dataclasses.MISSING) else f" (default: {item.default})"
        flags.append(_flag(item.name, item.type, item.metadata["help"] + default))
    for name in ClozeBertConfig.__annotations__:
        flags.append(_flag(name, str, f"of the model (default: the recipe's, else {getattr(ClozeBertConfig, name)})"))
    return dataclasses.make_dataclass("Flags", flags)


def _flag(name: str, kind: Any, text: str) -> tuple[str, Any, Any]:
    # The formatter adds "(default: None)" unless the text names the default; this names it in no letters.
    metadata: dict[str, Any] = {"help": text.replace("%", "%%") + "%(default).0s"}
    if kind is bool:
        metadata |= {"nargs": "?", "const": True}
    return name, kind | None, dataclasses.field(default=None, metadata=metadata)


def _from_yaml(name: str, value: Any) -> Any:
    """The model's fields come as text, which is read as a recipe's value is: `12`, `1e-5`, `{rope_theta: 1e4}`."""
    from clozebert.configuration import ClozeBertConfig

    if name not in ClozeBertConfig.__annotations__:
        return value
    import yaml

    read = yaml.safe_load(value)
    if isinstance(read, str):
        try:
            return float(read)
        except ValueError:
            return read
    return read


if __name__ == "__main__":
    run(main)
