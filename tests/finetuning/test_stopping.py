"""A signal in fine-tuning: a checkpoint is saved, and the resumed run ends as one that was never stopped."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
import torch
from often import often
from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

from clozebert.finetuning import callbacks
from clozebert.finetuning.callbacks import TimelyCheckpoints
from clozebert.finetuning.resume import newest_checkpoint
from clozebert.finetuning.run import FinetuningRun, finetune
from clozebert.utils.stop_request import StopRequest

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import arguments_of, without_times, write_sentiment


class Signal(TrainerCallback):
    """Sends this process a signal once, after a step or within an evaluation."""

    def __init__(self, *, step: int, in_evaluation: bool = False, number: int = signal.SIGTERM) -> None:
        self.step, self.in_evaluation, self.number = step, in_evaluation, number
        self.is_sent = False

    def _send(self, step: int) -> None:
        if not self.is_sent and step >= self.step:
            self.is_sent = True
            signal.raise_signal(self.number)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.in_evaluation:
            self._send(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.in_evaluation:
            self._send(state.global_step)


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Callable[[Signal], None]:
    """Makes the trainers that follow send a signal."""
    make_trainer = FinetuningRun.make_trainer

    def register(callback: Signal) -> None:
        def make(*args: Any, **kwargs: Any) -> Any:
            trainer = make_trainer(*args, **kwargs)
            trainer.add_callback(callback)
            return trainer

        monkeypatch.setattr(FinetuningRun, "make_trainer", make)

    return register


def evaluations(shown: str) -> list[str]:
    """The lines of evaluations, without the training loss, which Trainer counts anew in each sitting."""
    lines = [re.sub(r"  training loss \S+", "", line) for line in shown.splitlines() if line.startswith("epoch ")]
    assert len(lines) > 1
    return lines


EPOCHS = {"num_train_epochs": 4.0}
# An epoch has six steps (`single`) or four (`token`); evaluations with `eval_steps` come every third step. The first
# three are run often.
CASES = {
    "within an epoch": ("single", "bert", EPOCHS, {"step": 8}, 8),
    "at the end of an epoch": ("single", "clozebert", EPOCHS, {"step": 12}, 12),
    "in an evaluation": ("single", "clozebert", EPOCHS, {"step": 6, "in_evaluation": True}, 7),
    "before the first evaluation": ("token", "clozebert", EPOCHS, {"step": 2}, 2),
    "at the end of an epoch, between evaluations": ("token", "clozebert", {"eval_steps": 3, **EPOCHS}, {"step": 8}, 8),
    "in the last evaluation": ("single", "bert", EPOCHS, {"step": 24, "in_evaluation": True}, 24),
    "where an evaluation is due": ("single", "bert", {"eval_steps": 3, **EPOCHS}, {"step": 9}, 9),
    "in the last step": ("token", "clozebert", EPOCHS, {"step": 16}, 16),
    "by Ctrl-C": ("single", "clozebert", EPOCHS, {"step": 3, "number": signal.SIGINT}, 3),
}


@pytest.mark.parametrize("case", often(CASES, 1))
def test_a_stopped_run_saves_and_ends_as_one_that_was_not_stopped(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    send: Callable[[Signal], None],
    capsys: pytest.CaptureFixture[str],
    case: str,
) -> None:
    kind, model, flags, when, step = CASES[case]

    def train(folder: str, **more: Any) -> dict[str, Any]:
        more["dropout"] = 0.2  # so that the random numbers must be taken up where they stopped
        return finetune(
            arguments_of(
                kind, data[kind], models[model], tmp_path / folder, per_device_train_batch_size=10, **flags, **more
            )
        )

    whole = train("whole")
    shown = capsys.readouterr().out
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    sent = Signal(**when)
    send(sent)
    assert train("stopped") == {"stopped_by": sent.number, "step": step}
    assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    first = capsys.readouterr().out
    assert f"stopped at step {step}; --resume_from_checkpoint latest goes on from there" in first
    checkpoint = newest_checkpoint(str(tmp_path / "stopped"))
    assert checkpoint is not None
    assert Path(checkpoint).name == f"checkpoint-{step}"
    assert not (tmp_path / "stopped" / "all_results.json").exists()
    resumed = train("stopped", resume_from_checkpoint="latest")
    whole.pop("train_loss")  # Trainer's own mean, over the steps of one sitting
    assert without_times(resumed) == without_times(whole)
    assert evaluations(first + capsys.readouterr().out) == evaluations(shown)


class Crash(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 10:
            raise RuntimeError("crash")


@pytest.mark.parametrize(("seconds", "steps"), [(-1.0, [6, 9]), (600.0, [6])])
def test_a_run_that_crashes_within_a_long_epoch_has_a_checkpoint_of_ten_minutes_ago(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    steps: list[int],
) -> None:
    """Here the ten minutes are over after every step, or never within an epoch of six steps."""
    monkeypatch.setattr(callbacks, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    make_trainer = FinetuningRun.make_trainer

    def train(folder: str, **more: Any) -> dict[str, Any]:
        flags = {"per_device_train_batch_size": 10, "dropout": 0.2, **EPOCHS, **more}
        return finetune(arguments_of("single", data["single"], models["clozebert"], tmp_path / folder, **flags))

    def make(*args: Any, **kwargs: Any) -> Any:
        trainer = make_trainer(*args, **kwargs)
        trainer.add_callback(Crash())
        return trainer

    with monkeypatch.context() as patched:
        patched.setattr(FinetuningRun, "make_trainer", make)
        with pytest.raises(RuntimeError, match="crash"):
            train("crashed")
    assert sorted(int(path.name.split("-")[1]) for path in (tmp_path / "crashed").glob("checkpoint-*")) == steps
    resumed, whole = train("crashed", resume_from_checkpoint="latest"), train("whole")
    whole.pop("train_loss")
    assert without_times(resumed) == without_times(whole)


@pytest.mark.parametrize(
    ("strategy", "epoch", "saves"), [("epoch", 2.0, False), ("steps", 2.0, True), ("epoch", 2.5, True)]
)
def test_a_checkpoint_that_is_due_at_the_end_of_an_epoch_is_left_to_trainer_where_it_saves_there(
    strategy: str, epoch: float, saves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator: Any = SimpleNamespace(device=torch.device("cpu"), num_processes=1)
    checkpoints = TimelyCheckpoints(StopRequest(), accelerator)
    monkeypatch.setattr(callbacks, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    control = SimpleNamespace(should_save=False)
    args = SimpleNamespace(gradient_accumulation_steps=1, save_strategy=SaveStrategy(strategy))
    checkpoints.on_step_end(args, SimpleNamespace(global_step=10, epoch=epoch), control)
    assert control.should_save == saves


@pytest.mark.slow
def test_a_stopped_run_of_several_seeds_goes_on_with_the_seed_it_was_at(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    send: Callable[[Signal], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def train(folder: str, **more: Any) -> dict[str, Any]:
        return finetune(
            arguments_of("single", data["single"], models["bert"], tmp_path / folder, seeds=[1, 2], **EPOCHS, **more)
        )

    whole = train("whole")
    send(Signal(step=5))
    assert train("stopped")["stopped_by"] == signal.SIGTERM
    assert [path.name for path in tmp_path.joinpath("stopped").glob("seed-*")] == ["seed-1"]
    resumed = train("stopped", resume_from_checkpoint="latest")
    assert without_times(resumed)["eval_loss"] == without_times(whole)["eval_loss"]
    assert resumed["eval_loss_sd"] == whole["eval_loss_sd"] != 0


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_the_program_ends_with_the_status_of_the_signal(
    models: dict[str, str], tmp_path: Path, number: int, status: int
) -> None:
    program, out, errors = start(models["bert"], tmp_path)
    program.send_signal(number)
    assert program.wait(timeout=60) == status, errors.read_text()
    assert "stopped at step" in out.read_text()
    assert "stopping: a checkpoint is saved first" in errors.read_text()
    assert "Traceback" not in errors.read_text()
    assert newest_checkpoint(str(tmp_path / "o")) is not None


@pytest.mark.slow
def test_two_processes_stop_at_the_same_step_if_one_of_them_is_asked(models: dict[str, str], tmp_path: Path) -> None:
    program, out, errors = start(
        models["bert"], tmp_path, by=("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    )
    listed = subprocess.run(["pgrep", "-P", str(program.pid)], capture_output=True, text=True, check=True).stdout
    os.kill(int(listed.split()[-1]), signal.SIGTERM)
    program.wait(timeout=60)
    checkpoint = newest_checkpoint(str(tmp_path / "o"))
    assert checkpoint is not None
    step = int(checkpoint.rpartition("-")[2])
    assert out.read_text().count(f"stopped at step {step};") == 1, errors.read_text()
    assert "exitcode  : 143" in errors.read_text()


# A run of two processes; the first one gets a signal in the given step.
IN_TWO_PROCESSES = """
import os, sys
tests, train, validation, model, output_dir, step = sys.argv[1:]
sys.path[:0] = [tests, tests + "/finetuning"]
from finetuning_helpers import arguments_of
from test_stopping import Signal
from clozebert.finetuning.run import FinetuningRun, finetune
make_trainer = FinetuningRun.make_trainer
def make(*args, **kwargs):
    trainer = make_trainer(*args, **kwargs)
    if step != "0" and os.environ["RANK"] == "0":
        trainer.add_callback(Signal(step=int(step)))
    return trainer
