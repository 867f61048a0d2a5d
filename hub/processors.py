"""The tokenizer and the image processor of a saved model, brought to another folder."""

import json
import shutil
from pathlib import Path

from transformers import AutoTokenizer

# Any of these means that the folder has a tokenizer.
_HAS_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model",
                  "sentencepiece.bpe.model", "tokenizer.model")  # fmt: skip
TOKENIZER_FILES = (*_HAS_TOKENIZER, "merges.txt", "special_tokens_map.json", "added_tokens.json")
IMAGE_FILES = ("preprocessor_config.json", "processor_config.json")
# How a tokenizer was loaded here. transformers saves that beside the tokenizer's settings.
_HOW_IT_WAS_LOADED = ("is_local", "local_files_only", "name_or_path", "tokenizer_file")


def copy_processors(folder: Path, directory: Path) -> None:
    """Copy the tokenizer, as transformers loads and saves it, and the image processor's settings."""
    if any((folder / name).is_file() for name in _HAS_TOKENIZER):
        # Saved anew rather than copied: old folders leave the tokenizer's class to be guessed from `model_type`.
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        tokenizer.save_pretrained(directory)
        path = directory / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings = {key: value for key, value in settings.items() if key not in _HOW_IT_WAS_LOADED}
        if settings.get("tokenizer_class") == "TokenizersBackend":
            # The same class by the name that transformers 4 knows too, which servers still run.
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    for name in IMAGE_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, directory / name)


__all__ = ["IMAGE_FILES", "TOKENIZER_FILES", "copy_processors"]
