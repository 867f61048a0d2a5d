"""Registers our classes with transformers' Auto model classes. The package imports this after they are loaded."""

from transformers.models.auto import modeling_auto

from ..configuration.configuration_clozebert import ClozeBertConfig
from . import modeling_clozebert
from .bundle import CLASS_OF_AUTO_CLASS

for _auto_class, _class in CLASS_OF_AUTO_CLASS.items():
    getattr(modeling_auto, _auto_class).register(ClozeBertConfig, getattr(modeling_clozebert, _class), exist_ok=True)
