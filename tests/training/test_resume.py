"""A run that was killed, stopped or damaged, and resumed, ends with the bits of one that was not."""

import gc
import itertools
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from often import often
from pretraining_helpers import (
    assert_same_bits,
    log_of,
    model_config,
    rows_of,
    run_forked,
    run_here,
    settings,
)

from clozebert import ClozeBertConfig
from clozebert.hub.card import write_card
from clozebert.training import PretrainingArguments, loop, pretrain
from clozebert.training.checkpoints.damage import find_damage
from clozebert.training.checkpoints.training_state import TrainingState, read_training_state
from clozebert.training.initialization.initial_model import make_model
from clozebert.training.optimizers.state import load_optimizer_state
from clozebert.training.resume import _other_machine
from clozebert.training.step import clip_gradient
from clozebert.utils.errors import UserError

STEPS = 40
RUN = {"max_steps": STEPS, "save_steps": 17, "eval_steps": 20, "logging_steps": 3, "save_total_limit": 3}


@pytest.fixture(scope="module")
def undisturbed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The run on one process and on two."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for processes in (1, 2):
        assert run_forked(prepared, folder / str(processes), processes=processes, **RUN) == [0] * processes
    return {processes: folder / str(processes) for processes in (1, 2)}


def kill_and_resume(folder: Path, output_dir: Path, *, batches: list[int], processes: int = 1, **run: Any) -> None:
    """Kill each process in the micro-batch `batches[0]` that it makes, resume and kill again, and at last resume."""
    run["resume_from_checkpoint"] = "latest"
    for batch in batches:
        killed = run_forked(folder, output_dir, processes=processes, die_at=batch, **run)
        assert -signal.SIGKILL in killed, killed
        assert 0 not in killed, killed
    assert not (output_dir / "model.safetensors").exists()
    assert run_forked(folder, output_dir, processes=processes, **run) == [0] * processes


@pytest.mark.parametrize(
    ("processes", "workers"),
    often([(1, 2), (2, 0), (1, 0), (2, 2)], 2),
)
def test_a_killed_run_goes_on_bitwise(
    prepared: Path, undisturbed: dict[int, Path], tmp_path: Path, workers: int, processes: int
) -> None:
    """40 steps = 17 + kill -9 + 23. One process makes two micro-batches in a step, and dies between them."""
    run = {**RUN, "dataloader_num_workers": workers}
    batch = 46 if processes == 1 else 23
    kill_and_resume(prepared, tmp_path / "run", batches=[batch], processes=processes, **run)
    assert_same_bits(undisturbed[processes], tmp_path / "run", step=STEPS)
    assert rows_of(tmp_path / "run") == rows_of(undisturbed[1])
    state, _ = read_training_state(tmp_path / "run" / "checkpoint-40")
    assert state.world_size == processes


@pytest.mark.slow
def test_three_processes_go_on_bitwise(prepared: Path, tmp_path: Path) -> None:
    """Three add up gradients in an order that depends on DDP's buckets, which it sorts once."""
    run = {"max_steps": 12, "save_steps": 5, "global_batch_size": 12, "resume_from_checkpoint": "latest"}
    assert run_forked(prepared, tmp_path / "undisturbed", processes=3, **run) == [0] * 3
    kill_and_resume(prepared, tmp_path / "run", batches=[8], processes=3, **run)
    assert_same_bits(tmp_path / "undisturbed", tmp_path / "run", step=12)


