"""Writes the folder of a Hub Space that shows `demo_page` for one model."""

import json
import os
from pathlib import Path

from ..utils.errors import UserError
from ..utils.files import whole_files
from ..utils.output_folders import check_output_dir
from .example import SHOWN_HEADS
from .loading import read_config
from .pushing import check_repo_id

_LIST = "MODELS: list[str] = []"
_README = """---
title: "{name}"
sdk: gradio
sdk_version: "{gradio}"
app_file: app.py
models:
- {repo_id}
---

Try [{repo_id}](https://huggingface.co/{repo_id}) in the browser.
"""
# The release that the page was tested with.
_GRADIO = "6.31.0"


def check_space(source: Path) -> None:
    """Refuse a model that the page has no view for."""
    architecture = (read_config(source).get("architectures") or ["model without a head"])[0]
    if not architecture.endswith(SHOWN_HEADS):
        raise UserError(
            f"with_space: the page shows fill-mask, tagging and classification, and {source} holds a {architecture}: "
            "leave it out"
        )


def write_space(directory: str | os.PathLike, repo_id: str) -> None:
    """Write `app.py`, `requirements.txt` and `README.md` of a page for a published model.

    A private model needs a token in the secrets of the Space (`HF_TOKEN`).

    Raises:
        UserError: the folder is not empty or cannot be written, or the name is not valid.
    """
    check_repo_id(repo_id)
    page = Path(__file__).with_name("demo_page.py").read_text(encoding="utf-8")
    assert page.count(_LIST) == 1
    texts = {
        "app.py": page.replace(_LIST, f"MODELS: list[str] = {json.dumps([repo_id])}"),
        "requirements.txt": "torch\ntransformers>=5.10.1\n",
        "README.md": _README.format(name=repo_id.split("/")[-1], gradio=_GRADIO, repo_id=repo_id),
    }
    check_output_dir(os.fspath(directory), name="with_space", way_out="give another folder")
    target = Path(directory)
    with whole_files(target) as folder:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
