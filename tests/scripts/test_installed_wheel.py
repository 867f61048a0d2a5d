"""The installed wheel, in an environment and a folder outside of the repository: text to a model, two processes."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from pretraining_helpers import log_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="the environment's programs lie elsewhere on Windows"),
]
SMALL = ["--hidden_size", "24", "--num_attention_heads", "2", "--intermediate_size", "36", "--num_hidden_layers", "1",
         "--max_steps", "4", "--global_batch_size", "8", "--per_device_train_batch_size", "2", "--max_seq_length", "32",
         "--logging_steps", "1", "--layer_types", "null", "--disable_tqdm"]  # fmt: skip


class Installed:
    """A virtual environment with the wheel in it, and a folder to work in."""

    def __init__(self, root: Path, wheel: Path) -> None:
        self.folder, self.bin = root / "work", root / "environment" / "bin"
        self.folder.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "environment"], check=True, timeout=120)
        # What the wheel depends on is this environment's. Of a folder that a .pth file names, no further .pth files are
        # read: an editable installation of the repository is not seen.
        (site,) = (root / "environment").glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.bin / "python", "install", "-q", "--no-deps", "--no-index",
             "--disable-pip-version-check", wheel],
            check=True, cwd=self.folder, env=self.environment, timeout=120,
        )  # fmt: skip

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.bin / program, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip

    def launch(self, *arguments: str) -> subprocess.CompletedProcess:
        """`accelerate launch …` of this environment."""
        return self.run("python", "-m", "accelerate.commands.accelerate_cli", "launch", *arguments)


@pytest.fixture(scope="module")
def installed(wheel: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """With a tokenizer and a corpus of the project's own pages, made by the installed commands."""
    installed = Installed(tmp_path_factory.mktemp("installed"), wheel)
    where = installed.run("python", "-c", "import clozebert; print(clozebert.__file__)").stdout.strip()
    assert where.startswith(str(installed.bin.parent)), where
    (installed.folder / "my_text").mkdir()
    for page in (repository / "docs").glob("*.md"):
        (installed.folder / "my_text" / f"{page.stem}.txt").write_text(page.read_text(encoding="utf-8"))
    for command in (
        "train-tokenizer --input my_text/ --algorithm bpe --vocab_size 2000 --output_dir tokenizer",
        "prepare-corpus --input my_text/ --tokenizer_name tokenizer --output_dir corpus",
    ):
        done = installed.run("clozebert", *command.split())
        assert done.returncode == 0, done.stderr
    return installed


def flags(output: str) -> list[str]:
    run = f"--config small --corpus corpus --tokenizer_name tokenizer --output_dir {output}"
    return ["-m", "clozebert.scripts.pretrain_mlm", *run.split(), *SMALL]


def test_two_processes_train_by_a_recipe_and_a_launch_file_of_the_wheel(installed: Installed) -> None:
    launch_file = installed.run("clozebert", "launch-config", "cpu").stdout.strip()
    assert launch_file.startswith(str(installed.bin.parent))
    done = installed.launch("--config_file", launch_file, *flags("encoder"))
    assert done.returncode == 0, done.stderr
    assert "2 processes x 2 micro-batches x 2 rows" in done.stdout
    # The recipe's values, where no flag changes them.
    assert re.search(r"muon; schedule wsd with 0 steps of warm-up", done.stdout), done.stdout
    assert [line["step"] for line in log_of(installed.folder / "encoder") if "loss" in line] == [1, 2, 3, 4]
    code = (
        "import clozebert, transformers as t; m = t.AutoModelForMaskedLM.from_pretrained('encoder'); "
        "print(m.config.num_hidden_layers, m.config.vocab_size, len(t.AutoTokenizer.from_pretrained('encoder')))"
    )
    loaded = installed.run("python", "-c", code)
    assert loaded.stdout.split() == ["1", "2048", "2000"], loaded.stderr


def test_the_form_that_accelerate_runs_as_one_process_is_refused(installed: Installed) -> None:
    done = installed.launch("--cpu", "--num_processes", "2", *flags("alone"))
    assert done.returncode != 0
    assert "launch-config" in done.stdout + done.stderr
    assert not (installed.folder / "alone").exists()