def test_what_a_killed_run_leaves(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = {**RUN, "resume_from_checkpoint": "latest"}
    assert run_forked(prepared, tmp_path / "run", die_at=46, **run) == [-9]
    assert log_of(tmp_path / "run")[-1]["step"] == 21
    assert (tmp_path / "run" / "latest").read_text() == "checkpoint-17\n"
    assert not (tmp_path / "run" / "model.safetensors").exists()
    run_here(prepared, tmp_path / "run", **run)
    assert "resumed at step 17" in capsys.readouterr().out


def test_a_run_that_branches_off_saves_before_its_first_step(prepared: Path, tmp_path: Path) -> None:
    """The checkpoint that it begins from lies in another folder, which may be gone when it resumes."""
    run = {"max_steps": 6, "save_steps": 3, "logging_steps": 1000}
    run_here(prepared, tmp_path / "a", **run)
    begin = {**run, "resume_from_checkpoint": tmp_path / "a" / "checkpoint-3"}
    assert run_forked(prepared, tmp_path / "b", die_at=1, how=signal.SIGTERM, **begin) == [128 + 15]
    assert [path.name for path in (tmp_path / "b").glob("checkpoint-*")] == ["checkpoint-3"]
    assert read_training_state(tmp_path / "b" / "checkpoint-3")[0].seconds > 0  # though nothing was logged
    (tmp_path / "a" / "checkpoint-3").rename(tmp_path / "gone")
    run_here(prepared, tmp_path / "b", **{**run, "resume_from_checkpoint": "latest"})
    assert_same_bits(tmp_path / "a", tmp_path / "b", step=6)


def test_a_branch_that_was_killed_before_its_first_checkpoint_begins_again(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = {"max_steps": 8, "save_steps": 4, "logging_steps": 1}
    run_here(prepared, tmp_path / "a", **run)
    begin = {**run, "resume_from_checkpoint": tmp_path / "a" / "checkpoint-4"}
    assert run_forked(prepared, tmp_path / "b", die_at=4, **begin) == [-9]
    assert not list((tmp_path / "b").glob("checkpoint-*"))
    assert (tmp_path / "b" / "training_log.jsonl").exists()
    run_here(prepared, tmp_path / "b", **begin)
    assert log_of(tmp_path / "b") == log_of(tmp_path / "a")[4:]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    # What holds a checkpoint is continued, not begun again.
    with pytest.raises(UserError, match="is not empty"):
        run_here(prepared, tmp_path / "b", **begin)
    assert run_forked(prepared, tmp_path / "c", die_at=4, **begin) == [-9]
    run_here(prepared, tmp_path / "c", **{**run, "resume_from_checkpoint": "latest"})
    assert "begins at its first step; one that branched off" in caplog.text
    assert log_of(tmp_path / "c") == log_of(tmp_path / "a")


def test_what_a_resumption_changed_is_in_the_log_and_on_the_card(prepared: Path, tmp_path: Path) -> None:
    """Twice at one step: nothing was trained with what was set first."""
    run = {"max_steps": 6, "save_steps": 3, "logging_steps": 1}
    run_here(prepared, tmp_path / "a", **run, learning_rate=4e-3)
    begin = {**run, "resume_from_checkpoint": tmp_path / "a" / "checkpoint-3", "learning_rate": 3e-3}
    assert run_forked(prepared, tmp_path / "b", die_at=1, how=signal.SIGTERM, **begin) == [128 + 15]
    run_here(prepared, tmp_path / "b", **{**begin, "resume_from_checkpoint": "latest", "learning_rate": 2e-3})
    state, _ = read_training_state(tmp_path / "b" / "checkpoint-6")
    assert state.earlier_arguments == {"3": {"learning_rate": 4e-3}}
    (event,) = [entry for entry in log_of(tmp_path / "b") if str(entry.get("event")).startswith("resuming")]
    assert event["step"] == 4
    assert "learning_rate" in event["event"]
    card = (tmp_path / "b" / "README.md").read_text()
    assert "| until step 3.learning_rate | 0.004 |" in card
    assert "| learning_rate | 0.002 |" in card


def test_a_finished_run_that_goes_on_keeps_its_last_evaluation(prepared: Path, tmp_path: Path) -> None:
    for steps in (7, 10):
        run = {"max_steps": steps, "save_steps": 5, "eval_steps": 5, "resume_from_checkpoint": "latest"}
        run_here(prepared, tmp_path / "run", **run)
    assert [entry["step"] for entry in log_of(tmp_path / "run") if "eval_loss" in entry] == [5, 7, 10]


def test_sigterm_leaves_the_step_that_it_came_in(prepared: Path, undisturbed: dict[int, Path], tmp_path: Path) -> None:
    """In the second micro-batch of step 11: the ten before it are saved."""
    run = {**RUN, "resume_from_checkpoint": "latest"}
    stopped = run_forked(prepared, tmp_path / "run", die_at=22, how=signal.SIGTERM, **run)
    assert stopped == [128 + 15]
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-10"]
    state, _ = read_training_state(tmp_path / "run" / "checkpoint-10")
    assert state.step == 10
    assert find_damage(tmp_path / "run" / "checkpoint-10") is None
    # Step 10 lies between two log entries: the next one needs its loss.
    assert len(state.losses) == 1
    assert log_of(tmp_path / "run") == log_of(undisturbed[1])[:3]


@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, -15), (signal.SIGINT, 130)])
def test_a_signal_ends_a_dry_run_and_promises_no_checkpoint(
    prepared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], how: int, status: int
) -> None:
    # The fifth micro-batch is of a step; those before it are timed.
    assert run_forked(prepared, tmp_path / "run", die_at=5, how=how, dry_run=True, max_steps=6) == [status]
    shown = capfd.readouterr()
    assert "step 1, loss" in shown.out
    assert "checkpoint is saved" not in shown.err


