"""Communication between the processes of a run."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list

from ...utils.errors import UserError

_Result = TypeVar("_Result")
# Process groups that were left, see `leave`.
_left: list[Any] = []


def sum_over_processes(values: torch.Tensor, accelerator: Any) -> torch.Tensor:
    """The sum of a small tensor over all processes, on the CPU, bitwise the same in each."""
    if accelerator.num_processes == 1:
        return values.cpu()
    # MPS has no float64, but no second process either.
    total = values.to(accelerator.device)
    torch.distributed.all_reduce(total)
    return total.cpu()


def mean_over_processes(value: float, accelerator: Any) -> float:
    """The mean of a number over all processes, the same in each."""
    mine = torch.tensor([value], dtype=torch.float64)
    return sum_over_processes(mine, accelerator).item() / accelerator.num_processes


def on_main_process(accelerator: Any, action: Callable[[], _Result]) -> _Result:
    """Run `action` on the main process, and return its result, or raise its error, in all processes."""
    result: list[Any] = [None, None]
    failure: Exception | None = None  # with its traceback, which a broadcast loses
    if accelerator.is_main_process:
        try:
            result[0] = action()
        except Exception as caught:  # of any kind: the other processes must not wait for a result
            failure = caught
            known = isinstance(caught, UserError)
            result[1] = caught if known else RuntimeError(f"the main process failed: {caught}")
    if accelerator.num_processes > 1:
        result = broadcast_object_list(result)
    if (error := failure or result[1]) is not None:
        raise error
    return result[0]


def leave(accelerator: Any) -> None:
    """End the trackers and leave the process group.

    The group itself lives on as long as the program. Its destructor waits for gloo's thread and holds the interpreter's
    lock meanwhile. That thread needs the lock to free the tensors of the last collective operation.
    """
    if accelerator.num_processes > 1:
        _left.append(torch.distributed.group.WORLD)
    accelerator.end_training()
