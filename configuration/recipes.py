"""Recipes: everything a pretraining run needs, as YAML. Flags override a recipe's values."""

import re
from pathlib import Path
from typing import Any

from .field_checks import suggestion
from .launch import LAUNCH_PREFIX

_FOLDER = Path(__file__).parent


def list_recipes() -> list[str]:
    """The names of the recipes that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml") if not path.name.startswith(LAUNCH_PREFIX))


def describe_recipe(name: str) -> str:
    """The first line of a recipe's file, which says what the recipe is for."""
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0].lstrip("# ")


def load_recipe(name_or_path: str) -> dict[str, Any]:
    """Read a recipe by its name (`tiny`) or from a file (`my.yaml`).

    Raises:
        ValueError: no recipe has that name, or the file does not hold a mapping.
        FileNotFoundError: the path of a YAML file that does not exist.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        if name_or_path not in list_recipes():
            hint = suggestion(name_or_path, list_recipes(), otherwise=f"known: {', '.join(list_recipes())}")
            raise ValueError(f"unknown recipe {name_or_path!r}; {hint} (the name of a file ends in .yaml)")
        path = _FOLDER / f"{name_or_path}.yaml"
    if not path.is_file():
        raise FileNotFoundError(f"recipe file {path} does not exist")
    try:
        values = read_yaml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"recipe file {path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"recipe file {path} must hold `name: value` lines")
    return values


def read_yaml(text: str) -> Any:
    """Parse YAML. `1e4` is a number, and `010` and `1:30` are not, as in YAML 1.2.

    PyYAML follows 1.1: it would read a string, 8 and 90.

    Raises:
        ValueError: the text is not valid YAML, or a key occurs twice in one mapping.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in seen:
                    raise ValueError(f"{key.value!r} occurs twice, the second time in line {key.start_mark.line + 1}")
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    integer, number = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag not in (integer, number)]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(integer, re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$"), list("-+0123456789"))
    Loader.add_implicit_resolver(
        number,
        re.compile(
            r"[-+]?((\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"
        ),
        list("-+.0123456789"),
    )
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: also an impossible date or number
        raise ValueError(str(error)) from None


def merge_nested(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of a model's `values` with `changes`, merged recursively.

    Another `rope_type` takes only `rope_theta` from the one before, as types have parameters of their own.
    """
    merged = dict(values)
    if "rope_type" in values and changes.get("rope_type", values["rope_type"]) != values["rope_type"]:
        merged = {name: value for name, value in values.items() if name == "rope_theta"}
    for name, change in changes.items():
        before = merged.get(name)
        if isinstance(before, dict) and isinstance(change, dict):
            merged[name] = merge_nested(before, change)
        else:
            merged[name] = change
    return merged
