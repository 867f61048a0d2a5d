"""What fine-tuning says of data that would give scores without meaning, and how labels are read alike."""

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clozebert.corpus.readers.table_file import Row
from clozebert.finetuning import data as data_module
from clozebert.finetuning.arguments import PredictionArguments, SequenceArguments, TokenArguments
from clozebert.finetuning.data import read_data
from clozebert.finetuning.predict import predict
from clozebert.finetuning.run import finetune
from clozebert.hub.card import write_card
from clozebert.utils.errors import UserError

pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import arguments_of, make_checkpoint, write_sentiment


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "m", model_type="clozebert")


def arguments(model: str, folder: Path, train: str, **more: Any) -> SequenceArguments:
    (folder / "train.csv").write_text(train)
    files = {"train_file": str(folder / "train.csv"), "output_dir": str(folder / "out")}
    return SequenceArguments(model_name_or_path=model, max_steps=1, **files, **more)


def test_text_that_the_tokenizer_does_not_know(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = "text,label\n" + "".join(f"漢{'字' * number},{'ab'[number % 2]}\n" for number in range(1, 30))
    with pytest.raises(UserError, match="the tokenizer does not know 100% of the tokens of the training data: take"):
        finetune(arguments(model, tmp_path, unknown))
    known = "text,label\n" + "".join(f"a great film,a\na boring film{' 漢' * (number % 2)},b\n" for number in range(20))
    finetune(arguments(model, tmp_path / "", known))
    said = capsys.readouterr().out
    assert "% of the tokens of the train data: take a model whose tokenizer knows this text" in said
    assert "labels: a (" in said
    (tmp_path / "a.txt").write_text("a film\n漢 漢\n")
    predict(
        PredictionArguments(
            model_name_or_path=str(tmp_path / "out"), input=[str(tmp_path / "a.txt")], output_file=str(tmp_path / "o")
        )
    )
    assert "warning: the model's tokenizer does not know 50.0% of the tokens" in capsys.readouterr().err


def test_labels_that_no_score_says_anything_of(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every validation example is `b`: always to answer that has an accuracy and a macro F1 of 1."""
    (tmp_path / "dev.csv").write_text("text,label\n" + "".join(f"a dev film {number},b\n" for number in range(5)))
    train = "text,label\n" + "".join(f"film {number},{'abc'[min(number % 9, 2)]}\n" for number in range(27))
    finetune(arguments(model, tmp_path, train, validation_file=str(tmp_path / "dev.csv")))
    said = capsys.readouterr().out
    assert "no validation example has 2 labels of the 3, so the scores say nothing of: a, c\n" in said
    assert "no train" not in said


def test_entity_types_that_no_score_says_anything_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By type: the validation data have no `I-LOC`, but a place."""
    (tmp_path / "t.conll").write_text("Ada B-PER\nin O\nNew B-LOC\nYork I-LOC\n\nRex B-DOG\nruns O\n\n" * 5)
    (tmp_path / "d.conll").write_text("York B-LOC\nis O\nold O\n\nTom B-PER\nsat O\n")
    files = str(tmp_path / "t.conll"), str(tmp_path / "d.conll")
    read_data(arguments_of("token", files, "m", tmp_path / "o"), None)
    said = capsys.readouterr().out
    assert "no validation example has 1 label of the 4, so the scores say nothing of: DOG\n" in said


def test_an_entity_type_that_is_called_as_outside_is_a_class_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "t.conll").write_text("in O\n" * 8 + "Ada B-O\nParis B-P\n\n")
    task = read_data(arguments_of("token", (str(tmp_path / "t.conll"),) * 2, "m", tmp_path / "o"), None).task
    assert [task.class_of(name) for name in task.label_names] == ["O", "B-O", "B-O", "P", "P"]


@pytest.mark.parametrize("hidden", [[-1, -1], [-100, -100], None])
def test_a_test_split_with_hidden_tags_is_left_out(
    hidden: list[int] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    classes = datasets.ClassLabel(names=["O", "B-X", "I-X"])
    features = datasets.Features({"tokens": [datasets.Value("string")], "ner_tags": [classes]})
    splits = {
        name: datasets.Dataset.from_dict({"tokens": [["the", "film"]] * 5, "ner_tags": [tags] * 5}, features=features)
        for name, tags in (("train", [0, 1]), ("validation", [0, 1]), ("test", hidden))
    }
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "data"))
    given = TokenArguments(model_name_or_path="m", dataset_name=str(tmp_path / "data"), output_dir=str(tmp_path / "o"))
    assert set(read_data(given, None).splits) == {"train", "validation"}
    assert "data (test): left out, as its labels are hidden\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "number"),
    [
        ({"text": "the film", "tokens": [{"text": "the"}], "spans": [{"start": 4, "end": 8, "label": "X"}]}, 1),
        ({"tokens": ["the", "film"], "gold": ["O", "B-X"]}, 1),
        ({"tokens": ["the", "film"], "ner_tags": -1}, 1),
        ({}, 0),
    ],
)
def test_a_test_split_of_another_form_is_not_taken_for_hidden(row: dict[str, Any], number: int) -> None:
    """As Prodigy writes it; with the tags in a column of another name, which is an error that names it; empty."""
    table = SimpleNamespace(source="data (test)", rows=lambda: [Row(line, row) for line in range(number)])
    assert not data_module._hides_tags(table, None)


