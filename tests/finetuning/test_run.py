"""Whole runs: long documents, seeds, adapters, data without a validation file, what is saved; and the flags."""

import dataclasses
import json
import math
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from often import often
from safetensors.torch import load_file

from clozebert.finetuning.arguments import (
    PredictionArguments,
    SequenceArguments,
    TokenArguments,
)
from clozebert.finetuning.predict import predict
from clozebert.finetuning.run import finetune
from clozebert.hub.card import write_card
from clozebert.utils.errors import UserError
from clozebert.utils.locks import lock_folder

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import arguments_of, make_tokenizer, write_json_lines, write_sentiment

# What a run leaves


def check_predictions_are_the_pipelines(folder: Path, classify: Any) -> list[dict[str, Any]]:
    """The predictions of a run, which the pipeline shares to the last digits."""
    predictions = [json.loads(line) for line in (folder / "eval_predictions.jsonl").read_text().splitlines()]
    answers = classify([p["text"] for p in predictions])
    assert [a["label"] for a in answers] == [p["label"] for p in predictions]
    torch.testing.assert_close([a["score"] for a in answers], [p["score"] for p in predictions], rtol=1e-4, atol=1e-4)
    return predictions


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
    assert (output / "model.safetensors").stat().st_mode == (output / "config.json").stat().st_mode
    classify = pipeline("text-classification", str(output))
    assert [answer["label"] for answer in classify(["a great film", "boring acting"])] == ["pos", "neg"]
    predictions = check_predictions_are_the_pipelines(output, classify)
    assert all(p["label"] == p["gold"] for p in predictions)


def test_a_folder_takes_one_run_at_a_time(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozebert.utils.locks._SECONDS", 0.1)
    lock = lock_folder(tmp_path / "o")
    with pytest.raises(UserError, match="is in use by another program"):
        finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "o"))
    assert [path.name for path in (tmp_path / "o").iterdir()] == [".lock"]
    lock.release()
    finetune(arguments_of("single", data["single"], models["bert"], tmp_path / "o", num_train_epochs=0.1))
    lock_folder(tmp_path / "o").release()  # it was left to others


def test_overwriting_waits_until_the_new_run_is_known_to_fit(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    output, odd = tmp_path / "o", tmp_path / "odd.csv"
    finetune(arguments_of("single", data["single"], models["bert"], output, max_steps=1))
    before = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}
    odd.write_text("text,label\na film,odd\n")
    for files, flags in (
        ((data["single"][0], str(odd)), {}),
        (data["single"], {"metric_for_best_model": "f2"}),
        (data["single"], {"metric_for_best_model": "majority_accuracy"}),
        (data["single"], {"hyperparameter_search": 1, "max_steps": 1, "per_device_train_batch_size": 8}),
    ):
        with pytest.raises(UserError, match=r"does not occur|there is loss|nothing to search"):
            finetune(arguments_of("single", files, models["bert"], output, overwrite_output_dir=True, **flags))
        assert {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()} == before
    (output / "test_results.json").write_text("{}")  # as of an earlier run with other flags
    again, fresh = (
        finetune(arguments_of("single", data["single"], models["bert"], folder, max_steps=2, overwrite_output_dir=over))
        for folder, over in ((output, True), (tmp_path / "fresh", False))
    )
    assert again["eval_loss"] == fresh["eval_loss"]
    assert [path.name for path in output.glob("checkpoint-*")] == ["checkpoint-2"]
    assert not (output / "test_results.json").exists()


