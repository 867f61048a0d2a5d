"""Converting a saved model: a folder, or a repository on the Hub, in; a folder out.

Reading is strict. Weights come from safetensors; a tensor that is missing, left over or of another shape is an error
that names it, for a model with random parts looks like any other.
"""

import contextlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from transformers.utils import logging

from ..configuration.configuration_clozebert import ClozeBertConfig
from ..modeling import modeling_clozebert
from .architectures import NATIVE
from .card import CARD_NAME, write_card
from .hub_errors import explain
from .native import convert_from_native, to_native
from .whole_folder import check_is_free, disk_errors, whole_folder

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model",
                    "sentencepiece.bpe.model", "tokenizer.model")  # fmt: skip
# How a tokenizer was loaded here, which transformers writes down beside what it is.
_NOT_THE_TOKENIZERS = ("is_local", "local_files_only", "name_or_path", "tokenizer_file")
_IMAGE_FILES = ("preprocessor_config.json", "processor_config.json")
_DOWNLOAD = ("config.json", "README.md", "*.safetensors", "*.safetensors.index.json", *_TOKENIZER_FILES,
             "merges.txt", "special_tokens_map.json", "added_tokens.json", *_IMAGE_FILES)  # fmt: skip
# Tensors that published checkpoints hold beside the head that they name: the other pretraining task's, the pooler under
# it, and counting buffers. They have no place in the head, and are left out with a warning.
_LEFTOVERS = re.compile(
    r"(^|\.)pooler\.dense\.(weight|bias)$|^cls\.seq_relationship\.|(^|\.)position_ids$|(^|\.)inv_freq$"
)


def convert_folder(
    source: str | os.PathLike,
    directory: str | os.PathLike,
    *,
    to: str,
    allow_pickle: bool = False,
    architecture: str | None = None,
    overwrite: bool = False,
) -> str:
    """Convert a saved model, with its tokenizer, and give its new class's name.

    Args:
        source: a folder, or a name on the Hub.
        directory: where to write; nothing stays there after an error.
        to: `clozebert` or `native`.
        allow_pickle: read `pytorch_model.bin` where there are no safetensors.
        architecture: the `model_type` to write, with `to="native"`; None: the one it came from, or the first that fits.
        overwrite: `directory` may hold files already.

    Raises:
        ValueError: see `from_native` and `to_native`; or `directory` is not empty or cannot be written.
    """
    if to not in ("clozebert", "native"):
        raise ValueError(f"to={to!r} must be clozebert or native")
    if architecture is not None and to != "native":
        raise ValueError(f"architecture={architecture!r} needs to='native': ClozeBERT's own format is one")
    check_is_free(directory, name="output_dir", overwrite=overwrite)
    folder = find_folder(source, allow_pickle=allow_pickle)
    converted: Any
    if to == "clozebert":
        # The old model is let go before the new one is written, so that memory holds one of them.
        converted = convert_from_native(load_native(folder, allow_pickle=allow_pickle), copy_tensors=False)
    else:
        ours = load_clozebert(folder, allow_pickle=allow_pickle)
        converted = to_native(ours, architecture=architecture, copy_tensors=False)
        del ours
    with whole_folder(directory, overwrite=overwrite) as partial:
        with _quiet():
            converted.save_pretrained(partial)
        copy_processors(folder, partial)
        if (Path(directory) / CARD_NAME).is_file():  # which a person may have edited
            shutil.copyfile(Path(directory) / CARD_NAME, partial / CARD_NAME)
        write_card(partial, _facts(source, folder, Path(directory)))
    return type(converted).__name__


def find_folder(source: str | os.PathLike, *, allow_pickle: bool = False) -> Path:
    """The folder of a model: itself, or where its repository on the Hub is kept after download.

    Raises:
        FileNotFoundError: no such folder, and not a name that the Hub could know.
        ValueError: the Hub does not give it (offline, misspelt, private).
    """
    folder = Path(source)
    if folder.is_dir():
        return folder
    name = os.fspath(source)
    if folder.exists() or not _HUB_NAME.fullmatch(name) or name.startswith("."):
        raise FileNotFoundError(f"{name} is neither a folder nor a name on the Hub")
    from huggingface_hub import constants, snapshot_download

    patterns = [*_DOWNLOAD, *(("*.bin", "*.bin.index.json") if allow_pickle else ())]
    try:
        with disk_errors(Path(constants.HF_HUB_CACHE), way_out="free some space, or set HF_HOME"):
            return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        reason = explain(error, name)
        if reason is None:
            raise
        raise ValueError(f"no folder {name}, and it cannot be had from the Hub: {reason}") from None


