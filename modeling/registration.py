"""Registers our classes with transformers' Auto model classes; the package imports this when these are there."""

from transformers.models.auto import modeling_auto

from ..configuration.configuration_clozebert import ClozeBertConfig
from . import modeling_clozebert
from .bundle import class_of_auto_class

for _auto_class, _class in class_of_auto_class().items():
    getattr(modeling_auto, _auto_class).register(ClozeBertConfig, getattr(modeling_clozebert, _class), exist_ok=True)
