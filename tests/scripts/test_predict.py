"""`predict` over files and standard input, for both kinds of model."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from safetensors.torch import load_file, save_file
from warm_python import WarmPython

from clozebert.finetuning.arguments import PredictionArguments
from clozebert.finetuning.predict import predict as run_predict
from clozebert.scripts import finetune_sequence_classification, finetune_token_classification, predict
from clozebert.scripts._program import run
from clozebert.utils.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import make_checkpoint, write_entities, write_json_lines, write_sentiment


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A classifier of texts, a tagger, and a regression over pairs."""
    folder = tmp_path_factory.mktemp("tuned")
    model = ["--model_name_or_path", make_checkpoint(folder / "m", model_type="clozebert"), "--learning_rate", "5e-3"]

    def flags(name: str, data: str) -> list[str]:
        return [*model, "--train_file", data, "--output_dir", str(folder / name), "--num_train_epochs", "5"]

    films = write_sentiment(folder / "a.csv", rows=80)
    finetune_sequence_classification.main(flags("sequence", films))
    names = write_entities(folder / "a.conll", rows=60)
    finetune_token_classification.main(flags("token", names))
    pairs = write_json_lines(folder / "p.jsonl", [{"a": "the dog", "b": f"dog {i}", "score": i / 2} for i in range(20)])
    columns = ["--text_column", "a", "--text_pair_column", "b"]
    finetune_sequence_classification.main([*flags("pairs", pairs), *columns])
    return {name: folder / name for name in ("sequence", "token", "pairs")}


