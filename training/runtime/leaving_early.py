"""Leaves a pass through the model as soon as a stop is asked for, rather than at the end of a step."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...modeling.blocks import EncoderLayer


class LeftEarlyError(Exception):
    """A stop was requested within a forward or a backward pass."""


@contextlib.contextmanager
def leaving_early(model: torch.nn.Module, should_stop: Callable[[], bool], device: torch.device) -> Iterator[None]:
    """On a CPU, check twice in each layer whether to stop, as one pass through a large model takes many seconds.

    On other devices this does nothing: the host runs ahead of the device, and a pass is short.

    Raises:
        LeftEarlyError: out of the model's forward pass, or out of `backward`; gradients are incomplete then.
    """

    def ask(_: Any, inputs: tuple[Any, ...] = ()) -> None:
        """A hook before a part and, without inputs, where the backward pass has reached its input."""
        if should_stop():
            raise LeftEarlyError
        if inputs and inputs[0].requires_grad:
            inputs[0].register_hook(ask)

    parts: list[torch.nn.Module] = []
    for layer in model.modules() if device.type == "cpu" else ():
        if isinstance(layer, EncoderLayer):
            is_compiled = "forward" in vars(layer)  # by `machine.compile_model`: hooks within would break its graph
            parts += [layer] if is_compiled else [layer.attention, layer.mlp]
    hooks = [part.register_forward_pre_hook(ask) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
