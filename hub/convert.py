"""Converts models of transformers' own architectures to ClozeBERT and back, exactly.

`from_native` takes a model (or a folder with one) and returns our model with the same head. `to_native` converts back
if the configuration equals one of theirs. `convert_folder` does either with a saved model, its tokenizer and its card.
The tables in `natives` map tensors and fields.
"""

import itertools
import os
import re
import shutil
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from ..modeling import modeling_clozebert
from ..modeling.modeling_clozebert import ClozeBertPreTrainedModel
from ..utils.answers import answer_by_name
from ..utils.errors import UserError
from ..utils.files import OLD_SPECIAL_TOKENS, WEIGHTS, whole_files
from ..utils.output_folders import check_output_dir
from ..utils.progress_bar import quiet
from ..utils.weights import fill, is_untied, make_empty
from .card import CARD_NAME, write_card
from .convert_config import choose_architecture, config_from_native, config_to_native, warn_of_dynamic_rope
from .example import text_of_example
from .fingerprint import FILE_NAME as FINGERPRINT_NAME
from .loading import find_folder, load_clozebert, load_native, read_config
from .natives import Architecture, Rename, architecture_of
from .origin import facts_of_origin
from .processors import (
    SETTINGS_NAME,
    copy_beside,
    copy_processors,
    copy_reading_settings,
    has_tokenizer,
    save_beside_model,
)

_UNUSED = "embeddings.mask_token"  # of a ViT: images are masked in pretraining only
_CONVERTED = "Converted, weight by weight, from"


def from_native(
    model_or_folder: PreTrainedModel | str | os.PathLike, *, allow_pickle: bool = False
) -> ClozeBertPreTrainedModel:
    """Convert a transformers model to ClozeBERT: same head, same outputs, same gradients.

    Args:
        model_or_folder: a transformers model, or a folder (or Hub name) with one. A model's tensors are copied; what is
            frozen stays so, and the attention implementation is kept.
        allow_pickle: read `pytorch_model.bin`, with `weights_only=True`, if there are no safetensors.

    Raises:
        UserError: the architecture, the head or a configuration field has no counterpart, or the folder's tensors are
            not exactly the model's (the message names them).
    """
    if isinstance(model_or_folder, (str, os.PathLike)):
        folder = find_folder(model_or_folder, allow_pickle=allow_pickle)
        return convert_from_native(load_native(folder, allow_pickle=allow_pickle), copy_tensors=False)
    if not isinstance(model_or_folder, PreTrainedModel):
        kind = type(model_or_folder).__name__
        raise UserError(f"a {kind} was given: from_native takes a model of transformers, or a folder with one")
    ours = convert_from_native(model_or_folder, copy_tensors=True)
    _keep_attention(model_or_folder, ours)
    return ours


def convert_from_native(native: PreTrainedModel, *, copy_tensors: bool) -> ClozeBertPreTrainedModel:
    """As `from_native`; without `copy_tensors` the two models share all tensors that are not split."""
    architecture = architecture_of(native.config.model_type)
    class_name = type(native).__name__
    ending = architecture.head_of(class_name).ours
    config = config_from_native(native.config, ending, base_pooler=getattr(native, "pooler", None) is not None)
    if is_untied(native):
        config.tie_word_embeddings = False
    if native.config.architectures is not None:
        config.architectures = [f"ClozeBert{ending}"]
    ours = make_empty(getattr(modeling_clozebert, f"ClozeBert{ending}"), config)
    warn_of_dynamic_rope(config)
    tensors, own = dict(native.state_dict()), ours.state_dict()
    renamed: dict[str, torch.Tensor] = {}
    pairs = tensor_names(architecture, class_name, own)
    _refuse("lacks", {name for _, name in pairs} - tensors.keys())
    own_parameters = {name for name, _ in native.named_parameters() if not name.endswith(_UNUSED)}
    _refuse("also has", own_parameters - {name for _, name in pairs} - architecture.tied.keys())
    for names, native_name in pairs:
        tensor = tensors[native_name]
        if len(names) == 1:
            renamed[names[0]] = tensor.clone() if copy_tensors else tensor
        else:
            sizes = [own[name].shape[0] for name in names]
            # Cloned, since safetensors rejects parts that share one storage.
            parts = (part.clone() for part in tensor.split(sizes))
            renamed.update(zip(names, parts, strict=True))
    fill(ours, renamed)
    frozen = _frozen(native)
    for names, native_name in pairs:
        if native_name in frozen:
            _freeze(ours, names)
    return ours.train(native.training)


