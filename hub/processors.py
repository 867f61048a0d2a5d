"""Copies what lies beside a saved model to another folder: tokenizer, image processor, reading settings, licence."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from ..utils.errors import UserError, as_user_errors
from ..utils.files import write_json
from ..utils.tokenizer_files import (
    VOCABULARY_FILES,
    read_tokenizer_settings,
    save_tokenizer,
    write_tokenizer_settings,
)
from ..utils.untrusted import is_within, read_json_object

# Any of these files means that the folder has a tokenizer.
_HAS_TOKENIZER = (*VOCABULARY_FILES, "tokenizer_config.json")
TOKENIZER_FILE_NAMES = (*_HAS_TOKENIZER, "merges.txt", "bpe.codes", "special_tokens_map.json", "added_tokens.json")
LICENSE_FILES = ("LICEN[SC]E*", "licen[sc]e*", "NOTICE*", "COPYING*", "USE_POLICY*", "LICENSES/*")
CODE_LICENSE_NAME = "LICENSE.clozebert"  # goes with the code of a bundle, and is not the model's
IMAGE_FILES = ("preprocessor_config.json", "processor_config.json")
# The fine-tuning settings that say how texts were read. The others name files of the training machine.
SETTINGS_NAME = "finetuning_settings.json"
_READING = (
    "task",
    "text_column",
    "text_pair_column",
    "label_column",
    "multi_hot",
    "max_seq_length",
    "window_overlap",
    "label_subwords",
    "tag_scheme",
)


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _HAS_TOKENIZER)


def copy_processors(folder: Path, directory: Path) -> None:
    """Copy the tokenizer, as transformers loads and saves it, and the image processor's settings.

    Args:
        directory: the folder in which the model is already saved.
    """
    if has_tokenizer(folder):
        # Saved anew rather than copied: in old folders, the tokenizer's class has to be guessed from `model_type`.
        with as_user_errors(Exception, about=f"the tokenizer of {folder}"):
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        save_beside_model(tokenizer, directory)
    for name in IMAGE_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, directory / name)


def copy_beside(folder: Path, directory: Path, patterns: Sequence[str] = LICENSE_FILES) -> None:
    """Copy the files of some patterns, by default those of the model's licence.

    Raises:
        UserError: a file is a link that leaves its folder.
    """
    for path in sorted(itertools.chain.from_iterable(map(folder.glob, patterns))):
        if path.name == CODE_LICENSE_NAME or path.is_dir():
            continue
        if not is_within(path, folder):
            raise UserError(f"{path} is a link that leaves its folder, and would be copied: remove it")
        target = directory / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)


def reading_settings(folder: Path) -> dict[str, Any]:
    """How a model read texts when it was fine-tuned; empty for other models."""
    path = folder / SETTINGS_NAME
    return read_json_object(path) if path.is_file() else {}


def takes_pairs(folder: Path) -> bool:
    """Whether a saved model reads pairs of texts: it was fine-tuned on pairs here, or its head compares two texts."""
    if reading_settings(folder).get("text_pair_column") is not None:
        return True
    return read_json_object(folder / "config.json").get("compare_pairs") is True  # another program may have trained it


def copy_reading_settings(folder: Path, directory: Path) -> None:
    """Copy how a fine-tuned model reads texts (pairs, windows), so that `predict` reads them as training did."""
    if settings := reading_settings(folder):
        reading = {name: settings[name] for name in _READING if name in settings}
        write_json(directory / SETTINGS_NAME, reading)


def save_beside_model(tokenizer: Any, directory: Path) -> None:
    """Save a tokenizer beside a saved model; for native BERT and RoBERTa in their own class if that encodes equally."""
    save_tokenizer(tokenizer, directory)
    settings = read_tokenizer_settings(directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") != "PreTrainedTokenizerFast":
        return
    own_class = _own_class(config.get("model_type"), json.loads(tokenizer.backend_tokenizer.to_str()))
    if own_class is None:
        return
    write_tokenizer_settings(directory, {**settings, **own_class})
    # transformers 5 builds both classes from only the vocabulary and these settings.
    rebuilt = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    if _how_it_encodes(rebuilt) != _how_it_encodes(tokenizer):
        write_tokenizer_settings(directory, settings)


def _own_class(model_type: str | None, parts: dict[str, Any]) -> dict[str, Any] | None:
    """The class of an architecture's own tokenizers, and its settings; None if these parts are of another kind."""
    normalizer, pre_tokenizer = parts["normalizer"] or {}, parts["pre_tokenizer"] or {}
    if model_type == "bert" and normalizer.get("type") == "BertNormalizer":
        return {
            "tokenizer_class": "BertTokenizerFast",
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
    if model_type == "roberta" and pre_tokenizer.get("type") == "ByteLevel":
        # Without the class, `add_prefix_space=True` would have no effect, which pre-split words need.
        return {
            "tokenizer_class": "RobertaTokenizerFast",
            "add_prefix_space": pre_tokenizer["add_prefix_space"],
            "trim_offsets": (parts["post_processor"] or {}).get("trim_offsets", True),
        }
    return None


def _how_it_encodes(tokenizer: Any) -> dict[str, Any]:
    """Everything that determines the ids of a text."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    after = parts["post_processor"]
    if after is not None and after["type"] == "Sequence" and len(after["processors"]) == 1:
        parts["post_processor"] = after["processors"][0]
    names = ("added_tokens", "model", "normalizer", "post_processor", "pre_tokenizer")
    inputs = {"model_input_names": tokenizer.model_input_names, "model_max_length": tokenizer.model_max_length}
    return {**{name: parts[name] for name in names}, **inputs}
