"""The README's commands and code, run as they stand but for sizes that fit a test."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
# What each command gets beside what the README says, so that it takes seconds.
SMALLER = {
    "train-tokenizer": ["--vocab_size", "300"],
    "prepare-corpus": ["--validation_fraction", "0.2"],
    "pretrain": [
        *("--max_steps", "2", "--global_batch_size", "4", "--max_seq_length", "32", "--hidden_size", "24"),
        *("--num_attention_heads", "2", "--intermediate_size", "36", "--num_hidden_layers", "1"),
    ],
    "finetune-token": ["--num_train_epochs", "1"],
    "publish": ["--dry_run"],
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    """The `clozebert VERB …` lines of the five-command block."""
    block = next(block for block in blocks("bash") if "train-tokenizer" in block)
    return [shlex.split(line)[1:] for line in block.splitlines() if line.startswith("clozebert ")]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the five commands have been run, on text and tagged sentences made here."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my_text").mkdir()
    for name in ("one", "two", "three"):
        lines = [f"The {name} cat number {i} sat on mat {i % 7} and looked at the dog.\n" for i in range(120)]
        (folder / "my_text" / f"{name}.txt").write_text("\n".join(lines))
    sentence = "".join(
        f"{i}\t{word}\t{word}\t{tag}\t_\t_\t0\troot\t_\t_\n"
        for i, (word, tag) in enumerate([("The", "DET"), ("cat", "NOUN"), ("sat", "VERB")], start=1)
    )
    for name, times in (("train", 24), ("dev", 6)):
        (folder / f"{name}.conllu").write_text((sentence + "\n") * times)
    for command in commands():
        done = subprocess.run(
            [sys.executable, "-m", "clozebert", *command, *SMALLER.get(command[0], [])],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return folder


def test_there_are_five_commands_from_text_to_the_hub() -> None:
    assert [command[0] for command in commands()] == list(SMALLER)


def test_the_commands_leave_what_the_readme_says(workplace: Path) -> None:
    for place in ("tokenizer/tokenizer.json", "corpus/train", "encoder/model.safetensors", "tagger/all_results.json"):
        assert (workplace / place).exists(), place
    # Programs on transformers 4 do not know the class that transformers 5 writes.
    for folder in ("tokenizer", "encoder", "tagger"):
        settings = json.loads((workplace / folder / "tokenizer_config.json").read_text())
        assert settings["tokenizer_class"] == "PreTrainedTokenizerFast", folder


def test_the_python_code_runs(workplace: Path) -> None:
    for code in blocks("python"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=workplace,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        assert done.returncode == 0, done.stderr


def test_the_readme_lists_every_command_and_no_other() -> None:
    from clozebert.__main__ import PROGRAMS

    named = set(re.findall(r"`?clozebert ([a-z]+(?:-[a-z]+)*) (?:--|[a-z])", README))
    assert named <= {*PROGRAMS}, named - {*PROGRAMS}
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", README, flags=re.MULTILINE))
    assert listed == {*PROGRAMS}
