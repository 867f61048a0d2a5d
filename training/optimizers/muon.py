"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): momentum whose matrices are made orthogonal,
by Newton-Schulz steps.

    M <- β M + (1 - β) G                    momentum
    U  = (1 - β) G + β M                    Nesterov's look ahead
    W <- (1 - η λ) W - η sqrt(max(1, rows / columns)) orthogonalize(U)

The formula is that of `torch.optim.Muon`, which takes one matrix after the other, always in bf16. Here matrices of one
shape are processed together, in the precision in which the device is fast. The matrix of a projection to or from
attention's heads can be made orthogonal head by head, which takes a fraction of the time. In a model that FSDP2 shards,
each matrix is made orthogonal by one process: its shards are sent there, and the result is sent back.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

# Each step X <- a X + b (X X^T) X + c (X X^T)^2 X moves all singular values towards 1. Each polynomial is optimal for
# the range in which the one before leaves the values, widened by 3 % for rounding in bf16 (Amsel et al. 2025,
# https://arxiv.org/abs/2505.16932). Values from 0.003 to 1 of the normalised matrix end between 0.74 and 1.26; Jordan's
# single polynomial, applied five times, leaves them between 0.68 and 1.20.
POLYNOMIALS = (
    (8.1431, -22.6779, 15.8451),
    (3.9450, -2.7727, 0.4942),
    (3.4930, -2.4787, 0.4656),
    (2.5858, -1.8424, 0.4068),
)
# With fewer rows (or columns), each value is a larger part of the norm. These three take values from 0.01 on, and leave
# them between 0.68 and 1.32. Heads, and all matrices of models of width 256, learn as much with them (docs/LOG.md).
POLYNOMIALS_UP_TO_256 = (
    (7.8690, -21.6583, 15.0808),
    (3.5818, -2.5376, 0.4713),
    (2.7158, -1.9396, 0.4155),
)
_EPSILON = 1e-7
# How a matrix is cut into one matrix for each head: along which dimension, and the head size. None: it stays whole.
Heads = tuple[int, int] | None
Polynomials = Sequence[tuple[float, float, float]]
# Elements of one stack of matrices. On a CPU, larger stacks do not fit the cache and gain nothing.
_STACK_ON_CPU, _STACK = 1 << 22, 1 << 26


class Muon(torch.optim.Optimizer):
    """Muon for matrices, sharded by FSDP2 or not.

    Args:
        params: parameters of two dimensions, or pairs of a name and a parameter, or groups of them. A group may have
            `heads` for its matrices: (dimension, head size).
        lr: η. weight_decay: λ, decoupled. momentum: β.
        dtype: of the matmuls.

    Raises:
        ValueError: a parameter that is not a matrix.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "heads": None})
        self.dtype = dtype
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() != 2:
                    raise ValueError(f"Muon takes matrices; it was given a parameter of shape {tuple(parameter.shape)}")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "dtype": self.dtype}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        groups = [
            (group, [parameter for parameter in group["params"] if parameter.grad is not None])
            for group in self.param_groups
        ]
        parameters = [parameter for _, of_group in groups for parameter in of_group]
        heads = [group["heads"] for group, of_group in groups for _ in of_group]
        updates = [update for group, of_group in groups for update in self._momentum(of_group, group["momentum"])]
        # Together for all groups, so that sharded matrices are exchanged once.
        orthogonal = dict(zip(parameters, self._orthogonalize(updates, parameters, heads), strict=True))
        for group, of_group in groups:
            lr, decay = group["lr"], group["weight_decay"]
            for parameter in of_group:
                rows, columns = parameter.shape
                weight, alpha = _local(parameter), -lr * max(1.0, rows / columns) ** 0.5
                weight.mul_(1 - lr * decay).add_(orthogonal[parameter], alpha=alpha)
        return result

    def _momentum(self, parameters: list[nn.Parameter], momentum: float) -> list[torch.Tensor]:
        """Update the momentum of each parameter, and return Nesterov's look ahead, or this process' shard of it."""
        if not parameters:
            return []
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        grads = [_local(parameter.grad) for parameter in parameters]
        momenta = [_local(self.state[parameter]["momentum_buffer"]) for parameter in parameters]
        torch._foreach_lerp_(momenta, grads, 1 - momentum)
        return list(torch._foreach_lerp(grads, momenta, momentum))

    def _orthogonalize(
        self, updates: list[torch.Tensor], parameters: list[nn.Parameter], heads: list[Heads]
    ) -> list[torch.Tensor]:
        """The update of each parameter, or this process' shard of it, made orthogonal."""
        whole: list[int] = []
        of_group: dict[Any, list[int]] = defaultdict(list)
        found: list[torch.Tensor] = list(updates)
        for index, parameter in enumerate(parameters):
            group = _row_sharding_group(parameter)
            if group is not None:
                of_group[group].append(index)
            elif isinstance(parameter, DTensor):
                found[index] = _orthogonalize_gathered(updates[index], parameter, heads[index], dtype=self.dtype)
            else:
                whole.append(index)
        for index, update in zip(
            whole,
            orthogonalize([updates[i] for i in whole], heads=[heads[i] for i in whole], dtype=self.dtype),
            strict=True,
        ):
            found[index] = update
        for group, indices in of_group.items():
            shards = _orthogonalize_shards(
                [updates[i] for i in indices],
                [parameters[i].shape for i in indices],
                [heads[i] for i in indices],
                group=group,
                dtype=self.dtype,
            )
            for index, shard in zip(indices, shards, strict=True):
                found[index] = shard
        return found