def predictions(model: Path, *flags: str, output: Path) -> list[dict[str, Any]]:
    predict.main(["--model_name_or_path", str(model), "--output_file", str(output), *flags])
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_standard_input_as_a_person_pipes_it(repository: Path, tuned: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, str(repository / "scripts" / "predict.py"), "--model_name_or_path", str(tuned["token"])]
    text = "Ada Lovelace runs to Paris today\n\nCharles Babbage runs to London today\nก\n"
    done = subprocess.run(
        command, input=text, capture_output=True, encoding="utf-8", timeout=300, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    found = [[(e["label"], e["text"], e["start"], e["end"]) for e in record["entities"]] for record in records]
    assert records[2]["text"] == "ก"
    assert found[:2] == [
        [("PER", "Ada Lovelace", 0, 12), ("LOC", "Paris", 21, 26)],
        [("PER", "Charles Babbage", 0, 15), ("LOC", "London", 24, 30)],
    ]
    assert all(0 < e["score"] <= 1 for record in records for e in record["entities"])
    assert "standard input: left out 1 blank line\n" in done.stderr


def test_spaces_at_the_ends_of_a_line_are_part_of_its_text(tuned: dict[str, Path], tmp_path: Path) -> None:
    """As in a table: indentation tells lines of a log or of code apart, and positions count it."""
    text = "    Ada Lovelace runs to Paris  "
    lines, table = tmp_path / "a.txt", write_json_lines(tmp_path / "a.jsonl", [{"text": text}])
    lines.write_bytes(f"{text}\r\n".encode())
    for model in ("token", "sequence"):
        of_line, of_table = (
            predictions(tuned[model], "--input", str(path), output=tmp_path / "out.jsonl") for path in (lines, table)
        )
        assert of_line == of_table
        assert of_line[0]["text"] == text
    (of_line,) = predictions(tuned["token"], "--input", str(lines), output=tmp_path / "out.jsonl")
    assert [text[entity["start"] : entity["end"]] for entity in of_line["entities"]] == ["Ada Lovelace", "Paris"]


def test_blank_lines_are_counted(tuned: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers would not stand beside the lines of the file without a word."""
    text, whole = tmp_path / "a.txt", tmp_path / "b.txt"
    text.write_bytes(b"\xef\xbb\xbfa good film\r\n\r\n  \r\na bad film\r\n")
    whole.write_text("a good film\na bad film\n")
    output = tmp_path / "out.jsonl"
    found = predictions(tuned["sequence"], "--input", str(text), output=output)
    assert [record["text"] for record in found] == ["a good film", "a bad film"]
    assert f"{text}: left out 2 blank lines" in capsys.readouterr().err
    assert predictions(tuned["sequence"], "--input", str(whole), output=output) == found
    assert "left out" not in capsys.readouterr().err


def test_tags_are_of_whole_words(tuned: dict[str, Path], tmp_path: Path) -> None:
    """Words that the tokenizer cuts into many pieces: one tag each, and no entity begins or ends inside one."""
    text = "Ada Lovelaceqzx runszq to Parisqjx todayxq and Londonians jumpingly"
    (tmp_path / "a.txt").write_text(text + "\n")
    (record,) = predictions(tuned["token"], "--input", str(tmp_path / "a.txt"), output=tmp_path / "o")
    assert record["words"] == text.split()
    assert len(record["tags"]) == len(record["scores"]) == len(text.split())
    assert record["entities"], "names that the model knows begin these words"
    for entity in record["entities"]:
        words = record["words"][entity["first_word"] : entity["end_word"]]
        assert text[entity["start"] : entity["end"]] == entity["text"] == " ".join(words)


def test_texts_from_files_of_each_format(tuned: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a great film\nboring dog\n")
    (tmp_path / "a.csv").write_text("text\na great film\nboring dog\n")
    write_json_lines(tmp_path / "a.jsonl", [{"id": 1, "text": "a great film"}, {"id": 2, "text": "boring dog"}])
    results = [
        predictions(tuned["sequence"], "--input", str(tmp_path / name), output=tmp_path / "o")
        for name in ("a.txt", "a.csv", "a.jsonl")
    ]
    assert results[0] == results[1] == results[2]
    assert [record["label"] for record in results[0]] == ["pos", "neg"]
    for record in results[0]:
        assert sum(record["scores"].values()) == pytest.approx(1, abs=2e-6)
        assert record["score"] == max(record["scores"].values())


def test_prediction_repeats_what_training_wrote(tuned: dict[str, Path], tmp_path: Path) -> None:
    """The same texts through the saved model must get the scores that evaluation gave them."""
    for kind, field in (("sequence", "text"), ("token", "words")):
        written = [json.loads(line) for line in (tuned[kind] / "eval_predictions.jsonl").read_text().splitlines()]
        path = write_json_lines(tmp_path / "a.jsonl", [{field: record[field]} for record in written])
        again = predictions(tuned[kind], "--input", path, "--per_device_eval_batch_size", "3", output=tmp_path / "o")
        for before, after in zip(written, again, strict=True):
            before.pop("gold")
            assert {k: v for k, v in before.items() if "score" not in k and k != "entities"} == {
                k: v for k, v in after.items() if "score" not in k and k != "entities"
            }
            scores = [r["scores"].values() if kind == "sequence" else r["scores"] for r in (before, after)]
            assert list(scores[0]) == pytest.approx(list(scores[1]), abs=2e-6)


def test_words_of_conll_files(tuned: dict[str, Path], tmp_path: Path) -> None:
    path = write_entities(tmp_path / "a.conll", rows=3)
    records = predictions(tuned["token"], "--input", path, output=tmp_path / "o")
    assert [record["tags"] for record in records] == [["B-PER", "I-PER", "O", "O", "B-LOC", "O"]] * 3


def test_a_tagger_of_unspaced_words_finds_them_in_text(tmp_path: Path) -> None:
    """It was trained on whole words, which running text does not show. Its card says how to tag."""
    places = ["東京", "大阪府", "長野", "奈良県"]
    sentences = [[("私", "O"), ("は", "O"), (place, "B-LOC"), ("行く", "O"), ("。", "O")] for place in places]
    blocks = ["".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in sentences]
    words, text = tmp_path / "a.conll", tmp_path / "a.txt"
    words.write_text("\n".join(blocks * 8), encoding="utf-8")
    text.write_text("".join(f"私は{place}行く。\n" for place in places), encoding="utf-8")
    model = make_checkpoint(tmp_path / "m", model_type="clozebert", tokenizer_kind="bpe")
    argv = ["--model_name_or_path", model, "--train_file", str(words), "--validation_file", str(words)]
    finetune_token_classification.main([*argv, "--output_dir", str(tmp_path / "o"), "--learning_rate", "5e-3"])
    assert json.loads((tmp_path / "o" / "all_results.json").read_text())["eval_f1"] == 1.0
    of_words, of_text = (
        predictions(tmp_path / "o", "--input", str(path), output=tmp_path / "p") for path in (words, text)
    )
    assert [record["tags"] for record in of_words] == [["O", "O", "B-LOC", "O", "O"]] * 32
    assert [[entity["text"] for entity in record["entities"]] for record in of_text] == [[place] for place in places]
    assert "Tag with `clozebert predict`" in (tmp_path / "o" / "README.md").read_text(encoding="utf-8")


def test_the_text_column_of_records_with_other_fields_is_tagged(tuned: dict[str, Path], tmp_path: Path) -> None:
    records = [{"text": "another column", "body": "Ada runs"}]
    path = write_json_lines(tmp_path / "a.jsonl", records)
    (found,) = predictions(tuned["token"], "--input", path, "--text_column", "body", output=tmp_path / "o")
    assert found["words"] == ["Ada", "runs"]


def test_lines_of_standard_input_end_as_those_of_files(tuned: dict[str, Path], tmp_path: Path) -> None:
    """A carriage return alone ends no line."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"a great film\r\na great\rfilm\r\n")
    of_file = predictions(tuned["sequence"], "--input", str(path), output=tmp_path / "o")
    arguments = PredictionArguments(model_name_or_path=str(tuned["sequence"]), output_file=str(tmp_path / "p"))
    with path.open("rb") as file:
        assert run_predict(arguments, io.TextIOWrapper(file)) == len(of_file) == 2
    assert (tmp_path / "p").read_text() == (tmp_path / "o").read_text()


def test_a_program_that_reads_its_input_keeps_it_as_it_is(
    tuned: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a great film\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Ada\nBob\n"), encoding="latin-1"))
    assert input() == "Ada"
    model, output = str(tuned["sequence"]), str(tmp_path / "o")
    given = PredictionArguments(model_name_or_path=model, input=[str(tmp_path / "a.txt")], output_file=output)
    assert run_predict(given) == 1
    assert (sys.stdin.encoding, input()) == ("latin-1", "Bob")


def test_a_mistake_in_a_later_file_is_found_before_the_first_prediction(
    tuned: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("text,x\na great film,1\n,\n")
    (tmp_path / "b.csv").write_text("id,foo\n1,2\n")
    inputs = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    with pytest.raises(UserError, match=r"b.csv: its first row may name columns or be a text"):
        predict.main(["--model_name_or_path", str(tuned["sequence"]), "--input", *inputs])
    assert capsys.readouterr().out == ""
    (tmp_path / "b.csv").write_text("text\na bad film\n")
    found = predictions(tuned["sequence"], "--input", *inputs, output=tmp_path / "o")
    assert [record["text"] for record in found] == ["a great film", "a bad film"]
    assert capsys.readouterr().err.count("every cell is blank") == 1


def test_pairs(tuned: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the dog\tdog 3\n")
    (tmp_path / "a.csv").write_text("b,a\ndog 3,the dog\n")
    by_tab = predictions(tuned["pairs"], "--input", str(tmp_path / "a.txt"), output=tmp_path / "o")
    by_name = predictions(tuned["pairs"], "--input", str(tmp_path / "a.csv"), output=tmp_path / "o")
    assert by_tab == by_name
    assert set(by_tab[0]) == {"text", "text_pair", "value"}


def test_the_first_row_is_data_where_training_had_no_header(tuned: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(f"great film {i},pos\nboring dog {i},neg\n" for i in range(6)))
    flags = ["--model_name_or_path", str(tuned["sequence"]), "--train_file", str(tmp_path / "a.csv")]
    finetune_sequence_classification.main([*flags, "--output_dir", str(tmp_path / "m"), "--max_steps", "1"])
    (tmp_path / "b.csv").write_text("great film,x\nboring dog,y\nthe end,z\n")  # nothing comes again
    records = predictions(tmp_path / "m", "--input", str(tmp_path / "b.csv"), output=tmp_path / "o")
    assert [record["text"] for record in records] == ["great film", "boring dog", "the end"]
    (tmp_path / "c.csv").write_text("text,id\ngreat film,x\n")
    records = predictions(tmp_path / "m", "--input", str(tmp_path / "c.csv"), output=tmp_path / "o")
    assert [record["text"] for record in records] == ["great film"]


def test_what_a_table_without_known_names_holds_is_asked(tuned: dict[str, Path], tmp_path: Path) -> None:
    """Else the first text would be lost as a header."""
    path = tmp_path / "a.csv"
    path.write_text("the film was great\nthe end was boring\nall in all fine\n")
    with pytest.raises(
        UserError, match=r"its first row may name columns or be a text; give --text_column, or .*number"
    ):
        predictions(tuned["sequence"], "--input", str(path), output=tmp_path / "o")
    records = predictions(tuned["sequence"], "--input", str(path), "--text_column", "1", output=tmp_path / "o")
    assert len(records) == 3
    path.write_text("text\n42\n")
    (record,) = predictions(tuned["sequence"], "--input", str(path), output=tmp_path / "o")
    assert record["text"] == "42"


@pytest.mark.slow
def test_standard_input_that_is_not_utf8(
    repository: Path, python: WarmPython, tuned: dict[str, Path], tmp_path: Path
) -> None:
    command = [repository / "scripts" / "predict.py", "--model_name_or_path", tuned["token"]]
    done = python.run(command, input=b"fine\nb\xfcro\n", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("error: standard input, line 2: not UTF-8 (byte 0xfc); convert the text\n")


def test_standard_output_is_utf8_in_any_locale(
    tuned: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("five € film\n", encoding="utf-8")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    predict.main(["--model_name_or_path", str(tuned["sequence"]), "--input", str(tmp_path / "a.txt")])
    assert json.loads(written.getvalue().decode("utf-8"))["text"] == "five € film"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk_is_a_line(tuned: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a film\n")
    with pytest.raises(UserError, match=r"^/dev/full cannot be written \(No space left on device\): free some space"):
        predictions(tuned["sequence"], "--input", str(tmp_path / "a.txt"), output=Path("/dev/full"))


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("sequence", ["--input", "a.txt", "--output_file", "./a.txt"], "--output_file ./a.txt: it is --input too"),
        ("sequence", ["--input", "p.csv"], "the model takes single texts, and 'sentence1' and 'sentence2' are a pair"),
        ("token", ["--input", "p.csv"], "the model takes single texts"),
        ("pairs", ["--input", "b.csv"], "b.csv: the model takes pairs; give --text_column and --text_pair_column"),
        ("token", ["--input", "t.txt"], "t.txt: every line ends with a tag of the model, as in CoNLL columns"),
        ("token", ["--input", "t.tsv"], "t.tsv: every line ends with a tag of the model, as in CoNLL columns"),
        (
            "token",
            ["--input", "note.md"],
            "note.md: name it .txt if each line is a text",
        ),
        ("sequence", ["--input", "t.conll"], "t.conll holds a word and its tags on each line, by its name; write each"),
        ("sequence", ["--input", "t.conllu"], "t.conllu holds a word and its tags on each line, by its name; write"),
        ("sequence", ["--input", "t.xml"], "t.xml holds XML, by its name; write each text on a line of a .txt file"),
        ("sequence", ["--input", "a.txt", "--text_column", "x"], "--text_column x: no --input is a table (.csv, .tsv"),
        ("sequence", ["--input", "gone.txt"], "--input gone.txt: there is no such file"),
        ("sequence", ["--input", "/dev/null"], "--input /dev/null: not a file; pipe lines of text into --input -"),
        ("sequence", ["--per_device_eval_batch_size", "0"], "--per_device_eval_batch_size 0: must be at least 1"),
        ("sequence", ["--max_seq_length", "0"], "--max_seq_length 0: must be at least 1"),
        ("sequence", ["--input", "b.csv"], "b.csv, line 3: the text (column 'text') is empty"),
        ("sequence", ["--input", "e.csv"], "e.csv is empty"),
        ("pairs", ["--input", "q.csv", "--text_pair_column", "c"], "--text_pair_column needs --text_column beside it"),
        ("pairs", ["--input", "a.txt"], "a.txt, line 1: the model takes pairs; put a tab between two texts"),
        ("pairs", ["--input", "three.txt"], "three.txt, line 1: the model takes pairs; put a tab between two texts"),
        (
            "pairs",
            ["--input", "half.txt"],
            "half.txt, line 2: one of the two texts is empty; fill it or remove the line",
        ),
        ("m", [], "fine-tune it first"),
    ],
)
def test_mistakes(
    tuned: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("no tab here\n")
    Path("three.txt").write_text("the dog\tdog 3\t1.5\n")
    Path("half.txt").write_text("a\tb\na text\t\n")
    Path("q.csv").write_text("a,b,c\nthe dog,dog 3,dog 4\n")
    Path("b.csv").write_text('id,text\n1,fine\n2,"  "\n')
    Path("e.csv").write_text("")
    Path("note.md").write_text("Ada runs to Paris today\n")
    Path("p.csv").write_text("sentence1,sentence2\nthe dog,the cat\nthe end,an end\n")
    for name in ("t.txt", "t.tsv", "t.conll", "t.conllu", "t.xml"):
        Path(name).write_text("Ada\tB-PER\nruns\tO\n\nBob\tB-PER\n")
    model = str(tuned["sequence"].parent / kind)
    Path("earlier.jsonl").write_text("of an earlier run\n")
    flags = flags if "--output_file" in flags else [*flags, "--output_file", "earlier.jsonl"]
    with pytest.raises(SystemExit) as stopped:
        run(lambda: predict.main(["--model_name_or_path", model, *flags]))
    assert stopped.value.code == 2
    assert message in capfd.readouterr().err
    assert Path("earlier.jsonl").read_text() == "of an earlier run\n"
    assert Path("a.txt").read_text() == "no tab here\n"


@pytest.mark.parametrize("kind", ["sequence", "token", "pairs"])
def test_a_model_that_answers_no_numbers(
    tuned: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    broken = shutil.copytree(tuned[kind], tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "a.txt").write_text("a text\tand another\n" if kind == "pairs" else "a text\n")
    with pytest.raises(SystemExit) as stopped:
        run(lambda: predict.main(["--model_name_or_path", str(broken), "--input", str(tmp_path / "a.txt")]))
    assert stopped.value.code == 2
    assert "its answers are not finite" in capfd.readouterr().err


def test_a_folder_in_half_precision_is_computed_in_float32(tuned: dict[str, Path], tmp_path: Path) -> None:
    """As on the model's page; answers of a regression would have two or three digits."""
    half = shutil.copytree(tuned["sequence"], tmp_path / "half")
    load_file, save_file = safetensors.torch.load_file, safetensors.torch.save_file
    weights = {name: x.bfloat16() for name, x in load_file(half / "model.safetensors").items()}
    save_file(weights, half / "model.safetensors", metadata={"format": "pt"})
    (half / "config.json").write_text((half / "config.json").read_text().replace('"float32"', '"bfloat16"'))
    whole = shutil.copytree(tuned["sequence"], tmp_path / "whole")
    save_file({name: x.float() for name, x in weights.items()}, whole / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "a.txt").write_text("a great film\nan awful film of two hours\n", encoding="utf-8")
    found = [
        predictions(folder, "--input", str(tmp_path / "a.txt"), output=tmp_path / "o.jsonl") for folder in (half, whole)
    ]
    assert found[0] == found[1]


def test_a_column_of_nothing_but_o_is_a_column(tuned: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Google O\nhired O\nAnna O\n\nShe O\nlives O\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"as in CoNLL columns; name such a file \.conll"):
        predictions(tuned["token"], "--input", str(tmp_path / "a.txt"), output=tmp_path / "o.jsonl")


def test_a_file_without_a_text_is_named(tuned: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.txt is empty: name a file that holds a text in each line"):
        predictions(tuned["sequence"], "--input", str(tmp_path / "a.txt"), output=tmp_path / "o.jsonl")
