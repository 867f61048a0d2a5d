"""Plans against the model itself: its parameters, torch's counter of FLOPs, and the bytes that autograd keeps."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretraining_helpers import make_corpus
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM, ClozeBertModel
from clozebert.configuration import list_recipes
from clozebert.corpus import Corpus, Mixture, RowIndex
from clozebert.corpus.tokenizer import load_tokenizer
from clozebert.modeling import fast_paths
from clozebert.modeling.packed import Packed
from clozebert.scripts.plan import main
from clozebert.training import PretrainingArguments
from clozebert.training.initialization.initial_model import SPECIAL_TOKEN_IDS, set_token_ids
from clozebert.training.optimizers import muon
from clozebert.training.optimizers.optimizer import make_optimizer
from clozebert.training.planning.calibration import calibrate, micro_batches
from clozebert.training.planning.memory_and_time import (
    DEVICES,
    GIB,
    Calibration,
    Device,
    _update_flops,
    activation_bytes,
    attention_length,
    forward_flops,
    launches_of,
    make_plan,
    matrix_parameters,
    parameters_of,
)
from clozebert.training.planning.time_budget import StepTime
from clozebert.training.run_settings import make_config, split_settings
from clozebert.utils.errors import FullMemoryError, UserError

# Shapes that do not coincide; no dropout, which a plan leaves out.
SIZES = {"vocab_size": 83, "hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 76,
         "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip
BERT = {**SIZES, "norm_position": "post", "mlp_type": "mlp", "position_embedding_type": "absolute",
        "attention_bias": True, "mlp_bias": True}  # fmt: skip

# Its products take longer than its launches.
SLOW = Device("slow", 1e5, 22 * GIB)


def run_of(**changes: Any) -> PretrainingArguments:
    paths = {"corpus": "-", "tokenizer_name": "-", "dry_run": True}
    values = {"global_batch_size": 24, "per_device_train_batch_size": 6, "max_seq_length": 32, "max_steps": 100}
    return PretrainingArguments(**{**paths, **values, **changes})


@pytest.mark.parametrize("name", list_recipes())
def test_parameters_of_every_recipe_are_exact(name: str) -> None:
    settings, model = split_settings(name, {})
    config = make_config(model)
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in ClozeBertForMaskedLM(config).parameters())
    arguments = PretrainingArguments(**settings, corpus="-", tokenizer_name="-", dry_run=True, max_steps=1000)
    plan = make_plan(arguments, config, device=DEVICES["h100"], num_devices=4, price_per_hour=3.0)
    assert plan.parameters == count
    assert plan.cost == pytest.approx(4 * 3.0 * plan.seconds / 3600)
    assert plan.largest_batch is not None


@pytest.mark.parametrize("changes", [SIZES, BERT, {**SIZES, "num_key_value_heads": 1}], ids=["modern", "bert", "gqa"])
def test_forward_flops_are_torchs(changes: dict[str, Any]) -> None:
    config = ClozeBertConfig(**changes)
    config._attn_implementation = "eager"
    model = ClozeBertForMaskedLM(config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.randint(83, (4, 20)), masked_positions=torch.arange(0, 80, 5))
    assert forward_flops(config, tokens=80, length=20, predicted=0.2, reads=False) == counter.get_total_flops()


@pytest.mark.parametrize("changes", [SIZES, BERT], ids=["modern", "bert"])
def test_the_last_layer_reads_predicted_tokens_only(changes: dict[str, Any]) -> None:
    """Documents of 64 tokens, 32 of them predicted, fill their tiles."""
    config = ClozeBertConfig(**{**changes, "max_position_embeddings": 64, "layer_types": None})
    model = ClozeBertForMaskedLM(config)
    bounds = torch.arange(0, 257, 64, dtype=torch.int32)
    math_kernel = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), math_kernel:
        model(torch.randint(83, (1, 256)), cu_seq_lens_q=bounds, masked_positions=torch.arange(0, 256, 2))
    assert forward_flops(config, tokens=256, length=64, predicted=0.5, reads=True) == counter.get_total_flops()


@pytest.mark.parametrize("changes", [SIZES, BERT], ids=["modern", "bert"])
def test_updates_of_muon_are_counted_as_torch_counts_them(changes: dict[str, Any]) -> None:
    config, arguments = ClozeBertConfig(**changes), run_of(optimizer="muon")
    model = ClozeBertForMaskedLM(config)
    optimizer = make_optimizer(model, arguments)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    muon = sum(p.numel() for group in optimizer.param_groups if group["part"] == 0 for p in group["params"])
    assert len(optimizer.parts) == 2
    assert _update_flops(arguments, config, owners=1) == counter.get_total_flops()
    assert _update_flops(arguments, config, owners=2) == pytest.approx(counter.get_total_flops() / 2, rel=0.1)
    # Biases are in the formula's parameters, never in its FLOPs.
    assert matrix_parameters(config) == muon
    state = sum(
        value.numel() * 4 for values in optimizer.state.values() for value in values.values() if value.dim() > 0
    )
    assert make_plan(arguments, config, device=DEVICES["l4"]).memory["optimizer"] == state


@pytest.mark.parametrize("computed_again", [False, True])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    ("changes", "half", "bf16_residual"),
    [(SIZES, False, False), (SIZES, True, False), (SIZES, True, True), (BERT, False, False), (BERT, True, False)],
    ids=["modern", "modern-bf16", "modern-bf16-residual", "bert", "bert-bf16"],
)
def test_kept_activations_are_autograds(
    changes: dict[str, Any],
    dropout: float,
    half: bool,
    bf16_residual: bool,
    every: int,
    computed_again: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Per token, from two batch sizes: what does not grow with the batch drops out. Measured: within 2 %.

    Documents of 32 tokens and of 64: of one length, they would be attended where they stand, and less is kept.
    """
    monkeypatch.setattr(fast_paths, "RECOMPUTE_FROM", 1 if computed_again else 1 << 60)
    # The formula is that of a CPU with bf16 in hardware; one without trains in float32.
    monkeypatch.setattr(fast_paths, "_multiplies_bf16", lambda: True)
    parts = ("hidden_dropout_prob", "attention_probs_dropout_prob", "mlp_dropout")
    config = ClozeBertConfig(**{**changes, "max_position_embeddings": 64, **dict.fromkeys(parts, dropout)})
    model = ClozeBertModel(config)
    if bf16_residual:
        model.residual_dtype = torch.bfloat16

    def kept(pairs: int) -> int:
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        tensors: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                tensors[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        bounds = torch.tensor([0, *torch.tensor([32, 64] * pairs).cumsum(0)], dtype=torch.int32)
        read = None if every == 1 else torch.arange(0, 96 * pairs, every)
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=half),
        ):
            ids = torch.randint(83, (1, 96 * pairs))
            states = model(ids, cu_seq_lens_q=bounds, read_positions=read).last_hidden_state
        assert states.isfinite().all()
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())

    per_token = (kept(12) - kept(4)) / (8 * 96)
    length = (32**2 + 64**2) / 96
    given = {"half": half, "on_cpu": True, "length": length, "tokens": 1152, "predicted": 1 / every}
    given["bf16_residual"] = bf16_residual
    formula = activation_bytes(config, recompute=False, **given)
    assert formula == pytest.approx(per_token, rel=0.05)
    assert activation_bytes(config, recompute=True, **given) < (0.85 if computed_again or every > 1 else 0.7) * formula


