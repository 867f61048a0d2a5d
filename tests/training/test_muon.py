"""Muon beside torch's own, beside singular values in float64, and spread over processes that own a matrix each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pretraining_helpers import in_forks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from transformers import EuroBertConfig, EuroBertModel

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM
from clozebert.training.arguments import PretrainingArguments
from clozebert.training.optimizers import muon
from clozebert.training.optimizers.muon import (
    POLYNOMIALS,
    POLYNOMIALS_UP_TO_256,
    Muon,
    newton_schulz_flops,
    orthogonalize,
    share_out,
)  # fmt: skip
from clozebert.training.optimizers.optimizer import heads_of_matrices, make_optimizer

JORDAN = ((3.4445, -4.7750, 2.0315),) * 5
SHAPES = [(12, 12), (12, 31), (31, 12), (12, 12), (12, 31), (1, 7), (7, 1)]


def matrices(dtype: torch.dtype = torch.float32, shapes: Sequence[tuple[int, int]] = SHAPES) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def textbook(x: np.ndarray, polynomials: Sequence[tuple[float, float, float]]) -> np.ndarray:
    """The formula as it stands in the papers, in NumPy's float64."""
    x = x / np.linalg.norm(x)
    for a, b, c in polynomials:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def steps_of(
    matrix: torch.Tensor, dtype: torch.dtype, polynomials: Sequence[tuple[float, float, float]]
) -> torch.Tensor:
    return muon._newton_schulz(matrix[None], dtype, polynomials)[0]


@pytest.mark.parametrize("polynomials", [POLYNOMIALS, POLYNOMIALS_UP_TO_256, JORDAN], ids=["four", "three", "jordan"])
@pytest.mark.parametrize(
    # Measured: 2e-14, 4e-6, 0.08; torch's own in bf16: 0.03.
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 0.12)],
)  # fmt: skip
def test_the_steps_are_those_of_the_formula(
    dtype: torch.dtype, tolerance: float, polynomials: Sequence[tuple[float, float, float]]
) -> None:
    given = matrices(torch.float64)
    for matrix in given:
        found, expected = steps_of(matrix, dtype, polynomials), textbook(matrix.numpy(), polynomials)
        assert found.dtype == dtype
        assert found.shape == matrix.shape
        assert np.linalg.norm(found.double().numpy() - expected) < tolerance * np.linalg.norm(expected)


@pytest.mark.parametrize(
    # As the comments at the polynomials promise: for values from `least` of the norm on, the range they end in.
    ("polynomials", "least", "low", "high"),
    [(POLYNOMIALS, 0.003, 0.74, 1.26), (POLYNOMIALS_UP_TO_256, 0.01, 0.68, 1.32)],
    ids=["four", "three"],
)
def test_singular_values_end_near_one_and_vectors_stay(
    polynomials: Sequence[tuple[float, float, float]], least: float, low: float, high: float
) -> None:
    rng = np.random.default_rng(0)
    for rows, columns in ((40, 40), (40, 90), (90, 40)):
        left, _, right = np.linalg.svd(rng.normal(size=(rows, columns)), full_matrices=False)
        values = np.geomspace(1.1 * least, 1, 40)
        values /= np.linalg.norm(values)
        assert values.min() > least / 3
        given = torch.from_numpy(left * values @ right)
        found = steps_of(given, torch.float64, polynomials)
        inside = left.T @ found.numpy() @ right.T
        after = np.diag(inside)
        assert np.abs(inside - np.diag(after)).max() < 1e-10
        assert after[values >= least].min() > low - 0.005
        assert after.max() < high + 0.005


def test_matrices_of_up_to_256_rows_or_columns_take_three_steps() -> None:
    for shape, polynomials in (((256, 300), POLYNOMIALS_UP_TO_256), ((257, 300), POLYNOMIALS)):
        matrix = torch.randn(shape)
        expected = steps_of(matrix, torch.float32, polynomials)
        torch.testing.assert_close(orthogonalize([matrix])[0], expected, rtol=0, atol=0)
    (cut,), given = orthogonalize([torch.ones(512, 300)], heads=[(0, 256)]), torch.ones(256, 300)
    torch.testing.assert_close(cut, torch.cat([orthogonalize([given])[0]] * 2), rtol=0, atol=1e-6)
    assert newton_schulz_flops((512, 512)) == 8 * 4 / 3 * newton_schulz_flops((256, 256))


def test_zeros_stay_zeros_and_a_stack_is_its_matrices_one_by_one() -> None:
    assert torch.equal(orthogonalize([torch.zeros(3, 5)])[0], torch.zeros(3, 5))
    assert orthogonalize([]) == []
    given = matrices()
    together = orthogonalize(given)
    for matrix, found in zip(given, together, strict=True):
        torch.testing.assert_close(found, orthogonalize([matrix])[0], rtol=0, atol=1e-5)


