"""Optimizers: AdamW, or Muon with AdamW for the rest; their parameter groups, with and without weight decay.

Which group a parameter is in follows from the module that holds it, never from its name: weights of linear layers and
convolutions decay; embeddings, norms, biases and loose parameters do not. Muon (Jordan et al. 2024) takes the matrices
between the embeddings and the vocabulary projection, attention's head by head; AdamW (Loshchilov & Hutter 2019) takes
all others. The state is saved as tensors by parameter name.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from ...modeling.attention import Attention
from ...utils.errors import UserError
from ..arguments import PretrainingArguments
from .muon import Heads, Muon

_MATRIX_MODULES = (nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear, nn.MultiheadAttention)
_EMBEDDING_MODULES = (nn.Embedding, nn.EmbeddingBag)

NamedParameter = tuple[str, nn.Parameter]


def split_parameters(model: nn.Module) -> tuple[list[NamedParameter], list[NamedParameter]]:
    """All trainable parameters, each once: the matrices (which decay), and the rest.

    The weight of the vocabulary projection counts as an embedding, whether it is tied or not.
    """
    find_output: Any = getattr(model, "get_output_embeddings", lambda: None)
    output = find_output()
    embeddings: set[nn.Parameter] = set() if output is None else {output.weight}
    in_matrix_modules: set[nn.Parameter] = set()
    for module in model.modules():
        parameters = [parameter for parameter in module.parameters(recurse=False) if parameter.dim() >= 2]
        if isinstance(module, _EMBEDDING_MODULES):
            embeddings.update(parameters)
        elif isinstance(module, _MATRIX_MODULES):
            in_matrix_modules.update(parameters)
    matrices: list[NamedParameter] = []
    rest: list[NamedParameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter in in_matrix_modules and parameter not in embeddings
            (matrices if is_matrix else rest).append((name, parameter))
    return matrices, rest


def heads_of_matrices(model: nn.Module) -> dict[nn.Parameter, Heads]:
    """How Muon cuts the matrices of attention: the rows of queries, keys and values by head, the columns of outputs."""
    found: dict[Any, Heads] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            for layer in (module.q_proj, module.k_proj, module.v_proj):
                found[layer.weight] = (0, module.head_dim)
            found[module.o_proj.weight] = (1, module.head_dim)
    return found


class CombinedOptimizer(torch.optim.Optimizer):
    """Several torch optimizers over disjoint parameters, seen as one: one list of groups, one state, one `step`.

    Each group carries the index of the optimizer it belongs to as `part`, its peak learning rate as `initial_lr`, and
    its parameters' names as `param_names`.
    """

    def __init__(self, parts: list[torch.optim.Optimizer]):
        groups: list[dict[str, Any]] = []
        for index, part in enumerate(parts):
            for group in part.param_groups:
                groups.append({**group, "part": index, "initial_lr": group["lr"]})
        # The base class takes parameter names as pairs with the parameters.
        for group in groups:
            group["params"] = list(zip(group.pop("param_names"), group["params"], strict=True))
        super().__init__(groups, {})
        self.parts = parts
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update by every part."""
        result = closure() if closure is not None else None
        self._share()
        for part in self.parts:
            part.step()
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's own, and update the parts."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Give the parts this optimizer's groups and state, which loading and sharding may have replaced."""
        for index, part in enumerate(self.parts):
            part.param_groups = [group for group in self.param_groups if group["part"] == index]
            part.state = self.state

    def set_learning_rate(self, factor: float) -> None:
        """Scale every group's peak learning rate."""
        for group in self.param_groups:
            group["lr"] = group["initial_lr"] * factor


def make_optimizer(
    model: nn.Module, arguments: PretrainingArguments, *, muon_dtype: torch.dtype = torch.float32
) -> CombinedOptimizer:
    """The optimizer that the arguments ask for, over the trainable parameters of `model`.

    Args:
        muon_dtype: of Muon's matmuls, see `machine.choose_muon_dtype`.
    """
    matrices, rest = split_parameters(model)
    decay = arguments.weight_decay
    assert decay is not None  # the arguments choose it
    for_muon: list[NamedParameter] = []
    if arguments.optimizer == "muon":
        for_muon = [(name, parameter) for name, parameter in matrices if parameter.dim() == 2]
        matrices = [(name, parameter) for name, parameter in matrices if parameter.dim() != 2]
    parts: list[torch.optim.Optimizer] = []
    if for_muon:
        heads = heads_of_matrices(model)
        by_heads: dict[Heads, list[NamedParameter]] = defaultdict(list)
        for name, parameter in for_muon:
            by_heads[heads.get(parameter)].append((name, parameter))
        parts.append(
            Muon(
                [{"params": parameters, "heads": cut} for cut, parameters in by_heads.items()],
                lr=arguments.muon_learning_rate,
                weight_decay=decay,
                momentum=arguments.muon_momentum,
                dtype=muon_dtype,
            )
        )
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    parts.append(
        torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=arguments.learning_rate,
            betas=(arguments.adam_beta1, arguments.adam_beta2),
            eps=arguments.adam_epsilon,
            fused=True,
        )
    )
    return CombinedOptimizer(parts)


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
            placed = value.to(parameter.device) if on_device else value.clone()
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
