"""Loads saved models: from a folder, or from a repository on the Hub.

Reading is strict. Weights come from safetensors. A tensor that is missing, unexpected or of another shape raises an
error that names it, because a model with random parts looks like any other.
"""

import copy
import os
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open

from ..modeling import modeling_clozebert
from ..utils.errors import MissingFileError, UserError, as_user_errors
from ..utils.files import disk_errors
from ..utils.hub_names import is_hub_name, refuse_unreachable
from ..utils.progress_bar import quiet
from ..utils.untrusted import about_adapter, check_model_folder, read_json_object, refuse_pickle, shards_of
from .hub_errors import explain
from .natives import NATIVE, architecture_of
from .processors import IMAGE_FILES, LICENSE_FILES, SETTINGS_NAME, TOKENIZER_FILE_NAMES, has_tokenizer

_DOWNLOAD = ("config.json", "README.md", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILE_NAMES,
             "chat_template.jinja", *IMAGE_FILES, SETTINGS_NAME, *LICENSE_FILES)  # fmt: skip
# Tensors that published checkpoints hold although their head does not have them: the head of the other pretraining
# task, its pooler, and buffers that only count positions. They are left out with a warning.
_LEFTOVERS = re.compile(
    r"(^|\.)pooler\.dense\.(weight|bias)$|^cls\.seq_relationship\.|(^|\.)position_ids$|(^|\.)inv_freq$"
)
# The names of dtypes in safetensors.
_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


def find_folder(source: str | os.PathLike, *, allow_pickle: bool = False) -> Path:
    """The local folder of a model: `source` itself, or the downloaded copy of a repository on the Hub.

    Raises:
        MissingFileError: there is no such folder, and it is not a possible name on the Hub.
        UserError: it cannot be downloaded (offline, misspelt, private).
    """
    folder = Path(source)
    if folder.is_dir():
        check_model_folder(folder, allow_pickle=allow_pickle)
        return folder
    name = os.fspath(source)
    if folder.exists() or not is_hub_name(name):
        raise MissingFileError(f"{name} is neither a folder nor a name on the Hub")
    refuse_unreachable(name)
    from huggingface_hub import constants, snapshot_download

    patterns = [*_DOWNLOAD, *(("*.bin", "*.bin.index.json") if allow_pickle else ())]
    try:
        with disk_errors(Path(constants.HF_HUB_CACHE), way_out="free some space, or set HF_HOME"):
            folder = Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:
        reason = explain(error, name)
        if reason is None:
            raise
        raise UserError(f"no folder {name}, and it cannot be fetched from the Hub: {reason}") from None
    check_model_folder(folder, allow_pickle=allow_pickle)
    if constants.HF_HUB_OFFLINE and not has_tokenizer(folder) and read_config(folder).get("image_size") is None:
        warnings.warn(
            f"HF_HUB_OFFLINE is set, and the cache holds no tokenizer of {name}, and perhaps not its card and licence: "
            "unset HF_HUB_OFFLINE once to fetch them",
            stacklevel=2,
        )
    return folder


def load_native(folder: Path, *, allow_pickle: bool = False, any_architecture: bool = False) -> Any:
    """Load a transformers model from a folder, with the class that its configuration names.

    Args:
        any_architecture: also load other encoders of transformers, which cannot be converted.

    Raises:
        UserError: the folder does not hold exactly such a model; see the module.
    """
    check_model_folder(folder, allow_pickle=allow_pickle)
    values = read_config(folder)
    model_type = values.get("model_type")
    if model_type == "clozebert":
        raise UserError(f"{folder} already holds a ClozeBERT model; convert it to 'native'")
    if any_architecture and model_type not in NATIVE:
        return _load(_encoder_class(folder, values), folder, allow_pickle=allow_pickle)
    architecture = architecture_of(model_type, where=f" of {folder}")
    class_name = _class_name(folder, values)
    head = architecture.head_of(class_name, where=f" (architectures in {folder / 'config.json'})")
    if (positions := values.get("position_embedding_type", "absolute")) != "absolute":
        raise UserError(
            f"position_embedding_type={positions!r} of {folder / 'config.json'}: transformers 5 does not compute "
            "relative positions of its own BERT any more, so the model needs transformers 4"
        )
    options: dict[str, Any] = {}
    if head.ours == "Model" and architecture.optional_pooler:
        names = tensor_types_in(folder, allow_pickle=allow_pickle)
        options["add_pooling_layer"] = any(name.endswith("pooler.dense.weight") for name in names)
    return _load(getattr(transformers, class_name), folder, allow_pickle=allow_pickle, **options)


def load_clozebert(folder: Path, *, allow_pickle: bool = False) -> Any:
    """Load a ClozeBERT model from a folder, with the class that its configuration names; its code is not run.

    Raises:
        UserError: the folder does not hold exactly such a model; see the module.
    """
    check_model_folder(folder, allow_pickle=allow_pickle)
    values = read_config(folder)
    if values.get("model_type") != "clozebert":
        raise UserError(
            f"{folder} holds a {values.get('model_type')} model, which is native already; convert it to 'clozebert'"
        )
    class_name = _class_name(folder, values)
    if class_name not in modeling_clozebert.__all__:
        raise UserError(f"{class_name} (architectures in {folder / 'config.json'}) is not a class of clozebert")
    return _load(getattr(modeling_clozebert, class_name), folder, allow_pickle=allow_pickle)


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json.

    Raises:
        MissingFileError: there is none. UserError: it is not a JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise MissingFileError(f"{folder} holds no model: there is no config.json in it{about_adapter(folder)}")
    return read_json_object(path)


