"""Converting weights, model cards, publishing on the Hub. Each name is imported when it is first used.

What each file does:

    loading        loading: finds and reads a saved model; hub_errors: errors of the Hub in one line
    converting     natives/: names and settings of each architecture of transformers; convert, convert_config apply them
    cards          card: writes and reads them; example: runs the model for one; origin: what a card takes from another
    publishing     publishing: completes a copy; verification, clean_process, fingerprint: check it; pushing: the commit
    beside         processors: tokenizers, licences and settings that go along; serving: ONNX, int8,
                   sentence-transformers; space, demo_page: a page to try models on
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
