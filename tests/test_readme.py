"""The README's commands and code, run as they stand, on a small real text: the project's own pages.

Two of them get flags beside, so that they take seconds: see `SMALLER`. What `pretrain` sets out on by itself is tested
for each recipe, in dry runs.
"""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from often import often
from tokenizers import Tokenizer
from warm_python import WarmPython

from clozebert.configuration import list_recipes
from clozebert.scripts.plan import main as plan
from clozebert.scripts.prepare_corpus import main as prepare_corpus
from clozebert.scripts.pretrain_mlm import main as pretrain
from clozebert.scripts.train_tokenizer import main as train_tokenizer
from clozebert.training import checks

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NARROW = ["--hidden_size", "24", "--num_attention_heads", "2", "--intermediate_size", "36"]
# What each command gets beside what the README says, so that it takes seconds.
SMALLER = {
    "train-tokenizer": [],
    "prepare-corpus": [],
    "pretrain": [*NARROW, "--num_hidden_layers", "1", "--max_steps", "2", "--global_batch_size", "4"],
    "finetune-token": ["--num_train_epochs", "1"],
    "publish": ["--dry_run"],
}
MOST_EPOCHS = 40
# Rows have some padding, and documents a token at each end.
ROOM = 1.2


def write_pages(folder: Path) -> None:
    """The project's pages, as a folder of text files."""
    folder.mkdir()
    for page in sorted((ROOT / "docs").glob("*.md")):
        (folder / f"{page.stem}.txt").write_text(page.read_text(encoding="utf-8"), encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    """The `clozebert VERB …` lines of the five-command block."""
    block = next(block for block in blocks("bash") if "train-tokenizer" in block)
    lines = block.replace("\\\n", "").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("clozebert ")]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, python: WarmPython) -> Path:
    """A folder in which the five commands have been run, on the project's pages and on tagged sentences made here."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "release").symlink_to(ROOT / "release")
    write_pages(folder / "my_text")
    sentence = "".join(
        f"{i}\t{word}\t{word}\t{tag}\t_\t_\t0\troot\t_\t_\n"
        for i, (word, tag) in enumerate([("The", "DET"), ("cat", "NOUN"), ("sat", "VERB")], start=1)
    )
    for name, times in (("train", 24), ("dev", 6)):
        (folder / f"{name}.conllu").write_text((sentence + "\n") * times)
    for command in commands():
        done = python.run(["-m", "clozebert", *command, *SMALLER.get(command[0], [])], cwd=folder)
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


def test_the_python_code_runs(workplace: Path, python: WarmPython) -> None:
    for code in blocks("python"):
        done = python.run(["-c", code], cwd=workplace)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the README's commands have been run, as they stand, up to `pretrain`."""
    folder = tmp_path_factory.mktemp("prepared")
    write_pages(folder / "my_text")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for main, command in zip((train_tokenizer, prepare_corpus), commands(), strict=False):
            main(command[1:])
    return folder


def dry_run(recipe: str, *more: str) -> str:
    """What the README's `pretrain` says before it begins, with another recipe in it and a narrow model.

    Its embeddings are random: counting the text is most of the time, and says nothing of epochs.
    """
    (command,) = (command for command in commands() if command[0] == "pretrain")
    command[command.index("--config") + 1] = recipe
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        pretrain([*command[1:], "--dry_run", "--mixed_precision", "no", "--embedding_init", "random", *NARROW, *more])
    return shown.getvalue()


def check_epochs_and_vocabulary(shown: str) -> None:
    """What a run says, against the tokenizer's own file and the text counted with it."""
    tokenizer = Tokenizer.from_file("tokenizer/tokenizer.json")
    (rows,) = re.findall(r"vocabulary ([\d,]+)[;\n]", shown)
    assert tokenizer.get_vocab_size() <= int(rows.replace(",", "")) < tokenizer.get_vocab_size() + 64
    pages = [page.read_text(encoding="utf-8") for page in Path("my_text").iterdir()]
    in_text = sum(len(encoded.ids) for encoded in tokenizer.encode_batch(pages))
    ((steps, tokens, epochs),) = re.findall(r"steps: ([\d,]+) of ([\d,]+) tokens, ([\d.]+) epochs", shown)
    assert 1 < float(epochs) <= MOST_EPOCHS
    seen = int(steps.replace(",", "")) * int(tokens.replace(",", ""))
    assert 1 < seen / in_text <= MOST_EPOCHS * ROOM, (seen, in_text)


@pytest.mark.parametrize("recipe", often(list_recipes(), 2))
def test_every_recipe_sets_out_on_40_epochs_at_most_and_on_no_idle_row(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    monkeypatch.chdir(prepared)
    check_epochs_and_vocabulary(dry_run(recipe))


def test_the_check_of_epochs_and_rows_can_fail(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    with pytest.raises(AssertionError, match="<= 40"):
        check_epochs_and_vocabulary(dry_run("nano", "--num_train_epochs", "60"))
    monkeypatch.setattr(checks, "padded_vocabulary", lambda tokens: 50_368)
    with pytest.raises(AssertionError, match="50368"):
        check_epochs_and_vocabulary(dry_run("nano"))


def test_the_readme_lists_every_command_and_no_other() -> None:
    from clozebert.__main__ import PROGRAMS

    named = set(re.findall(r"`?clozebert ([a-z]+(?:-[a-z]+)*) (?:--|[a-z])", README))
    assert named <= {*PROGRAMS}, named - {*PROGRAMS}
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", README, flags=re.MULTILINE))
    assert listed == {*PROGRAMS}


def test_the_cost_of_a_run_is_that_of_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    command = next(line for line in page.splitlines() if line.startswith("clozebert plan --config bert-base "))
    plan(shlex.split(command)[2:])
    shown = capsys.readouterr().out
    hours, cost = (float(re.search(rf"^{name} +([\d.]+)$", shown, flags=re.MULTILINE)[1]) for name in ("hours", "cost"))
    assert f"| {hours:.1f} hours and ${cost:.0f}, [by a formula]" in README
