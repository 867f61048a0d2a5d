"""What a fine-tuned model's card says: where training began, on what data, and how well it went."""

from pathlib import Path
from typing import Any

import pytest

from clozebert.finetuning.arguments import TokenArguments, comparable
from clozebert.finetuning.card import card_facts, hub_names
from clozebert.finetuning.reports import table_of_results

SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3, "num_train_epochs": 2.0, "per_device_train_batch_size": 8, "max_seq_length": 64,
    "arguments": {"seed": 5},
}  # fmt: skip


def facts_of(flags: dict[str, str], results: dict[str, Any]) -> dict[str, Any]:
    arguments = TokenArguments(**flags)
    return card_facts(arguments, hub_names(arguments), results, SETTINGS)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for name in ("train.conll", "dev.conll"):
        (tmp_path / name).write_text("a B-x\n\n")
    (tmp_path / "encoder").mkdir()
    return {
        "model_name_or_path": str(tmp_path / "encoder"),
        "train_file": str(tmp_path / "train.conll"),
        "validation_file": str(tmp_path / "dev.conll"),
        "output_dir": str(tmp_path / "out"),
    }


def test_the_kind_of_compressed_data_is_that_of_their_content(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "dev.conll.gz").write_bytes(b"")
    facts = facts_of({**files, "validation_file": str(tmp_path / "dev.conll.gz")}, {"train_samples": 3, "eval_f1": 0.5})
    assert facts["eval_results"][0]["dataset_type"] == "conll"


def test_base_model_and_data_are_named_without_their_folders(files: dict[str, str], tmp_path: Path) -> None:
    results = {"train_samples": 1300, "eval_samples": 55, "eval_f1": 0.5}
    facts = facts_of(files, results)
    assert facts["started_from"] == "encoder"
    assert "base_model" not in facts
    assert facts["corpus"] == {"train": "train.conll, 1,300 examples", "eval": "dev.conll, 55 examples"}
    assert str(tmp_path) not in str(facts)


def test_folders_that_are_gone_at_the_end_are_not_taken_for_names_on_the_hub(
    files: dict[str, str], tmp_path: Path
) -> None:
    del files["train_file"], files["validation_file"]
    (tmp_path / "data").mkdir()
    arguments = TokenArguments(**files, dataset_name=str(tmp_path / "data"))
    on_hub = hub_names(arguments)
    for name in ("encoder", "data"):
        (tmp_path / name).rmdir()
    facts = card_facts(arguments, on_hub, {"train_samples": 9, "eval_samples": 1, "eval_f1": 0.5}, SETTINGS)
    assert (facts["started_from"], facts["corpus"]["train"]) == ("encoder", "data, 9 examples")
    assert str(tmp_path) not in str(facts)


def test_names_of_the_hub_are_metadata_too(files: dict[str, str]) -> None:
    del files["train_file"], files["validation_file"]
    given = {**files, "model_name_or_path": "org/encoder", "dataset_name": "org/data"}
    facts = facts_of(given, {"train_samples": 10, "eval_samples": 2, "test_samples": 3})
    assert (facts["started_from"], facts["base_model"], facts["datasets"]) == (
        "org/encoder", "org/encoder", ["org/data"],
    )  # fmt: skip
    assert facts["corpus"]["test"] == "org/data, 3 examples"


def test_held_out_validation_says_of_what(files: dict[str, str]) -> None:
    del files["validation_file"]
    given, results = TokenArguments(**files), {"train_samples": 9, "eval_samples": 1, "eval_f1": 0.5}
    facts = card_facts(given, hub_names(given), results, {**SETTINGS, "eval_split": "held out from train"})
    assert facts["corpus"]["eval"] == "held out from train.conll, 1 examples"
    assert facts["eval_results"][0]["dataset_split"] == "held out from train"


@pytest.mark.parametrize("epoch", [1.5, 31.25])
def test_a_run_of_other_length_than_its_epochs_says_so(files: dict[str, str], epoch: float) -> None:
    counts = {"train_samples": 9, "eval_samples": 1}
    assert facts_of(files, {**counts, "epoch": epoch})["hyperparameters"]["epochs_trained"] == epoch
    assert "epochs_trained" not in facts_of(files, {**counts, "epoch": 2.0})["hyperparameters"]


def test_flags_that_are_not_the_default_are_named(files: dict[str, str]) -> None:
    flags: dict[str, Any] = {"class_weights": "balanced", "lora_rank": 8, "tag_column": "2", "warmup_steps": 0.1}
    given = TokenArguments(**files, **flags)
    settings = {**SETTINGS, "arguments": comparable(given)}
    found = card_facts(given, hub_names(given), {"train_samples": 3, "eval_f1": 0.5}, settings)["hyperparameters"]
    assert found == {name: SETTINGS[name] for name in list(SETTINGS)[:4]} | {
        "class_weights": "balanced", "lora_rank": 8, "seed": given.seed,
    }  # fmt: skip


def test_small_errors_are_not_shown_as_none(files: dict[str, str]) -> None:
    results = {"train_samples": 9, "eval_samples": 1, "eval_mse": 2.1995407e-08, "eval_pearson": 0.7681234567}
    values = {one["metric_type"]: one["metric_value"] for one in facts_of(files, results)["eval_results"]}
    assert values == {"mse": 2.19954e-08, "pearsonr": 0.768123}
    assert table_of_results(results, splits=["eval"]).splitlines()[2].split() == ["mse", "2.2e-08"]