FinetuningRun.make_trainer = make
flags = {"num_train_epochs": 3.0, "per_device_train_batch_size": 8, "resume_from_checkpoint": "latest"}
finetune(arguments_of("single", (train, validation), model, output_dir, **flags))
"""


@pytest.mark.slow
@pytest.mark.skipif(accelerate.__version__.startswith("1.10."), reason="calls a CPU cpu:0, which torch cannot load to")
@pytest.mark.parametrize("kind", ["bert", "clozebert"])
def test_a_resumed_epoch_of_two_processes_has_its_own_order(models: dict[str, str], tmp_path: Path, kind: str) -> None:
    """Padded batches of like lengths and packed ones, stopped within the second epoch. Measured: the same bits."""
    program = tmp_path / "program.py"
    program.write_text(IN_TWO_PROCESSES)
    files = (write_sentiment(tmp_path / "a.csv", rows=100), write_sentiment(tmp_path / "b.csv", rows=20, seed=1))

    def train(folder: str, *, stop_in: int = 0) -> bytes | None:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
        rest = [str(Path(__file__).parents[1]), *files, models[kind], str(tmp_path / folder), str(stop_in)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
        command = [sys.executable, *launcher, str(program), *rest]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        weights = tmp_path / folder / "model.safetensors"
        assert weights.exists() == (stop_in == 0), done.stdout + done.stderr
        return weights.read_bytes() if weights.exists() else None

    whole = train("whole")
    train("stopped", stop_in=9)
    checkpoint = newest_checkpoint(str(tmp_path / "stopped"))
    assert checkpoint is not None
    assert Path(checkpoint).name == "checkpoint-9"
    assert train("stopped") == whole


def start(model: str, folder: Path, *, by: tuple[str, ...] = ()) -> tuple[subprocess.Popen[bytes], Path, Path]:
    """A long run that has had its first evaluation, and the files that hold what it prints."""
    out, errors = folder / "out.txt", folder / "errors.txt"
    flags = ["--train_file", write_sentiment(folder / "a.csv", rows=200), "--num_train_epochs", "10000"]
    flags += ["--validation_file", write_sentiment(folder / "b.csv", rows=20, seed=1), "--model_name_or_path", model]
    command = [sys.executable, *by, "-m", "clozebert.scripts.finetune_sequence_classification", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    with out.open("w") as shown, errors.open("w") as errors_shown:
        program = subprocess.Popen(
            [*command, "--output_dir", str(folder / "o")], stdout=shown, stderr=errors_shown, env=environment
        )
    try:
        for _ in range(1200):
            if "epoch 1 " in out.read_text():
                return program, out, errors
            assert program.poll() is None, errors.read_text()
            time.sleep(0.1)
        raise AssertionError(errors.read_text())
    except BaseException:
        program.kill()
        raise


@pytest.mark.parametrize(("device", "processes", "asked"), [("cuda", 2, [5, 10]), ("cpu", 2, [*range(1, 11)])])
def test_several_gpus_are_asked_seldom(
    device: str, processes: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To agree they wait for their devices. Here a step has two batches."""
    steps: list[int] = []
    accelerator: Any = SimpleNamespace(device=torch.device(device), num_processes=processes)
    stopping = TimelyCheckpoints(StopRequest(), accelerator)
    monkeypatch.setattr(stopping, "_ask", lambda: (bool(steps.append(step)), False))
    for step in range(1, 11):
        stopping.on_step_end(SimpleNamespace(gradient_accumulation_steps=2), SimpleNamespace(global_step=step), None)
    assert steps == asked