def orthogonalize(
    matrices: Sequence[torch.Tensor],
    *,
    heads: Sequence[Heads] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[torch.Tensor]:
    """Approximately the nearest matrices with orthonormal rows (or columns, if these are fewer): U V^T of U S V^T.

    Args:
        matrices: of any shapes [rows, columns]. Those of one shape are processed in one batch.
        heads: for each matrix, how it is cut; each part is then made orthogonal by itself.
        dtype: of the matmuls.

    Returns:
        Matrices of the same shapes, in `dtype`. A matrix of zeros stays zero.
    """
    cuts = heads or [None] * len(matrices)
    parts = [_cut(matrix, cut) for matrix, cut in zip(matrices, cuts, strict=True)]
    found: list[torch.Tensor] = list(matrices)
    of_shape: dict[Any, list[int]] = defaultdict(list)
    for index, part_GMN in enumerate(parts):
        of_shape[(part_GMN.shape[1:], part_GMN.device)].append(index)
    for (shape, device), indices in of_shape.items():
        most = _STACK_ON_CPU if device.type == "cpu" else _STACK
        size = max(1, most // max(parts[index].numel() for index in indices))
        for first in range(0, len(indices), size):
            here = indices[first : first + size]
            stack = torch.cat([parts[index] for index in here])
            done = _newton_schulz(stack, dtype, _polynomials_for(shape)).split([len(parts[index]) for index in here])
            for index, part_GMN in zip(here, done, strict=True):
                found[index] = _join(part_GMN, cuts[index])
    return found


def _cut(matrix: torch.Tensor, heads: Heads) -> torch.Tensor:
    """The G parts of a matrix that are made orthogonal by themselves: [G, M, N]."""
    if heads is None:
        return matrix.unsqueeze(0)
    dimension, size = heads
    return matrix.unflatten(dimension, (-1, size)).movedim(dimension, 0)


def _join(part_GMN: torch.Tensor, heads: Heads) -> torch.Tensor:
    """The inverse of `_cut`."""
    if heads is None:
        return part_GMN[0]
    dimension, _ = heads
    return part_GMN.movedim(0, dimension).flatten(dimension, dimension + 1)


def _polynomials_for(shape: Sequence[int]) -> Polynomials:
    return POLYNOMIALS_UP_TO_256 if min(shape) <= 256 else POLYNOMIALS


def _newton_schulz(x_GMN: torch.Tensor, dtype: torch.dtype, polynomials: Polynomials) -> torch.Tensor:
    """Newton-Schulz steps for G matrices of one shape, M <= N; for M > N the matmuls are on the other side.

    The square in each polynomial is completed, so that a step is three plain matmuls. With Z = c^(1/4) X:
    Y = Z Z^T + b / (2 sqrt(c)) I,  c^(1/4) X <- (Y^2 + (a - b^2 / (4 c)) I) Z. The factor that scales Z to the next
    step's c is part of Y.
    """
    is_tall = x_GMN.shape[1] > x_GMN.shape[2]
    scales = [c**0.25 for _, _, c in polynomials] + [1.0]
    norms_G11 = torch.linalg.vector_norm(x_GMN, dim=(1, 2), keepdim=True)
    z_GMN = (x_GMN * (scales[0] / norms_G11.clamp(min=_EPSILON))).to(dtype)
    nothing = z_GMN.new_zeros(1, 1, 1)
    for (a, b, c), here, after in zip(polynomials, scales, scales[1:], strict=False):
        left, right = (z_GMN.mT, z_GMN) if is_tall else (z_GMN, z_GMN.mT)
        ratio = after / here
        y = torch.baddbmm(nothing, left, right, beta=0, alpha=ratio**0.5)
        y.diagonal(dim1=1, dim2=2).add_(ratio**0.5 * b / (2 * c**0.5))
        p = y @ y
        p.diagonal(dim1=1, dim2=2).add_(ratio * (a - b**2 / (4 * c)))
        z_GMN = z_GMN @ p if is_tall else p @ z_GMN
    return z_GMN


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _row_sharding_group(parameter: Any) -> Any:
    """The process group over which FSDP2 has sharded the rows of a parameter; None for any other layout."""
    if not isinstance(parameter, DTensor):
        return None
    sharded = [dim for dim, placement in enumerate(parameter.placements) if not placement.is_replicate()]
    if len(sharded) != 1 or parameter.placements[sharded[0]] != Shard(0):
        return None
    return parameter.device_mesh.get_group(sharded[0])


def _orthogonalize_gathered(
    local: torch.Tensor, parameter: DTensor, heads: Heads, *, dtype: torch.dtype
) -> torch.Tensor:
    """For layouts other than FSDP2's: every process gathers the matrix and keeps its own part of the result."""
    mesh, placements = parameter.device_mesh, parameter.placements
    update = DTensor.from_local(local, mesh, placements, shape=parameter.shape, stride=parameter.stride())
    (whole,) = orthogonalize([update.full_tensor()], heads=[heads], dtype=dtype)
    return distribute_tensor(whole.contiguous(), mesh, placements, src_data_rank=None).to_local()


def _orthogonalize_shards(
    shards: list[torch.Tensor], shapes: list[torch.Size], heads: list[Heads], *, group: Any, dtype: torch.dtype
) -> list[torch.Tensor]:
    """This process' rows of the orthogonal matrices. The matrices are sharded over `group`, and each has one owner.

    Two exchanges in all: every shard is sent to its matrix's owner and back.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    owned = share_out(shapes, size, heads=heads)
    here = [[shards[index].to(dtype, copy=True) for index in indices] for indices in owned]
    whole = [shards[0].new_empty(shapes[index], dtype=dtype) for index in owned[rank]]
    _exchange(here, _rows_by_process(whole, size), group=group)
    orthogonal = orthogonalize(whole, heads=[heads[index] for index in owned[rank]], dtype=dtype)
    _exchange(_rows_by_process(orthogonal, size), here, group=group)
    found = dict(zip(chain(*owned), chain(*here), strict=True))
    return [found[index] for index in range(len(shards))]


def _rows_by_process(matrices: list[torch.Tensor], size: int) -> list[list[torch.Tensor]]:
    """The rows of each matrix on each process: equal chunks, and fewer or none on the last processes."""
    chunks = [-(-len(matrix) // size) for matrix in matrices]
    return [
        [matrix[process * chunk : (process + 1) * chunk] for matrix, chunk in zip(matrices, chunks, strict=True)]
        for process in range(size)
    ]


def _exchange(sent: list[list[torch.Tensor]], received: list[list[torch.Tensor]], *, group: Any) -> None:
    """Send the tensors `sent[i]` to process i of `group`, and fill `received[i]` with those that come from it."""
    nothing = next(chain(*sent, *received)).new_empty(0)  # torch.cat needs a tensor even if nothing is sent or received
    outgoing, incoming = (torch.cat([nothing, *map(torch.flatten, chain(*tensors))]) for tensors in (sent, received))
    to_each, from_each = ([sum(map(torch.numel, tensors)) for tensors in side] for side in (sent, received))
    dist.all_to_all_single(incoming, outgoing, from_each, to_each, group=group)
    places = list(chain(*received))
    for place, numbers in zip(places, incoming.split([place.numel() for place in places]), strict=True):
        place.copy_(numbers.view_as(place))


def share_out(shapes: Sequence[Sequence[int]], owners: int, *, heads: Sequence[Heads] | None = None) -> list[list[int]]:
    """Which matrices each owner makes orthogonal: the next largest goes to the owner with the least work."""
    cuts = heads or [None] * len(shapes)
    work = [newton_schulz_flops(shape, heads=cut) for shape, cut in zip(shapes, cuts, strict=True)]
    owned: list[list[int]] = [[] for _ in range(owners)]
    loads = [0] * owners
    for index in sorted(range(len(shapes)), key=lambda i: -work[i]):
        least = loads.index(min(loads))
        owned[least].append(index)
        loads[least] += work[index]
    return owned


def newton_schulz_flops(shape: Sequence[int], *, heads: Heads = None) -> int:
    """FLOPs for one matrix [m, n], m <= n: each step computes Z Z^T, its square, and a matmul with Z."""
    if heads is not None:
        dimension, size = heads
        return shape[dimension] // size * newton_schulz_flops((size, shape[1 - dimension]))
    m, n = min(shape), max(shape)
    return len(_polynomials_for(shape)) * (2 * m * m * n + 2 * m**3 + 2 * m * m * n)
