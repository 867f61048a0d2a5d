"""Tells transformers' Auto model classes of ours; the package's `__init__` imports this when they are there."""

from transformers.models.auto import modeling_auto

from ..configuration.configuration_clozebert import ClozeBertConfig
from . import classifiers, modeling_clozebert
from .bundle import auto_map

_FILES = {"modeling_clozebert": modeling_clozebert, "classifiers": classifiers}

for _auto_class, _path in auto_map().items():
    _file, _class = _path.split(".")
    if _file in _FILES:
        getattr(modeling_auto, _auto_class).register(ClozeBertConfig, getattr(_FILES[_file], _class), exist_ok=True)
