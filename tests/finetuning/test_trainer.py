"""Training on transformers' Trainer: the gradient under accumulation, packed and padded batches, resuming."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from often import often
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.utils import logging

from clozebert.finetuning.arguments import PredictionArguments
from clozebert.finetuning.batches import LengthGroupedSampler
from clozebert.finetuning.callbacks import EarlyStopping, EvaluationLines
from clozebert.finetuning.predict import predict
from clozebert.finetuning.resume import newest_checkpoint, read_settings
from clozebert.finetuning.run import FinetuningRun, finetune
from clozebert.utils.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import arguments_of, without_times, write_json_lines

# The gradient under accumulation


class FirstGradient(TrainerCallback):
    """Keeps the gradient of the first optimizer step."""

    def __init__(self) -> None:
        self.gradient: torch.Tensor | None = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.gradient is None:
            gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            self.gradient = torch.cat(gradients).clone()


@pytest.mark.parametrize("kind", ["single", "multi", "regression", "token"])
@pytest.mark.parametrize("model", often(["clozebert", "bert"]))
def test_accumulation_of_four_has_the_gradient_of_one(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    model: str,
) -> None:
    gradients = []
    make_trainer = FinetuningRun.make_trainer

    def with_callback(*args: Any, **kwargs: Any) -> Any:
        trainer = make_trainer(*args, **kwargs)
        trainer.args.max_grad_norm = 0.0  # clipping would hide a gradient four times too large
        trainer.add_callback(keeper)
        return trainer

    monkeypatch.setattr(FinetuningRun, "make_trainer", with_callback)
    for accumulation in (1, 4):
        keeper = FirstGradient()
        finetune(
            arguments_of(
                kind,
                data[kind],
                models[model],
                tmp_path / str(accumulation),
                per_device_train_batch_size=8 // accumulation,
                gradient_accumulation_steps=accumulation,
                max_steps=1,
            )
        )
        assert keeper.gradient is not None
        gradients.append(keeper.gradient)
    assert gradients[0].norm() > 1e-3
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


# Batches of similar length


def test_padded_batches_are_of_similar_length_and_a_function_of_seed_and_epoch() -> None:
    lengths = [(7 * i) % 101 + 1 for i in range(530)]

    def order(seed: int, epoch: int) -> list[int]:
        return list(LengthGroupedSampler(lengths, batch_size=8, seed=seed, epoch=lambda: epoch))

    first = order(1, 0)
    assert sorted(first) == list(range(530))
    assert first == order(1, 0)
    assert first != order(1, 1)
    assert first != order(2, 0)
    batches = [[lengths[index] for index in first[start : start + 8]] for start in range(0, 530, 8)]
    assert sum(len(batch) * max(batch) for batch in batches) < 1.1 * sum(lengths)
    assert len(batches[-1]) == 2
    longest = [max(batch) for batch in batches[:-1]]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_packed_and_padded_training_end_alike(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """Whole runs with the same batches, packed and padded. Measured: the same to the last digit."""
    for kind in ("single", "token"):
        packed, padded = (
            finetune(
                arguments_of(kind, data[kind], models["clozebert"], tmp_path / f"{kind}-{packing}", packing=packing)
            )
            for packing in ("auto", "off")
        )
        assert packed["eval_loss"] == pytest.approx(padded["eval_loss"], rel=1e-4)
        assert packed["train_loss"] == pytest.approx(padded["train_loss"], rel=1e-4)


# Resuming


class InterruptedHereError(Exception):
    """What stops a run in the test below."""


class Interrupt(TrainerCallback):
    """Stops a run in the middle of an epoch."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise InterruptedHereError


def interrupted_at(step: int) -> Callable[..., Any]:
    make_trainer = FinetuningRun.make_trainer

    def make(*args: Any, **kwargs: Any) -> Any:
        trainer = make_trainer(*args, **kwargs)
        trainer.add_callback(Interrupt(step))
        return trainer

    return make


