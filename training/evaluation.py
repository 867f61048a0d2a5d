"""Masked-LM loss and accuracy on frozen masks, over any number of processes and corpora."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..corpus import Corpus, Mixture, validation_batches
from ..utils.errors import UserError
from .arguments import PretrainingArguments
from .batches import make_masking
from .prefetch import model_inputs, to_device
from .processes import sum_over_processes

Report = Callable[[int], object]


@torch.no_grad()
def evaluate_masked_lm(
    model: torch.nn.Module,
    batches: Iterable[Any],
    *,
    accelerator: Any,
    max_batches: int | None = None,
    report: Report | None = None,
) -> dict[str, float]:
    """The mean of -log p(token) over all predicted tokens, and how many of them the model's first guess gets right.

    Of each run of as many batches as there are processes, every process takes one.

    Args:
        report: called with the number of batches that were scored, each time.

    Returns:
        eval_loss (nats per predicted token), eval_perplexity (its exponential), eval_accuracy, eval_predicted_tokens.

    Raises:
        ValueError: the batches hold no token to predict.
    """
    totals = torch.zeros(3, dtype=torch.float64, device="cpu")
    was_training = model.training
    model.eval()
    batches, rank = itertools.islice(batches, max_batches), accelerator.process_index
    while together := list(itertools.islice(batches, accelerator.num_processes)):
        # The last run may be short. All processes go through the model all the same: a sharded one needs them.
        counts = rank < len(together)
        batch = together[rank if counts else 0]
        inputs = to_device(model_inputs(batch), accelerator.device)
        outputs = model(**inputs, num_items_in_batch=1)
        hits = (outputs.logits.argmax(dim=-1) == inputs["labels"]).sum()
        if counts:
            totals += torch.tensor([outputs.loss.item(), hits.item(), len(batch.labels)], dtype=torch.float64)
        if report is not None:
            report(len(together))
    model.train(was_training)
    loss, hits, predicted = sum_over_processes(totals, accelerator).tolist()
    if not predicted:
        raise UserError("the validation batches hold no token to predict: prepare a larger validation split")
    return {
        "eval_loss": loss / predicted,
        "eval_perplexity": math.exp(min(700.0, loss / predicted)),
        "eval_accuracy": hits / predicted,
        "eval_predicted_tokens": int(predicted),
    }


def evaluate_mixture(
    model: torch.nn.Module,
    mixture: Mixture,
    arguments: PretrainingArguments,
    *,
    accelerator: Any,
    report: Report | None = None,
) -> dict[str, Any]:
    """The figures of `evaluate_masked_lm` on the validation splits of a mixture, with the same masks each time.

    Of several corpora, they are the means of each one's own, weighted by their shares in training. Without a
    validation split there are none.
    """
    figures = {
        name: _evaluate_split(model, split, arguments, accelerator=accelerator, report=report)
        for name, split in mixture.validation.items()
    }
    if not figures:
        return {}
    if len(mixture.names) == 1:
        return next(iter(figures.values()))
    return mix_figures(figures, {name: mixture.share_of(name) for name in figures})


def _evaluate_split(
    model: torch.nn.Module,
    split: Corpus,
    arguments: PretrainingArguments,
    *,
    accelerator: Any,
    report: Report | None,
) -> dict[str, float]:
    batches = validation_batches(
        split,
        max_seq_length=arguments.max_seq_length,
        batch_size=arguments.per_device_eval_batch_size,
        masking=make_masking(arguments, rate=arguments.eval_mlm_probability),
        seed=arguments.seed,
    )
    return evaluate_masked_lm(
        model, batches, accelerator=accelerator, max_batches=arguments.max_eval_batches, report=report
    )


def mix_figures(figures: dict[str, dict[str, float]], shares: dict[str, float]) -> dict[str, float]:
    """The validation figures of a mixture: each corpus' own loss, and the means weighted by the shares."""
    total = sum(shares.values())

    def mean(name: str) -> float:
        return sum(shares[corpus] / total * values[name] for corpus, values in figures.items())

    return {
        "eval_loss": mean("eval_loss"),
        "eval_perplexity": math.exp(min(700.0, mean("eval_loss"))),
        "eval_accuracy": mean("eval_accuracy"),
        "eval_predicted_tokens": sum(int(values["eval_predicted_tokens"]) for values in figures.values()),
        **{f"eval_loss_{corpus}": values["eval_loss"] for corpus, values in figures.items()},
    }