def weight_files(folder: Path, *, allow_pickle: bool = False) -> list[Path]:
    """The files that hold the weights: safetensors if there are any.

    Raises:
        UserError: there are none, a shard is missing or lies outside the folder, or there is only a pickle and
            `allow_pickle` is not set.
    """
    files = _files_of(folder, "model.safetensors")
    if files:
        return files
    pickles = _files_of(folder, "pytorch_model.bin")
    if not pickles:
        raise UserError(
            f"{folder} holds no weights: neither model.safetensors nor its shards' index. If they are a "
            "pytorch_model.bin on the Hub, --allow_pickle fetches it"
        )
    if not allow_pickle:
        refuse_pickle(pickles[0])
    return pickles


def _files_of(folder: Path, name: str) -> list[Path]:
    index = folder / f"{name}.index.json"
    if (folder / name).is_file():
        return [folder / name]
    if not index.is_file():
        return []
    return shards_of(index)


def tensor_types_in(folder: Path, *, allow_pickle: bool = False) -> dict[str, torch.dtype]:
    """The dtypes of all tensors, by name; of safetensors only the headers are read.

    Raises:
        UserError: as `weight_files`; or a file cannot be read.
    """
    found: dict[str, torch.dtype] = {}
    for path in weight_files(folder, allow_pickle=allow_pickle):
        found |= _types_in_pickle(path) if path.suffix == ".bin" else _types_in_safetensors(path)
    return found


def _types_in_safetensors(path: Path) -> dict[str, torch.dtype]:
    with as_user_errors(SafetensorError, OSError, about=str(path)), safe_open(path, "pt") as tensors:
        types = {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
    return {name: _FLOATS.get(stored, torch.int64) for name, stored in types.items()}


def _types_in_pickle(path: Path) -> dict[str, torch.dtype]:
    with as_user_errors(pickle.UnpicklingError, EOFError, RuntimeError, OSError, about=str(path)):
        # Before torch 1.6, pickles were not ZIP files; such files cannot be memory-mapped.
        values = torch.load(path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path))
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no tensors by name")
    return {name: value.dtype for name, value in values.items() if isinstance(value, torch.Tensor)}


def _class_name(folder: Path, values: dict[str, Any]) -> str:
    names = values.get("architectures") or []
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise UserError(
            f"{folder / 'config.json'} must name one class in architectures, not {names}: that is the head to convert; "
            f'write it there, such as ["BertForMaskedLM"]'
        )
    return names[0]


def _encoder_class(folder: Path, values: dict[str, Any]) -> Any:
    """The class that a configuration names, of any encoder for which transformers has a masked-LM head."""
    name = _class_name(folder, values)
    found = getattr(transformers, name, None)
    config_class: Any = getattr(found, "config_class", None)
    is_encoder = config_class in transformers.AutoModelForMaskedLM._model_mapping
    if not is_encoder or values.get("is_encoder_decoder") or config_class.model_type != values.get("model_type"):
        raise UserError(
            f"{folder / 'config.json'} names {name} with model_type={values.get('model_type')!r}: only encoders for "
            f"which transformers has a masked-LM head are published"
        )
    return found


def _load(model_class: Any, folder: Path, *, allow_pickle: bool, **options: Any) -> Any:
    """Call `from_pretrained` so that it reads only this folder and runs none of its code."""
    with as_user_errors(ValueError, StrictDataclassError, about=f"{folder / 'config.json'}"):
        config = model_class.config_class.from_pretrained(folder)
    # Values that contradict one another are found where the model is built. As below, no implementation is fetched.
    kinds = (ValueError, KeyError, ZeroDivisionError, AssertionError, RuntimeError)
    with as_user_errors(*kinds, about=f"{folder / 'config.json'}"), torch.device("meta"):
        model_class._from_config(copy.deepcopy(config), attn_implementation="eager", **options)
    if getattr(config, "quantization_config", None):
        raise UserError(f"{folder / 'config.json'} has a quantization_config: take the model without quantization")
    is_pickle = weight_files(folder, allow_pickle=allow_pickle)[0].suffix == ".bin"
    types = set(tensor_types_in(folder, allow_pickle=allow_pickle).values())
    with quiet(), as_user_errors(SafetensorError, OSError, about=f"the weights of {folder}"):
        model, found = model_class.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            use_safetensors=not is_pickle,
            weights_only=True,
            dtype="auto",
            # A configuration may name an implementation on the Hub, which would be downloaded and run.
            attn_implementation="eager",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )
    _check_tensors(folder, found)
    if model.config.model_type != "clozebert":
        vars(model.config).pop("auto_map", None)  # it names code beside the weights, which is not run and not copied
    rounded = [x for x in types if x.is_floating_point and torch.promote_types(x, model.dtype) != model.dtype]
    if rounded:
        warnings.warn(
            f"weights of {_short(rounded[0])} are rounded to {_short(model.dtype)}, the dtype in "
            f"{folder / 'config.json'} or else of the first weights: set it to {_short(rounded[0])} there to keep them "
            f"as they are",
            stacklevel=2,
        )
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
        raise UserError(f"the tensors of {folder} are not those of its configuration; {'; '.join(problems)}")
    if left_over:
        warnings.warn(f"tensors of the checkpoint that this head does not use: {', '.join(left_over)}", stacklevel=2)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