def test_attention_length_is_that_of_the_packed_rows(tmp_path: Path) -> None:
    corpus = Corpus(make_corpus(tmp_path, documents=40) / "corpus")
    index = RowIndex(corpus, max_seq_length=33)
    _, _, lengths, _ = index.read(np.arange(index.num_rows))
    sizes = lengths + 2.0
    measured = attention_length(np.diff(corpus.offsets), max_seq_length=33)
    assert measured == pytest.approx((sizes**2).sum() / sizes.sum(), rel=1e-12)


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    config = ClozeBertConfig.from_name("bert-base")
    arguments = run_of(max_seq_length=512, global_batch_size=768, per_device_train_batch_size=1)
    device = dataclasses.replace(DEVICES["rtx-4090"], memory=9 * GIB)
    best = make_plan(arguments, config, device=device).largest_batch
    assert best is not None
    assert 768 % best == 0
    peaks = [
        make_plan(dataclasses.replace(arguments, per_device_train_batch_size=rows), config, device=device).peak_memory
        for rows in (best, best * 2)
    ]
    assert peaks[0] < 9 * GIB
    assert peaks[1] > 0.8 * 9 * GIB
    assert make_plan(arguments, config, device=dataclasses.replace(device, memory=2 * GIB)).largest_batch is None
    whole, sharded = (make_plan(arguments, config, device=device, num_devices=4, sharded=s) for s in (False, True))
    assert sharded.memory["optimizer"] == whole.memory["optimizer"] // 4


