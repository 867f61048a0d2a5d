"""The encoder's configuration, the named architectures, the recipes, and the files for `accelerate launch`.

Imports no other part of ClozeBERT, and transformers only when `ClozeBertConfig` is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .launch import launch_configuration, list_launch_configurations
from .recipes import describe_recipe, list_recipes, load_recipe, read_yaml

if TYPE_CHECKING:
    from .configuration_clozebert import ClozeBertConfig
    from .named_architectures import ARCHITECTURES

_MODULE_OF_NAME = {"ClozeBertConfig": "configuration_clozebert", "ARCHITECTURES": "named_architectures"}

__all__ = ["ARCHITECTURES", "ClozeBertConfig", "describe_recipe", "launch_configuration", "list_launch_configurations",
           "list_recipes", "load_recipe", "read_yaml"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
