"""Masked-LM loss and accuracy on frozen masks, over any number of processes."""

import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch

from ..utils.errors import UserError
from .prefetch import model_inputs, to_device


@torch.no_grad()
def evaluate_masked_lm(
    model: torch.nn.Module,
    batches: Iterable[Any],
    *,
    accelerator: Any,
    max_batches: int | None = None,
) -> dict[str, float]:
    """The mean of -log p(token) over all predicted tokens, and how many of them the model's first guess gets right.

    Of each run of as many batches as there are processes, every process takes one.

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


def sum_over_processes(values: torch.Tensor, accelerator: Any) -> torch.Tensor:
    """The sum of a small tensor over all processes, on the CPU, in the same bits everywhere."""
    if accelerator.num_processes == 1:
        return values.cpu()
    # MPS has no float64, but no second process either.
    total = values.to(accelerator.device)
    torch.distributed.all_reduce(total)
    return total.cpu()