@pytest.mark.parametrize(
    ("kind", "model", "flags"),
    often(
        [
            ("token", "clozebert", {"num_train_epochs": 4.0}),
            ("single", "bert", {"num_train_epochs": 4.0}),
            ("single", "clozebert", {"eval_steps": 3}),
        ]
    ),
)
def test_an_interrupted_run_ends_with_the_same_without_times(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    model: str,
    flags: dict[str, Any],
) -> None:

    def arguments(folder: str, **more: Any) -> Any:
        more["dropout"] = 0.2  # so that the random numbers must be taken up where they stopped
        return arguments_of(
            kind, data[kind], models[model], tmp_path / folder, per_device_train_batch_size=10, **flags, **more
        )

    whole = finetune(arguments("whole"))
    with monkeypatch.context() as patch:
        patch.setattr(FinetuningRun, "make_trainer", interrupted_at(11))
        with pytest.raises(InterruptedHereError):
            finetune(arguments("broken"))
    assert newest_checkpoint(str(tmp_path / "broken")) is not None
    assert not (tmp_path / "broken" / "all_results.json").exists()
    resumed = finetune(arguments("broken", resume_from_checkpoint="latest"))
    whole.pop("train_loss")  # Trainer's own mean, over the steps of one sitting
    assert without_times(resumed) == without_times(whole)
    # and once more, with nothing left to do
    again = finetune(arguments("broken", resume_from_checkpoint="latest"))
    assert {k: v for k, v in without_times(again).items() if k[:4] == "eval"} == {
        k: v for k, v in without_times(whole).items() if k[:4] == "eval"
    }


def test_resuming_with_other_flags_is_refused(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "o"))
    with pytest.raises(ValueError, match="had seed=42, now it is 7"):
        finetune(
            arguments_of(
                "single", data["single"], models["bert"], tmp_path / "o", resume_from_checkpoint="latest", seed=7
            )
        )


