"""Converting weights, model cards, publishing on the Hub. Each name is imported when it is first used.

`natives/` has the names and settings of each architecture of transformers; `convert` applies them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .card import write_card
    from .convert import from_native, save_native, to_native
    from .pushing import LoadablePushes

_MODULE_OF_NAME = {
    "LoadablePushes": "pushing",
    "from_native": "convert",
    "save_native": "convert",
    "to_native": "convert",
    "write_card": "card",
}

__all__ = ["LoadablePushes", "from_native", "save_native", "to_native", "write_card"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
