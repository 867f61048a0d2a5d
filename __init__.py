"""ClozeBERT: from raw text to a pretrained encoder that `AutoModel` loads.

`import clozebert` is cheap: neither torch nor transformers is imported until a public name is used. What the import
does do is make `AutoConfig` and `AutoModel…` know the `clozebert` architecture as soon as transformers is there.
"""

import importlib
import importlib.abc
import sys
from typing import TYPE_CHECKING, Any, ClassVar

__version__ = "0.1.0"

__all__ = [
    "ClozeBertConfig",
    "ClozeBertForImageClassification",
    "ClozeBertForMaskedLM",
    "ClozeBertForMultipleChoice",
    "ClozeBertForQuestionAnswering",
    "ClozeBertForSequenceClassification",
    "ClozeBertForTokenClassification",
    "ClozeBertModel",
    "ClozeBertPreTrainedModel",
    "__version__",
    "encode",
    "encode_ids",
]

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
        encode,
        encode_ids,
    )


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "configuration" if name == "ClozeBertConfig" else "modeling"
    if room == "modeling":
        # In the order in which transformers' own names import the two: another thread may be doing that right now.
        importlib.import_module("transformers.models.auto.modeling_auto")
    value = getattr(importlib.import_module(f".{room}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _RegisterOnImport(importlib.abc.MetaPathFinder):
    """Registers the architecture the moment transformers' Auto modules are imported, by whomever.

    transformers has no entry point for plug-ins. Importing it here would cost seconds, so this waits for it.
    """

    REGISTERED_BY: ClassVar = {
        "transformers.models.auto.configuration_auto": ".configuration.registration",
        "transformers.models.auto.modeling_auto": ".modeling",
        # It imports AutoModel while it is itself half there, and our layers need it: then its end is the moment.
        "transformers.modeling_layers": ".modeling",
    }

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in self.REGISTERED_BY:
            return None
        # Before Python 3.12, a finder may have the protocol of Python 2 alone.
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((found for finder in others if (found := finder.find_spec(fullname, path, target))), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: Any) -> None:
            execute(module)
            layers = sys.modules.get("transformers.modeling_layers")
            is_half_there = layers is not None and not hasattr(layers, "GradientCheckpointingLayer")
            if self.REGISTERED_BY[fullname] != ".modeling" or not is_half_there:
                importlib.import_module(self.REGISTERED_BY[fullname], __name__)

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def _register_now_or_on_import() -> None:
    for auto_module, ours in _RegisterOnImport.REGISTERED_BY.items():
        if auto_module in sys.modules:
            importlib.import_module(ours, __name__)
    sys.meta_path.insert(0, _RegisterOnImport())


if __name__ == "clozebert":  # not where a test runner imports this file under another name
    _register_now_or_on_import()
