"""ClozeBERT: from raw text to a pretrained encoder that `AutoModel` loads.

`import clozebert` is cheap: neither torch nor transformers is imported until a public name is used. What the import
does do is make `AutoConfig` and `AutoModel…` know the `clozebert` architecture as soon as transformers is there.
"""

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULE_OF_NAME = {
    "ClozeBertConfig": "configuration",
    "ClozeBertPreTrainedModel": "modeling",
    "ClozeBertModel": "modeling",
    "ClozeBertForMaskedLM": "modeling",
    "ClozeBertForSequenceClassification": "modeling",
    "ClozeBertForTokenClassification": "modeling",
    "ClozeBertForQuestionAnswering": "modeling",
    "ClozeBertForMultipleChoice": "modeling",
    "ClozeBertForImageClassification": "modeling",
}

__all__ = ["__version__", *_MODULE_OF_NAME]

if TYPE_CHECKING:
    from .configuration import ClozeBertConfig
    from .modeling import (
        ClozeBertForImageClassification,
        ClozeBertForMaskedLM,
        ClozeBertForMultipleChoice,
        ClozeBertForQuestionAnswering,
        ClozeBertForSequenceClassification,
        ClozeBertForTokenClassification,
        ClozeBertModel,
        ClozeBertPreTrainedModel,
    )


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
