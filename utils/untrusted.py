"""Checks untrusted files: names must stay in their folder, JSON must have a known form, pickles are refused.

An untrusted manifest or index may name any path. So each name is checked before anything is fetched or read. A link is
followed only if it leads to a file in the same folder, or in the same repository in the Hub's cache.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from .errors import MissingFileError, UserError, UserFileError
from .hub_names import refuse_unreachable

LARGEST_JSON = 1 << 28  # bytes
# Where transformers finds this file of PEFT, it applies an adapter to the model.
ADAPTER_NAME = "adapter_config.json"
# The configurations that transformers and PEFT read. Other programs put any JSON beside them: all-MiniLM-L6-v2 lists
# its training data in data_config.json.
_CONFIGURATIONS = (
    "config.json", "generation_config.json", "tokenizer_config.json", "preprocessor_config.json",
    "processor_config.json", ADAPTER_NAME,
)  # fmt: skip
# transformers reads all files of this folder into the tokenizer, and saves them with it.
_TEMPLATES = "additional_chat_templates"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


def about_adapter(folder: Path) -> str:
    """What to do, for a message, if a folder without a model holds an adapter; else nothing."""
    if not (folder / ADAPTER_NAME).is_file():
        return ""
    return "; it is an adapter of PEFT: load it with its base model, call merge_and_unload(), and save the result"


def is_plain_name(name: object) -> bool:
    """Whether a name is a plain file name: no folder, no drive, no unprintable characters."""
    if not isinstance(name, str) or name in ("", ".", "..") or len(name) > 255 or not name.isprintable():
        return False
    return not set(name) & set("/\\:")


def is_within(path: Path, folder: Path) -> bool:
    """Whether a path, after following links, lies in a folder, or in the folder's repository in the Hub's cache."""
    try:
        target, home = path.resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, an invalid name
        return False
    if target.is_relative_to(home):
        return True
    # The Hub's cache: REPOSITORY/snapshots/COMMIT/… links to REPOSITORY/blobs/…
    snapshots = next((parent for parent in (home, *home.parents) if parent.parent.name == "snapshots"), None)
    return snapshots is not None and target.is_relative_to(snapshots.parent.parent / "blobs")


def file_beside(folder: Path, name: object, *, where: object) -> Path:
    """The path of the file `name`, which a file in the same folder refers to.

    Args:
        where: what refers to it, for the message.

    Raises:
        UserError: the name, or a link of that name, leads out of the folder.
    """
    if not is_plain_name(name):
        raise UserError(f"{where} names the file {shown(name)}, which is not a file of its folder")
    path = folder / str(name)
    if path.is_symlink() and not is_within(path, folder):
        raise UserError(f"{path} is a link that leaves its folder: put the file itself there")
    return path


def parse_json(content: bytes, *, where: object) -> Any:
    """Parse JSON.

    Raises:
        UserError: it is not JSON in UTF-8, or its numbers are too long or its nesting too deep.
    """
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, an integer of too many digits
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error).split(";")[0]
        raise UserError(f"{where} is not JSON: {reason}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        MissingFileError: there is no such file.
        UserError: it cannot be read, is larger than `LARGEST_JSON`, or does not hold a JSON object.
    """
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise UserError(f"{path} has more than {LARGEST_JSON >> 20} MiB: clozebert did not write it")
        value = parse_json(path.read_bytes(), where=path)
    except FileNotFoundError:
        raise MissingFileError(f"{path} is missing") from None
    except OSError as error:
        raise UserFileError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold an object, not {type(value).__name__}")
    return value


