"""A checkpoint is there whole, or not at all."""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_helpers import run_here
from safetensors.torch import save_file
from transformers import AutoTokenizer

from clozebert import ClozeBertConfig
from clozebert.training.checkpoints import folders
from clozebert.training.checkpoints.damage import find_damage
from clozebert.training.checkpoints.folders import clear_way, commit_checkpoint, list_checkpoints, newest_valid
from clozebert.training.checkpoints.training_state import TrainingState, read_training_state
from clozebert.training.reporting.run_facts import results_of


def commit(output_dir: Path, step: int, *, keep: int | None = None) -> Path:
    def write(directory: Path) -> None:
        ClozeBertConfig(pad_token_id=step).save_pretrained(directory)
        save_file({"x": torch.arange(3.0) - step}, directory / "model.safetensors")
        (directory / "README.md").write_text("card")

    state = TrainingState(step=step, losses=[0.1 + 0.2, 1e-45], tokens_seen=3**40)
    return commit_checkpoint(output_dir, state, {"exp_avg/x": torch.arange(3.0) + step}, write, keep=keep)


def names(output_dir: Path) -> list[str]:
    return sorted(path.name for path in output_dir.iterdir())


def test_special_tokens_of_an_older_tokenizer_go(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "special_tokens_map.json").write_text('{"mask_token": "w7"}')
    run_here(prepared, tmp_path / "run", max_steps=1, warmup_steps=0, overwrite_output_dir=True)
    assert AutoTokenizer.from_pretrained(tmp_path / "run").mask_token == "[MASK]"


@pytest.mark.parametrize(
    ("stated", "rows"),
    [(512, {}), (30, {}), (40, {}), (30, {"max_seq_length": 20, "phases": [{"max_steps": 1, "max_seq_length": 40}]})],
)
def test_the_saved_tokenizer_does_not_cut_the_rows_of_the_run(
    prepared: Path, tmp_path: Path, stated: int, rows: dict[str, Any]
) -> None:
    """The model takes 48 tokens, and the longest rows have 40."""
    tokenizer = AutoTokenizer.from_pretrained(prepared / "tokenizer")
    tokenizer.model_max_length = stated
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    run_here(
        prepared, tmp_path / "run", tokenizer_name=str(tmp_path / "tokenizer"), max_steps=1, warmup_steps=0, **rows
    )
    for folder in (tmp_path / "run", newest_valid(tmp_path / "run")):
        assert AutoTokenizer.from_pretrained(folder).model_max_length == (40 if stated == 40 else 48)


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    checkpoint = commit(tmp_path, 5)
    assert checkpoint.name == "checkpoint-5"
    state, tensors = read_training_state(checkpoint)
    assert (state.step, state.losses, state.tokens_seen) == (5, [0.1 + 0.2, 1e-45], 3**40)
    assert tensors["exp_avg/x"].tolist() == [5.0, 6.0, 7.0]
    assert names(tmp_path) == ["checkpoint-5", "latest"]
    assert (tmp_path / "latest").read_text() == "checkpoint-5\n"
    assert not [path for path in checkpoint.rglob("*") if path.suffix in (".bin", ".pt", ".pkl")]
    assert oct((checkpoint / "training_state" / "optimizer.safetensors").stat().st_mode & 0o044) == "0o44"


