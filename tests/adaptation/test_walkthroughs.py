"""The walkthroughs' commands, run as they stand on small text made here, but for sizes that fit a test."""

import importlib
import random
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from small_models import NEW_WORDS, new_documents, old_documents, save_native

from clozebert.__main__ import PROGRAMS

PAGES = Path(__file__).resolve().parents[2] / "docs" / "walkthroughs"
_SMALL_RUN = ["--max_steps", "3", "--global_batch_size", "4", "--max_seq_length", "48", "--disable_tqdm", "true"]
_SMALL_MODEL = [
    *("--hidden_size", "24", "--num_attention_heads", "2", "--intermediate_size", "36", "--num_hidden_layers", "1"),
]
SMALLER = {
    "prepare-corpus": ["--validation_fraction", "0.2", "--num_processes", "1"],
    "pretrain": [*_SMALL_RUN, *_SMALL_MODEL, "--use_cpu", "true"],
    "adapt": [*_SMALL_RUN, "--num_processes", "1", "--use_cpu", "true"],
    "evaluate": ["--pseudo_perplexity_documents", "4"],
    "finetune-sequence": ["--num_train_epochs", "1", "--max_seq_length", "48"],
    "finetune-token": ["--num_train_epochs", "1", "--max_seq_length", "48"],
}
# Flags of a page that a test cannot afford, with their values.
LEFT_OUT = {"--max_minutes": 1, "--extend_vocabulary": 1}


def commands_of(page: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return "".join(blocks).splitlines()


def run_all(page: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    commands = commands_of(page)
    assert 3 <= len(commands) <= 7
    for command in commands:
        program, verb, *flags = shlex.split(command)
        if program != "clozebert":
            subprocess.run(command, shell=True, check=True, timeout=60)
            continue
        given: list[str] = []
        skip = 0
        for word in flags:
            if word in LEFT_OUT:
                skip = 1 + LEFT_OUT[word]
            if skip:
                skip -= 1
            else:
                given.append(word)
        if "--extend_vocabulary" in flags:
            given += ["--extend_vocabulary", "15"]
        if verb == "adapt" and "--input" in flags:
            given += ["--validation_fraction", "0.2"]
        importlib.import_module(f"clozebert.scripts.{PROGRAMS[verb][0]}").main([*given, *SMALLER.get(verb, [])])


def write_text(folder: Path) -> None:
    for name, documents in (("my_text", new_documents(60)), ("general_text", old_documents(60))):
        (folder / name).mkdir()
        (folder / name / "one.txt").write_text("\n\n".join(documents))


def test_own_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)
    (tmp_path / "other_text").mkdir()
    (tmp_path / "other_text" / "one.txt").write_text("\n\n".join(old_documents(90)[70:]))
    save_native(tmp_path / "bert-base-cased", "bert")
    rows = [f'"{text}",new' for text in new_documents(20)] + [f'"{text}",old' for text in old_documents(20)]
    random.Random(0).shuffle(rows)
    for name, part in (("train", rows[:30]), ("test", rows[30:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *part]) + "\n")
    run_all("own_domain.md", monkeypatch, tmp_path)
    assert "| test.csv |" in (tmp_path / "domain-bert" / "report.md").read_text()
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 10


def test_new_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)
    save_native(tmp_path / "bert-base-multilingual-cased", "bert")
    for name in ("train", "test"):
        sentences = [
            f"# text = {text}\n"
            + "".join(
                f"{place}\t{word}\t_\t{'NOUN' if word in NEW_WORDS else 'X'}\t_\t_\t0\t_\t_\t_\n"
                for place, word in enumerate(text.rstrip(".").split()[:8], start=1)
            )
            for text in new_documents(20)
        ]
        (tmp_path / f"{name}.conllu").write_text("\n".join(sentences) + "\n")
    (tmp_path / "sentences.txt").write_text("the chlorine dog\nthe benzene house\n")
    run_all("new_language.md", monkeypatch, tmp_path)
    assert (tmp_path / "task.txt").read_text().splitlines() == 2 * new_documents(20)
    assert (tmp_path / "answers.jsonl").read_text().strip()


def test_dna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = random.Random(0)
    dna = "".join(draws.choice("ACGT") for _ in range(6000))
    lines = [dna[first : first + 60] for first in range(0, 6000, 60)]
    records = [">chromosome 1", *lines[:50], ">chromosome 2", *lines[50:]]
    (tmp_path / "genome.fasta").write_text("\n".join(records) + "\n")
    snippet = re.search(r"```python\n(.*?)```", (PAGES / "dna_ids.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert snippet
    monkeypatch.chdir(tmp_path)
    exec(snippet.group(1), {})
    labelled = ["text,label"] + [
        f"{' '.join(str(draws.randrange(32) + 32 * label) for _ in range(12))},{'ab'[label]}"
        for label in (0, 1) for _ in range(15)
    ]  # fmt: skip
    (tmp_path / "labelled.csv").write_text("\n".join(labelled) + "\n")
    numbers = [draws.randrange(64) for _ in range(200)]
    rows = [f"{number} {'B-X' if number < 32 else 'O'}" for number in numbers]
    blocks = ["\n".join(rows[first : first + 10]) for first in range(0, 200, 10)]
    (tmp_path / "tagged.conll").write_text("\n\n".join(blocks) + "\n")
    (tmp_path / "new_ids.txt").write_text("5 17 3\n40 41 42\n")
    lines = (tmp_path / "ids.jsonl").read_text().splitlines()
    (tmp_path / "more_ids.jsonl").write_text("\n".join(lines[::-1]))
    run_all("dna_ids.md", monkeypatch, tmp_path)
    from clozebert.corpus import Corpus

    ids = Corpus("corpus").document(0)
    letters = "".join("ACGT"[number // 16] for number in ids.tolist())
    assert letters in dna
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2
    assert "held-out new text" in (tmp_path / "adapted" / "report.md").read_text()