def to_native(
    model: ClozeBertPreTrainedModel, *, architecture: str | None = None, copy_tensors: bool = True
) -> PreTrainedModel:
    """Convert a ClozeBERT model to one of transformers' own classes.

    Args:
        model: a ClozeBERT model.
        architecture: the `model_type` to convert to; None: the one that the model came from, or the first that fits.
        copy_tensors: if False, the two models share all tensors that are not fused.

    Raises:
        UserError: no architecture equals the configuration (the message names the fields that differ), or the model
            is a native one.
    """
    if model.config.model_type != "clozebert":
        raise UserError(f"{type(model).__name__} is one of transformers' own models already")
    ending = type(model).__name__.removeprefix("ClozeBert")
    target = choose_architecture(model.config, ending, architecture, pooled=getattr(model, "pooler", None) is not None)
    config = config_to_native(model.config, target, ending)
    if is_untied(model):
        config.tie_word_embeddings = False
    class_name = target.class_of(ending)
    if model.config.architectures is not None:
        config.architectures = [class_name]
    pooler: dict[str, Any] = {}
    if ending == "Model" and target.optional_pooler:
        pooler["add_pooling_layer"] = model.pooler is not None
    native = make_empty(getattr(transformers, class_name), config, **pooler)
    warn_of_dynamic_rope(model.config)
    tensors = dict(model.state_dict())
    renamed: dict[str, torch.Tensor] = {}
    pairs = tensor_names(target, class_name, tensors)
    for names, native_name in pairs:
        parts = [tensors[name] for name in names]
        if len(parts) > 1:
            renamed[native_name] = torch.cat(parts)
        else:
            renamed[native_name] = parts[0].clone() if copy_tensors else parts[0]
    for name, same_as in target.tied.items():
        if same_as in renamed:
            # In an untied model these are two parameters. If they shared memory, saving would leave one out.
            renamed[name] = renamed[same_as] if config.tie_word_embeddings else renamed[same_as].clone()
    fill(native, renamed)
    _keep_attention(model, native)
    frozen = _frozen(model)
    origin = {native_name: names for names, native_name in pairs}
    _freeze(native, [name for name in renamed if frozen.issuperset(origin[target.tied.get(name, name)])])
    return native.train(model.training)


def _keep_attention(model: PreTrainedModel, converted: PreTrainedModel) -> None:
    if not converted.config.output_attentions:  # else it is eager, which alone returns them
        converted.set_attn_implementation(model.config._attn_implementation)


def _frozen(model: PreTrainedModel) -> set[str]:
    return {name for name, tensor in model.named_parameters(remove_duplicate=False) if not tensor.requires_grad}


def _freeze(model: PreTrainedModel, names: Iterable[str]) -> None:
    for name in names:
        model.get_parameter(name).requires_grad_(False)


def save_native(
    model: ClozeBertPreTrainedModel,
    directory: str | os.PathLike,
    tokenizer: Any = None,
    *,
    architecture: str | None = None,
) -> PreTrainedModel:
    """Save `model` (and its tokenizer) as transformers' own architecture; returns the native model.

    Raises:
        UserError: no architecture equals the configuration; nothing is written then.
    """
    native = to_native(model, architecture=architecture, copy_tensors=False)
    native.save_pretrained(directory)
    if tokenizer is not None:
        save_beside_model(tokenizer, Path(directory))
    return native


def tensor_names(architecture: Architecture, class_name: str, ours: Iterable[str]) -> list[tuple[tuple[str, ...], str]]:
    """For each native tensor that is not tied: our tensor names (several if it is fused) and the native name."""
    present = set(ours)
    layers = sorted({int(part) for name in present for part in name.split(".") if part.isdigit()})
    pairs = []
    for left, right in _renames_of(architecture, class_name):
        modules = (left,) if isinstance(left, str) else left
        for layer, kind in itertools.product(layers if "{i}" in right else [0], ("", ".weight", ".bias")):
            names = tuple(f"{module.replace('{i}', str(layer))}{kind}" for module in modules)
            if names[0] in present:
                pairs.append((names, f"{right.replace('{i}', str(layer))}{kind}"))
    _refuse("also has", present - {name for names, _ in pairs for name in names})
    return pairs


def _refuse(what: str, names: Collection[str]) -> None:
    """Refuse a model with other tensors than its class makes."""
    if names:
        some = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
        raise UserError(f"the model {what} {some}: it was changed; an adapter has to be merged or removed first")


