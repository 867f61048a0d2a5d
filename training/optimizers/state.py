"""Weights and optimizer state as whole tensors by parameter name, as checkpoints keep them, for any sharding."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from ...utils.errors import UserError


def optimizer_state(optimizer: torch.optim.Optimizer, *, keep: bool = True) -> dict[str, torch.Tensor]:
    """The whole state as `{"exp_avg/NAME": tensor}`, unsharded, on the CPU. Every process of a run must call it.

    With `keep=False`, a process only takes part in the gathering and copies nothing.
    """
    sharded = {
        f"{key}/{name}": value
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    return _gather(sharded, keep=keep)


def load_optimizer_state(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """The inverse of `optimizer_state`, for any number of processes and any sharding.

    Raises:
        ValueError: the state is that of other parameters.
    """
    place = {
        name: (parameter, group)
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }
    optimizer.state.clear()
    for full_name, value in tensors.items():
        key, _, name = full_name.partition("/")
        if name not in place:
            raise UserError(f"the optimizer state holds {name!r}, which the model does not have")
        parameter, group = place[name]
        if value.dim() == 0:
            # AdamW counts steps in a scalar, on the device only where its fused or capturable kernel reads it.
            on_device = group.get("fused") or group.get("capturable")
            placed = value.to(parameter.device, copy=True) if on_device else value.clone()
        elif value.shape != parameter.shape:
            raise UserError(
                f"the optimizer state of {name!r} has shape {tuple(value.shape)}, not {tuple(parameter.shape)}"
            )
        elif isinstance(parameter, DTensor):
            placed = distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
        else:
            placed = value.to(parameter.device, copy=True)
        optimizer.state[parameter][key] = placed
    _check_complete(optimizer)


def _check_complete(optimizer: torch.optim.Optimizer) -> None:
    """Refuse a parameter that has only a part of the state that others of its group have."""
    for group in optimizer.param_groups:
        keys = {key for parameter in group["params"] for key in optimizer.state.get(parameter, {})}
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            found = optimizer.state.get(parameter, {}).keys()
            if found and (missing := sorted(keys - found)):
                raise UserError(f"the optimizer state has no {missing[0]} of {name!r}")


def whole_tensor(value: Any) -> torch.Tensor:
    """A copy of a sharded or ordinary tensor, as an ordinary one on the CPU."""
    tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value)
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.to("cpu", copy=True).contiguous()


def whole_weights(model: nn.Module, *, keep: bool = True) -> dict[str, torch.Tensor] | None:
    """The weights of a sharded model as ordinary tensors on the CPU; None if the model is not sharded.

    Every process of a run must call it; with `keep=False` it copies nothing. Of tied weights, only the stored one is
    included.
    """
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return None
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    return _gather({name: value for name, value in model.state_dict().items() if name not in tied}, keep=keep)


def _gather(tensors: dict[str, Any], *, keep: bool) -> dict[str, torch.Tensor]:
    """Each tensor as `whole_tensor` returns it. With `keep=False`, take part in the gathering and return nothing."""
    whole = {}
    for name, value in tensors.items():
        if keep:
            whole[name] = whole_tensor(value)
        elif isinstance(value, DTensor):
            value.full_tensor()
    return whole