def test_resuming_from_another_encoder_is_refused_and_a_moved_one_goes_on(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    def run(model: str | Path) -> Any:
        return finetune(
            arguments_of(
                "single", data["single"], str(model), tmp_path / "o", max_steps=2, resume_from_checkpoint="latest"
            )
        )

    other, moved = tmp_path / "other", tmp_path / "moved"
    shutil.copytree(models["bert"], moved)
    shutil.copytree(models["bert"], other)
    tensors = load_file(other / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("token_embeddings.weight") or "word_embeddings" in name)
    tensors[name] = tensors[name] + 1e-3
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    before = run(models["bert"])
    with pytest.raises(UserError, match="began from another encoder than --model_name_or_path"):
        run(other)
    assert run(moved)["eval_loss"] == before["eval_loss"]


def test_the_checkpoint_of_another_run_is_refused(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """Named by its path. A new folder goes on from it with the same settings; a copy without settings is taken."""

    def run(checkpoint: Path | None, folder: str, *, swapped: bool = False, **flags: Any) -> Any:
        files = data["single"][::-1] if swapped else data["single"]
        flags |= {"max_steps": 2, "resume_from_checkpoint": checkpoint and str(checkpoint)}
        return finetune(arguments_of("single", files, models["bert"], tmp_path / folder, **flags))

    before = run(None, "old")
    checkpoint = tmp_path / "old" / "checkpoint-2"
    link = tmp_path / "link"
    link.symlink_to(checkpoint)
    with pytest.raises(UserError, match=r"run in .*old had seed=42, now it is 7; .* leave out --resume"):
        run(checkpoint, "new", seed=7)
    with pytest.raises(UserError, match=r"run in .*old had learning_rate"):
        run(link, "new", learning_rate=1e-5)
    with pytest.raises(UserError, match=r"run in .*old had data="):
        run(checkpoint, "new", swapped=True)
    assert run(checkpoint, "new")["eval_loss"] == before["eval_loss"]
    shutil.copytree(checkpoint, tmp_path / "copied" / "checkpoint-2")
    assert run(tmp_path / "copied" / "checkpoint-2", "third")["eval_loss"] == before["eval_loss"]


@pytest.mark.skipif(os.name != "posix", reason="limits are POSIX")
def test_a_disk_that_is_full_at_the_end_is_one_line_and_the_run_goes_on(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice: what the first resuming left must do for the second."""
    import resource

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be cut short
    flags = {"max_steps": 2, "resume_from_checkpoint": "latest"}
    arguments = arguments_of("single", data["single"], models["bert"], tmp_path / "o", **flags)
    before = finetune(arguments)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in range(2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(
                UserError, match=r"written \(File too large\): free some space, then --resume_.* latest$"
            ):
                finetune(arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert finetune(arguments)["eval_loss"] == before["eval_loss"]


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoint_without_a_part_is_not_resumed(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Trainer goes on with a new optimizer or other random numbers, and the run ends with other weights."""
    arguments = arguments_of("single", data["single"], models["bert"], tmp_path / "o", max_steps=1)
    with monkeypatch.context() as patch:
        patch.setattr("clozebert.finetuning.run.are_finite", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            finetune(arguments)
    (tmp_path / "o" / "checkpoint-1" / name).unlink()
    with pytest.raises(UserError, match=r"checkpoint-1: .* is missing in it; copy it there"):
        finetune(replace(arguments, resume_from_checkpoint="latest"))


def test_a_checkpoint_cut_short_is_passed_over(tmp_path: Path) -> None:
    for step, state in ((5, '{"global_step": 5}'), (10, '{"global_step": 10}'), (15, '{"glob'), (20, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-10")


def test_transformers_says_afterwards_what_it_said_before(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """In a notebook, its warnings and bars were gone from the first call on."""
    logging.set_verbosity_warning()
    logging.enable_progress_bar()
    finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "o", num_train_epochs=1))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.WARNING, True)
    for place in (data["single"][1], str(tmp_path / "missing.csv")):
        values = {"input": [place], "output_file": str(tmp_path / "predictions.jsonl")}
        with contextlib.suppress(UserError):
            predict(PredictionArguments(model_name_or_path=str(tmp_path / "o"), **values))
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.WARNING, True)
    assert (tmp_path / "predictions.jsonl").is_file()


def test_a_run_that_took_all_its_steps_takes_no_more(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resumed within an epoch, as after a kill while the model of the last step was scored."""
    for resume in (None, "latest"):
        flags = {"max_steps": 2, "resume_from_checkpoint": resume}
        finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "o", **flags))
        assert "step 3/2" not in capsys.readouterr().out
        assert [path.name for path in (tmp_path / "o").glob("checkpoint-*")] == ["checkpoint-2"]


def test_a_run_that_dies_after_its_last_step_is_scored_and_not_trained_again(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed while the best model was scored. The best is that of the first epoch here, as no rate is that high."""
    flags = {"num_train_epochs": 4, "learning_rate": 1e-30}
    undisturbed = finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "whole", **flags))
    with monkeypatch.context() as patch:
        patch.setattr("clozebert.finetuning.run.are_finite", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "o", **flags))
    assert "epoch 4 " in capsys.readouterr().out
    flags["resume_from_checkpoint"] = "latest"
    results = finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "o", **flags))
    assert "epoch 2 " not in capsys.readouterr().out
    assert {**undisturbed, **results} == undisturbed  # but for the time and the mean loss, which are left out
    assert len(list((tmp_path / "o").glob("checkpoint-*"))) == 1
    # A copy of a checkpoint alone lacks the best model.
    (only,) = (tmp_path / "o").glob("checkpoint-*")
    last = tmp_path / "copied" / "checkpoint-99"
    shutil.copytree(only, last)
    state = json.loads((last / "trainer_state.json").read_text())
    state["best_model_checkpoint"] = str(tmp_path / "gone" / "checkpoint-1")
    (last / "trainer_state.json").write_text(json.dumps({**state, "best_global_step": 1}))
    flags["resume_from_checkpoint"] = str(last)
    with pytest.raises(ValueError, match=r"gone/checkpoint-1, is gone; copy it to .*other/checkpoint-1"):
        finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "other", **flags))


def test_a_run_that_was_moved_after_its_last_step_ends_with_its_best_model(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best is that of the first epoch here, and its path in the last checkpoint is that of before."""

    def run(folder: str, **flags: Any) -> None:
        evaluations = count()
        monkeypatch.setattr("clozebert.finetuning.trainer.selection", lambda *_: float(-next(evaluations)))
        finetune(arguments_of("single", data["single"], models["bert"], tmp_path / folder, **flags))

    run("whole")
    with monkeypatch.context() as patch:
        patch.setattr("clozebert.finetuning.run.are_finite", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run("o")
    (tmp_path / "o").rename(tmp_path / "moved")
    run("moved", resume_from_checkpoint="latest")
    whole, moved = (load_file(tmp_path / folder / "model.safetensors") for folder in ("whole", "moved"))
    assert all(torch.equal(whole[name], moved[name]) for name in whole)


@pytest.mark.parametrize("length", [{"max_steps": 4}, {"num_train_epochs": 0.5}])
def test_a_warmup_beyond_the_end_is_refused(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, length: dict[str, Any]
) -> None:
    """60 examples in batches of 8 are 4 steps in half an epoch."""
    arguments = arguments_of("single", data["single"], models["bert"], tmp_path / "o", warmup_steps=5.0, **length)
    with pytest.raises(UserError, match="--warmup_steps 5: the run has 4 steps; give fewer, or a share"):
        finetune(arguments)


def test_a_folder_that_is_deleted_during_the_run_is_said_to_lack_the_best_model(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The best is that of the first epoch, and its checkpoint is deleted in the second."""
    evaluations = count()

    def selection(*_: object) -> float:
        if number := next(evaluations):
            shutil.rmtree(tmp_path / "o")
        return float(-number)

    monkeypatch.setattr("clozebert.finetuning.trainer.selection", selection)
    finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "o"))
    assert "checkpoint-8, is gone: the model is that of the last step\n" in capsys.readouterr().out
    assert read_settings(str(tmp_path / "o"))["text_column"] == "text"


