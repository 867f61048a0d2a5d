"""Validation during training: masked-LM loss and accuracy on fixed masks, over all processes and corpora."""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..corpus import Mixture, ValidationBatches
from ..modeling.evaluation_mode import evaluation_mode
from ..modeling.packed_view import packed_view
from ..utils.errors import UserError
from .arguments import PretrainingArguments
from .batches import make_masking
from .prefetch import ModelInputs, count_predicted, model_inputs, to_device
from .runtime.leaving_early import LeftEarlyError, leaving_early
from .runtime.processes import sum_over_processes

logger = logging.getLogger(__name__)

# With fewer, a mean loss depends much on which tokens happen to be masked.
FEW_PREDICTIONS = 1000


class NothingPredictedError(UserError):
    """No token of the held-out text is predicted."""


class EvaluationStoppedError(Exception):
    """A signal stopped an evaluation."""


def perplexity(loss: float) -> float:
    """exp(loss), limited to finite numbers."""
    return math.exp(min(700.0, loss))


@torch.no_grad()
def evaluate_masked_lm(
    model: torch.nn.Module,
    batches: Sequence[Any],
    *,
    accelerator: Any,
    max_batches: int | None = None,
    should_stop: Callable[[], bool] = bool,
    report: Callable[[int, int], object] | None = None,
) -> dict[str, float]:
    """The mean of -log p(token) over all predicted tokens, and the accuracy of the most likely token.

    Batches are distributed in rounds: in each, every process takes one.

    Args:
        model: any masked-LM model of transformers or ours.
        batches: of all processes, as `ValidationBatches` has them.
        accelerator: the run's, of `accelerate`.
        max_batches: take the first ones only; None: all.
        should_stop: called before each batch and, with a single process on a CPU, in each layer too; True in one
            process ends the evaluation in all.
        report: called after each round with the number of batches so far, of all processes, and of all batches.

    Returns:
        eval_loss (nats per predicted token), eval_perplexity (its exponential), eval_accuracy, eval_predicted_tokens.

    Raises:
        NothingPredictedError: the batches hold no token to predict.
        EvaluationStoppedError: a process should stop.
    """
    if hasattr(model, "config"):  # a wrapper of Accelerate has none, and what it wraps takes packed batches
        model = packed_view(model)
    num_batches = len(batches) if max_batches is None else min(max_batches, len(batches))
    # With several processes, none may leave a batch on its own.
    is_alone = accelerator.num_processes == 1
    leaving = leaving_early(model, should_stop, accelerator.device) if is_alone else contextlib.nullcontext()
    try:
        with evaluation_mode(model), leaving:
            totals = _sum_batches(model, batches, num_batches, accelerator, should_stop, report)
    except LeftEarlyError:
        raise EvaluationStoppedError from None
    loss, hits, predicted = sum_over_processes(totals, accelerator).tolist()
    if not predicted:
        raise NothingPredictedError(
            "the held-out text is so short that none of its tokens is predicted: give more of it"
        )
    return {
        "eval_loss": loss / predicted,
        "eval_perplexity": perplexity(loss / predicted),
        "eval_accuracy": hits / predicted,
        "eval_predicted_tokens": int(predicted),
    }


def _sum_batches(
    model: torch.nn.Module,
    batches: Sequence[Any],
    num_batches: int,
    accelerator: Any,
    should_stop: Callable[[], bool],
    report: Callable[[int, int], object] | None,
) -> torch.Tensor:
    """Sums over this process' batches: the loss, the correct guesses and the predicted tokens, float64 [3]."""
    totals = torch.zeros(3, dtype=torch.float64, device="cpu")
    failure: Exception | None = None  # raised in all processes together, so that none waits for this one
    for first in range(0, num_batches, accelerator.num_processes):
        # The last round may have too few batches. All processes run the model anyway, as a sharded model needs them.
        index, inputs = first + accelerator.process_index, {}
        counts = index < num_batches
        try:  # before they agree, as no process of a sharded model can run it alone
            inputs = to_device(model_inputs(batches[index if counts else first]), accelerator.device)
        except Exception as error:
            failure = failure or error
        _agree_to_go_on(failure, should_stop(), accelerator)
        try:
            found = _score(model, inputs)
            if counts:
                totals += found
            if report is not None:
                report(min(first + accelerator.num_processes, num_batches), num_batches)
        except Exception as error:
            failure = error
    _agree_to_go_on(failure, should_stop(), accelerator)
    return totals


def _agree_to_go_on(failure: Exception | None, stop: bool, accelerator: Any) -> None:
    """Raise an error in all processes if one of them failed or should stop."""
    failures, stops = sum_over_processes(torch.tensor([failure is not None, stop]).double(), accelerator).tolist()
    if failure is not None:
        raise failure
    if failures:
        raise RuntimeError("it failed in another process")
    if stops:
        raise EvaluationStoppedError


def _score(model: torch.nn.Module, inputs: ModelInputs) -> torch.Tensor:
    """The loss, correct guesses and predicted tokens of a batch, float64 [3]."""
    outputs = model(**inputs, num_items_in_batch=1)
    hits = (outputs.logits.argmax(dim=-1) == inputs["labels"]).sum()
    return torch.tensor([outputs.loss.item(), hits.item(), count_predicted(inputs)], dtype=torch.float64)


def evaluate_mixture(
    model: torch.nn.Module,
    mixture: Mixture,
    arguments: PretrainingArguments,
    *,
    accelerator: Any,
    should_stop: Callable[[], bool] = bool,
) -> dict[str, Any]:
    """The figures of `evaluate_masked_lm` on the validation splits of a mixture, with the same masks each time.

    For several corpora, they are means over the corpora, weighted by the shares in training. Without a validation split
    there are no figures.

    Raises:
        NothingPredictedError: no split has a token to predict. If only some have none, these are left out.
    """
    figures, failure = {}, None
    for name, split in mixture.validation.items():
        batches = ValidationBatches(
            split,
            max_seq_length=arguments.max_seq_length,
            batch_size=arguments.per_device_eval_batch_size,
            masking=make_masking(arguments, rate=arguments.eval_mlm_probability),
            seed=arguments.seed,
        )
        try:
            figures[name] = evaluate_masked_lm(
                model, batches, accelerator=accelerator, max_batches=arguments.max_eval_batches, should_stop=should_stop
            )
        except NothingPredictedError as error:
            failure = error
            if accelerator.is_main_process and len(mixture.validation) > 1:
                logger.warning("%s is left out of the evaluation: %s", name, error)
    if not figures:
        if failure is not None:
            raise failure
        return {}
    if len(mixture.names) == 1:
        return next(iter(figures.values()))
    return mix_figures(figures, {name: mixture.share_of(name) for name in figures})


def mix_figures(figures: dict[str, dict[str, float]], shares: dict[str, float]) -> dict[str, float]:
    """The validation figures of a mixture: each corpus' own loss, and the means weighted by the shares."""
    total = sum(shares.values())

    def mean(name: str) -> float:
        return sum(shares[corpus] / total * values[name] for corpus, values in figures.items())

    return {
        "eval_loss": mean("eval_loss"),
        "eval_perplexity": perplexity(mean("eval_loss")),
        "eval_accuracy": mean("eval_accuracy"),
        "eval_predicted_tokens": sum(int(values["eval_predicted_tokens"]) for values in figures.values()),
        **{f"eval_loss_{corpus}": values["eval_loss"] for corpus, values in figures.items()},
    }
