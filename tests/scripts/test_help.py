"""`--help` of every verb, and what is said of a flag that is not known."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clozebert.__main__ import PROGRAMS
from clozebert.configuration import list_recipes
from clozebert.finetuning.arguments import PredictionArguments
from clozebert.scripts._program import parse
from clozebert.training.run_settings import hints, pretraining_flags, values_for_help
from clozebert.utils.command_line import Flag, Parser

REPOSITORY = Path(__file__).parents[2]


def help_of(*command: str) -> str:
    done = subprocess.run([sys.executable, *command, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def flags_in(shown: str) -> list[str]:
    return re.findall(r"^  (--\w+)", shown, flags=re.MULTILINE)


@pytest.mark.parametrize("verb", PROGRAMS)
def test_every_verb(verb: str) -> None:
    shown = help_of("-m", "clozebert", verb)
    assert shown.startswith(f"usage: python -m clozebert {verb} ")
    assert re.search(rf"examples?:\n  python -m clozebert {verb} \S", shown)
    flags = flags_in(shown)
    assert len(flags) == len(set(flags)) > 0, "each long name once"
    assert not re.search(r"--\w+-\w+", shown), "the form with dashes is understood, not shown"
    assert "(default: None)" not in shown
    # Without a section of their own come the flags that most people need.
    first = flags_in(shown.partition("\nflags:\n")[2].partition("\n\n")[0])
    assert len(first) <= 20


def test_pretraining() -> None:
    shown = help_of("-m", "clozebert", "pretrain")
    assert shown.splitlines()[0] == (
        "usage: python -m clozebert pretrain --corpus DIR … --tokenizer_name NAME --output_dir DIR [flags]"
    )
    assert 60 < len(flags_in(shown)) < 90
    assert len(flags_in(shown.partition("\nflags:\n")[2].partition("\n\n")[0])) <= 14
    for heading in (
        "batches:",
        "initial weights of a new model:",
        "masking and predictions:",
        "optimizer and schedule:",
        "precision and machine:",
    ):
        assert f"\n{heading}\n" in shown
    assert "\n  --dry_run " in shown
    assert "\n  --dry_run [" not in shown
    assert "\n  --torch_compile [true|false] " in shown
    for recipe in list_recipes():
        assert re.search(rf"^  {recipe} +\d+ M parameters: ", shown, flags=re.MULTILINE)
    of_tiny = help_of("-m", "clozebert", "pretrain", "--config", "tiny")
    joined = " ".join(of_tiny.split())
    assert "peak learning rate of AdamW (default: 0.003)" in joined
    assert "layers (default: 4)" in joined


def test_the_command_is_shown_as_it_was_typed() -> None:
    path = str(REPOSITORY / "scripts" / "train_tokenizer.py")
    assert help_of(path).startswith(f"usage: python {path} --input TEXT … --output_dir DIR [flags]")
    assert help_of("-m", "clozebert.scripts.predict").startswith("usage: python -m clozebert.scripts.predict ")


def parser(**options: object) -> Parser:
    flags = [
        Flag("learning_rate", float, "", default=0.1),
        Flag("model_name_or_path", str, "", is_required=True),
        Flag("seeds", list[int] | None, ""),
        Flag("use_cpu", bool, "", default=False),
    ]
    return Parser(flags, prog="clozebert x", description="", hints={"old": "do without"}, **options)  # type: ignore[arg-type]


def test_dashes_are_understood() -> None:
    read = parser().read(["--model-name-or-path=a-b", "--learning-rate", "1e-3", "--seeds", "1", "2", "--use-cpu"])
    assert read == {"learning_rate": 1e-3, "model_name_or_path": "a-b", "seeds": [1, 2], "use_cpu": True}
    read = parser().read(["--model_name_or_path", "m", "--use_cpu", "no"])
    assert read["use_cpu"] is False


def test_every_digit_of_a_whole_number_counts() -> None:
    read = parser().read(["--model_name_or_path", "m", "--seeds", "9007199254740993", "1e5", "18446744073709551615"])
    assert read["seeds"] == [9007199254740993, 100_000, 18446744073709551615]


def test_the_home_is_found_where_a_shell_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/there")
    monkeypatch.setenv("USERPROFILE", "/there")
    assert parser().read(["--model_name_or_path=~/m"])["model_name_or_path"] == "/there/m"
    assert parser().read(["--model_name_or_path=~m"])["model_name_or_path"] == "~m"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "3"], "unknown flag --lr; did you mean --learning_rate?"),
        (["--model", "m"], "unknown flag --model; did you mean --model_name_or_path?"),
        (["--learning-rat", "3"], "unknown flag --learning_rat; did you mean --learning_rate?"),
        (["--old", "3"], "unknown flag --old: do without"),
        (["--xyzzy", "3"], "unknown flag --xyzzy; see --help"),
        (["word"], "unexpected argument 'word'; flags begin with --"),
        (["--seeds", "1.5"], "--seeds: '1.5' must be a whole number"),
        (["--seeds", "inf"], "--seeds: 'inf' must be a whole number"),
        (["--seeds", "9" * 400], f"--seeds: '{'9' * 400}' must be a whole number"),
        (["--learning_rate", "nan"], "--learning_rate: 'nan' must be a number"),
        (["--use_cpu", "perhaps"], "--use_cpu: 'perhaps' is neither true nor false"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parser().read(["--model_name_or_path", "m", *words])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().read([])
    assert capsys.readouterr().err == "error: give --model_name_or_path; clozebert x --help shows all flags\n"
    with pytest.raises(SystemExit):
        parse(PredictionArguments, [], doc="Predict.", verb="predict", first="model_name_or_path")
    assert capsys.readouterr().err.startswith("error: give NAME (--model_name_or_path); ")
    with pytest.raises(SystemExit):
        parse(PredictionArguments, ["--help"], doc="Predict.", verb="predict", first="model_name_or_path")
    assert " NAME [flags]\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parser().read(["--model_name", "m"])
    assert capsys.readouterr().err == "error: unknown flag --model_name; did you mean --model_name_or_path?\n"


def test_the_recipe_of_a_help_has_a_name() -> None:
    assert values_for_help(["--config", "--help"]) == {}
    assert values_for_help(["--config", "tiny", "--help"])["learning_rate"] == 0.003


def test_every_flag_that_went_says_why_and_none_is_both() -> None:
    names = {flag.name for flag in pretraining_flags()}
    assert not names & set(hints())
    for name in (
        "vocab_size",
        "pad_token_id",
        "image_size",
        "classifier_pooling",
        "gradient_accumulation_steps",
        "bf16",
    ):
        assert hints()[name]


def test_a_list_may_be_given_in_several_parts() -> None:
    flags = [Flag("input", list[str], "What to read.", default=["-"]), Flag("seed", int, "A seed.", default=1)]
    parser = Parser(flags, prog="x", description="")
    assert parser.parse_args([]).input == ["-"]
    assert parser.parse_args(["--input", "a", "--seed", "2", "--input", "b", "c"]).input == ["a", "b", "c"]
    assert parser.parse_args([]).input == ["-"]


def test_a_value_that_begins_with_a_dash_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser([Flag("input", list[str], "files")], prog="x", description="")
    assert parser.read(["--input=-a.txt"]) == {"input": ["-a.txt"]}
    with pytest.raises(SystemExit):
        parser.read(["--input", "-a.txt"])
    assert capsys.readouterr().err == (
        "error: --input: expected at least one argument; write --input=VALUE if the value begins with -\n"
    )