def test_time_is_that_of_the_flops_or_of_the_calibration() -> None:
    config, arguments = ClozeBertConfig(**SIZES), run_of()
    plan = make_plan(arguments, config, device=SLOW, utilization=0.25)
    assert plan.seconds == pytest.approx(100 * plan.flops_per_step / (0.25 * 1e5))
    assert plan.utilization == pytest.approx(0.25)
    assert plan.tokens_per_second == pytest.approx(24 * 32 * 100 / plan.seconds)
    measured = make_plan(arguments, config, device=SLOW, calibration=Calibration(StepTime(0.5, 0.25)))
    assert measured.seconds == pytest.approx(100 * (4 * 0.5 + 0.25))
    with pytest.raises(ValueError, match=r"utilization=1\.5 must lie in"):
        make_plan(arguments, config, device=SLOW, utilization=1.5)
    with pytest.raises(ValueError, match="num_devices=0 must be at least 1"):
        make_plan(arguments, config, device=SLOW, num_devices=0)


def test_no_step_is_shorter_than_its_launches_and_its_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches that a plan counts are fewer than torch's own operations, but not by far."""
    monkeypatch.setenv("CLOZEBERT_PLAIN", "1")
    monkeypatch.setattr(muon, "_STACK_ON_CPU", muon._STACK)
    for shape in (SIZES, BERT):
        for layers in (2, 4):
            config = ClozeBertConfig(**{**shape, "num_hidden_layers": layers})
            counted, found = _operations(config), launches_of(config, muon=True)
            print(counted, found)
            for operations, launches in zip(counted, found, strict=True):
                assert 0.4 * operations <= launches <= operations
    config = make_config(split_settings("small", {})[1])
    arguments = PretrainingArguments(**{**split_settings("small", {})[0], "max_steps": 1000}, corpus="-",
                                     tokenizer_name="-", dry_run=True)  # fmt: skip
    plan = make_plan(arguments, config, device=DEVICES["h100"], num_devices=8)
    launches, update = launches_of(config, muon=True)
    assert plan.seconds == pytest.approx(1000 * 5e-6 * (launches + update))
    assert plan.tokens_per_second < 20e6
    # On devices that are linked by PCIe the exchange of a larger model's gradients takes longer than that.
    large = make_config(split_settings("bert-base", {})[1])
    by_adamw = dataclasses.replace(arguments, global_batch_size=8, optimizer="adamw")
    plan = make_plan(by_adamw, large, device=DEVICES["l4"], num_devices=8)
    assert plan.seconds == pytest.approx(1000 * 2 * 7 / 8 * 4 * parameters_of(large) / 25e9)


def _operations(config: ClozeBertConfig) -> tuple[int, int]:
    """What torch dispatches in forward and backward under bf16, and in an update by Muon, but what makes no kernel."""
    views = {
        "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal", "empty", "empty_like",
        "empty_strided", "expand", "lift_fresh", "narrow", "permute", "promote_types", "reshape", "select", "slice",
        "split", "squeeze", "t", "transpose", "unbind", "unflatten", "unsqueeze", "view",
    }  # fmt: skip
    names: list[str] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(function.name().split("::")[1].split(".")[0])
            return function(*args, **(kwargs or {}))

    model = ClozeBertForMaskedLM(config).train()
    ids, places = torch.randint(5, 80, (1, 96)), torch.arange(0, 96, 5)
    packed = Packed.from_lengths([13, 19] * 3, torch.device("cpu"))
    with Count():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, packed=packed, masked_positions=places, labels=ids[0, places]).loss
        loss.backward()
    passes = sum(name not in views for name in names)
    optimizer = make_optimizer(model, run_of(optimizer="muon"))
    optimizer.step()
    names.clear()
    with Count():
        optimizer.step()
    return passes, sum(name not in views for name in names)


