# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Writes the code that travels with every checkpoint, so that `AutoModel` loads it without clozebert.

Code on the Hub is flat: the files of `configuration/` and `modeling/` lie side by side there, and one import prefix is
rewritten. Otherwise they are the released sources, byte for byte. A model that was loaded from such a folder copies the
code from there when it is saved.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# They are imported by these names only if a program runs in the folder itself. So none is called as a package that
# transformers imports: `kernels` is one.
CODE_FILES = (
    "configuration_clozebert.py",
    "field_checks.py",
    "named_architectures.py",
    "fast_paths.py",
    "packed.py",
    "inputs.py",
    "attention_tiles.py",
    "triton_kernels.py",
    "window_attention.py",
    "joined.py",
    "packed_attention.py",
    "attention.py",
    "embeddings.py",
    "blocks.py",
    "heads.py",
    "losses.py",
    "bundle.py",
    "encoder.py",
    "masked_lm.py",
    "classifiers.py",
    "modeling_clozebert.py",
)
_HERE = Path(__file__).parent
# In two parts, so that this file does not contain the prefix itself.
_PACKAGE_PREFIX, _FLAT_PREFIX = "from ..configuration" + ".", "from " + "."

# Auto class -> our class, by their names.
CLASS_OF_AUTO_CLASS = {
    "AutoModel": "ClozeBertModel",
    "AutoModelForMaskedLM": "ClozeBertForMaskedLM",
    "AutoModelForPreTraining": "ClozeBertForMaskedLM",
    "AutoModelForSequenceClassification": "ClozeBertForSequenceClassification",
    "AutoModelForTokenClassification": "ClozeBertForTokenClassification",
    "AutoModelForQuestionAnswering": "ClozeBertForQuestionAnswering",
    "AutoModelForMultipleChoice": "ClozeBertForMultipleChoice",
    "AutoModelForImageClassification": "ClozeBertForImageClassification",
}


def auto_map() -> dict[str, str]:
    """The `auto_map` of config.json: every Auto class, so that a folder saved with one head opens with any other."""
    return {
        "AutoConfig": "configuration_clozebert.ClozeBertConfig",
        **{auto: f"modeling_clozebert.{name}" for auto, name in CLASS_OF_AUTO_CLASS.items()},
    }


def write_code(directory: str | os.PathLike) -> list[str]:
    """Write the code files into `directory`, each atomically, and return their names.

    They have the same bytes on every system.
    """
    for name in CODE_FILES:
        source = _HERE / name
        if not source.is_file():
            source = _HERE.parent / "configuration" / name
        text = source.read_text(encoding="utf-8").replace(_PACKAGE_PREFIX, _FLAT_PREFIX)
        temporary = Path(directory) / f".{name}.tmp"
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(Path(directory) / name)
    return list(CODE_FILES)


def is_class_of_ours(model_class: type) -> bool:
    """Whether a class is one of those whose code `write_code` writes."""
    is_named = model_class.__name__ in CLASS_OF_AUTO_CLASS.values()
    return is_named and model_class.__module__.rpartition(".")[0] == __name__.rpartition(".")[0]


def files_in(directory: str | os.PathLike[str]) -> dict[str, int]:
    """The files of a folder, not of its sub-folders, each with the time at which it was written, in nanoseconds."""
    if not os.path.isdir(directory):
        return {}
    return {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(os.fspath(directory)) if entry.is_file()}


def push_saved_files(
    directory: str | os.PathLike,
    files: Iterable[tuple[str, int]],
    options: dict[str, Any],
    *,
    tags: list[str] | None = None,
) -> None:
    """Upload what `save_pretrained` wrote, with a card, which has these tags, if there is none.

    transformers' own upload runs before the code is written.
    """
    from huggingface_hub import HfApi

    token = options.get("token") if isinstance(options.get("token"), str) else None
    api = HfApi(token=token)
    repo_id = options.get("repo_id") or os.path.basename(os.path.normpath(directory))
    repo_id = api.create_repo(repo_id, private=options.get("private"), exist_ok=True).repo_id
    names = {name for name, _ in files}
    card, revision = os.path.join(directory, "README.md"), options.get("revision")
    if not (os.path.exists(card) or api.file_exists(repo_id, "README.md", revision=revision)):
        from transformers.utils.hub import create_and_tag_model_card

        create_and_tag_model_card(repo_id, tags, token=token).save(card)
        names.add("README.md")
    api.upload_folder(
        repo_id=repo_id,
        folder_path=os.fspath(directory),
        allow_patterns=sorted(names),
        commit_message=options.get("commit_message") or "Upload model",
        revision=revision,
        create_pr=options.get("create_pr", False),
    )


__all__ = [
    "CLASS_OF_AUTO_CLASS",
    "CODE_FILES",
    "auto_map",
    "files_in",
    "is_class_of_ours",
    "push_saved_files",
    "write_code",
]