def check_model_folder(folder: str | os.PathLike, *, allow_pickle: bool = False) -> None:
    """Refuse the folder of a model or tokenizer if it refers to files outside, or if its only weights are pickles.

    A name on the Hub passes if the Hub can be reached: the Hub's own library checks names, and `use_safetensors=True`
    reads no pickle.

    Raises:
        MissingFileError: there is no such folder, and it cannot be a name on the Hub.
        UserError: invalid JSON, an index or a link that leads out of the folder, weights only as a pickle, or an
            adapter beside a whole model.
    """
    home = Path(folder)
    if not home.is_dir():
        if not home.exists():
            refuse_unreachable(str(folder))
        return
    try:
        paths = sorted(home.iterdir())
        templates = sorted((home / _TEMPLATES).iterdir()) if (home / _TEMPLATES).is_dir() else []
    except OSError as error:
        raise UserFileError(f"{folder} cannot be read: {error.strerror}") from None
    for path in [*paths, *templates]:
        if path.is_file() or path.name == _TEMPLATES:
            _check_file(path, home)
    _refuse_second_adapter(home)
    if not allow_pickle and not any(path.suffix == ".safetensors" for path in paths):
        _refuse_pickles(paths)


def _refuse_second_adapter(home: Path) -> None:
    """Refuse an adapter of PEFT beside a whole model, which may hold it already: transformers would apply it again."""
    adapter, weights = home / ADAPTER_NAME, ("model.safetensors", "pytorch_model.bin")
    if adapter.exists() and any((home / f"{name}{end}").exists() for name in weights for end in ("", ".index.json")):
        raise UserError(
            f"{adapter} is an adapter beside a whole model, and transformers would apply it to that: move "
            f"{ADAPTER_NAME} and the adapter's weights elsewhere"
        )


def _check_file(path: Path, home: Path) -> None:
    """Refuse a link that leads out of the folder, and a configuration or index that is not valid JSON."""
    if path.is_symlink() and not is_within(path, home):
        raise UserError(f"{path} is a link that leaves its folder: put the file itself there")
    # tokenizer.json is large, and the tokenizers library reports what is wrong with it.
    if path.name in _CONFIGURATIONS or path.name.endswith(".index.json"):
        values = read_json_object(path)
        if path.name.endswith(".index.json"):
            shards_of(path, values)
        _check_other_names(path, values)


def _check_other_names(path: Path, values: dict[str, Any]) -> None:
    """Check the files that a configuration makes transformers read in place of those with the usual names."""
    if (weights := values.get("transformers_weights")) is not None:
        raise UserError(
            f"{path} names {shown(weights)} as transformers_weights: give the weights the name model.safetensors, and "
            "take that entry out"
        )
    names = values.get("fast_tokenizer_files") or []
    for name in names if isinstance(names, list) else [names]:
        file_beside(path.parent, name, where=path)


def _refuse_pickles(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.name.startswith(("pytorch_model", "adapter_model")) and path.name.endswith(_PICKLES):
            refuse_pickle(path)


def refuse_pickle(path: Path) -> NoReturn:
    """Raise, and say how a file of weights becomes safetensors."""
    raise UserError(
        f"{path} is a pickle, which can run code when it is read: `clozebert convert --input {path.parent} "
        f"--output_dir FOLDER --to clozebert --allow_pickle` writes safetensors, and reads only its tensors"
    )


def shards_of(index: Path, values: dict[str, Any] | None = None) -> list[Path]:
    """The weight files that an index names, each once, sorted by name.

    Args:
        values: the content of the index, if it has been read.

    Raises:
        UserError: the index names no files, or one that is not in its folder.
    """
    weights = (read_json_object(index) if values is None else values).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise UserError(f"{index} must hold an object under 'weight_map': which tensor is in which file")
    names = {ascii(name): name for name in weights.values()}  # by text, as a name may be anything
    shards = [file_beside(index.parent, names[key], where=index) for key in sorted(names)]
    for shard in shards:
        if not shard.is_file():
            raise UserError(f"{index} names the shard {shard.name!r}, which is not a file of its folder")
    return shards


def shown(value: object) -> str:
    """An untrusted value for a message: shortened, and without control characters for a terminal."""
    return ascii(value)[:80]