def test_a_run_that_stopped_early_stays_stopped(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Resumed after a kill between the last checkpoint and the end."""
    flags = {"num_train_epochs": 5, "early_stopping_patience": 1, "learning_rate": 1e-30}  # no epoch is better
    arguments = {
        resume: arguments_of("single", data["single"], models["bert"], tmp_path / "o", **flags,
                             resume_from_checkpoint=resume)
        for resume in (None, "latest")
    }  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr("transformers.Trainer._load_best_model", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            finetune(arguments[None])
    assert "epoch 2 " in capsys.readouterr().out
    results = finetune(arguments["latest"])
    assert "epoch 3 " not in capsys.readouterr().out
    assert results["epoch"] == 2


@pytest.mark.parametrize(
    ("scores", "greater_is_better", "stops_after"),
    [
        ([0.5, 1.0, 1.0, 1.0, 1.0], True, 4),
        ([0.5, 0.4, 0.6, 0.5, 0.5], True, 5),
        ([3.0, 2.0, 2.5, 2.5], False, 4),
        ([0.0, 0.0, 0.0, 0.0, 0.6, 0.5], True, 9),  # a rare class is not found at first, but the loss falls
        ([2.0, 0.0, 0.0, 0.0], False, 4),
    ],
)
def test_patience_counts_evaluations_without_a_better_score(
    scores: list[float], greater_is_better: bool, stops_after: int
) -> None:
    """The loss falls all the time."""
    stopping, state = EarlyStopping(("score", greater_is_better), 2), TrainerState()
    for number, score in enumerate(scores, start=1):
        state.log_history += [{"loss": 1 / number}, {"eval_score": score, "eval_loss": 1 / number}]
        control = TrainerControl()
        stopping.on_evaluate(None, state, control)
        assert control.should_training_stop == (number >= stops_after)


@pytest.mark.parametrize(("is_weighted", "name"), [(False, "  training loss"), (True, "  weighted training loss")])
def test_a_line_shows_no_training_loss_of_earlier_steps(
    capsys: pytest.CaptureFixture[str], is_weighted: bool, name: str
) -> None:
    state = TrainerState(global_step=8, max_steps=11, log_history=[{"loss": 1.5, "step": 8}])
    shown = EvaluationLines("f1", is_weighted=is_weighted)
    for state.global_step in (8, 11):
        shown.on_evaluate(None, state, None, metrics={"eval_loss": 2.0, "eval_f1": 0.5})
    lines = capsys.readouterr().out.splitlines()
    assert [f"{name} 1.5000" in line for line in lines] == [True, False]


def test_a_run_without_mistakes_stops_early(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"num_train_epochs": 30, "early_stopping_patience": 5}
    results = finetune(arguments_of("token", data["token"], models["bert"], tmp_path / "o", **flags))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert results["eval_f1"] == 1
    assert results["epoch"] == len(lines) < 30
    # The first epoch without mistakes, which may be the first of all, and five more.
    assert [line.endswith("f1 1.0000") for line in lines] == [False] * (len(lines) - 6) + [True] * 6


def test_a_run_warns_if_it_always_gives_one_answer(
    models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    equal = [{"text": "the same line", "label": "bad" if n % 10 == 0 else "good"} for n in range(20)]
    file = write_json_lines(tmp_path / "a.jsonl", equal)
    finetune(arguments_of("single", (file, file), models["bert"], tmp_path / "o", max_steps=1))
    shown = capsys.readouterr().out
    assert shown.count("warning: on the validation data the model is no better") == 1
    assert "--class_weights balanced" in shown