def test_calibration_trains() -> None:
    measured = calibrate(run_of(), ClozeBertConfig(**SIZES), device=torch.device("cpu"), precision="no", seconds=0)
    assert measured.step.micro_batch > 0
    assert measured.step.update > 0


def test_calibration_is_on_the_batches_of_the_run(tmp_path: Path) -> None:
    mixture = Mixture([str(make_corpus(tmp_path, documents=40) / "corpus")])
    batches = micro_batches(run_of(), ClozeBertConfig(**SIZES), mixture, rows=6)
    first, second = next(batches), next(batches)
    for batch in (first, second):
        assert 0.9 * 6 * 32 < batch["input_ids"].numel() <= 6 * 32
        assert batch["packed"].num_documents > 6
    assert first["input_ids"].tolist() != second["input_ids"].tolist()


@pytest.mark.parametrize("has_corpus", [False, True])
def test_calibration_predicts_as_many_tokens_among_as_many_as_the_run(tmp_path: Path, has_corpus: bool) -> None:
    mixture = Mixture([str(make_corpus(tmp_path, documents=40) / "corpus")]) if has_corpus else None
    run = run_of(vocabulary_sample=16, mlm_probability=0.5, final_mlm_probability=0.1)
    batch = next(micro_batches(run, ClozeBertConfig(**SIZES), mixture, rows=6))
    assert batch["sampled_ids"].shape == batch["sampled_log_rates"].shape == (16,)
    assert len(batch["labels"]) / (6 * 32) == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--num_devices", "0"], "num_devices=0 must be at least 1"),
        (["--utilization", "3"], "utilization=3.0 must lie in (0, 1]"),
    ],
)
def test_plans_of_nothing_are_refused_before_steps_are_timed(
    monkeypatch: pytest.MonkeyPatch, wrong: list[str], message: str
) -> None:
    monkeypatch.setattr("clozebert.training.planning.calibration.calibrate", None)
    with pytest.raises(UserError, match=re.escape(message)):
        main(["--config", "nano", "--max_steps", "4", "--calibrate", *wrong])


def test_time_of_a_batch_that_warms_up_is_that_of_its_rows() -> None:
    config = ClozeBertConfig(**SIZES)
    whole, rising = run_of(), run_of(initial_global_batch_size=6, batch_warmup_steps=60)
    rows = sum(rising.batch_size.at(step) for step in range(100))
    assert rows < 0.9 * 24 * 100
    for calibration, update in ((None, 0.0), (Calibration(StepTime(0.5, 0.25)), 25.0)):
        plans = [make_plan(run, config, device=SLOW, calibration=calibration) for run in (whole, rising)]
        share = (plans[1].seconds - update) / (plans[0].seconds - update)
        assert share == pytest.approx(rows / 2400)
        assert plans[1].tokens_per_second == pytest.approx(rows * 32 / plans[1].seconds)


def test_phases_are_planned_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, output = tmp_path / "long.yaml", tmp_path / "plan.json"
    recipe.write_text(
        "architecture: modernbert-base\nmax_seq_length: 1024\nglobal_batch_size: 768\n"
        "per_device_train_batch_size: 96\nmax_steps: 1000\nphases:\n"
        "- {max_steps: 100, max_seq_length: 8192, global_batch_size: 96, per_device_train_batch_size: 12, "
        "model: {rope_parameters: {full_attention: {rope_theta: 160000}}}}\n"
    )
    main(["--config", str(recipe), "--device", "h100", "--num_devices", "8", "--price_per_hour", "2",
          "--output_file", str(output)])  # fmt: skip
    plan = json.loads(output.read_text())
    first, second = plan["phases"]
    assert plan["seconds"] == first["seconds"] + second["seconds"]
    assert plan["cost"] == pytest.approx(8 * 2 * plan["seconds"] / 3600)
    assert second["flops_per_step"] > 1.1 * first["flops_per_step"], "as many tokens, but they see further"
    shown = capsys.readouterr().out
    assert "phase 2 of 2: 100 steps" in shown
    assert "hours of all phases" in shown


