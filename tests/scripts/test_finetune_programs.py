"""The fine-tuning programs as a person runs them, and what they say to a person's mistakes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from warm_python import WarmPython

from clozebert.scripts import finetune_sequence_classification, finetune_token_classification
from clozebert.scripts._program import run

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import make_checkpoint, write_entities, write_json_lines, write_sentiment

PROGRAMS = {"sequence": finetune_sequence_classification, "token": finetune_token_classification}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "m", model_type="clozebert")


def run_program(repository: Path, name: str, *flags: str, by: tuple[str, ...] = (), **kwargs: Any) -> Any:
    command = [sys.executable, *by, str(repository / "scripts" / f"{name}.py"), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **kwargs)


def test_sequence_program_by_path(repository: Path, python: WarmPython, model: str, tmp_path: Path) -> None:
    flags = ["--train_file", write_sentiment(tmp_path / "a.csv", rows=60), "--model_name_or_path", model]
    flags += ["--validation_file", write_sentiment(tmp_path / "b.csv", rows=20, seed=1)]
    flags += ["--test_file", write_sentiment(tmp_path / "c.csv", rows=20, seed=2)]
    flags += ["--output_dir", str(tmp_path / "o"), "--num_train_epochs", "12", "--learning_rate", "3e-3"]
    program = repository / "scripts" / "finetune_sequence_classification.py"
    done = python.run([program, *flags], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "o" / "all_results.json").read_text())
    assert results["eval_accuracy"] == results["test_accuracy"] == 1.0
    assert "12 epochs of batches of 8" in done.stdout
    assert "accuracy" in done.stdout
    assert "1.0000" in done.stdout
    assert "Warning" not in done.stderr
    found = {
        (r.task_type, r.dataset_type, r.dataset_name, r.dataset_split, r.metric_type, r.metric_name): r.metric_value
        for r in ModelCard.load(tmp_path / "o" / "README.md").data.eval_results
    }
    assert found["text-classification", "csv", "c.csv", "test", "accuracy", "Accuracy"] == 1.0
    assert found["text-classification", "csv", "b.csv", "validation", "f1", "F1, macro average"] == 1.0
    again = python.run([program, *flags], cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert again.stderr.startswith("error: --output_dir")


def test_token_program_as_module(python: WarmPython, model: str, tmp_path: Path) -> None:
    flags = ["--train_file", write_entities(tmp_path / "a.conll", rows=60), "--model_name_or_path", model]
    flags += ["--validation_file", write_entities(tmp_path / "b.conll", rows=20, seed=1)]
    flags += ["--output_dir", str(tmp_path / "o"), "--num_train_epochs", "4", "--learning_rate", "3e-3"]
    done = python.run(["-m", "clozebert.scripts.finetune_token_classification", *flags], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "o" / "all_results.json").read_text())["eval_f1"] == 1.0
    assert "tags: of entities (iob2)" in done.stdout
    results = ModelCard.load(tmp_path / "o" / "README.md").data.eval_results
    assert {(r.task_type, r.dataset_name, r.metric_type) for r in results} == {
        ("token-classification", "b.conll", metric) for metric in ("accuracy", "f1", "precision", "recall")
    }


@pytest.mark.slow
def test_a_run_outlives_the_reader_of_its_output(repository: Path, model: str, tmp_path: Path) -> None:
    """As `clozebert finetune-sequence … | head -1`."""
    flags = ["--train_file", write_sentiment(tmp_path / "a.csv", rows=64), "--model_name_or_path", model]
    flags += ["--validation_file", write_sentiment(tmp_path / "b.csv", rows=20, seed=1), "--num_train_epochs", "3"]
    program = str(repository / "scripts" / "finetune_sequence_classification.py")
    with (tmp_path / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, program, *flags, "--output_dir", str(tmp_path / "o")],
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=300) == 0, (tmp_path / "errors").read_text()
    assert (tmp_path / "o" / "all_results.json").exists()


@pytest.mark.slow
def test_two_processes_find_the_scores_of_one(repository: Path, model: str, tmp_path: Path) -> None:
    """Two processes with batches of 4 are one with batches of 8: the same gradients, so the same scores."""
    common = ["--train_file", write_sentiment(tmp_path / "a.csv", rows=64), "--model_name_or_path", model]
    common += ["--validation_file", write_sentiment(tmp_path / "b.csv", rows=20, seed=1), "--learning_rate", "3e-3"]
    common += ["--num_train_epochs", "2", "--dropout", "0"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    launch = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29611")
    for name, by, batch in (("one", (), "8"), ("two", launch, "4")):
        flags = [*common, "--output_dir", str(tmp_path / name), "--per_device_train_batch_size", batch]
        done = run_program(repository, "finetune_sequence_classification", *flags, by=by, env=environment)
        assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / name / "all_results.json").read_text()) for name in ("one", "two"))
    assert two["eval_loss"] == pytest.approx(one["eval_loss"], abs=1e-4)
    # Each process must have seen that the folder is empty before one of them writes there.
    flags = [*common, "--output_dir", str(tmp_path / "seeds"), "--seeds", "1", "2"]
    done = run_program(repository, "finetune_sequence_classification", *flags, by=launch, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "seeds" / "all_results.json").read_text())["seeds"] == [1, 2]


@pytest.mark.slow
def test_a_killed_program_started_again_ends_with_the_same_scores(repository: Path, model: str, tmp_path: Path) -> None:
    common = ["--train_file", write_entities(tmp_path / "a.conll", rows=300), "--model_name_or_path", model]
    common += ["--validation_file", write_entities(tmp_path / "b.conll", rows=20, seed=1), "--num_train_epochs", "12"]
    program = str(repository / "scripts" / "finetune_token_classification.py")
    broken = tmp_path / "broken"
    process = subprocess.Popen([sys.executable, program, *common, "--output_dir", str(broken)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"epoch 5"):
            process.kill()
            break
    process.wait()
    assert process.returncode != 0
    for folder, more in ((broken, ["--resume_from_checkpoint", "latest"]), (tmp_path / "whole", [])):
        done = run_program(repository, "finetune_token_classification", *common, "--output_dir", str(folder), *more)
        assert done.returncode == 0, done.stderr
    one, two = (json.loads((folder / "all_results.json").read_text()) for folder in (broken, tmp_path / "whole"))
    assert {k: v for k, v in one.items() if k.startswith("eval")} == {
        k: v for k, v in two.items() if k.startswith("eval")
    }


# Mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="limits are POSIX")
@pytest.mark.parametrize(
    ("size", "reason"), [(30_000, "File too large"), (100_000, "Input/output error")], ids=["weights", "optimizer"]
)
def test_a_full_disk_is_one_line_and_the_run_goes_on(
    python: WarmPython, model: str, tmp_path: Path, size: int, reason: str
) -> None:
    """No file grows beyond a size, which ends the writing of the first checkpoint."""
    flags = ["--train_file", write_sentiment(tmp_path / "a.csv", rows=20), "--model_name_or_path", model]
    flags += ["--output_dir", str(tmp_path / "o"), "--max_steps", "1", "--mixed_precision", "no"]
    # Nor bytecode, which Python would write cut short.
    code = "import resource, sys; sys.dont_write_bytecode = True\n"
    code += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
    code += "from clozebert.scripts import _program, finetune_sequence_classification as program\n"
    done = python.run(["-c", f"{code}_program.run(program.main)", *flags], cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    way_out = "free some space, then --resume_from_checkpoint latest"
    assert done.stderr == f"error: {tmp_path / 'o'} cannot be written ({reason}): {way_out}\n"
    flags += ["--resume_from_checkpoint", "latest"]
    done = python.run(["-m", "clozebert", "finetune-sequence", *flags], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def csv(*rows: str) -> str:
    return "\n".join(["text,label", *rows]) + "\n"


GOOD = csv(*(f"film {i},{'pos' if i % 2 else 'neg'}" for i in range(10)))
NUMBERS = csv(*(f"film {i},{i / 8}" for i in range(20)))
GOOD_TAGS = "Ada\tB-PER\nruns\tO\n\nthe\tO\ndog\tO\n"
MISTAKES: list[tuple[str, str, dict[str, str], dict[str, str], str]] = [
    # kind, what is wrong, files, flags, what is said
    ("sequence", "label in dev not in train", {"dev.csv": csv("a,odd")}, {}, "dev.csv, line 2: label 'odd' does not"),
    ("sequence", "unequal columns", {"train.csv": GOOD + "only one\n"}, {}, "train.csv, line 12: 1 columns where"),
    ("sequence", "NaN label", {"train.csv": GOOD + "text,NaN\n"}, {}, "train.csv, line 12: the label (column 'label')"),
    ("sequence", "NaN among numbers", {"train.csv": NUMBERS + "text,nan\n"}, {}, "train.csv, line 22: the label ("),
    ("sequence", "a word among numbers", {"train.csv": NUMBERS + "text,high\n"}, {}, "is 'high', expected a finite"),
    ("sequence", "one value", {"train.csv": csv("a,1.5", "b,1.5"), "dev.csv": csv("c,2.5")}, {}, "every label of the"),
    ("sequence", "no label", {"dev.csv": csv("text,")}, {}, "dev.csv, line 2: the label (column 'label') is missing"),
    ("sequence", "empty text", {"train.csv": GOOD + " ,pos\n"}, {}, "train.csv, line 12: the text (column 'text') is"),
    ("sequence", "one class", {"train.csv": csv("a,x", "b,x")}, {}, "only one class in the training data: 'x'"),
    ("sequence", "not text", {"train.csv": csv("1,x", "2,y")}, {}, "column 'text' holds only numbers"),
    ("sequence", "broken quote", {"train.csv": GOOD + '"open,pos\nb,neg\n'}, {}, "train.csv, line 12: broken quote"),
    ("sequence", "not UTF-8", {"train.csv": GOOD + "\udcff,pos\n"}, {}, "train.csv, line 12: byte 0xff is not UTF-8"),
    ("sequence", "missing file", {}, {"train_file": "gone.csv"}, "--train_file gone.csv: there is no such file"),
    ("sequence", "missing model", {}, {"model_name_or_path": "./gone"}, "./gone: there is no such folder"),
    ("sequence", "wrong column", {}, {"label_column": "labl"}, "--label_column labl: train.csv has no such"),
    ("sequence", "wrong kind", {}, {"problem_type": "regression"}, "is 'neg', expected a finite number"),
    ("sequence", "unknown kind", {}, {"problem_type": "some"}, "--problem_type: invalid choice: 'some'"),
    ("token", "unknown scheme", {}, {"tag_scheme": "iob3"}, "--tag_scheme: invalid choice: 'iob3'"),
    ("sequence", "unknown flag", {}, {"lerning_rate": "1"}, "did you mean --learning_rate?"),
    (
        "sequence", "too long", {}, {"max_seq_length": "999"},
        "--max_seq_length 999: the model, or its tokenizer by model_max_length, takes at most 64 tokens",
    ),
    ("sequence", "one column twice", {}, {"text_column": "text", "label_column": "text"}, "--label_column text: --tex"),
    ("sequence", "label in brackets", {"train.csv": csv("a,[x]", "b,[y]")}, {}, "give --problem_type single_label_cl"),
    ("sequence", "unknown tracker", {}, {"report_to": "some"}, "--report_to some: some is not supported"),
    ("sequence", "unknown score", {}, {"metric_for_best_model": "f2"}, "--metric_for_best_model f2: there is loss"),
    ("sequence", "no such checkpoint", {}, {"resume_from_checkpoint": "c"}, "--resume_from_checkpoint c: there is no"),
    ("sequence", "too many frozen", {}, {"freeze_layers": "5"}, "--freeze_layers 5: the model has 2 layers"),
    ("token", "tag outside the scheme", {"dev.conll": "a\tX-PER\n"}, {}, "dev.conll, line 1: tag 'X-PER' is neither O"),
    ("token", "outside a given scheme", {}, {"tag_scheme": "bioes", "train_file": "e.conll"}, "e.conll, line 2: tag"),
    ("token", "tag in dev not in train", {"dev.conll": "a\tB-ORG\n"}, {}, "dev.conll, line 1: tag 'B-ORG' does not"),
    ("token", "unequal columns", {"train.conll": GOOD_TAGS + "c\n"}, {}, "train.conll, line 6: 1 columns, where other"),
    ("token", "no entity", {"train.conll": "a\tO\n", "dev.conll": "a\tO\n"}, {}, "only one tag in the training"),
    ("token", "an empty tag", {"train.conll": GOOD_TAGS + "c\t\n"}, {}, "train.conll, line 6: the tag is empty"),
    ("token", "no such column", {}, {"tag_column": "5"}, "--tag_column 5: train.conll has the columns 1 to 2"),
    ("token", "empty file", {"dev.conll": "\n"}, {}, "dev.conll holds no sentence"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "files", "flags", "message"), [(k, f, g, m) for k, _, f, g, m in MISTAKES],
                         ids=[f"{kind}-{what}" for kind, what, *_ in MISTAKES])  # fmt: skip
def test_a_mistake_is_one_line_and_status_2_before_training(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    files: dict[str, str],
    flags: dict[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    suffix = "csv" if kind == "sequence" else "conll"
    good = GOOD if kind == "sequence" else GOOD_TAGS
    contents = {f"train.{suffix}": good, f"dev.{suffix}": good, "e.conll": "a\tO\nb\tE-LOC\n", **files}
    for name, content in contents.items():
        Path(name).write_bytes(content.encode("utf-8", "surrogateescape"))
    values = {
        "model_name_or_path": model,
        "train_file": f"train.{suffix}",
        "validation_file": f"dev.{suffix}",
        "output_dir": "o",
        **flags,
    }
    argv = [part for name, value in values.items() for part in (f"--{name}", value)]
    assert status_of(lambda: PROGRAMS[kind].main(argv)) == 2
    said = capfd.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert [line for line in said.err.splitlines() if "error: " in line] == [said.err.splitlines()[-1]]
    assert "epoch 1 " not in said.out
    assert not (tmp_path / "o" / "model.safetensors").exists()


def status_of(main: Callable[[], None]) -> Any:
    with pytest.raises(SystemExit) as stopped:
        run(main)
    return stopped.value.code


def test_the_length_that_is_printed_is_that_of_the_run(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_sentiment(tmp_path / "a.csv", rows=20)
    argv = [
        "--model_name_or_path",
        model,
        "--train_file",
        path,
        "--output_dir",
        str(tmp_path / "o"),
        "--max_steps",
        "2",
    ]
    finetune_sequence_classification.main(argv)
    said = capsys.readouterr().out
    assert "2 steps of batches of 8" in said
    assert "step 2/2" in said


def test_slots_as_json_lines_with_spans(model: str, tmp_path: Path) -> None:
    records = [
        {"text": f"play {band} now", "spans": [{"start": 5, "end": 5 + len(band), "label": "band"}]}
        for band in ("the doors", "abba", "queen", "the who")
    ]
    path = write_json_lines(tmp_path / "a.jsonl", records * 4)
    argv = ["--model_name_or_path", model, "--train_file", path, "--validation_file", path]
    finetune_token_classification.main([*argv, "--output_dir", str(tmp_path / "o"), "--learning_rate", "3e-3"])
    assert json.loads((tmp_path / "o" / "all_results.json").read_text())["eval_f1"] == 1.0
