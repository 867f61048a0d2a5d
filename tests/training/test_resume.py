"""A run that was killed, stopped or damaged, and resumed, ends with the bits of one that was not."""

import shutil
from pathlib import Path

import pytest
from pretraining_helpers import assert_same_bits, log_of, run_program

from clozebert.training.checkpoints import find_damage, read_training_state

STEPS = 40
RUN = {"max_steps": STEPS, "save_steps": 17, "eval_steps": 20, "logging_steps": 3, "save_total_limit": 3}


def dying_at(step: int, *, how: str) -> str:
    """Code that sends this process a signal in the forward pass of the second micro-batch of `step`."""
    return (
        "import os, signal\n"
        "from clozebert import ClozeBertForMaskedLM as Model\n"
        "forward, calls = Model.forward, [0]\n"
        "def dying(self, *args, **kwargs):\n"
        "    calls[0] += self.training\n"
        f"    if self.training and calls[0] == {2 * step}: os.kill(os.getpid(), signal.{how})\n"
        "    return forward(self, *args, **kwargs)\n"
        "Model.forward = dying\n"
    )


@pytest.fixture(scope="module")
def undisturbed(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    run_program(prepared, output_dir, **RUN)
    return output_dir


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_goes_on_bitwise(prepared: Path, undisturbed: Path, tmp_path: Path, workers: int) -> None:
    run = {**RUN, "dataloader_num_workers": workers, "resume_from_checkpoint": "latest"}
    killed = run_program(prepared, tmp_path / "run", prelude=dying_at(23, how="SIGKILL"), check=False, **run)
    assert killed.returncode == -9, killed.stdout + killed.stderr
    assert log_of(tmp_path / "run")[-1]["step"] == 21
    assert (tmp_path / "run" / "latest").read_text() == "checkpoint-17\n"
    assert not (tmp_path / "run" / "model.safetensors").exists()

    resumed = run_program(prepared, tmp_path / "run", **run)
    assert "resumed at step 17" in resumed.stdout
    assert_same_bits(undisturbed, tmp_path / "run", step=STEPS)


def test_sigterm_saves_the_step_that_it_came_in(prepared: Path, undisturbed: Path, tmp_path: Path) -> None:
    run = {**RUN, "resume_from_checkpoint": "latest"}
    stopped = run_program(prepared, tmp_path / "run", prelude=dying_at(10, how="SIGTERM"), check=False, **run)
    assert stopped.returncode == 128 + 15, stopped.stdout + stopped.stderr
    assert "stopped at step 10" in stopped.stdout
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-10"]
    state, _ = read_training_state(tmp_path / "run" / "checkpoint-10")
    assert state.step == 10
    assert find_damage(tmp_path / "run" / "checkpoint-10") is None
    # Step 10 lies between two log entries: the next one needs its loss.
    assert len(state.losses) == 1
    assert log_of(tmp_path / "run") == log_of(undisturbed)[:3]


def test_a_damaged_newest_checkpoint_is_skipped(prepared: Path, undisturbed: Path, tmp_path: Path) -> None:
    output_dir = tmp_path / "run"
    shutil.copytree(undisturbed, output_dir)
    weights = output_dir / "checkpoint-40" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    (output_dir / "model.safetensors").unlink()

    resumed = run_program(prepared, output_dir, resume_from_checkpoint="latest", **RUN)
    assert "skipping" in resumed.stderr
    assert "the content of model.safetensors has changed" in resumed.stderr
    assert "resumed at step 34" in resumed.stdout
    assert (output_dir / "damaged-checkpoint-40").is_dir()
    assert_same_bits(undisturbed, output_dir, step=STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_every_optimizer_and_precision_goes_on_bitwise(
    prepared: Path, tmp_path: Path, optimizer: str, precision: str
) -> None:
    run = {**RUN, "optimizer": optimizer, "mixed_precision": precision, "hidden_dropout_prob": 0.1}
    run_program(prepared, tmp_path / "whole", **run)
    run["resume_from_checkpoint"] = "latest"
    for fatal_step in (18, 36):
        killed = run_program(
            prepared, tmp_path / "run", prelude=dying_at(fatal_step - 17 * (fatal_step > 18), how="SIGKILL"),
            check=False, **run,
        )  # fmt: skip
        assert killed.returncode == -9
    run_program(prepared, tmp_path / "run", **run)
    assert_same_bits(tmp_path / "whole", tmp_path / "run", step=STEPS)
