"""Hyper-parameter search."""

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from clozebert.finetuning.data import read_data
from clozebert.finetuning.models import load_auto_tokenizer, load_config
from clozebert.finetuning.resume import settings_of
from clozebert.finetuning.run import FinetuningRun, finetune
from clozebert.finetuning.search import _Objective
from clozebert.finetuning.trainer import FinetuningTrainer
from clozebert.utils.errors import UserError
from clozebert.utils.files import write_json

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import arguments_of


@pytest.mark.parametrize(
    ("kind", "model", "metric"), [("single", "clozebert", "accuracy"), ("regression", "bert", "mse")]
)
def test_a_search_tries_settings_and_trains_with_the_best(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, kind: str, model: str, metric: str
) -> None:
    pytest.importorskip("optuna")
    output = tmp_path / "o"
    arguments = arguments_of(kind, data[kind], models[model], output, hyperparameter_search=4, num_train_epochs=2.0)
    arguments.learning_rate = None
    results = finetune(arguments)
    search = json.loads((output / "hyperparameter_search.json").read_text())
    trials = search["trials"]
    assert len(trials) == 4
    # epochs were given, so they are not searched; the first trial is the one that no search would have made
    assert set(search["best"]) == {"learning_rate", "per_device_train_batch_size"}
    assert {name: trials[0][name] for name in search["best"]} == {
        name: search["defaults"][name] for name in search["best"]
    }
    assert len({trial["learning_rate"] for trial in trials}) == 4
    finished = [trial for trial in trials if trial["state"] == "complete"]
    best = max(finished, key=lambda trial: trial["value"])
    assert {name: best[name] for name in search["best"]} == search["best"]
    assert search["objective"] == ("accuracy" if metric == "accuracy" else "-mse")
    settings = json.loads((output / "finetuning_settings.json").read_text())
    assert settings["learning_rate"] == search["best"]["learning_rate"]
    assert settings["per_device_train_batch_size"] == search["best"]["per_device_train_batch_size"]
    # the same seed and settings as that trial, so its score
    score = results[f"eval_{metric}"] if metric == "accuracy" else -results[f"eval_{metric}"]
    assert score == pytest.approx(best["value"], abs=1e-4)
    assert not list(output.glob("run-*"))
    # continued, it does not search again
    again = arguments_of(
        kind, data[kind], models[model], output, hyperparameter_search=4, resume_from_checkpoint="latest"
    )
    again.learning_rate = None
    assert finetune(again)[f"eval_{metric}"] == results[f"eval_{metric}"]
    assert json.loads((output / "hyperparameter_search.json").read_text()) == search


@pytest.mark.parametrize("ended", [0, 2])
def test_a_search_that_was_killed_goes_on_after_the_trials_that_have_ended(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended: int,
) -> None:
    pytest.importorskip("optuna")
    flags: dict[str, Any] = {"hyperparameter_search": 4, "num_train_epochs": 1.0, "resume_from_checkpoint": "latest"}
    evaluations = 0  # one for each trial, and one for the run itself
    evaluate = FinetuningTrainer.evaluate

    def counted(trainer: FinetuningTrainer, *args: Any, **kwargs: Any) -> dict[str, float]:
        nonlocal evaluations
        evaluations += 1
        if evaluations == ended + 1:
            raise RuntimeError("killed")
        return evaluate(trainer, *args, **kwargs)

    def search() -> list[dict[str, Any]]:
        arguments = arguments_of("single", data["single"], models["bert"], tmp_path / "o", **flags)
        arguments.learning_rate = None
        finetune(arguments)
        return json.loads((tmp_path / "o" / "hyperparameter_search.json").read_text())["trials"]

    monkeypatch.setattr(FinetuningTrainer, "evaluate", counted)
    with pytest.raises(RuntimeError, match="killed"):
        search()
    before = json.loads((tmp_path / "o" / "hyperparameter_search.json").read_text())
    assert "best" not in before
    assert len(before["trials"]) == ended
    trials = search()
    assert trials[:ended] == before["trials"]
    assert len(trials) == 4
    assert len({trial["learning_rate"] for trial in trials}) == 4
    assert evaluations == 1 + 4 + 1  # that of the killed trial comes on top