def _renames_of(architecture: Architecture, class_name: str) -> list[Rename]:
    """The renames of a class: those of the encoder, with prefixes, and those of its head."""
    head = architecture.heads[class_name]
    if head.ours == "Model":
        return list(architecture.renames)
    return [*(_prefixed(rename, architecture.prefix) for rename in architecture.renames), *head.renames]


def _prefixed(rename: Rename, prefix: str) -> Rename:
    left, right = rename
    ours = f"model.{left}" if isinstance(left, str) else tuple(f"model.{name}" for name in left)
    return ours, f"{prefix}.{right}"


# Folders


def convert_folder(
    source: str | os.PathLike,
    directory: str | os.PathLike,
    *,
    to: str,
    allow_pickle: bool = False,
    architecture: str | None = None,
    overwrite: bool = False,
) -> str:
    """Convert a saved model, with its tokenizer; returns the name of its new class.

    Args:
        source: a folder, or a name on the Hub.
        directory: where to write; nothing is left there after an error.
        to: `clozebert` or `native`.
        allow_pickle: read `pytorch_model.bin` if there are no safetensors.
        architecture: the `model_type` to write, with `to="native"`; None: the one it came from, or the first that fits.
        overwrite: allow `directory` to hold files. At the end, its weights are deleted, with what belongs to them: the
            fingerprint, the settings of fine-tuning, and the special tokens of an older tokenizer. Files of the same
            names are replaced, and everything else stays.

    Raises:
        UserError: see `from_native` and `to_native`; or `directory` is not empty or cannot be written.
    """
    if to not in ("clozebert", "native"):
        raise UserError(f"to={to!r} must be clozebert or native")
    if architecture is not None and to != "native":
        raise UserError(f"architecture={architecture!r} needs to='native': ClozeBERT's own format is one")
    check_place = partial(check_output_dir, os.fspath(directory), overwrite=overwrite)
    check_place()
    folder = find_folder(source, allow_pickle=allow_pickle)
    converted: Any
    if to == "clozebert":
        # The old model is freed before the new one is written, so that only one is in memory.
        converted = convert_from_native(load_native(folder, allow_pickle=allow_pickle), copy_tensors=False)
    else:
        ours = load_clozebert(folder, allow_pickle=allow_pickle)
        converted = to_native(ours, architecture=architecture, copy_tensors=False)
        del ours
    target = Path(directory)
    check_place()  # another program may have written there in the meantime
    outdated = [WEIGHTS, re.escape(SETTINGS_NAME), re.escape(FINGERPRINT_NAME)]
    outdated += [OLD_SPECIAL_TOKENS] if has_tokenizer(folder) else []
    with whole_files(target, replacing=outdated) as new:
        with quiet():
            converted.save_pretrained(new)
        copy_processors(folder, new)
        copy_reading_settings(folder, new)
        copy_beside(folder, new)
        if (target / CARD_NAME).is_file():  # keeps a card that a person may have edited
            shutil.copyfile(target / CARD_NAME, new / CARD_NAME)
        _write_card(source, folder, new, name=target.resolve().name)
    return type(converted).__name__


def load_clozebert_masked_lm(folder: Path) -> Any:
    """Load a ClozeBERT masked-LM model from a folder of either form; a native model is converted.

    It has SDPA attention: the eager one is quadratic in the length of a packed row.

    Raises:
        UserError: it has another head, or cannot be loaded or converted; see `from_native`.
    """
    values = read_config(folder)
    names = values.get("architectures") or [""]
    if not names[0].endswith("ForMaskedLM"):
        raise UserError(f"{folder} holds a {names[0] or 'model without a head'}, and a masked-LM model is needed")
    is_ours = values.get("model_type") == "clozebert"
    model = load_clozebert(folder) if is_ours else convert_from_native(load_native(folder), copy_tensors=False)
    if is_untied(model):
        model.config.tie_word_embeddings = False
    answer_by_name(model.config)
    model.set_attn_implementation("sdpa")
    return model


def _write_card(source: str | os.PathLike, folder: Path, directory: Path, *, name: str) -> None:
    """Write the card of a converted model: its origin, and the facts of the old card that still hold."""
    origin, old, facts = facts_of_origin(source, folder)
    before = str(facts.get("description") or "").partition(_CONVERTED)[0].strip()
    facts["name"] = name
    facts["description"] = f"{before} {_CONVERTED} `{origin}`; the outputs are the same.".strip()
    if old is None or not old.is_ours:
        write_card(directory, facts)
        return
    part = old.parts.get("example")
    facts["example"] = part is not None and (text_of_example(part) or True)
    copy_beside(folder, directory, ("*.png",))
    write_card(directory, facts, history=old.history())