def test_nothing_to_resume_is_no_leave_to_replace_a_model(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """A folder that was mistyped may hold the encoder, or a finished model whose checkpoints were deleted."""

    def run(output: Path, **flags: Any) -> Any:
        return finetune(arguments_of("single", data["single"], models["bert"], output, max_steps=1, **flags))

    encoder = shutil.copytree(models["bert"], tmp_path / "encoder")
    before = (encoder / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "pytorch_model.bin"):  # the second as older programs write it
        (encoder / "model.safetensors").rename(encoder / name)
        with pytest.raises(UserError, match="encoder holds a model and no run to resume; give another --output_dir"):
            run(encoder, resume_from_checkpoint="latest")
        assert (encoder / name).read_bytes() == before
    first = run(tmp_path / "o")
    with pytest.raises(UserError, match=r"checkpoint-1: .*encoder holds a model and no run to resume"):
        run(encoder, resume_from_checkpoint=str(tmp_path / "o" / "checkpoint-1"))
    shutil.rmtree(tmp_path / "o" / "checkpoint-1")
    with pytest.raises(UserError, match=r"had seed=42, now it is 7; .* or --overwrite_output_dir in place of"):
        run(tmp_path / "o", resume_from_checkpoint="latest", seed=7)
    assert run(tmp_path / "o", resume_from_checkpoint="latest")["eval_loss"] == first["eval_loss"]


@pytest.mark.parametrize("kind", ["single", "regression", "token"])
def test_a_run_that_diverges_says_so(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("seqeval")
    arguments = arguments_of(kind, data[kind], models["clozebert"], tmp_path / "o", learning_rate=1e18, max_steps=2)
    with pytest.raises(UserError, match=r"--learning_rate 1e\+18: training has diverged"):
        finetune(arguments)


def test_a_run_that_diverges_ends_at_the_next_evaluation(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"learning_rate": 1e18, "num_train_epochs": 3.0, "gradient_accumulation_steps": 1}
    with pytest.raises(UserError, match="training has diverged"):
        finetune(arguments_of("single", data["single"], models["clozebert"], tmp_path / "o", **flags))
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(shown) == 1
    assert "training loss nan" in shown[0]


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
    if model == "roberta":  # byte-level offsets of the first subword begin at the space in some versions
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
    config = json.loads((tmp_path / "o" / "config.json").read_text())  # CrossEncoder would take a sigmoid of the value
    assert config["sentence_transformers"] == {"activation_fn": "torch.nn.modules.linear.Identity"}


def test_a_regression_is_not_resumed_with_shifted_labels(models: dict[str, str], tmp_path: Path) -> None:
    """Stars from 1 to 5, then from 0 to 4: standardised, they are the same, and the old weights answer as before."""
    for first in (1, 0):
        rows = "".join(
            f"{'good ' * stars}text {number},{stars + first}.25\n" for number in range(8) for stars in range(5)
        )
        (tmp_path / f"from{first}.csv").write_text(f"text,label\n{rows}")

    def run(file: str, **flags: Any) -> Any:
        files = (str(tmp_path / file), str(tmp_path / file))
        return finetune(arguments_of("regression", files, models["bert"], tmp_path / "o", **flags))

    run("from1.csv", max_steps=1)
    with pytest.raises(UserError, match="had target_mean="):
        run("from0.csv", max_steps=1, resume_from_checkpoint="latest")


@pytest.mark.parametrize("packing", often(["auto", "off"]))
def test_a_new_classifier_of_pairs_compares_them(
    models: dict[str, str], tmp_path: Path, packing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether two texts name the same animal: the encoder is random, and without the comparison half are right."""
    draw, animals = random.Random(0), ["dog", "fox", "film", "card", "end", "acting"]

    def write(name: str, rows: int) -> str:
        lines = ["sentence1\tsentence2\tlabel"]
        for row in range(rows):
            first = draw.choice(animals)
            second = first if row % 2 else draw.choice([animal for animal in animals if animal != first])
            lines.append(f"the {first} runs\tthe quick {second}\t{'same' if row % 2 else 'other'}")
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(tmp_path / name)

    data = (write("train.tsv", 240), write("dev.tsv", 80))
    arguments = arguments_of("pairs", data, models["clozebert"], tmp_path / "o", num_train_epochs=10.0)
    arguments.learning_rate, arguments.packing = 5e-3, packing
    results = finetune(arguments)
    assert results["eval_accuracy"] > 0.9
    assert "pairs: the classifier compares the two texts" in capsys.readouterr().out
    from transformers import pipeline

    answer = pipeline("text-classification", model=str(tmp_path / "o"))
    told = [answer({"text": "the dog runs", "text_pair": f"the quick {animal}"}) for animal in ("dog", "fox")]
    assert [one["label"] for one in told] == ["same", "other"]
    # As a model that another program trained: the configuration alone says that it takes pairs.
    (tmp_path / "o" / "finetuning_settings.json").unlink()
    (tmp_path / "in.txt").write_text("the dog runs\tthe quick dog\n")
    predict(
        PredictionArguments(str(tmp_path / "o"), input=[str(tmp_path / "in.txt")], output_file=str(tmp_path / "out"))
    )
    assert json.loads((tmp_path / "out").read_text())["label"] == "same"


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("clozebert", "small ClozeBERTs learn more with --compare_pairs true"),
        ("bert", "small encoders learn more if `clozebert convert --to clozebert` converts them first"),
    ],
)
def test_the_hint_for_pairs_is_one_that_the_model_can_take(
    models: dict[str, str],
    data: dict[str, tuple[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    hint: str,
) -> None:
    flags = {"max_steps": 1, "compare_pairs": False}
    finetune(arguments_of("regression", data["regression"], models[model], tmp_path / "o", **flags))
    assert f"pairs: the classifier reads the first token; {hint}\n" in capsys.readouterr().out


def test_a_comparison_of_single_texts_is_refused(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    arguments = arguments_of("single", data["single"], models["clozebert"], tmp_path / "o")
    arguments.compare_pairs = True
    with pytest.raises(UserError, match="--compare_pairs true: the data have no second text"):
        finetune(arguments)


def test_multi_label(models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    arguments = arguments_of("multi", data["multi"], models["clozebert"], tmp_path / "o", num_train_epochs=20.0)
    arguments.learning_rate = 1e-2
    results = finetune(arguments)
    assert results["eval_f1_micro"] == results["eval_f1_macro"] == results["eval_accuracy"] == 1.0
    config = json.loads((tmp_path / "o" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert config["id2label"] == {"0": "dog", "1": "end", "2": "film"}
    report = json.loads((tmp_path / "o" / "eval_report.json").read_text())
    assert {name: row["f1-score"] for name, row in report.items()} == dict.fromkeys(
        ("dog", "end", "film", "macro avg"), 1.0
    )
    assert not (tmp_path / "o" / "eval_confusion.png").exists()


@pytest.mark.parametrize("model", often(["clozebert", "bert"]))
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
        ),
        write_card=write_card,
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
        ),
        write_card=write_card,
    )
    assert results["eval_f1"] == 1.0
    lines = (tmp_path / "t" / "eval_predictions.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["tags"]) for line in lines] == [len(record["words"]) for record in tagged]
    for folder, what in (("s", ", and may answer otherwise."), ("t", ", and leaves out the end of a long text.")):
        card = (tmp_path / folder / "README.md").read_text()
        assert "A text of more than 64 tokens was read in several windows." in card
        assert f"a pipeline of transformers does not{what}" in card


def test_seeds_give_mean_and_deviation(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = arguments_of("single", data["single"], models["bert"], tmp_path / "o", seeds=[1, 2], max_steps=4)
    results = finetune(arguments)
    folders = ", ".join(str(tmp_path / "o" / f"seed-{seed}") for seed in (1, 2))
    assert capsys.readouterr().out.endswith(f"model, scores, predictions and mistakes: {folders}\n")
    each = [json.loads((tmp_path / "o" / f"seed-{s}" / "all_results.json").read_text())["eval_loss"] for s in (1, 2)]
    assert each[0] != each[1]
    assert results["eval_loss"] == pytest.approx(sum(each) / 2)
    assert results["eval_loss_sd"] == pytest.approx(abs(each[0] - each[1]) / 2**0.5)
    # Finished runs that are resumed are not trained again.
    weights = tmp_path / "o" / "seed-1" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert finetune(dataclasses.replace(arguments, resume_from_checkpoint="latest")) == results
    assert "seed-1: this run is finished; --overwrite_output_dir in place of" in capsys.readouterr().out
    assert weights.stat().st_mtime_ns == before
    assert results["train_runtime"] > 0


def test_the_means_of_seeds_are_not_the_results_of_a_run_beside_them(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    arguments = arguments_of("single", data["single"], models["bert"], tmp_path / "o", max_steps=1)
    results = finetune(arguments)
    resumed = dataclasses.replace(arguments, resume_from_checkpoint="latest")
    assert "eval_loss_sd" in finetune(dataclasses.replace(resumed, seeds=[1, 2]))
    assert finetune(resumed)["eval_loss"] == results["eval_loss"]


@pytest.mark.parametrize("scheme", ["auto", "plain"])
def test_predictions_of_a_saved_tagger_are_those_that_were_scored(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, scheme: str
) -> None:
    output = tmp_path / "o"
    finetune(arguments_of("token", data["token"], models["bert"], output, max_steps=2, tag_scheme=scheme))
    scored = [json.loads(line) for line in (output / "eval_predictions.jsonl").read_text().splitlines()]
    predict(PredictionArguments(str(output), input=[data["token"][1]], output_file=str(tmp_path / "p.jsonl")))
    again = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [one["tags"] for one in again] == [one["tags"] for one in scored]
    assert ("entities" in again[0]) == (scheme == "auto")


def test_class_weights_layer_decay_freezing_and_early_stopping_run(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
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
            "single", data["single"], models["bert"], output, lora_rank=4, num_train_epochs=20.0, learning_rate=1e-2
        )
    )
    # All right in most processes; their tokenizers differ in the order of the vocabulary, so their models do.
    assert results["eval_accuracy"] > 0.8 > results["eval_majority_accuracy"]
    assert not (output / "adapter_config.json").exists()
    check_predictions_are_the_pipelines(output, pipeline("text-classification", str(output)))


def test_validation_is_held_out_where_there_is_none(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    arguments = SequenceArguments(
        model_name_or_path=models["bert"], train_file=data["single"][0], output_dir=str(tmp_path / "o"), max_steps=1
    )
    results = finetune(arguments)
    assert (results["train_samples"], results["eval_samples"]) == (54, 6)


def test_a_dataset_of_the_hub_by_its_folder(
    models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "dataset"
    folder.mkdir()
    write_sentiment(folder / "train.csv", rows=20)
    write_sentiment(folder / "test.csv", rows=10, seed=1)
    with open(folder / "test.csv", "a") as file:
        file.write('" "," "\n')
    results = finetune(
        SequenceArguments(
            model_name_or_path=models["bert"], dataset_name=str(folder), output_dir=str(tmp_path / "o"), max_steps=1
        )
    )
    assert (results["train_samples"], results["eval_samples"], results["test_samples"]) == (18, 2, 10)
    assert "10 rows; left out: 1 in which every cell is blank" in capsys.readouterr().out


def test_a_test_split_with_hidden_labels_is_left_out(
    models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As GLUE has them: -1, of named classes and of numbers."""
    datasets = pytest.importorskip("datasets")
    texts = [f"a {word} film {number}" for number in range(10) for word in ("great", "boring")]
    for name, labels, kind, hidden in (
        ("sst2", [0, 1] * 10, datasets.ClassLabel(names=["good", "bad"]), -1),
        ("stsb", [0.5, 1.5] * 10, datasets.Value("float32"), -1.0),
    ):
        features = datasets.Features({"text": datasets.Value("string"), "label": kind})
        (tmp_path / name).mkdir()
        for split, values in (("train", labels), ("test", [hidden] * 20)):
            rows = [{"text": text, "label": label} for text, label in zip(texts, values, strict=True)]
            datasets.Dataset.from_list(rows, features=features).to_parquet(str(tmp_path / name / f"{split}.parquet"))
        folder, output = str(tmp_path / name), str(tmp_path / f"o-{name}")
        arguments = SequenceArguments(model_name_or_path=models["bert"], dataset_name=folder, output_dir=output)
        arguments.max_steps = 1
        results = finetune(arguments)
        assert "(test): left out, as its labels are hidden" in capsys.readouterr().out
        assert not any(key.startswith("test_") for key in results)


def test_labels_with_dollar_signs(models: dict[str, str], tmp_path: Path) -> None:
    """In a picture they would be formulas, and `$$` none that can be read."""
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"film {number},{'$' * (1 + number % 3)}\n" for number in range(30)))
    finetune(arguments_of("single", (str(path), str(path)), models["bert"], tmp_path / "o", max_steps=1))
    assert list(json.loads((tmp_path / "o" / "eval_report.json").read_text()))[:3] == ["$", "$$", "$$$"]


def test_small_numbers_keep_their_digits(models: dict[str, str], tmp_path: Path) -> None:
    records = [{"text": f"film {number}", "label": number * 1.5e-9} for number in range(1, 30)]
    path = write_json_lines(tmp_path / "a.jsonl", records)
    finetune(arguments_of("single", (path, path), models["bert"], tmp_path / "o", max_steps=1))
    lines = (tmp_path / "o" / "eval_predictions.jsonl").read_text().splitlines()
    assert all(1e-10 < abs(json.loads(line)["value"]) < 1e-6 for line in lines)


def test_a_model_that_does_not_compute_in_bf16_is_trained_in_float32(
    data: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozebert.finetuning.run.choose_precision", lambda wanted, device: "bf16")
    tokenizer = make_tokenizer("wordpiece", token_types=False)
    config = transformers.DebertaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.DebertaForMaskedLM(config).save_pretrained(tmp_path / "deberta")
    tokenizer.save_pretrained(tmp_path / "deberta")
    arguments = arguments_of("single", data["single"], str(tmp_path / "deberta"), tmp_path / "o", max_steps=2)
    with pytest.warns(UserWarning, match="mixed_precision=auto is float32 here: deberta models do not compute in bf16"):
        results = finetune(dataclasses.replace(arguments, mixed_precision="auto"))
    assert math.isfinite(results["eval_loss"])
