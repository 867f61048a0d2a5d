"""Verifies that a saved folder loads for users who have transformers but not clozebert.

The folder is loaded in a separate process, offline, with every Auto class that has an entry for it, and its outputs
must match its fingerprint.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..modeling.bundle import CLASS_OF_AUTO_CLASS
from ..utils.errors import UserError
from .loading import read_config

# Environment variables that a process that runs a folder's code must not get.
_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HF_TOKEN_PATH",
            "HF_STORED_TOKENS_PATH")  # fmt: skip


@dataclass(frozen=True)
class Verification:
    """What a verified folder can do.

    Attributes:
        auto_classes: the Auto classes that open it.
        new_heads: Auto class -> the tensors that are not in the checkpoint, which a user would have to train.
        pipelines: those that ran.
    """

    auto_classes: list[str]
    new_heads: dict[str, list[str]]
    pipelines: list[str]


def verify_folder(directory: str | os.PathLike) -> Verification:
    """Load `directory` in a clean process without clozebert and without a network; its code is run there.

    Raises:
        UserError: something does not load, is initialised at random or does not match the fingerprint; the message
            names all of it.
    """
    folder = Path(directory).resolve()
    read_config(folder)
    program = Path(__file__).with_name("clean_process.py")
    with tempfile.TemporaryDirectory() as home:
        answer = Path(home) / "report.json"
        environment = {key: value for key, value in os.environ.items() if key not in _SECRETS}
        environment.update(
            HF_HOME=home,
            HF_HUB_CACHE=str(Path(home) / "hub"),
            HF_MODULES_CACHE=str(Path(home) / "modules"),
            HF_HUB_OFFLINE="1",
            PYTHONDONTWRITEBYTECODE="1",
        )
        done = subprocess.run(
            [sys.executable, str(program), str(folder), str(answer), json.dumps(list(CLASS_OF_AUTO_CLASS))],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, cwd=home, check=False,
        )  # fmt: skip
        if not answer.is_file():
            reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            raise UserError(f"{directory} could not be verified in a clean process: {reason}")
        report = json.loads(answer.read_text(encoding="utf-8"))
    if report["problems"]:
        raise UserError(f"{directory} does not open without clozebert as it should: {'; '.join(report['problems'])}")
    return Verification(report["auto_classes"], report["new_heads"], report["pipelines"])