def test_the_oldest_go_and_steps_are_numbers(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        commit(tmp_path, step, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-10", "checkpoint-100"]
    assert newest_valid(tmp_path) == tmp_path / "checkpoint-100"


def test_nothing_is_deleted_before_the_new_one_is_there(tmp_path: Path) -> None:
    commit(tmp_path, 1)

    def fail(directory: Path) -> None:
        (directory / "config.json").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        commit_checkpoint(tmp_path, TrainingState(step=2), {}, fail, keep=1)
    assert newest_valid(tmp_path) == tmp_path / "checkpoint-1"
    assert (tmp_path / "latest").read_text() == "checkpoint-1\n"
    clear_way(tmp_path, step=1)
    assert names(tmp_path) == ["checkpoint-1", "latest"]


def damage_missing(checkpoint: Path) -> str:
    (checkpoint / "config.json").unlink()
    return "config.json is missing"


def damage_length(checkpoint: Path) -> str:
    path = checkpoint / "training_state" / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return "optimizer.safetensors has"


def damage_content(checkpoint: Path) -> str:
    path = checkpoint / "config.json"
    path.write_text(path.read_text().replace("{", "[", 1))
    return "the content of config.json has changed"


def damage_manifest(checkpoint: Path) -> str:
    (checkpoint / "training_state" / "manifest.json").write_text("{")
    return "manifest.json cannot be read"


@pytest.mark.parametrize("damage", [damage_missing, damage_length, damage_content, damage_manifest])
def test_damage_is_found_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage) -> None:
    commit(tmp_path, 3)
    newest = commit(tmp_path, 6)
    problem = damage(newest)
    assert problem in str(find_damage(newest))
    with caplog.at_level(logging.WARNING):
        assert newest_valid(tmp_path) == tmp_path / "checkpoint-3"
    assert problem in caplog.text
    assert "checkpoint-6" in caplog.text
    clear_way(tmp_path, step=3)
    assert "damaged-checkpoint-6" in names(tmp_path)
    # Set aside: pruning to one keeps the new one, not the damaged one with its higher step.
    commit(tmp_path, 4, keep=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-4"]


def test_an_edited_card_is_no_damage(tmp_path: Path) -> None:
    checkpoint = commit(tmp_path, 3)
    (checkpoint / "README.md").write_text("my own words")
    assert find_damage(checkpoint) is None


def test_no_checkpoint_is_a_beginning_but_only_broken_ones_are_an_error(tmp_path: Path) -> None:
    assert newest_valid(tmp_path) is None
    assert newest_valid(tmp_path / "absent") is None
    damage_content(commit(tmp_path, 3))
    with pytest.raises(ValueError, match=r"all checkpoints in .* are damaged"):
        newest_valid(tmp_path)


def test_later_checkpoints_of_another_future_are_refused(tmp_path: Path) -> None:
    for step in (3, 6):
        commit(tmp_path, step)
    with pytest.raises(ValueError, match="holds checkpoint-6, later than step 3"):
        clear_way(tmp_path, step=3)


def test_what_an_interrupted_program_left_is_deleted_and_what_a_link_names_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "else" / "where").mkdir(parents=True)
    run = tmp_path / "run"
    (run / ".incomplete-folder" / "sub").mkdir(parents=True)
    (run / ".incomplete-file").touch()
    (run / ".incomplete-link").symlink_to(tmp_path / "else")
    for step in (1, 2):
        commit(run, step)
    (run / "checkpoint-1").rename(tmp_path / "else" / "checkpoint-1")
    (run / "checkpoint-1").symlink_to(tmp_path / "else" / "checkpoint-1")
    clear_way(run, step=2)
    commit(run, 3, keep=1)
    assert names(run) == ["checkpoint-3", "latest"]
    assert names(tmp_path / "else") == ["checkpoint-1", "where"]
    assert find_damage(tmp_path / "else" / "checkpoint-1") is None
    assert not caplog.records


def test_what_cannot_be_deleted_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another user's."""
    (tmp_path / ".incomplete-folder").mkdir()
    monkeypatch.setattr(folders.shutil, "rmtree", lambda *places, **options: None)
    clear_way(tmp_path, step=0)
    assert f"{tmp_path / '.incomplete-folder'} cannot be deleted, and takes space" in caplog.text


def test_the_speed_of_a_run_is_a_share_of_the_machines_that_each_step_ran_on() -> None:
    """Ten seconds on one machine, and ten on another that is three times as fast; both used at a half."""
    state = TrainingState(step=0)
    for seconds, peak in ((4.0, 100.0), (6.0, 100.0), (10.0, 300.0)):
        state.count_seconds(seconds, peak_flops=peak)
        state.model_flops += seconds * peak / 2
    assert results_of(state, num_parameters=1)["model_flops_share"] == pytest.approx(0.5)
    # A state of before knows its seconds only.
    before = TrainingState(step=0, seconds=10.0, model_flops=500.0)
    before.count_seconds(2.0, peak_flops=100.0)
    assert (before.seconds, before.available_flops) == (12.0, 1200.0)


def test_a_state_without_the_newest_fields_is_read(tmp_path: Path) -> None:
    checkpoint = commit(tmp_path, 3)
    path = checkpoint / "training_state" / "state.json"
    content = json.loads(path.read_text())
    del content["available_flops"], content["earlier_arguments"], content["sha256"]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**content, "sha256": digest}))
    assert read_training_state(checkpoint)[0].earlier_arguments == {}


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    commit(tmp_path, 3)
    commit(tmp_path, 3)
    assert find_damage(tmp_path / "checkpoint-3") is None
    assert names(tmp_path) == ["checkpoint-3", "latest"]


def test_a_state_of_a_later_format_is_refused(tmp_path: Path) -> None:
    checkpoint = commit(tmp_path, 3)
    path = checkpoint / "training_state" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3}))
    with pytest.raises(ValueError, match="another format"):
        read_training_state(checkpoint)
