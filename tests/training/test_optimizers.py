"""Which parameter gets which treatment, what one step does, and a state that travels without pickle."""

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_helpers import log_of, run_here
from safetensors.torch import load_file, save_file
from torch import nn

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM
from clozebert.training.arguments import PretrainingArguments
from clozebert.training.optimizers.muon import Muon
from clozebert.training.optimizers.optimizer import CombinedOptimizer, make_optimizer, split_parameters
from clozebert.training.optimizers.state import load_optimizer_state, optimizer_state


def arguments(**changes: Any) -> PretrainingArguments:
    return PretrainingArguments(corpus="c", tokenizer_name="t", output_dir="o", **changes)


class Misnamed(nn.Module):
    """Modules whose names say the opposite of what they are."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.projection_weight = nn.Embedding(11, 6)
        self.layer_norm = nn.Linear(6, 5)
        self.dense = nn.LayerNorm(5)
        self.bias = nn.Conv1d(5, 6, 3)
        self.linear = nn.Parameter(torch.zeros(4, 6))
        self.norm = nn.Linear(6, 11)
        if tied:
            self.norm.weight = self.projection_weight.weight

    def get_output_embeddings(self) -> nn.Module:
        return self.norm

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.dense(self.layer_norm(self.projection_weight(ids_BT)))
        return self.norm(self.bias(x_BTD.mT).mT + self.linear.sum(0)).logsumexp(-1).mean()


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_sorted_by_what_they_are(tied: bool) -> None:
    matrices, rest = split_parameters(Misnamed(tied=tied))
    assert [name for name, _ in matrices] == ["layer_norm.weight", "bias.weight"]
    expected = {"projection_weight.weight", "layer_norm.bias", "dense.weight", "dense.bias", "bias.bias", "linear"}
    assert {name for name, _ in rest} == expected | {"norm.bias"} | (set() if tied else {"norm.weight"})
    wrapped, _ = split_parameters(nn.DataParallel(Misnamed(tied=tied)))
    assert [name for name, _ in wrapped] == ["module.layer_norm.weight", "module.bias.weight"]


@pytest.mark.parametrize("norm_type", ["layernorm", "rmsnorm"])
def test_the_encoder_decays_its_matrices_alone(norm_type: str) -> None:
    config = ClozeBertConfig(
        vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
        norm_type=norm_type, position_embedding_type="absolute", max_position_embeddings=17, type_vocab_size=2,
    )  # fmt: skip
    model = ClozeBertForMaskedLM(config)
    optimizer = make_optimizer(model, arguments(optimizer="muon"))
    treatment = {
        name: (group["part"], group["weight_decay"])
        for group in optimizer.param_groups
        for name in group["param_names"]
    }
    assert treatment.keys() == {name for name, _ in model.named_parameters()}
    for name, (part, decay) in treatment.items():
        of_a_matrix = "embeddings" not in name and dict(model.named_parameters())[name].dim() == 2
        assert (part, decay) == ((0, 0.1) if of_a_matrix else (1, 0.0)), name
    assert sum(part == 0 for part, _ in treatment.values()) == 2 * (4 + 3) + 1


@pytest.mark.parametrize(("kind", "default"), [("adamw", 0.01), ("muon", 0.1)])
def test_the_default_decay_is_the_optimizers(kind: str, default: float) -> None:
    assert arguments(optimizer=kind).weight_decay == default
    assert arguments(optimizer=kind, weight_decay=0.3).weight_decay == 0.3
    assert arguments(optimizer=kind, weight_decay=0.0).weight_decay == 0.0


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    torch.manual_seed(step)
    model(torch.randint(0, 11, (3, 9))).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_one_step_is_that_of_the_torch_optimizers() -> None:
    """Muon's own formula is compared with torch's in test_muon.py; here it is which parameter goes where."""
    mine, reference = Misnamed(), Misnamed()
    settings = {"learning_rate": 0.02, "muon_learning_rate": 0.03, "weight_decay": 0.1}
    optimizer = make_optimizer(mine, arguments(optimizer="muon", **settings))
    optimizer.set_learning_rate(0.5)
    muon = Muon([reference.layer_norm.weight], lr=0.015, weight_decay=0.1, momentum=0.95)
    others = [parameter for parameter in reference.parameters() if parameter is not reference.layer_norm.weight]
    decayed = [{"params": [reference.bias.weight], "weight_decay": 0.1}]
    free = [{"params": [other for other in others if other is not reference.bias.weight], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(decayed + free, lr=0.01, betas=(0.9, 0.98), eps=1e-8)
    for step in range(3):
        step_of(mine, optimizer, step)
        torch.manual_seed(step)
        reference(torch.randint(0, 11, (3, 9))).backward()
        for part in (muon, adamw):
            part.step()
            part.zero_grad()
    for (name, ours), theirs in zip(mine.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=name)


def test_in_a_run_only_the_rate_of_muon_falls_with_the_step(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates: list[list[float]] = []
    step = CombinedOptimizer.step

    def record(self: CombinedOptimizer, closure: Any = None) -> Any:
        rates.append([group["lr"] for group in self.param_groups])
        return step(self, closure)

    monkeypatch.setattr(CombinedOptimizer, "step", record)
    settings = {"learning_rate": 0.01, "muon_learning_rate": 0.02, "muon_constant_steps": 2}
    run_here(
        prepared,
        tmp_path / "run",
        optimizer="muon",
        max_steps=6,
        warmup_steps=0,
        lr_scheduler_type="linear",
        **settings,
    )
    assert len(rates) == 6
    for index, found in enumerate(rates):
        linear = 1 - index / 6
        of_muon = 0.02 * linear * min(1, math.sqrt(2 / (index + 1)))
        assert {round(rate, 12) for rate in found} == {round(0.01 * linear, 12), round(of_muon, 12)}
    assert "optimizer: muon, its rate falls after 2 steps; schedule linear with " in capsys.readouterr().out
    last = [entry for entry in log_of(tmp_path / "run") if "loss" in entry][-1]
    assert (round(last["learning_rate"], 12), round(last["muon_learning_rate"], 12)) == (
        round(0.01 * linear, 12),
        round(of_muon, 12),
    )


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_goes_through_a_file_bitwise(tmp_path: Path, kind: str) -> None:
    whole, first, second = Misnamed(), Misnamed(), Misnamed()
    optimizers = [make_optimizer(model, arguments(optimizer=kind)) for model in (whole, first, second)]
    for step in range(6):
        step_of(whole, optimizers[0], step)
    for step in range(3):
        step_of(first, optimizers[1], step)
    save_file(optimizer_state(optimizers[1]), tmp_path / "state.safetensors")
    second.load_state_dict(first.state_dict())
    load_optimizer_state(optimizers[2], load_file(tmp_path / "state.safetensors"))
    for step in range(3, 6):
        step_of(second, optimizers[2], step)
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_torch_style_state_dicts_work_too(kind: str) -> None:
    """Accelerate passes the state through `state_dict` and `load_state_dict`, which replaces the groups."""
    whole, moved = Misnamed(), Misnamed()
    one, other = (make_optimizer(model, arguments(optimizer=kind)) for model in (whole, moved))
    step_of(whole, one, 0)
    step_of(moved, other, 0)
    other.load_state_dict(other.state_dict())
    other.set_learning_rate(0.5)
    one.set_learning_rate(0.5)
    step_of(whole, one, 1)
    step_of(moved, other, 1)
    for mine, theirs in zip(whole.parameters(), moved.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_copies_make_the_same_steps(kind: str) -> None:
    model = Misnamed()
    optimizer = make_optimizer(model, arguments(optimizer=kind))
    step_of(model, optimizer, 0)
    copied, copied_optimizer = pickle.loads(pickle.dumps(copy.deepcopy((model, optimizer))))
    for one, its_optimizer in ((model, optimizer), (copied, copied_optimizer)):
        its_optimizer.set_learning_rate(0.5)
        step_of(one, its_optimizer, 1)
    for mine, theirs in zip(model.parameters(), copied.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_state_of_another_model_is_refused() -> None:
    model = Misnamed()
    optimizer = make_optimizer(model, arguments())
    with pytest.raises(ValueError, match=r"'nowhere.weight', which the model does not have"):
        load_optimizer_state(optimizer, {"exp_avg/nowhere.weight": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"'linear' has shape \(3, 6\), not \(4, 6\)"):
        load_optimizer_state(optimizer, {"exp_avg/linear": torch.zeros(3, 6)})


def test_matrices_alone_are_trained_by_muon_alone() -> None:
    """As those of an adapter are."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = make_optimizer(model, arguments(optimizer="muon"))
    assert [type(part) for part in optimizer.parts] == [Muon]
    before = model.weight.detach().clone()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)
    with pytest.raises(ValueError, match="only Muon trains here, and it is for matrices"):
        optimizer.add_param_group({"params": [("later", nn.Parameter(torch.ones(3)))]})
    with pytest.raises(ValueError, match="no parameter of the model is trained"):
        make_optimizer(model.requires_grad_(False), arguments())


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_parameters_that_are_added_later_are_trained(kind: str) -> None:
    model, later = Misnamed(), nn.Parameter(torch.ones(3))
    optimizer = make_optimizer(model, arguments(optimizer=kind))
    step_of(model, optimizer, 0)
    optimizer.add_param_group({"params": [("later", later)], "lr": 0.1, "weight_decay": 0.0})
    optimizer.set_learning_rate(0.5)
    later.grad = torch.ones(3)
    optimizer.step()
    assert later.tolist() == pytest.approx([0.95] * 3)  # Adam's first step is its rate
    assert any(name.endswith("/later") for name in optimizer_state(optimizer))
