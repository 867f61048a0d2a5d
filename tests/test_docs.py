"""The documentation: it builds without a warning, its links and commands exist, and its words are spelt right."""

import dataclasses
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clozebert.__main__ import PROGRAMS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What a command writes, or what stands for a file of the reader's: named in the pages, and not in the repository.
NOT_OURS = ("runs/", "my_text/", "encoder/", "tagger/", "classifier/", "corpus/train", "onnx/", ".eval_results/")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. `--strict` ends the build at a page outside the navigation, a dead link or a dead anchor."""
    folder = tmp_path_factory.mktemp("site")
    # A proxy that does not answer: whatever asks the network fails.
    closed = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https", "HTTP", "HTTPS")}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **closed, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_holds_every_page_and_asks_no_other_server(site: Path) -> None:
    for page in PAGES[2:]:
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists(), page
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|img|link|iframe)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text("utf-8")
        )
        assert not fetched, (page, fetched)
        for picture in re.findall(r'<img[^>]+src="([^"]+)"', page.read_text("utf-8")):
            assert (page.parent / picture).exists(), (page, picture)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_blank_line_stands_before_each_table(page: Path) -> None:
    """Without it, the site shows its signs as they are."""
    lines = page.read_text("utf-8").splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(r"\| ?-{3}", line)]
    before = [lines[number - 2] for number in heads]
    assert [line for line in before if line.strip() and "<!--" not in line] == []  # a script's mark is a comment


def test_the_reference_shows_every_public_name(site: Path) -> None:
    import clozebert
    from clozebert import corpus, hub, training

    shown = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    for package in (clozebert, corpus, hub, training):
        for name in package.__all__:
            if not name.startswith("__"):
                assert f'id="{package.__name__}.{name}"' in shown, f"{package.__name__}.{name}"


def test_the_reference_explains_every_field_of_a_run(site: Path) -> None:
    from clozebert.adaptation.arguments import AdaptationArguments
    from clozebert.finetuning.arguments import SequenceArguments, TokenArguments
    from clozebert.training import PretrainingArguments

    shown = "".join(
        (site / "api" / f"{name}.html").read_text("utf-8") for name in ("training", "finetuning", "adaptation")
    )
    for kind in (PretrainingArguments, SequenceArguments, TokenArguments, AdaptationArguments):
        for field in dataclasses.fields(kind):
            row = rf"<td><code>{field.name}</code></td>\s*<td>.*?</td>\s*<td>(.*?)</td>"
            meaning = re.search(row, shown, flags=re.DOTALL)
            assert meaning, field.name
            assert meaning.group(1).strip(), field.name


def test_the_words_are_spelt_right() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", "--builtin", "clear,rare", *map(str, PAGES)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    for name in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|json|yaml|png))`", page.read_text("utf-8")):
        if not name.startswith(NOT_OURS) and "…" not in name:
            assert (ROOT / name).exists(), name


def commands() -> dict[str, set[tuple[str, str]]]:
    """For each verb, the flags that a page gives it and where: in blocks, and in `code` that begins with a verb."""
    found: dict[str, set[tuple[str, str]]] = {}
    for page in PAGES:
        text = page.read_text("utf-8").replace("\\\n", " ")
        blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
        lines = [line.split("#")[0] for block in blocks for line in block.splitlines()]
        lines += re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        for line in lines:
            command = re.split(r"\| |-m clozebert.scripts.(?=pretrain_mlm)", " ".join(line.split()))[-1]
            command = command.replace("pretrain_mlm", "pretrain").removeprefix("clozebert ")
            verb = command.split(" ")[0]
            if verb in PROGRAMS:
                flags = re.findall(r"(?<=\s)--[a-zA-Z][\w-]*", command)
                found.setdefault(verb, set()).update((flag, page.name) for flag in flags)
    return found


@pytest.mark.parametrize("verb", PROGRAMS)
def test_the_flags_that_the_pages_give_exist(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module(f"clozebert.scripts.{PROGRAMS[verb][0]}").main(["--help"])
    known = set(re.findall(r"--[a-zA-Z][\w-]*", capsys.readouterr().out))
    unknown = {(flag, page) for flag, page in commands().get(verb, set()) if flag not in known}
    assert not unknown


def test_the_errors_that_the_page_explains_are_those_of_the_code() -> None:
    """A heading of errors.md in lower case quotes a message."""
    sources = "".join(
        path.read_text("utf-8")
        for room in ("configuration", "corpus", "training", "finetuning", "adaptation", "hub", "utils", "scripts")
        for path in (ROOT / room).rglob("*.py")
    )
    sources = re.sub(r'"\s*\n\s*f?"', "", sources)  # a message that goes over several lines
    quoted = re.findall(r"^### ([a-z].*)$", (ROOT / "docs" / "errors.md").read_text("utf-8"), flags=re.MULTILINE)
    of_transformers = {"contains custom code which must be executed"}
    assert len(quoted) > 10
    missing = [
        message
        for message in quoted
        if message not in of_transformers and not all(part in sources for part in re.split(r" ?… ?", message))
    ]
    assert not missing
