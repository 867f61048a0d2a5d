"""Weights in and out: native architectures, model cards, warm starts. Each is imported when a name of it is used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .card import write_card
    from .native import from_native, save_native, to_native
    from .warm_start import extend_positions, extend_vocabulary, grow, grow_depth, grow_width, pseudo_perplexity

_MODULE_OF_NAME = {
    "from_native": "native",
    "save_native": "native",
    "to_native": "native",
    "write_card": "card",
    "extend_positions": "warm_start",
    "extend_vocabulary": "warm_start",
    "grow": "warm_start",
    "grow_depth": "warm_start",
    "grow_width": "warm_start",
    "pseudo_perplexity": "warm_start",
}

__all__ = [
    "extend_positions", "extend_vocabulary", "from_native", "grow", "grow_depth", "grow_width", "pseudo_perplexity",
    "save_native", "to_native", "write_card",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