def test_a_damaged_newest_checkpoint_is_skipped(
    prepared: Path, undisturbed: dict[int, Path], tmp_path: Path, capsys: Any, caplog: Any
) -> None:
    output_dir = tmp_path / "run"
    shutil.copytree(undisturbed[1], output_dir)
    weights = output_dir / "checkpoint-40" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    (output_dir / "model.safetensors").unlink()

    run_here(prepared, output_dir, resume_from_checkpoint="latest", **RUN)
    assert "skipping" in caplog.text
    assert "the content of model.safetensors has changed" in caplog.text
    assert "resumed at step 34" in capsys.readouterr().out
    assert (output_dir / "damaged-checkpoint-40").is_dir()
    assert_same_bits(undisturbed[1], output_dir, step=STEPS)


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    often([("muon", "bf16"), ("muon", "no"), ("adamw", "bf16")]),
)
def test_every_optimizer_and_precision_goes_on_bitwise(
    prepared: Path, tmp_path: Path, optimizer: str, precision: str
) -> None:
    """With dropout; killed in the second micro-batch of the step after a checkpoint, and two steps after the next."""
    shorter = {"max_steps": 13, "save_steps": 5, "eval_steps": 6}
    run = {**RUN, **shorter, "optimizer": optimizer, "mixed_precision": precision, "hidden_dropout_prob": 0.1}
    assert run_forked(prepared, tmp_path / "whole", **run) == [0]
    kill_and_resume(prepared, tmp_path / "run", batches=[12, 14], **run)
    assert_same_bits(tmp_path / "whole", tmp_path / "run", step=13)


@pytest.mark.parametrize(("dropout", "effect"), [(0.0, "close, but not the same bits"), (0.1, "other dropout")])
def test_other_micro_batches_are_said(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, dropout: float, effect: str
) -> None:
    """The rows that are really used: a global batch of 8 has no micro-batch of 16."""
    run = {"save_steps": 4, "resume_from_checkpoint": "latest", "hidden_dropout_prob": dropout}
    run_here(prepared, tmp_path / "run", max_steps=4, per_device_train_batch_size=8, **run)
    run_here(prepared, tmp_path / "run", max_steps=5, per_device_train_batch_size=16, **run)
    assert "micro_batch_rows" not in caplog.text
    run_here(prepared, tmp_path / "run", max_steps=6, per_device_train_batch_size=2, **run)
    assert f"micro_batch_rows=8 there, 2 here ({effect})" in caplog.text


def test_a_diverged_run_keeps_the_checkpoints_from_before(prepared: Path, tmp_path: Path) -> None:
    """One update at a hopeless rate leaves finite weights whose gradient never is; they take no checkpoint's place."""
    common = {"max_steps": 30, "save_steps": 3, "save_total_limit": 2}
    run_here(prepared, tmp_path / "straight", **common)
    assert run_forked(prepared, tmp_path / "run", die_at=13, how=signal.SIGTERM, **common) == [128 + 15]
    before = sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*"))
    again = {**common, "resume_from_checkpoint": "latest"}
    with pytest.raises(ValueError, match="the run has diverged; resume from the last checkpoint"):
        run_here(prepared, tmp_path / "run", learning_rate=1e18, **again)
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == before
    run_here(prepared, tmp_path / "run", **again)
    assert_same_bits(tmp_path / "straight", tmp_path / "run", step=30)


def test_a_signal_among_skipped_updates_saves_and_deletes_nothing(prepared: Path, tmp_path: Path) -> None:
    def prelude(rank: int) -> None:
        step = itertools.count()

        def clip(model: torch.nn.Module, **options: Any) -> float:
            if next(step) in range(4, 8):
                next(model.parameters()).grad[0, 0] = math.nan
            return clip_gradient(model, **options)

        loop.clip_gradient = clip

    stop = {"die_at": 13, "how": signal.SIGTERM, "max_steps": 30, "save_steps": 2, "save_total_limit": 1}
    assert run_forked(prepared, tmp_path / "run", prelude=prelude, **stop) == [128 + 15]
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]


