"""Optimizers: AdamW, or Muon with AdamW for the rest; their parameter groups, with and without weight decay.

Which group a parameter is in follows from the module that holds it, never from its name: weights of linear layers and
convolutions decay; embeddings, norms, biases and loose parameters do not. Muon (Jordan et al. 2024) takes the matrices
between the embeddings and the vocabulary projection, attention's head by head; AdamW (Loshchilov & Hutter 2019) takes
all others.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

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
    embeddings: set[nn.Parameter] = set()
    in_matrix_modules: set[nn.Parameter] = set()
    for module in model.modules():
        # Not of the outermost alone, which may be a wrapper such as DDP.
        find_output: Any = getattr(module, "get_output_embeddings", lambda: None)
        if (output := find_output()) is not None:
            embeddings.add(output.weight)
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
    """How Muon cuts the matrices of attention: the rows of queries, keys and values by head, the columns of outputs.

    Attention is known by the names of its parts, as its class may be the copy that a published folder holds. Models
    with other names, such as transformers' own BERT and ModernBERT, keep whole matrices.
    """
    found: dict[Any, Heads] = {}
    module: Any
    for module in model.modules():
        if all(hasattr(module, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim")):
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

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train further parameters, with their names, by AdamW."""
        if hasattr(self, "parts"):  # the base class calls this, too, before there are any
            if isinstance(self.parts[-1], Muon):
                raise UserError("only Muon trains here, and it is for matrices: make the optimizer anew, with AdamW's")
            usual = self.parts[-1].defaults
            param_group = {**usual, "part": len(self.parts) - 1, **param_group}
            param_group.setdefault("initial_lr", param_group["lr"])
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}

    def _share(self) -> None:
        """Give the parts this optimizer's groups and state, which loading, copying and sharding may have replaced."""
        for index, part in enumerate(self.parts):
            part.param_groups = [group for group in self.param_groups if group["part"] == index]
            part.state = self.state

    def set_learning_rate(self, factor: float, *, muon: float = 1.0) -> None:
        """Scale every group's peak learning rate by `factor`, and Muon's by `muon` as well."""
        for group in self.param_groups:
            group["lr"] = group["initial_lr"] * factor * (muon if self._is_muon(group) else 1.0)

    def learning_rates(self) -> dict[str, float]:
        """The rates of now, by the names of the arguments that set their peaks."""
        return {
            "muon_learning_rate" if self._is_muon(group) else "learning_rate": group["lr"]
            for group in self.param_groups
        }

    def _is_muon(self, group: dict[str, Any]) -> bool:
        return isinstance(self.parts[group["part"]], Muon)


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
    groups = [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
    if groups := [group for group in groups if group["params"]]:
        parts.append(
            torch.optim.AdamW(
                groups,
                lr=arguments.learning_rate,
                betas=(arguments.adam_beta1, arguments.adam_beta2),
                eps=arguments.adam_epsilon,
                fused=True,
            )
        )
    if not parts:
        raise UserError("no parameter of the model is trained: all have requires_grad=False")
    return CombinedOptimizer(parts)
