"""Pretraining. Names load on first use: `PretrainingArguments` needs no torch.

What each file and folder is for:

    settings            arguments: every field of a run; run_settings: fields from recipes and phases; checks
    the loop            pretraining: one run; loop, step; phase_setup; batches, prefetch; resume
    scores              evaluation, scoring, pseudo_likelihood; distillation: a student and its teacher
    initialization/     the model that a run starts from: new, loaded, or grown from a smaller one
    optimizers/         which one takes which parameter, Muon, learning-rate schedules, their state
    planning/           memory and time, by formulas and by measuring; how long to train
    checkpoints/        their folders, what is saved in them, and how they are checked for damage
    reporting/          progress, curves, results, warnings
    runtime/            machine: Accelerate, FSDP, compilation, precision, the seeds of dropout; processes: what they
                        agree on; leaving a pass early, the watchdog
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import PretrainingArguments
    from .evaluation import evaluate_masked_lm
    from .initialization.growth import extend_positions, grow, grow_depth, grow_width
    from .initialization.new_tokens import add_tokens
    from .initialization.pseudo_perplexity import pseudo_perplexity
    from .optimizers.optimizer import make_optimizer
    from .optimizers.schedules import learning_rate_factor
    from .pretraining import pretrain

_MODULE_OF_NAME = {
    "PretrainingArguments": "arguments",
    "evaluate_masked_lm": "evaluation",
    "extend_positions": "initialization.growth",
    "add_tokens": "initialization.new_tokens",
    "grow": "initialization.growth",
    "grow_depth": "initialization.growth",
    "grow_width": "initialization.growth",
    "learning_rate_factor": "optimizers.schedules",
    "make_optimizer": "optimizers.optimizer",
    "pretrain": "pretraining",
    "pseudo_perplexity": "initialization.pseudo_perplexity",
}

__all__ = [
    "PretrainingArguments",
    "add_tokens",
    "evaluate_masked_lm",
    "extend_positions",
    "grow",
    "grow_depth",
    "grow_width",
    "learning_rate_factor",
    "make_optimizer",
    "pretrain",
    "pseudo_perplexity",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