def load_native(folder: Path, *, allow_pickle: bool = False) -> Any:
    """A transformers model from a folder, by the class that its configuration names.

    Raises:
        ValueError: see the module.
    """
    values = read_config(folder)
    model_type = values.get("model_type")
    if model_type == "clozebert":
        raise ValueError(f"{folder} already holds a ClozeBERT model; convert it to 'native'")
    if model_type not in NATIVE:
        raise ValueError(f"model_type={model_type!r} of {folder} cannot be converted; these can: {', '.join(NATIVE)}")
    architecture = NATIVE[model_type]
    class_name = _class_name(folder, values)
    if class_name not in architecture.heads:
        raise ValueError(
            f"{class_name} (architectures in {folder / 'config.json'}) has no counterpart here; of {model_type}, these "
            f"have: {', '.join(architecture.heads)}"
        )
    options: dict[str, Any] = {}
    if architecture.heads[class_name].ours == "Model" and architecture.optional_pooler:
        names = tensor_names_in(folder, allow_pickle=allow_pickle)
        options["add_pooling_layer"] = any(name.endswith("pooler.dense.weight") for name in names)
    config = getattr(transformers, architecture.config_class).from_pretrained(folder)
    return _load(getattr(transformers, class_name), folder, config, allow_pickle=allow_pickle, **options)


def load_clozebert(folder: Path, *, allow_pickle: bool = False) -> Any:
    """A ClozeBERT model from a folder, by the class that its configuration names; code in the folder is not run.

    Raises:
        ValueError: see the module.
    """
    values = read_config(folder)
    if values.get("model_type") != "clozebert":
        raise ValueError(
            f"{folder} holds a {values.get('model_type')} model, which is native already; convert it to 'clozebert'"
        )
    class_name = _class_name(folder, values)
    if class_name not in modeling_clozebert.__all__:
        raise ValueError(f"{class_name} (architectures in {folder / 'config.json'}) is not a class of clozebert")
    config = ClozeBertConfig.from_pretrained(folder)
    return _load(getattr(modeling_clozebert, class_name), folder, config, allow_pickle=allow_pickle)


def load_masked_lm(folder: Path) -> Any:
    """A ClozeBERT masked-LM model from a folder of either form; a native one is converted.

    Raises:
        ValueError: it holds another head; see the module.
    """
    names = read_config(folder).get("architectures") or [""]
    if not names[0].endswith("ForMaskedLM"):
        raise ValueError(f"{folder} holds a {names[0] or 'model without a head'}, and a masked-LM model is needed")
    if read_config(folder).get("model_type") == "clozebert":
        return load_clozebert(folder)
    return convert_from_native(load_native(folder), copy_tensors=False)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json.

    Raises:
        FileNotFoundError: there is none. ValueError: it is not JSON.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no model: there is no config.json in it")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def weight_files(folder: Path, *, allow_pickle: bool = False) -> list[Path]:
    """The files that hold the weights: safetensors where there are any.

    Raises:
        ValueError: there are none, a shard is missing or lies outside the folder, or there is only a pickle and
            `allow_pickle` is not set.
    """
    files = _files_of(folder, "model.safetensors")
    if files:
        return files
    pickles = _files_of(folder, "pytorch_model.bin")
    if not pickles:
        raise ValueError(f"{folder} holds no weights: neither model.safetensors nor its shards' index")
    if not allow_pickle:
        raise ValueError(
            f"{pickles[0]} is a pickle, which can run code when it is read: have it as safetensors, or give "
            f"--allow_pickle to read its tensors only (weights_only=True)"
        )
    return pickles


