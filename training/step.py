"""One training step: gradient accumulation over its micro-batches, clipping, and the update of the weights.

The loss of a step is the sum of -log p(token) over the predicted tokens of the whole global batch, divided by their
number. However the batch is split into micro-batches and processes, the gradient is the same.
"""

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from ..utils.device import wait_for
from .optimizers.state import whole_tensor
from .planning.time_budget import StepTime
from .prefetch import ModelInputs, count_predicted, to_device
from .runtime.leaving_early import LeftEarlyError, leaving_early


def accumulate_gradient(
    model: torch.nn.Module,
    batches: list[ModelInputs],
    *,
    num_predicted: int,
    accelerator: Any,
    should_stop: Callable[[], bool] = bool,
) -> torch.Tensor | None:
    """Run the forward and backward passes of one process' micro-batches.

    Args:
        num_predicted: tokens that this process predicts in them.
        should_stop: called between micro-batches and, with a single process, before the first one, and on a CPU in each
            layer. If it is True, a single process skips the rest, and the result is None. Several processes only stop
            after the step, when they have agreed.

    Returns:
        This process' part of the loss, a scalar: the sum over its predicted tokens, divided by how many all processes
        predict. The parts of all processes add up to the loss of the step.
    """
    device, is_alone = accelerator.device, accelerator.num_processes == 1
    # A tensor, not a number: it differs from step to step, and compiled code would be specialised on it. Filled on the
    # device: a copy from the host would wait for the last update.
    items = torch.full((), float(num_predicted), device=device)
    if not is_alone:
        torch.distributed.all_reduce(items)
    total = torch.zeros((), device=device)
    try:
        with leaving_early(model, should_stop, device) if is_alone else contextlib.nullcontext():
            for index, batch in enumerate(batches):
                if is_alone or index:  # the watchdog allows the first micro-batch more time, to compile
                    asked = should_stop()  # in a run this also tells the watchdog that the process goes on
                    if asked and is_alone:
                        return None
                is_last = index == len(batches) - 1
                with contextlib.nullcontext() if is_last else accelerator.no_sync(model):
                    loss = model(**to_device(batch, device), num_items_in_batch=items, loss_only=True).loss
                    # DDP and FSDP take the mean of the processes' gradients; the loss is their sum.
                    accelerator.backward(loss * accelerator.num_processes)
                total = total + loss.detach()
    except LeftEarlyError:
        return None
    return total


def clip_gradient(model: torch.nn.Module, *, max_grad_norm: float, accelerator: Any) -> float:
    """Clip the gradient to a norm (0: do not clip), and return the norm that it had before."""
    # The host waits for the device here, the first time in a step.
    return whole_tensor(accelerator.clip_grad_norm_(model.parameters(), max_grad_norm or math.inf)).item()


def update_weights(optimizer: Any, *, num_broken: int, accelerator: Any) -> None:
    """Update the weights, unless a gradient is not finite; then nothing changes, in any process.

    Args:
        num_broken: in how many processes the gradient is not finite; the same number in each.
    """
    scaler = accelerator.scaler
    if num_broken == 0 or (scaler is not None and num_broken == accelerator.num_processes):
        # The fp16 scaler has to see an overflow to lower its scale; it then does not change the weights.
        optimizer.step()
    elif scaler is not None:
        # Only some processes overflowed. In the others `step` would change the weights, so all lower the scale by hand.
        scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
    optimizer.zero_grad()


def timed_step(
    model: torch.nn.Module, optimizer: Any, batch: ModelInputs, *, max_grad_norm: float, accelerator: Any
) -> StepTime:
    """A step of one micro-batch, and how long its two parts took."""
    num_predicted = count_predicted(batch)
    begun = time.perf_counter()
    accumulate_gradient(model, [batch], num_predicted=num_predicted, accelerator=accelerator)
    wait_for(accelerator.device)
    middle = time.perf_counter()
    norm = clip_gradient(model, max_grad_norm=max_grad_norm, accelerator=accelerator)
    update_weights(optimizer, num_broken=not math.isfinite(norm), accelerator=accelerator)
    wait_for(accelerator.device)
    return StepTime(middle - begun, time.perf_counter() - middle)
