"""`predict --scores_file`: the scores of a model on further labelled files are those that its run would give them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from often import often

from clozebert.scripts import finetune_sequence_classification, finetune_token_classification, predict
from clozebert.utils.errors import UserError

pytest.importorskip("seqeval")
sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import make_checkpoint, write_entities, write_json_lines, write_sentiment

PLAIN = "the DET\ndog NOUN\nruns VERB\n\nfilms NOUN\nrun VERB\n\n"
KINDS = ["single", "several", "several as vectors", "several as numbers", "number of a pair", "entities", "plain tags"]


def write(kind: str, folder: Path) -> tuple[str, str]:
    """Training data and test data of a kind, which differ."""
    train, test = folder / "train", folder / "test"
    if kind == "single":
        return write_sentiment(train.with_suffix(".csv"), rows=40), write_sentiment(
            test.with_suffix(".csv"), rows=30, seed=5
        )
    if kind == "entities":
        paths = train.with_suffix(".conll"), test.with_suffix(".conll")
        return write_entities(paths[0], rows=40), write_entities(paths[1], rows=25, seed=5)
    if kind == "plain tags":
        paths = train.with_suffix(".conll"), test.with_suffix(".conll")
        paths[0].write_text(PLAIN * 10)
        paths[1].write_text("dog NOUN\nthe DET\n\n" + PLAIN)
        return str(paths[0]), str(paths[1])
    labels: Any = {
        "several": [["a"], ["b"], ["a", "b"], []],
        "several as vectors": [[1, 0], [0, 1], [1, 1], [0, 0]],
        "several as numbers": [[0, 1], [1], [1, 0], [0]],
        "number of a pair": [0.5, 1.0, 2.0, 4.0],
    }[kind]
    rows = [{"text": f"film {'ab'[number % 2]} {number}", "label": labels[number % 4]} for number in range(24)]
    if kind == "number of a pair":
        # Lengths of their own: the order of predictions that are alike is one of rounding.
        rows = [
            {"sentence1": "film " * (number + 1), "sentence2": "a film", "score": row["label"]}
            for number, row in enumerate(rows)
        ]
    # Numbers of classes that look like vectors: the training data tells what they are.
    tested = rows[4:14:2] if kind == "several as numbers" else rows[5:14]
    return write_json_lines(train.with_suffix(".jsonl"), rows), write_json_lines(test.with_suffix(".jsonl"), tested)


@pytest.mark.parametrize("kind", often(KINDS, 4))
def test_scores_are_those_of_the_run(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = write(kind, tmp_path)
    program: Any = finetune_token_classification if train.endswith(".conll") else finetune_sequence_classification
    model = make_checkpoint(tmp_path / "m", model_type="clozebert")
    flags = ["--model_name_or_path", model, "--train_file", train, "--validation_file", train, "--test_file", test]
    if kind in ("single", "plain tags"):
        flags += ["--class_weights", "balanced"]
    program.main([*flags, "--output_dir", str(tmp_path / "out"), "--num_train_epochs", "2"])
    wanted = json.loads((tmp_path / "out" / "all_results.json").read_text())
    wanted = {key: value for key, value in wanted.items() if key.startswith("test_")}
    if kind == "number of a pair":
        del wanted["test_loss"], wanted["test_majority_mse"]  # of the training labels' mean and scale
    capsys.readouterr()
    flags = ["--model_name_or_path", str(tmp_path / "out"), "--input", test, "--output_file", str(tmp_path / "o")]
    predict.main([*flags, "--scores_file", str(tmp_path / "scores.json")])
    found = json.loads((tmp_path / "scores.json").read_text())
    # The run's own batches are others: 1e-6 is far above the rounding of float32. Predictions of the pairs are nearly
    # alike, and their correlation was off by 8e-5.
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-3 if kind == "number of a pair" else 1e-6)
    assert found["test_samples"] == len((tmp_path / "o").read_text().splitlines()) > 2
    assert "samples" in capsys.readouterr().err


def test_the_column_of_the_label(tmp_path: Path) -> None:
    train = write_sentiment(tmp_path / "train.csv", rows=30)
    model = make_checkpoint(tmp_path / "m", model_type="clozebert")
    finetune_sequence_classification.main(
        ["--model_name_or_path", model, "--train_file", train, "--output_dir", str(tmp_path / "out"),
         "--num_train_epochs", "1"]
    )  # fmt: skip
    other = tmp_path / "other.csv"
    other.write_text("note,gold,judged\na great film,pos,neg\nboring,neg,pos\nso boring,neg,pos\n")
    flags = ["--model_name_or_path", str(tmp_path / "out"), "--output_file", str(tmp_path / "o")]
    flags += ["--scores_file", str(tmp_path / "scores.json")]

    def accuracy(column: str) -> float:
        predict.main([*flags, "--input", str(other), "--text_column", "note", "--label_column", column])
        return json.loads((tmp_path / "scores.json").read_text())["test_accuracy"]

    assert accuracy("gold") == pytest.approx(1 - accuracy("judged"))
    (tmp_path / "a.txt").write_text("a film\n")
    for more, message in (
        (["--input", str(other), "--text_column", "note", "--label_column", "note"], "'a great film' does not occur"),
        (["--input", str(other), "--text_column", "note", "--label_column", "no"], "--label_column no"),
        (
            ["--input", str(other), "--tag_column", "2"],
            "--tag_column 2 has no use here, as the model classifies texts: --label_column names labels",
        ),
        (["--input", str(tmp_path / "a.txt")], "scores need labels, which are in a table"),
        ([], "lines of text have no labels; give files to --input"),
        (["--input", str(tmp_path / "scores.json")], "is --input or --output_file, too"),
        (["--input", str(other), "--scores_file", str(tmp_path)], "no file can be written there"),
        (["--input", str(other), "--scores_file", str(other / "a")], "no file can be written there"),
    ):
        with pytest.raises(UserError, match=message):
            predict.main([*flags, *more])
    with pytest.raises(UserError, match="--label_column a is for scores: give --scores_file, too"):
        predict.main([*flags[:4], "--label_column", "a"])