def _files_of(folder: Path, name: str) -> list[Path]:
    index = folder / f"{name}.index.json"
    if (folder / name).is_file():
        return [folder / name]
    if not index.is_file():
        return []
    shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    for shard in shards:
        # An index may name any path; what lies elsewhere is none of this model's business.
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise ValueError(f"{index} names the shard {shard!r}, which is not a file of its folder")
    return [folder / shard for shard in shards]


def tensor_names_in(folder: Path, *, allow_pickle: bool = False) -> list[str]:
    """The names of all tensors; of safetensors only the headers are read."""
    files = weight_files(folder, allow_pickle=allow_pickle)
    names: list[str] = []
    for path in files:
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="pt") as tensors:
                names += tensors.keys()
        else:
            import torch

            names += torch.load(path, map_location="meta", weights_only=True, mmap=True)
    return names


def _class_name(folder: Path, values: dict[str, Any]) -> str:
    names = values.get("architectures") or []
    if len(names) != 1:
        raise ValueError(
            f"{folder / 'config.json'} must name one class in architectures, not {names}: that is the head to convert"
        )
    return names[0]


def _load(model_class: Any, folder: Path, config: Any, *, allow_pickle: bool, **options: Any) -> Any:
    """`from_pretrained` that takes nothing from anywhere else and nothing on trust."""
    is_pickle = weight_files(folder, allow_pickle=allow_pickle)[0].suffix == ".bin"
    with _quiet():
        model, found = model_class.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            use_safetensors=not is_pickle,
            weights_only=True,
            dtype="auto",
            # Named here because a configuration may name an implementation on the Hub, which would be fetched and run.
            attn_implementation="eager",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )
    _check_tensors(folder, found)
    return model


def _check_tensors(folder: Path, found: dict[str, Any]) -> None:
    left_over = [name for name in sorted(found["unexpected_keys"]) if _LEFTOVERS.search(name)]
    extra = [name for name in sorted(found["unexpected_keys"]) if name not in left_over]
    problems = [f"missing: {name}" for name in sorted(found["missing_keys"])]
    problems += [f"extra: {name}" for name in extra]
    problems += [
        f"of shape {tuple(stored)} instead of {tuple(expected)}: {name}"
        for name, stored, expected in sorted(found["mismatched_keys"])
    ]
    problems += [str(message) for message in found.get("error_msgs", [])]
    if problems:
        raise ValueError(f"the tensors of {folder} are not those of its configuration; {'; '.join(problems)}")
    if left_over:
        warnings.warn(f"left out, as the head has no use for them: {', '.join(left_over)}", stacklevel=2)


def copy_processors(folder: Path, directory: Path) -> None:
    """Bring the tokenizer, as transformers loads and saves it, and the image processor's settings."""
    if any((folder / name).is_file() for name in _TOKENIZER_FILES):
        # Saved anew rather than copied: old folders leave the tokenizer's class to be guessed from `model_type`.
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        tokenizer.save_pretrained(directory)
        path = directory / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings = {key: value for key, value in settings.items() if key not in _NOT_THE_TOKENIZERS}
        if settings.get("tokenizer_class") == "TokenizersBackend":
            # The same class by the name that transformers 4 knows too, which servers still run.
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    for name in _IMAGE_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, directory / name)


def _facts(source: str | os.PathLike, folder: Path, directory: Path) -> dict[str, Any]:
    """What the card of a converted model can say: where it came from, and what the old card's metadata say."""
    on_the_hub = not Path(source).is_dir()
    name = os.fspath(source) if on_the_hub else folder.resolve().name
    facts: dict[str, Any] = {
        "name": directory.resolve().name,
        "description": f"Converted, weight by weight, from `{name}`; the outputs are the same.",
        "base_model": name if on_the_hub else None,
    }
    if (folder / "README.md").is_file():
        from huggingface_hub import ModelCard

        # A card that is damaged is no reason not to convert the model.
        with contextlib.suppress(Exception):
            data = ModelCard.load(folder / "README.md").data
            facts.update({key: data.get(key) for key in ("license", "language", "datasets", "tags") if data.get(key)})
    return facts


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own reports: what matters in them is said by errors."""
    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


__all__ = [
    "convert_folder", "copy_processors", "find_folder", "load_clozebert", "load_masked_lm", "load_native",
    "weight_files",
]  # fmt: skip
