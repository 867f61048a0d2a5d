"""Pretraining. Names load on first use: `PretrainingArguments` needs no torch."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import PretrainingArguments
    from .evaluation import evaluate_masked_lm
    from .growth import extend_positions, extend_vocabulary, grow, grow_depth, grow_width, pseudo_perplexity
    from .optimizers import make_optimizer
    from .pretraining import pretrain
    from .schedules import learning_rate_factor

_MODULE_OF_NAME = {
    "PretrainingArguments": "arguments",
    "evaluate_masked_lm": "evaluation",
    "extend_positions": "growth",
    "extend_vocabulary": "growth",
    "grow": "growth",
    "grow_depth": "growth",
    "grow_width": "growth",
    "learning_rate_factor": "schedules",
    "make_optimizer": "optimizers",
    "pretrain": "pretraining",
    "pseudo_perplexity": "growth",
}

__all__ = [
    "PretrainingArguments", "evaluate_masked_lm", "extend_positions", "extend_vocabulary", "grow", "grow_depth",
    "grow_width", "learning_rate_factor", "make_optimizer", "pretrain", "pseudo_perplexity",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