def test_updates_are_those_of_torchs_muon(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Jordan's polynomial. torch computes in bf16 whatever it is given: the test widens its products."""
    from torch.optim import _muon

    def in_float64(grad: torch.Tensor, coefficients: Any, steps: int, eps: float) -> torch.Tensor:
        return torch.from_numpy(textbook(grad.double().numpy(), [coefficients] * steps))

    monkeypatch.setattr(_muon, "_zeropower_via_newtonschulz", in_float64)
    monkeypatch.setattr(muon, "_polynomials_for", lambda shape: JORDAN)
    mine, theirs = ([nn.Parameter(matrix) for matrix in matrices(torch.float64)] for _ in range(2))
    settings = {"lr": 0.03, "weight_decay": 0.1, "momentum": 0.9}
    ours, reference = Muon(mine, dtype=torch.float64, **settings), torch.optim.Muon(theirs, **settings)
    for step in range(4):
        for seed, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            torch.manual_seed(100 * step + seed)
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        mine[3].grad = theirs[3].grad = None if step == 1 else mine[3].grad
        ours.step()
        reference.step()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_matrix_is_made_orthogonal_head_by_head() -> None:
    rows, columns, whole = (torch.randn(12, 20, dtype=torch.float64) for _ in range(3))
    found = orthogonalize([rows, columns, whole], heads=[(0, 3), (1, 5), None], dtype=torch.float64)
    expected = [
        torch.cat([orthogonalize([part], dtype=torch.float64)[0] for part in matrix.split(size, dim)], dim)
        for matrix, dim, size in ((rows, 0, 3), (columns, 1, 5), (whole, 0, 12))
    ]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    heads = found[0].reshape(4, 3, 20)
    assert torch.linalg.svdvals(heads).sub(1).abs().max() < 0.33  # the polynomials' bounds, see POLYNOMIALS
    assert torch.linalg.svdvals(found[0]).max() > 1.3  # as a whole, it is not orthogonal


def test_attention_is_cut_by_heads() -> None:
    config = ClozeBertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2
    )
    arguments = PretrainingArguments(corpus=["-"], tokenizer_name="-", output_dir="-", optimizer="muon", max_steps=1)
    optimizer = make_optimizer(ClozeBertForMaskedLM(config), arguments)
    heads = {
        name.split(".")[-2]: group.get("heads")
        for group in optimizer.param_groups
        for name in group["param_names"]
        if "attention" in name and name.endswith("proj.weight")
    }
    assert heads == {"q_proj": (0, 8), "k_proj": (0, 8), "v_proj": (0, 8), "o_proj": (1, 8)}
    assert newton_schulz_flops((32, 32), heads=(0, 8)) == 4 * newton_schulz_flops((8, 32))


def test_attention_of_another_class_is_cut_by_heads_too() -> None:
    """As that of a model whose code is the copy in its folder; EuroBERT's own has the names of ours."""
    config = EuroBertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, pad_token_id=0, bos_token_id=1, eos_token_id=2, mask_token_id=3,
    )  # fmt: skip
    native = EuroBertModel(config)
    cut = {name: heads_of_matrices(native).get(parameter) for name, parameter in native.named_parameters()}
    assert {name.split(".")[-2]: heads for name, heads in cut.items() if heads is not None} == {
        "q_proj": (0, 8), "k_proj": (0, 8), "v_proj": (0, 8), "o_proj": (1, 8),
    }  # fmt: skip


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"it was given a parameter of shape \(4,\)"):
        Muon([nn.Parameter(torch.zeros(4))], lr=0.1)


def test_work_is_shared_out_evenly() -> None:
    owned = share_out([(12, 12)] * 5 + [(12, 48)] * 3, 3)
    assert sorted(index for indices in owned for index in indices) == list(range(8))
    assert [sum(index >= 5 for index in indices) for indices in owned] == [1, 1, 1]
    assert share_out([(2, 2)], 3) == [[0], [], []]


class Linears(nn.Module):
    """Matrices whose rows do not divide by the processes, one with fewer rows than there are processes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        sizes = [(12, 12), (12, 31), (31, 12), (12, 2), (2, 31)]
        self.layers = nn.ModuleList(nn.Linear(columns, rows, bias=False) for columns, rows in sizes)


def _train(model: Linears, *, steps: int) -> Muon:
    by_rows, by_columns, *others = model.parameters()
    groups = [
        {"params": [by_rows], "heads": (0, 4)},
        {"params": [by_columns], "heads": (1, 4)},
        {"params": others},
    ]
    optimizer = Muon(groups, lr=0.05, weight_decay=0.1)
    for step in range(steps):
        for seed, parameter in enumerate(model.parameters()):
            torch.manual_seed(100 * step + seed)
            grad = torch.randn(parameter.shape)
            if isinstance(parameter, DTensor):
                grad = distribute_tensor(grad, parameter.device_mesh, parameter.placements)
            parameter.grad = grad
        optimizer.step()
    return optimizer


def _compare_sharded(rank: int, world_size: int, layout: str, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size)
    whole, model = Linears(), Linears()
    if layout == "fsdp":
        fully_shard(model)
    elif layout == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))
    else:
        placement = Shard(1) if layout == "columns" else Replicate()
        mesh = init_device_mesh("cpu", (world_size,))
        for layer in model.layers:
            layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [placement]))
    count = 0
    real = dist.all_to_all_single

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return real(*args, **kwargs)

    dist.all_to_all_single = counted
    _train(whole, steps=3)
    _train(model, steps=3)
    dist.all_to_all_single = real
    # Two exchanges an update, however many matrices there are.
    assert count == (6 if layout in ("fsdp", "hsdp") else 0)
    for one, other in zip(whole.parameters(), model.parameters(), strict=True):
        assert isinstance(other, DTensor)
        # Measured: 4e-7.
        torch.testing.assert_close(other.full_tensor(), one.detach(), rtol=0, atol=5e-6)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize(("layout", "world_size"), [("fsdp", 3), ("hsdp", 4), ("columns", 2), ("copies", 2)])
def test_a_sharded_model_is_updated_as_a_whole_one(layout: str, world_size: int, tmp_path: Path) -> None:
    done = in_forks(lambda rank: _compare_sharded(rank, world_size, layout, tmp_path), [{}] * world_size)
    assert done == [0] * world_size