def test_resuming_replaces_no_other_model(prepared: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, seed in ((first, 1), (second, 2)):
        run_here(prepared, folder, max_steps=4, save_steps=2, seed=seed)
    begin = {"max_steps": 6, "save_steps": 2, "resume_from_checkpoint": str(first / "checkpoint-4")}
    with pytest.raises(UserError, match="second is not empty; continue with --resume_from_checkpoint latest"):
        run_here(prepared, second, **begin)
    with pytest.raises(UserError, match=f"'checkpoint-4': there is no such folder; give {second / 'checkpoint-4'}"):
        run_here(prepared, second, **{**begin, "resume_from_checkpoint": "checkpoint-4"})
    for path in second.glob("checkpoint-*"):
        shutil.rmtree(path)
    for name in ("model.safetensors", "pytorch_model.bin"):  # the second as older programs write it
        (second / "model.safetensors").rename(second / name)
        held = {path: path.read_bytes() for path in second.rglob("*") if path.is_file()}
        with pytest.raises(UserError, match="second holds a model and no checkpoint to resume"):
            run_here(prepared, second, **{**begin, "resume_from_checkpoint": "latest"})
        assert {path: path.read_bytes() for path in second.rglob("*") if path.is_file()} == held


@pytest.mark.parametrize("of", ["model_name_or_path", "teacher_name_or_path"])
def test_no_card_names_a_folder_that_is_gone(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Its relative path would pass for a name on the Hub."""
    monkeypatch.chdir(tmp_path)
    run_here(prepared, tmp_path / "private/base", max_steps=3, save_steps=0)

    def write_and_forget(folder: str | os.PathLike, facts: dict[str, Any]) -> None:
        write_card(folder, facts)
        shutil.rmtree(tmp_path / "private", ignore_errors=True)

    given = {of: "private/base", "output_dir": str(tmp_path / "run"), "max_steps": 4, "save_steps": 2}
    run = settings(prepared, **given)
    pretrain(PretrainingArguments(**run), model_config(), write_card=write_and_forget)
    for place in ("checkpoint-2", "checkpoint-4", "."):
        assert "private" not in (tmp_path / "run" / place / "README.md").read_text()


def test_a_run_is_resumed_without_the_model_that_it_continues_from(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_here(prepared, tmp_path / "base", max_steps=3, save_steps=0)
    run = {"max_steps": 6, "save_steps": 3, "model_name_or_path": str(tmp_path / "base")}

    def go_on(name: str, **changes: Any) -> None:
        arguments = PretrainingArguments(**settings(prepared, output_dir=str(tmp_path / name), **run, **changes))
        pretrain(arguments, model_config(), write_card=write_card)

    for name in ("whole", "stopped"):
        go_on(name)
    shutil.rmtree(tmp_path / "stopped" / "checkpoint-6")
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(UserError, match="there is no folder"):
        go_on("new", resume_from_checkpoint="latest")
    go_on("stopped", resume_from_checkpoint="latest")
    assert "base; resuming without it from " in caplog.text
    assert_same_bits(tmp_path / "whole", tmp_path / "stopped", step=6)
    assert str(tmp_path) not in (tmp_path / "stopped" / "README.md").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what is mapped")
def test_a_resumed_run_keeps_no_file_of_its_checkpoint_mapped(prepared: Path, tmp_path: Path) -> None:
    """Windows would not let the run delete the checkpoint."""
    run_here(prepared, tmp_path / "run", max_steps=6, save_steps=3)
    checkpoint = tmp_path / "run" / "checkpoint-3"
    model = make_model(ClozeBertConfig.from_pretrained(checkpoint), checkpoint)
    names, parameters = zip(*model.named_parameters(), strict=True)
    optimizer = torch.optim.AdamW([{"params": list(parameters), "param_names": list(names)}], fused=True)
    _, tensors = read_training_state(checkpoint)
    load_optimizer_state(optimizer, tensors)
    del tensors
    gc.collect()
    assert str(checkpoint) not in Path("/proc/self/maps").read_text()
    assert any(parameter.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize(("was", "said"), [(True, False), (False, True), (None, False)])
def test_another_residual_stream_is_said(was: bool | None, said: bool) -> None:
    """That of a GPU is in bf16 by default. A checkpoint of before does not say which it had."""
    gpu = SimpleNamespace(device=torch.device("cuda"), mixed_precision="bf16", num_processes=1)
    arguments = PretrainingArguments("-", "-", "-", max_steps=1, global_batch_size=4, per_device_train_batch_size=4)
    state = TrainingState(1, threads=torch.get_num_threads(), precision="bf16", micro_batch_rows=4, bf16_residual=was)
    found = _other_machine(state, gpu, arguments, ClozeBertConfig(norm_position="pre"))
    assert found == ["bf16_residual=False there, True here (close, but not the same bits)"] * said
