"""Whole runs on transformers' Trainer: the gradient under accumulation, resuming, long documents, what is saved."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from clozebert.finetuning import data as finetuning_data
from clozebert.finetuning.arguments import (
    FinetuningArguments,
    SequenceArguments,
    TokenArguments,
    default_batch_size,
    default_epochs,
    default_learning_rate,
)
from clozebert.finetuning.resume import newest_checkpoint
from clozebert.finetuning.run import FinetuningRun, finetune
from clozebert.finetuning.sequence_task import SequenceExample
from clozebert.finetuning.trainer import LikeLengths

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import make_checkpoint, write_entities, write_json_lines, write_sentiment


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    kinds = {"bert": "wordpiece", "roberta": "bpe", "clozebert": "wordpiece"}
    return {name: make_checkpoint(folder / name, model_type=name, tokenizer_kind=kind) for name, kind in kinds.items()}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """(training file, validation file) for each kind of task."""
    folder = tmp_path_factory.mktemp("data")
    films = [
        "great film",
        "boring acting and a sad end",
        "a happy end",
        "a terrible film and so on",
        "the dog runs",
    ] * 8
    multi = [{"text": t, "label": [w for w in ("film", "end", "dog") if w in t]} for t in films]
    numbers = [{"sentence1": t, "sentence2": "film", "score": 100.5 + 30 * len(t.split())} for t in films]
    return {
        "single": (write_sentiment(folder / "a.csv", rows=60), write_sentiment(folder / "b.csv", rows=20, seed=1)),
        "multi": (write_json_lines(folder / "m.jsonl", multi), write_json_lines(folder / "n.jsonl", multi[:10])),
        "regression": (
            write_json_lines(folder / "r.jsonl", numbers),
            write_json_lines(folder / "s.jsonl", numbers[:9]),
        ),
        "token": (write_entities(folder / "t.conll", rows=40), write_entities(folder / "u.conll", rows=10, seed=1)),
    }


def arguments_of(kind: str, files: tuple[str, str], model: str, output: Path, **flags: Any) -> Any:
    arguments_class = TokenArguments if kind == "token" else SequenceArguments
    values = {"num_train_epochs": 2.0, "learning_rate": 4e-3, "mixed_precision": "no", "dropout": 0.0, **flags}
    return arguments_class(
        model_name_or_path=model,
        train_file=files[0],
        validation_file=files[1],
        output_dir=str(output),
        **values,
    )


def scores(results: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if not key.endswith("runtime")}


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
@pytest.mark.parametrize("model", ["bert", "clozebert"])
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


# Batches of like length


def test_padded_batches_are_of_like_length_and_a_function_of_seed_and_epoch() -> None:
    lengths = [(7 * i) % 101 + 1 for i in range(530)]

    def order(seed: int, epoch: int) -> list[int]:
        sampler = LikeLengths(lengths, batch_size=8, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

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
    [
        ("single", "bert", {"num_train_epochs": 4.0}),
        ("token", "clozebert", {"num_train_epochs": 4.0}),
        ("single", "clozebert", {"eval_steps": 3}),
    ],
)
def test_an_interrupted_run_ends_with_the_same_scores(
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
    whole.pop("train_loss"), resumed.pop("train_loss")  # Trainer's own mean, over the steps of one sitting
    assert scores(resumed) == scores(whole)
    # and once more, with nothing left to do
    again = finetune(arguments("broken", resume_from_checkpoint="latest"))
    again.pop("train_loss")
    assert {k: v for k, v in scores(again).items() if k[:4] == "eval"} == {
        k: v for k, v in scores(whole).items() if k[:4] == "eval"
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


def test_a_checkpoint_cut_short_is_passed_over(tmp_path: Path) -> None:
    for step, state in ((5, '{"global_step": 5}'), (10, '{"global_step": 10}'), (15, '{"glob'), (20, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-10")


# Hyper-parameter search


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
    # the same seed and settings as that trial, so its score; the run keeps its best evaluation, a trial its last
    score = results[f"eval_{metric}"] if metric == "accuracy" else -results[f"eval_{metric}"]
    assert score >= best["value"] - 1e-4
    assert not list(output.glob("run-*"))
    # continued, it does not search again
    again = arguments_of(
        kind, data[kind], models[model], output, hyperparameter_search=4, resume_from_checkpoint="latest"
    )
    again.learning_rate = None
    assert finetune(again)[f"eval_{metric}"] == results[f"eval_{metric}"]
    assert json.loads((output / "hyperparameter_search.json").read_text()) == search


def test_a_search_without_optuna_or_without_anything_to_search_is_refused(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = arguments_of(
        "single",
        data["single"],
        models["bert"],
        tmp_path / "o",
        hyperparameter_search=2,
        per_device_train_batch_size=4,
        max_steps=3,
    )
    with pytest.raises(ValueError, match="nothing to search"):
        finetune(arguments)
    arguments.learning_rate, arguments.overwrite_output_dir = None, True
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else found(name, *rest)
    )
    with pytest.raises(ImportError, match=r"pip install 'clozebert\[search\]'"):
        finetune(arguments)


# What a run leaves


def test_results_files_and_pipelines_of_a_classifier(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    from transformers import pipeline

    output = tmp_path / "o"
    results = finetune(
        arguments_of(
            "single", data["single"], models["bert"], output, num_train_epochs=20.0, test_file=data["single"][1]
        )
    )
    assert json.loads((output / "all_results.json").read_text()) == results
    assert json.loads((output / "test_results.json").read_text())["test_accuracy"] == results["test_accuracy"]
    assert results["eval_accuracy"] == results["test_accuracy"] == 1.0
    assert results["eval_majority_accuracy"] < 0.8
    for name in ("eval_predictions.jsonl", "eval_mistakes.txt", "eval_report.json", "finetuning_settings.json"):
        assert (output / name).stat().st_size > 0
    predictions = [json.loads(line) for line in (output / "eval_predictions.jsonl").read_text().splitlines()]
    assert all(p["label"] == p["gold"] for p in predictions)
    classify = pipeline("text-classification", str(output))
    assert [answer["label"] for answer in classify(["a great film", "boring acting"])] == ["pos", "neg"]
    # the pipeline and our own predictions are of one mind, to the last digits
    answers = classify([p["text"] for p in predictions])
    assert [a["label"] for a in answers] == [p["label"] for p in predictions]
    torch.testing.assert_close([a["score"] for a in answers], [p["score"] for p in predictions], rtol=1e-4, atol=1e-4)


def test_pictures(models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    finetune(arguments_of("token", data["token"], models["clozebert"], tmp_path / "o", max_steps=1))
    for name in ("eval_confusion.png", "eval_f1_by_class.png"):
        assert (tmp_path / "o" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("model", ["bert", "roberta", "clozebert"])
def test_entities_in_the_pipeline(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, model: str
) -> None:
    from transformers import pipeline

    import clozebert  # noqa: F401

    output = tmp_path / "o"
    results = finetune(arguments_of("token", data["token"], models[model], output, num_train_epochs=12.0))
    assert results["eval_f1"] == results["eval_accuracy"] == 1.0
    assert json.loads((output / "eval_report.json").read_text())["PER"]["f1-score"] == 1.0
    find = pipeline("token-classification", str(output), aggregation_strategy="simple")
    found = [(e["entity_group"], e["start"], e["end"]) for e in find("Ada Lovelace runs to Paris today")]
    expected = [("PER", 0, 12), ("LOC", 21, 26)]
    if model == "roberta":  # byte-level offsets of the first sub-word begin at the space in some versions
        found = [(label, start + (start > 0 and start == 20), end) for label, start, end in found]
    assert found == expected


def test_regression_gives_values_in_their_own_unit(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """Scores of 130 to 280, from pairs: without standardising, a few steps at this rate could not get there."""
    results = finetune(
        arguments_of("regression", data["regression"], models["bert"], tmp_path / "o", num_train_epochs=15.0)
    )
    assert results["eval_pearson"] > 0.95
    assert results["eval_mse"] < 0.2 * results["eval_majority_mse"]
    settings = json.loads((tmp_path / "o" / "finetuning_settings.json").read_text())
    assert (settings["text_column"], settings["text_pair_column"]) == ("sentence1", "sentence2")


def test_multi_label(models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    arguments = arguments_of("multi", data["multi"], models["clozebert"], tmp_path / "o", num_train_epochs=20.0)
    arguments.learning_rate = 1e-2
    results = finetune(arguments)
    assert results["eval_f1_micro"] == results["eval_f1_macro"] == results["eval_accuracy"] == 1.0
    config = json.loads((tmp_path / "o" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert config["id2label"] == {"0": "dog", "1": "end", "2": "film"}


@pytest.mark.parametrize("model", ["bert", "clozebert"])
def test_long_documents_are_windowed_in_both_tasks(models: dict[str, str], tmp_path: Path, model: str) -> None:
    """The words that decide stand behind what the model reads at once (64 tokens), so cutting would lose it."""
    filler = ["the", "dog", "and", "card"] * 20
    records = [
        {"text": " ".join([*filler[i % 7 :], *["great" if i % 2 else "boring"] * 30]), "label": str(i % 2)}
        for i in range(24)
    ]
    path = write_json_lines(tmp_path / "long.jsonl", records)
    results = finetune(
        SequenceArguments(
            model_name_or_path=models[model],
            train_file=path,
            validation_file=path,
            output_dir=str(tmp_path / "s"),
            num_train_epochs=12.0,
            learning_rate=3e-3,
        )
    )
    assert results["train_windows"] >= 2 * results["train_samples"]
    assert results["eval_accuracy"] == 1.0
    tagged = [
        {"words": words, "tags": ["B-X" if word == "great" else "O" for word in words]}
        for words in (record["text"].split() for record in records)
    ]
    path = write_json_lines(tmp_path / "tagged.jsonl", tagged)
    results = finetune(
        TokenArguments(
            model_name_or_path=models[model],
            train_file=path,
            validation_file=path,
            output_dir=str(tmp_path / "t"),
            num_train_epochs=6.0,
            learning_rate=3e-3,
        )
    )
    assert results["eval_f1"] == 1.0
    lines = (tmp_path / "t" / "eval_predictions.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["tags"]) for line in lines] == [len(record["words"]) for record in tagged]


def test_seeds_give_mean_and_deviation(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    results = finetune(
        arguments_of("single", data["single"], models["bert"], tmp_path / "o", seeds=[1, 2], max_steps=4)
    )
    each = [json.loads((tmp_path / "o" / f"seed-{s}" / "all_results.json").read_text())["eval_loss"] for s in (1, 2)]
    assert each[0] != each[1]
    assert results["eval_loss"] == pytest.approx(sum(each) / 2)
    assert results["eval_loss_sd"] == pytest.approx(abs(each[0] - each[1]) / 2**0.5)


def test_class_weights_layer_decay_freezing_and_early_stopping_run(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    results = finetune(
        arguments_of(
            "single",
            data["single"],
            models["bert"],
            tmp_path / "o",
            class_weights="balanced",
            layer_decay=0.8,
            freeze_layers=1,
            early_stopping_patience=1,
            metric_for_best_model="f1_macro",
            num_train_epochs=50.0,
            learning_rate=1e-9,  # nothing gets better, so it must stop
        )
    )
    assert results["epoch"] < 10
    before, after = load_file(Path(models["bert"]) / "model.safetensors"), load_file(tmp_path / "o/model.safetensors")
    assert torch.equal(
        before["bert.encoder.layer.0.output.dense.weight"], after["bert.encoder.layer.0.output.dense.weight"]
    )


def test_lora_saves_an_ordinary_model(models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from transformers import pipeline

    output = tmp_path / "o"
    results = finetune(
        arguments_of(
            "single", data["single"], models["bert"], output, lora_rank=4, num_train_epochs=20.0, learning_rate=2e-2
        )
    )
    assert results["eval_accuracy"] > 0.8 > results["eval_majority_accuracy"]
    assert not (output / "adapter_config.json").exists()
    assert pipeline("text-classification", str(output))("a great film")[0]["label"] == "pos"


def test_validation_is_held_out_where_there_is_none(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    arguments = SequenceArguments(
        model_name_or_path=models["bert"], train_file=data["single"][0], output_dir=str(tmp_path / "o"), max_steps=1
    )
    results = finetune(arguments)
    assert (results["train_samples"], results["eval_samples"]) == (54, 6)


def test_the_only_example_of_a_label_is_never_held_out() -> None:
    examples = [SequenceExample("t", None, label, "f") for label in ["a"] * 8 + ["b", "c"] + ["d"] * 20]
    for seed in range(20):
        splits = {"train": list(examples)}
        finetuning_data._hold_out_validation(splits, seed)
        assert len(splits["validation"]) == 3
        assert {e.label for e in splits["train"]} == {"a", "b", "c", "d"}
        assert len(splits["train"]) + len(splits["validation"]) == len(examples)
    with pytest.raises(ValueError, match="give --validation_file"):
        finetuning_data._hold_out_validation({"train": examples[7:10]}, 0)


def test_a_dataset_of_the_hub_by_its_folder(models: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "dataset"
    folder.mkdir()
    write_sentiment(folder / "train.csv", rows=20)
    write_sentiment(folder / "test.csv", rows=10, seed=1)
    results = finetune(
        SequenceArguments(
            model_name_or_path=models["bert"], dataset_name=str(folder), output_dir=str(tmp_path / "o"), max_steps=1
        )
    )
    assert (results["train_samples"], results["eval_samples"], results["test_samples"]) == (18, 2, 10)


# Flags


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_train_epochs": 0.0}, "--num_train_epochs 0.0: must be above 0"),
        ({"learning_rate": float("nan")}, "--learning_rate nan"),
        ({"max_steps": 0}, "--max_steps 0"),
        ({"window_overlap": -1}, "--window_overlap -1: must not be negative"),
        ({"class_weights": "some"}, "expected none or balanced"),
        ({"seeds": [1, 1]}, "a seed comes twice"),
        ({"dataset_name": "x"}, "either --dataset_name or --train_file"),
        ({"train_file": None}, "give --train_file"),
    ],
)
def test_flags_are_checked(tmp_path: Path, flags: dict[str, Any], message: str) -> None:
    path = write_sentiment(tmp_path / "a.csv", rows=3)
    with pytest.raises(ValueError, match=message):
        FinetuningArguments(**{"model_name_or_path": "m", "output_dir": "o", "train_file": path, **flags})


def test_defaults_shrink_with_the_data_and_grow_with_the_model() -> None:
    sizes = [100, 1_000, 3_000, 15_000, 200_000]
    assert [default_epochs(n, 1) for n in sizes] == [30, 12, 6, 4, 3]
    assert [default_epochs(2_000, tokens) for tokens in (1, 600_000, 1_200_000, 10**9)] == [6, 5, 2, 2]
    assert [default_batch_size(n) for n in sizes] == [8, 16, 32, 32, 32]
    assert default_learning_rate(768) == 5e-5
    assert default_learning_rate(256) > default_learning_rate(1024)