def test_a_precision_that_no_run_takes_has_no_plan() -> None:
    flags = ["--bf16_residual", "true", "--mixed_precision", "no", "--device", "h100"]
    with pytest.raises(ValueError, match="bf16_residual=True goes with mixed_precision=bf16"):
        main(["--config", "tiny", "--max_steps", "4", *flags])


def test_phases_that_no_run_takes_have_no_plan() -> None:
    phases = "[{max_steps: 4, model: {intermediate_size: 64}}]"
    with pytest.raises(ValueError, match=r"phases\[0\] changes the shape of model\.layers"):
        main(["--config", "nano", "--max_steps", "4", "--phases", phases, "--device", "h100"])


def test_a_model_that_does_not_fit_is_planned_and_then_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozebert.training.planning.calibration.set_up_model", lambda *_, **__: torch.empty(1 << 60))
    with pytest.raises(FullMemoryError, match="the memory is full: lower per_device_train_batch_size=16, which keeps"):
        main(["--config", "nano", "--max_steps", "4", "--use_cpu", "--calibrate"])
    assert "memory" in capsys.readouterr().out


def test_memory_is_measured_in_the_first_phase(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, the second phase would show how far it exceeds the first one: often nothing."""
    measured = Calibration(StepTime(0.5, 0.25), 1e9)
    monkeypatch.setattr("clozebert.training.planning.calibration.calibrate", lambda *_, **__: measured)
    recipe, output = tmp_path / "mine.yaml", tmp_path / "plan.json"
    recipe.write_text("architecture: nano\nmax_steps: 4\nphases: [{max_steps: 4}]\n")
    main(["--config", str(recipe), "--use_cpu", "--calibrate", "--output_file", str(output)])
    assert capsys.readouterr().out.count("memory measured") == 1
    first, second = json.loads(output.read_text())["phases"]
    assert (first["calibration"]["peak_bytes"], second["calibration"]["peak_bytes"]) == (1e9, None)


def test_a_continued_run_is_planned_with_the_models_own_shape(tmp_path: Path) -> None:
    """The recipe says how it is trained; its shape and its vocabulary are not looked at."""
    corpus, output = str(make_corpus(tmp_path, documents=20) / "corpus"), tmp_path / "plan.json"
    config = ClozeBertConfig(**{**BERT, "max_position_embeddings": 160})
    config.save_pretrained(tmp_path / "model")
    for more in ([], ["--corpus", corpus]):
        main(["--config", "bert-base", "--model_name_or_path", str(tmp_path / "model"), "--max_seq_length", "128",
              "--device", "h100", "--output_file", str(output), *more])  # fmt: skip
        assert json.loads(output.read_text())["parameters"] == parameters_of(config)
    with pytest.raises(ValueError, match="max_seq_length=512 exceeds the model's max_position_embeddings=160"):
        main(["--config", "bert-base", "--model_name_or_path", str(tmp_path / "model"), "--device", "h100",
              "--max_seq_length", "512"])  # fmt: skip


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_corpus(tmp_path, documents=20)
    output = tmp_path / "plan.json"
    main(["--config", "tiny", "--device", "h100", "--num_devices", "2", "--price_per_hour", "2", "--corpus",
          str(folder / "corpus"), "--vocab_size", "8000", "--output_file", str(output)])  # fmt: skip
    shown = capsys.readouterr().out
    config = ClozeBertConfig.from_name("tiny", vocab_size=8000)
    assert f"{parameters_of(config):,}" in shown
    assert "cost" in shown
    assert "of the peak of 2 x h100" in shown
    assert output.is_file()
    for epochs in (3, 40):  # passes are counted in rows, as in training
        main(["--config", "tiny", "--corpus", str(folder / "corpus"), "--device", "h100", "--global_batch_size", "4",
              "--per_device_train_batch_size", "4", "--num_train_epochs", str(epochs)])  # fmt: skip
        passes = re.search(r" tokens, ([\d.]+) times the ", capsys.readouterr().out)
        assert passes is not None
        assert epochs - 0.5 < float(passes[1]) <= epochs
    main(["--config", "tiny", "--max_minutes", "5", "--device", "h100", "--vocabulary_sample",
          "0", "--teacher_name_or_path", "teacher"])  # fmt: skip
    shown = capsys.readouterr().out
    assert "max_minutes=5 is not counted" in shown
    assert "The teacher is not counted" in shown
    main(["--config", "tiny", "--max_steps", "10", "--mixed_precision", "no", "--hidden_size", "24", "--use_cpu",
          "--num_attention_heads", "2", "--per_device_train_batch_size", "4", "--num_hidden_layers", "1",
          "--layer_types", "null", "--rope_parameters", "null", "--calibrate", "--calibrate_seconds", "0"])  # fmt: skip
    assert "of the peak of 1 x cpu" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"device='h10' must be one of a10, .*; did you mean 'h100'"):
        main(["--config", "tiny", "--device", "h10"])
    with pytest.raises(ValueError, match=r"price_per_hour=-1\.0 must be at least 0"):
        main(["--config", "tiny", "--device", "h100", "--price_per_hour=-1"])
    with pytest.raises(ValueError, match=r"calibrate_seconds=-1\.0 must be at least 0"):
        main(["--config", "tiny", "--calibrate", "--calibrate_seconds=-1"])
    with pytest.raises(ValueError, match="--calibrate measures this machine"):
        main(["--config", "tiny", "--device", "h100", "--calibrate"])


def test_special_tokens_fit_the_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ModernBERT's own ids, about 50,280, lie beyond the vocabularies here, and a model cannot be built with them."""
    folder = make_corpus(tmp_path, documents=20)
    corpus, tokenizer = ["--corpus", str(folder / "corpus")], ["--tokenizer_name", str(folder / "tokenizer")]
    small = ["--config", "modernbert-base", "--num_hidden_layers", "1", "--layer_types", "null", "--rope_parameters",
             "null", "--hidden_size", "24", "--num_attention_heads", "2", "--max_seq_length", "64", "--use_cpu",
             "--per_device_train_batch_size", "4", "--max_steps", "10", "--mixed_precision", "no"]  # fmt: skip
    timed = ["--calibrate", "--calibrate_seconds", "0"]
    for given in (corpus, tokenizer, [*corpus, *tokenizer], ["--vocab_size", "64"]):
        main([*small, *timed, *given])
        shown = capsys.readouterr().out
        assert "memory measured" in shown
        config = ClozeBertConfig.from_name("modernbert-base", vocab_size=64, num_hidden_layers=1, layer_types=None,
                                           rope_parameters=None, hidden_size=24, num_attention_heads=2)  # fmt: skip
        assert f" {parameters_of(config):,}\n" in shown
    main([*small, *corpus, "--vocab_size", "3"])
    with pytest.raises(UserError, match="vocabulary of 61 tokens, more than the 60 of the model"):
        main([*small, *timed, *corpus, "--vocab_size", "60"])
    with pytest.raises(UserError, match="hidden_size=24 must be a multiple of num_attention_heads=5"):
        main([*small, *timed, *corpus, "--num_attention_heads", "5"])


def test_a_plan_has_the_tokens_of_the_corpus(tmp_path: Path) -> None:
    """As a run has them, whose tokenizer they are."""
    folder = make_corpus(tmp_path, documents=20)
    of_run, of_plan = (ClozeBertConfig.from_name("modernbert-base") for _ in range(2))
    set_token_ids(of_run, load_tokenizer(str(folder / "tokenizer")))
    set_token_ids(of_plan, Mixture([str(folder / "corpus")]).corpora[0])
    assert [getattr(of_plan, name) for name in SPECIAL_TOKEN_IDS] == [
        getattr(of_run, name) for name in SPECIAL_TOKEN_IDS
    ]
    assert of_plan.pad_token_id == 0


def test_a_plan_for_a_gpu_has_its_residual_stream() -> None:
    """In bf16 by default: two bytes of a number that each norm keeps, in place of four."""
    arguments = PretrainingArguments("-", "-", "-", max_steps=1, global_batch_size=8, per_device_train_batch_size=8)
    config = ClozeBertConfig(**SIZES)

    def activations(wanted: bool | None, precision: str = "bf16", device: str = "h100") -> int:
        given = dataclasses.replace(arguments, bf16_residual=wanted)
        plan = make_plan(given, config, device=DEVICES[device], precision=precision)
        return plan.memory["activations"]

    assert activations(None) == activations(True) < activations(False)
    assert activations(None, "fp16") == activations(False, "fp16")
