"""Under `mixed_precision=no` nothing computes in half precision, whatever the machine is good at."""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from finetuning_helpers import make_checkpoint, write_entities, write_sentiment
from often import often
from pretraining_helpers import flags, settings
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clozebert.configuration import list_recipes
from clozebert.scripts import finetune_sequence_classification, finetune_token_classification
from clozebert.scripts.pretrain_mlm import main as pretrain
from clozebert.training.optimizers import muon


class RefuseHalfPrecision(TorchDispatchMode):
    """Every operator, in backward passes and optimizers too, raises where it takes or gives bf16 or fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            dtype = value.dtype if isinstance(value, torch.Tensor) else value
            if isinstance(dtype, torch.dtype) and dtype in (torch.bfloat16, torch.float16):
                raise AssertionError(f"{func} in {dtype}")
        self.products += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm)
        return result


@pytest.fixture
def mode() -> Iterator[RefuseHalfPrecision]:
    with RefuseHalfPrecision() as entered:
        yield entered
    assert entered.products > 20


def run_steps(folder: Path, output_dir: Path, **changes: Any) -> None:
    pretrain(flags(settings(folder, output_dir=output_dir, **{"max_steps": 1, "warmup_steps": 0, **changes})))


@pytest.mark.parametrize("recipe", list_recipes())
def test_a_step_of_every_recipe(recipe: str, prepared: Path, tmp_path: Path, mode: RefuseHalfPrecision) -> None:
    """With its evaluation; of the recipe's kind, but narrow, and on the test's small vocabulary and rows."""
    small = {"num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 160, "global_batch_size": 4}
    run_steps(prepared, tmp_path / "run", config=recipe, **small)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_both_optimizers(optimizer: str, prepared: Path, tmp_path: Path, mode: RefuseHalfPrecision) -> None:
    run_steps(prepared, tmp_path / "run", config="tiny", optimizer=optimizer)


@pytest.mark.skipif(find_spec("seqeval") is None or find_spec("sklearn") is None, reason="needs the extra `finetune`")
def test_fine_tuning(tmp_path: Path, mode: RefuseHalfPrecision) -> None:
    encoder = make_checkpoint(tmp_path / "encoder", model_type="clozebert")
    for program, write in (
        (finetune_sequence_classification, write_sentiment),
        (finetune_token_classification, write_entities),
    ):
        name = program.__name__.rpartition(".")[2]
        file = write(tmp_path / f"{name}.{'csv' if write is write_sentiment else 'conll'}", rows=8)
        files = ["--train_file", file, "--validation_file", file]
        output = ["--output_dir", str(tmp_path / name), "--num_train_epochs", "1", "--mixed_precision", "no"]
        program.main(["--model_name_or_path", encoder, *files, *output])


def test_the_test_sees_half_precision(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the optimizer once was: products in bf16 whatever the run computes in."""
    monkeypatch.setattr(
        muon.Muon, "dtype", property(lambda self: torch.bfloat16, lambda self, value: None), raising=False
    )
    with pytest.raises(AssertionError, match="bfloat16"), RefuseHalfPrecision():
        run_steps(prepared, tmp_path / "run", config="tiny")


def test_the_modes_of_the_program_around_it_change_nothing(prepared: Path, tmp_path: Path) -> None:
    around = {
        "plain": contextlib.nullcontext(),
        "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
        "inference_mode": torch.inference_mode(),
        "device": torch.device("meta"),
    }
    for precision in ("no", "bf16"):
        models = {}
        for name, mode in around.items():
            output_dir = tmp_path / f"{name}-{precision}"
            with mode:
                # Several steps: autocast within autocast would go on with the weights of the first.
                run_steps(prepared, output_dir, config="nano", max_steps=4, mixed_precision=precision)
            models[name] = load_file(output_dir / "model.safetensors")
        for model in models.values():
            assert all(torch.equal(tensor, model[name]) for name, tensor in models["plain"].items())


@pytest.mark.parametrize("dtype", often([torch.bfloat16, torch.float64]), ids=str)
def test_a_program_with_another_default_type_trains_the_same_model(
    dtype: torch.dtype, prepared: Path, tmp_path: Path
) -> None:
    wanted = {"config": "nano", "max_steps": 2, "save_steps": 1, "mixed_precision": "no"}
    run_steps(prepared, tmp_path / "float32", **wanted)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        run_steps(prepared, tmp_path / "other", **{**wanted, "max_steps": 1})
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(before)
    run_steps(prepared, tmp_path / "other", resume_from_checkpoint="latest", **wanted)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("float32", "other"))
    assert {x.dtype for x in other.values()} == {torch.float32}
    assert one.keys() == other.keys()