def test_a_few_settings_are_tried_once_each(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one batch size there are three choices. Trials stop early, as a run does."""
    pytest.importorskip("optuna")
    flags = {"hyperparameter_search": 7, "num_train_epochs": 4.0, "learning_rate": 1e-12, "early_stopping_patience": 1}
    finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "o", **flags))
    assert "there are only 3 settings of per_device_train_batch_size to try" in capsys.readouterr().out
    search = json.loads((tmp_path / "o" / "hyperparameter_search.json").read_text())
    sizes = [trial["per_device_train_batch_size"] for trial in search["trials"]]
    assert len(set(sizes)) == len(sizes) == 3
    assert sizes[0] == search["defaults"]["per_device_train_batch_size"]
    # Nothing is learned at this rate: the second evaluation is no better than the first.
    assert [len(trial["evaluations"]) for trial in search["trials"] if trial["state"] == "complete"] == [2] * 3
    # As if it had been killed after the first trial.
    del search["best"]
    first, *_ = search["trials"]
    (tmp_path / "again").mkdir()
    write_json(tmp_path / "again" / "hyperparameter_search.json", {**search, "trials": [first]})
    flags["resume_from_checkpoint"] = "latest"
    finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "again", **flags))
    again = json.loads((tmp_path / "again" / "hyperparameter_search.json").read_text())["trials"]
    assert again[0] == first
    assert [trial["per_device_train_batch_size"] for trial in again] == sizes
    assert "trial 1: " in (said := capsys.readouterr().out)
    assert "trial 0: " not in said


def test_a_trial_is_judged_by_its_best_evaluation() -> None:
    objective = _Objective()
    assert [objective({"eval_selection": score}) for score in (0.5, 0.8, 0.7)] == [0.5, 0.8, 0.8]
    objective.begin()
    assert objective({"eval_selection": 0.6}) == 0.6
    assert all(math.isnan(objective({"eval_selection": score})) for score in (math.inf, 0.9))


def test_a_search_in_which_every_trial_diverges_can_be_begun_again_with_a_lower_rate(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses that are infinite give scores that are; optuna would take one for the score of a good trial."""
    pytest.importorskip("optuna")
    flags = {"hyperparameter_search": 2, "num_train_epochs": 1.0}
    arguments = arguments_of("single", data["single"], models["bert"], tmp_path / "o", **flags)
    arguments.learning_rate = None
    with monkeypatch.context() as patched:
        patched.setattr("clozebert.finetuning.trainer.selection", lambda *_: -float("inf"))
        with pytest.raises(UserError, match="training diverged in every trial; give a lower --learning_rate"):
            finetune(arguments)
    finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "o", **flags))
    trials = json.loads((tmp_path / "o" / "hyperparameter_search.json").read_text())["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * 2


def test_what_a_search_found_takes_no_place_of_flags_that_are_given_later(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """As if the run was killed after its search, before the first checkpoint."""
    flags: dict[str, Any] = {"hyperparameter_search": 1, "max_steps": 2, "per_device_train_batch_size": 8}
    flags["resume_from_checkpoint"] = "latest"
    best = {"learning_rate": 1e-3}

    def run(files: tuple[str, str], *, rate: float | None = None) -> Any:
        arguments = arguments_of("single", files, models["bert"], tmp_path / "o", **flags)
        arguments.learning_rate = rate
        return finetune(arguments)

    files = data["single"]
    arguments = arguments_of("single", files, models["bert"], tmp_path / "o", **flags)
    arguments.learning_rate = None
    labelled = read_data(arguments, None)
    tokenizer = load_auto_tokenizer(models["bert"], load_config(models["bert"]))
    searched = FinetuningRun(arguments, str(tmp_path / "o"), 42, labelled, tokenizer)
    (tmp_path / "o").mkdir()
    write_json(tmp_path / "o" / "hyperparameter_search.json", {"best": best, "settings": settings_of(searched)})
    with pytest.raises(UserError, match=r"had learning_rate=None, now it is 0\.5"):
        run(files, rate=0.5)
    with pytest.raises(UserError, match="had data="):
        run(files[::-1])
    run(files)
    assert json.loads((tmp_path / "o" / "finetuning_settings.json").read_text())["learning_rate"] == 1e-3


def test_a_search_without_optuna_or_without_anything_to_search_is_refused(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("seqeval")
    arguments = arguments_of(
        "single",
        data["single"],
        models["bert"],
        tmp_path / "o",
        hyperparameter_search=2,
        per_device_train_batch_size=4,
        max_steps=3,
    )
    monkeypatch.setattr("clozebert.finetuning.run.read_data", None)  # refused before the data are read
    with pytest.raises(ValueError, match="nothing to search"):
        finetune(arguments)
    arguments.learning_rate, arguments.overwrite_output_dir = None, True
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else found(name, *rest)
    )
    with pytest.raises(ImportError, match="pip install optuna"):
        finetune(arguments)
    arguments.hyperparameter_search, arguments.lora_rank = None, 2
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else found(name, *rest))
    with pytest.raises(ImportError, match="pip install peft"):
        finetune(arguments)
