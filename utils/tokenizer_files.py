"""Saves a tokenizer so that older programs open it too."""

import json
import os
from pathlib import Path
from typing import Any

from .files import OLD_SPECIAL_TOKENS, write_text, written_in

# What holds the vocabulary of a fast tokenizer: the first in newer folders, one of the others in older ones.
VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model",
                    "tokenizer.model")  # fmt: skip
_SETTINGS = "tokenizer_config.json"
# Settings that say how a tokenizer was loaded on this machine. transformers saves them with the others.
_HOW_IT_WAS_LOADED = ("is_local", "local_files_only", "name_or_path", "tokenizer_file")


def save_tokenizer(tokenizer: Any, directory: str | os.PathLike) -> None:
    """`tokenizer.save_pretrained(directory)`, with a class name that every program knows.

    transformers 5 calls the class `TokenizersBackend`. Programs on transformers 4, such as flair and
    spacy-transformers, know the same class as `PreTrainedTokenizerFast`, and transformers 5 knows that name too.
    """
    for old in written_in(Path(directory), [OLD_SPECIAL_TOKENS]):
        old.unlink()
    tokenizer.save_pretrained(directory)
    settings = read_tokenizer_settings(directory)
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_tokenizer_settings(directory, {key: x for key, x in settings.items() if key not in _HOW_IT_WAS_LOADED})


def forget_lengths(tokenizer: Any) -> None:
    """Forget the truncation and the padding that a tokenizer.json asks for: they are of another model.

    transformers does not go by them, but saves them, and programs on the tokenizers library do go by them.
    """
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    for name in ("max_length", "stride", "truncation_strategy", "pad_to_multiple_of"):
        tokenizer.init_kwargs.pop(name, None)


def read_tokenizer_settings(directory: str | os.PathLike) -> dict[str, Any]:
    return json.loads((Path(directory) / _SETTINGS).read_text(encoding="utf-8"))


def write_tokenizer_settings(directory: str | os.PathLike, settings: dict[str, Any]) -> None:
    """Write a folder's tokenizer_config.json, atomically."""
    text = json.dumps(settings, indent=2, ensure_ascii=False, sort_keys=True)
    write_text(Path(directory) / _SETTINGS, f"{text}\n")