@pytest.mark.parametrize("label", ["x" * 5000, list(range(5000))])
def test_a_message_shows_the_beginning_of_a_long_cell(model: str, tmp_path: Path, label: Any) -> None:
    records = [{"text": {"0": "a film " * 2000}, "label": 0}, {"text": "a film", "label": label}]
    for rows, message in (
        (records, "column 'text' is not text but dict .* from pandas, write to_json"),
        (records[1:] * 2, "expected a finite number"),
    ):
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        files = {"train_file": str(tmp_path / "a.jsonl"), "output_dir": str(tmp_path / "out")}
        given = SequenceArguments(model_name_or_path=model, problem_type="regression", **files)
        with pytest.raises(UserError, match=message) as caught:
            read_data(given, None)
        assert len(str(caught.value)) < 400


def test_scores_on_copies_of_the_training_data(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are said to be such, and those on all of the training data are no results in the card."""
    rows = [f"film {number},{'ab'[number % 2]}\n" for number in range(20)]
    (tmp_path / "copy.csv").write_text("text,label\n" + "".join(rows))
    (tmp_path / "test.csv").write_text("text,label\n" + "".join([*rows[:3], "another,a\n"]))
    given = arguments(
        model, tmp_path, "text,label\n" + "".join(rows), validation_file=str(tmp_path / "copy.csv"),
        test_file=str(tmp_path / "test.csv"),
    )  # fmt: skip
    finetune(given, write_card=write_card)
    said = capsys.readouterr().out
    assert "20 of the 20 validation examples are in the training data, too: scores on them are too high" in said
    assert "3 of the 4 test examples are in the training data, too" in said
    assert "3 of the 4 test examples are in the validation data, too: the best epoch is chosen by them" in said
    card = (tmp_path / "out" / "README.md").read_text()
    assert "split: test" in card
    assert "split: validation" not in card


def test_examples_that_an_annotator_did_not_accept(model: str, tmp_path: Path) -> None:
    """As in the files of Prodigy. A column of another meaning, or the label, is none of that."""
    rows = [f"a film {number},{'ab'[number % 2]},accept\n" for number in range(20)]
    with pytest.raises(UserError, match=r"train.csv, line 22: its answer is 'ignore', so its labels are not"):
        finetune(arguments(model, tmp_path, "text,label,answer\n" + "".join([*rows, "another,a,ignore\n"])))
    joined = [*rows, "from elsewhere,b,\n", "and more,b, \n", "another,a,reject\n"]  # files of two kinds
    with pytest.raises(UserError, match="line 24: its answer is 'reject'"):
        finetune(arguments(model, tmp_path, "text,label,answer\n" + "".join(joined)))
    finetune(arguments(model, tmp_path, "text,label,answer\n" + "".join([*rows, "another,a,reject it\n"])))
    rows = [f"a film {number},{('accept', 'reject')[number % 2]}\n" for number in range(20)]
    finetune(arguments(model, tmp_path, "text,answer\n" + "".join(rows), overwrite_output_dir=True))


def test_weights_are_for_single_labels(model: str, tmp_path: Path) -> None:
    rows = [f"a film {number},{number / 10 + 0.05}\n" for number in range(20)]
    with pytest.raises(UserError, match="--class_weights balanced works for single_label_classification only, this is"):
        finetune(arguments(model, tmp_path, "text,label\n" + "".join(rows), class_weights="balanced"))


def test_whole_numbers_are_written_alike(model: str, tmp_path: Path) -> None:
    """pandas writes 1.0 as soon as one number of the column was missing."""
    validation = tmp_path / "dev.csv"
    validation.write_text("text,label\na film,0.0\nboring,1.00\n")
    rows = [f"film {number},{('0', '1.0', '1')[number % 3]}\n" for number in range(30)]
    finetune(arguments(model, tmp_path, "text,label\n" + "".join(rows), validation_file=str(validation)))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["id2label"] == {"0": "0", "1": "1"}
    places = {"output_file": str(tmp_path / "o"), "scores_file": str(tmp_path / "scores.json")}
    given = PredictionArguments(model_name_or_path=str(tmp_path / "out"), input=[str(validation)], **places)
    assert predict(given) == 2
    (tmp_path / "rejected.jsonl").write_text(
        '{"text": "a film", "label": "1", "answer": "accept"}\n{"text": "boring", "label": "1", "answer": "reject"}\n'
    )
    with pytest.raises(UserError, match="line 2: its answer is 'reject'"):
        predict(dataclasses.replace(given, input=[str(tmp_path / "rejected.jsonl")]))


def test_a_name_in_brackets_is_no_list(model: str, tmp_path: Path) -> None:
    rows = [f"film {number},{('bug', 'feature', '[wip]')[number % 3]}\n" for number in range(30)]
    finetune(arguments(model, tmp_path, "text,label\n" + "".join(rows)))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["id2label"]["0"] == "[wip]"
    lists = "text,label\n" + 'one,"[""a""]"\ntwo,"[""b""]"\nthree,a\n' * 9
    with pytest.raises(UserError, match=r"line 4: .* is 'a', expected a list of labels, as others are; give --problem"):
        finetune(arguments(model, tmp_path, lists, overwrite_output_dir=True))


def test_columns_of_zeros_and_ones_and_compressed_answers(model: str, tmp_path: Path) -> None:
    rows = [f"a film {number},{number % 2},{number % 3 // 2}\n" for number in range(30)]
    with pytest.raises(UserError, match=r'or write the names as lists, such as \["toxic", "threat"\] \(columns'):
        finetune(arguments(model, tmp_path, "text,toxic,threat\n" + "".join(rows)))
    write_sentiment(tmp_path / "a.csv", rows=10)
    with pytest.raises(UserError, match="the answers are not compressed; name it"):
        PredictionArguments(
            model_name_or_path=model, input=[str(tmp_path / "a.csv")], output_file=str(tmp_path / "o.jsonl.gz")
        )
