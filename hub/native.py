"""Models of transformers' own architectures to ClozeBERT and back, exactly.

`from_native` takes a model (or a folder with one) and gives the same head of ours; `to_native` goes back wherever the
configuration equals one of theirs. Which tensor and which field is which stands in `architectures`.
"""

import copy
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init

from ..configuration.configuration_clozebert import ClozeBertConfig
from ..modeling import modeling_clozebert
from ..modeling.modeling_clozebert import ClozeBertPreTrainedModel
from .architectures import NATIVE, PER_TOKEN, POOLED, Architecture, Rename, Values, rope_by_layer_type

# Fields that every configuration has, which mean the same on both sides.
_SHARED = (
    "chunk_size_feed_forward", "dtype", "id2label", "label2id", "output_attentions", "output_hidden_states",
    "problem_type", "return_dict",
)  # fmt: skip
# What a library writes about itself; never compared.
_ADMINISTRATIVE = {"_name_or_path", "architectures", "auto_map", "model_type", "torch_dtype", "transformers_version"}
# Fields of ours that change nothing the model computes from its inputs, and so never stand in the way.
_NOT_COMPARED = {
    "initializer_range", "output_projection_init", "sparse_prediction", "native_config", "bos_token_id", "eos_token_id",
    "cls_token_id", "sep_token_id", "mask_token_id",
}  # fmt: skip
_TEXT_FIELDS = ("vocab_size", "type_vocab_size", "max_position_embeddings", "embedding_size", "pad_token_id")
_POSITION_FIELDS = ("position_rule", "position_offset", "rope_parameters")
_DENSE_FIELDS = ("classifier_activation", "classifier_norm", "head_bias")
_HEAD_FIELDS = (
    "classifier_pooling", "classifier_dense", *_DENSE_FIELDS, "classifier_bias", "classifier_dropout",
    "prediction_activation", "prediction_dense", "decoder_bias", "tie_word_embeddings", "num_labels",
)  # fmt: skip


def from_native(
    model_or_folder: PreTrainedModel | str | os.PathLike, *, allow_pickle: bool = False
) -> ClozeBertPreTrainedModel:
    """The same model as a ClozeBERT: same head, same outputs, same gradients.

    Args:
        model_or_folder: a transformers model, or a folder (or Hub name) with one. A model's tensors are copied.
        allow_pickle: read `pytorch_model.bin`, by `weights_only=True`, where there are no safetensors.

    Raises:
        ValueError: the architecture or the head has no counterpart, a field of its configuration stands in the way, or
            the folder's tensors are not exactly the model's: the message names them.
    """
    if isinstance(model_or_folder, (str, os.PathLike)):
        from .folders import find_folder, load_native

        native = load_native(find_folder(model_or_folder, allow_pickle=allow_pickle), allow_pickle=allow_pickle)
        return convert_from_native(native, copy_tensors=False)
    return convert_from_native(model_or_folder, copy_tensors=True)


def convert_from_native(native: PreTrainedModel, *, copy_tensors: bool) -> ClozeBertPreTrainedModel:
    """As `from_native`; without `copy_tensors` the two models share memory where no tensor is split."""
    architecture = architecture_of(native.config)
    class_name = type(native).__name__
    if class_name not in architecture.heads:
        raise ValueError(
            f"{class_name} has no counterpart here; of {architecture.model_type}, these have: "
            f"{', '.join(architecture.heads)}"
        )
    ending = architecture.heads[class_name].ours
    config = config_from_native(native.config, ending, base_pooler=getattr(native, "pooler", None) is not None)
    if native.config.architectures is not None:
        config.architectures = [f"ClozeBert{ending}"]
    ours_class = getattr(modeling_clozebert, f"ClozeBert{ending}")
    ours = build(ours_class, config)
    tensors = dict(native.state_dict())
    renamed: dict[str, torch.Tensor] = {}
    for names, native_name in tensor_names(architecture, class_name, ours.state_dict()):
        tensor = tensors.pop(native_name)
        if len(names) == 1:
            renamed[names[0]] = tensor.clone() if copy_tensors else tensor
        else:
            sizes = [ours.state_dict()[name].shape[0] for name in names]
            # Cloned, or the parts would share one storage, which safetensors refuses.
            parts = (part.clone() for part in tensor.split(sizes))
            renamed.update(zip(names, parts, strict=True))
    fill(ours, renamed)
    return ours.train(native.training)


def to_native(
    model: ClozeBertPreTrainedModel, *, architecture: str | None = None, copy_tensors: bool = True
) -> PreTrainedModel:
    """The same model as one of transformers' own classes.

    Args:
        model: a ClozeBERT model.
        architecture: the `model_type` to write; None takes the one that the model came from, or the first that fits.
        copy_tensors: without it the two models share memory where no tensors are fused.

    Raises:
        ValueError: no architecture equals the configuration: the message names the fields standing in the way.
    """
    ending = type(model).__name__.removeprefix("ClozeBert")
    target = choose_architecture(model.config, ending, architecture, pooled=getattr(model, "pooler", None) is not None)
    config = config_to_native(model.config, target, ending)
    class_name = next(name for name, head in target.heads.items() if head.ours == ending)
    if model.config.architectures is not None:
        config.architectures = [class_name]
    pooler: dict[str, Any] = {}
    if ending == "Model" and target.optional_pooler:
        pooler["add_pooling_layer"] = model.pooler is not None
    native = build(_transformers_class(class_name), config, **pooler)
    tensors = dict(model.state_dict())
    renamed: dict[str, torch.Tensor] = {}
    for names, native_name in tensor_names(target, class_name, tensors):
        parts = [tensors[name] for name in names]
        if len(parts) > 1:
            renamed[native_name] = torch.cat(parts)
        else:
            renamed[native_name] = parts[0].clone() if copy_tensors else parts[0]
    for twin, name in target.twins.items():
        if name in renamed:
            renamed[twin] = renamed[name]
    fill(native, renamed)
    return native.train(model.training)


def save_native(
    model: ClozeBertPreTrainedModel,
    directory: str | os.PathLike,
    tokenizer: Any = None,
    *,
    architecture: str | None = None,
) -> PreTrainedModel:
    """Write `model` (and its tokenizer) as transformers' own architecture; returns the native model.

    Raises:
        ValueError: no architecture equals the configuration; nothing is written then.
    """
    native = to_native(model, architecture=architecture, copy_tensors=False)
    native.save_pretrained(directory)
    if tokenizer is not None:
        tokenizer.save_pretrained(directory)
    return native


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """The table of a configuration's `model_type`.

    Raises:
        ValueError: there is none.
    """
    if config.model_type not in NATIVE:
        raise ValueError(f"model_type={config.model_type!r} cannot be converted; these can: {', '.join(NATIVE)}")
    return NATIVE[config.model_type]


# Configuration


def config_from_native(config: PreTrainedConfig, ending: str, *, base_pooler: bool = False) -> ClozeBertConfig:
    """Our configuration of a native one, for the head with this ending.

    Raises:
        ValueError: a field has no counterpart.
    """
    architecture = architecture_of(config)
    native = config.to_dict()
    if ending == "ForQuestionAnswering" and config.num_labels != 2:
        raise ValueError(f"num_labels={config.num_labels}: question answering has two outputs, the start and the end")
    _check_token_ids(native)
    ours = ClozeBertConfig(
        **_to_ours(architecture, native, ending), **{name: getattr(config, name) for name in _SHARED}
    )
    ours.base_pooler = base_pooler and ending == "Model"
    ours.native_config = {"model_type": architecture.model_type}
    back = config_to_native(ours, architecture, ending).to_dict()
    kept = {key: value for key, value in native.items() if key not in _ADMINISTRATIVE and back.get(key) != value}
    declared = set(type(config).__dataclass_fields__)
    in_the_way = [key for key in kept if key in declared and key not in architecture.inert]
    if in_the_way:
        named = ", ".join(f"{key}={kept[key]!r}" for key in in_the_way)
        raise ValueError(f"a {architecture.model_type} configuration with {named} has no counterpart here")
    ours.native_config.update(copy.deepcopy(kept))
    return ours


def config_to_native(config: ClozeBertConfig, architecture: Architecture, ending: str) -> PreTrainedConfig:
    """The native configuration of ours, taking for granted that there is one."""
    values = _to_native(architecture, config.to_dict(), ending)
    kept = dict(config.native_config or {})
    if kept.pop("model_type", None) == architecture.model_type:
        same = _effective(_to_ours(architecture, _complete(architecture, values), ending), ending)
        for key, value in kept.items():
            changed = {**values, key: copy.deepcopy(value)}
            # Of what was kept, leave out what the fields have meanwhile gone away from.
            if _effective(_to_ours(architecture, _complete(architecture, changed), ending), ending) == same:
                values = changed
    native = _transformers_class(architecture.config_class)(**values)
    for name in _SHARED:
        setattr(native, name, copy.deepcopy(getattr(config, name)))
    return native


def choose_architecture(
    config: ClozeBertConfig, ending: str, wanted: str | None = None, *, pooled: bool = False
) -> Architecture:
    """The architecture that equals a configuration: the one wanted, else the one it came from, else the first.

    Raises:
        ValueError: none does. The message names the fields in which the nearest one differs.
    """
    if wanted is not None and wanted not in NATIVE:
        raise ValueError(f"architecture={wanted!r} is not known; known: {', '.join(NATIVE)}")
    origin = (config.native_config or {}).get("model_type")
    names = [wanted] if wanted else sorted(NATIVE, key=lambda name: name != origin)
    candidates = [NATIVE[name] for name in names if ending in {head.ours for head in NATIVE[name].heads.values()}]
    if not candidates:
        raise ValueError(f"ClozeBert{ending} has no native counterpart" + (f" in {wanted}" if wanted else ""))
    obstacles, refused = {}, {}
    for architecture in candidates:
        try:
            found = find_obstacles(config, architecture, ending, pooled=pooled)
        except (StrictDataclassError, ValueError) as error:
            # Values that its own configuration class does not take at all.
            refused[architecture.model_type] = [f"{architecture.config_class}: {' '.join(str(error).split())}"]
            continue
        if not found:
            return architecture
        obstacles[architecture.model_type] = found
    obstacles = obstacles or refused
    nearest = origin if origin in obstacles else min(obstacles, key=lambda name: len(obstacles[name]))
    raise ValueError(
        f"no native architecture equals this configuration; the nearest is {nearest}, but for "
        f"{'; '.join(obstacles[nearest])}. Save it in ClozeBERT's own format instead"
    )


def find_obstacles(
    config: ClozeBertConfig, architecture: Architecture, ending: str, *, pooled: bool = False
) -> list[str]:
    """The fields in which a configuration is none of the architecture's: those that do not survive there and back."""
    ours = config.to_dict()
    ours["base_pooler"] = pooled
    mine = _effective({**ours, "num_labels": config.num_labels}, ending)
    back = _to_ours(architecture, _complete(architecture, _to_native(architecture, ours, ending)), ending)
    if architecture.optional_pooler:
        back["base_pooler"] = pooled
    labels = 2 if ending == "ForQuestionAnswering" else config.num_labels
    theirs = _effective({**ClozeBertConfig().to_dict(), **back, "num_labels": labels}, ending)
    return [
        f"{name}={mine.get(name)!r} (there: {theirs.get(name)!r})"
        for name in sorted({*mine, *theirs})
        if mine.get(name) != theirs.get(name)
    ]


def _to_ours(architecture: Architecture, native: Mapping[str, Any], ending: str) -> Values:
    translated = {ours: native[theirs] for ours, theirs in architecture.fields.items()}
    return {**architecture.fixed, **translated, **architecture.to_ours(dict(native), ending)}


def _to_native(architecture: Architecture, ours: Values, ending: str) -> Values:
    values = {theirs: ours[name] for name, theirs in architecture.fields.items()}
    values.update(architecture.to_native(ours, ending))
    # Ids that the architecture has no field for are kept as extra keys, as transformers does.
    known = _transformers_class(architecture.config_class).__dataclass_fields__
    for name in ("cls_token_id", "sep_token_id", "mask_token_id"):
        if name not in known and ours[name] is not None:
            values[name] = ours[name]
    return copy.deepcopy(values)


def _complete(architecture: Architecture, values: Values) -> Values:
    """A native configuration as a dictionary, with the fields that were not given at their defaults."""
    return _transformers_class(architecture.config_class)(**copy.deepcopy(values)).to_dict()


def _effective(ours: Values, ending: str) -> Values:
    """What our fields come to for one head: None resolved, and fields that it does not use left out."""
    values = {name: value for name, value in ours.items() if name in _KNOBS and name not in _NOT_COMPARED}
    hidden_dropout = values["hidden_dropout_prob"]
    for name, default in (
        ("num_key_value_heads", values["num_attention_heads"]),
        ("embedding_size", values["hidden_size"]),
        ("embedding_dropout", hidden_dropout),
        ("classifier_dropout", hidden_dropout),
        ("final_norm", values["norm_position"] == "pre"),
        ("layer_types", ["full_attention"] * values["num_hidden_layers"]),
        ("prediction_activation", values["hidden_act"]),
    ):
        if values.get(name) is None:
            values[name] = default
    if ending in (*POOLED, *PER_TOKEN):  # all that matters of it there is whether this head has a dense layer
        values["classifier_dense"] = "a dense layer" if _has_dense(values, ending) else "none"
    used = _used_by_head(values, ending)
    unused = {name for name in _HEAD_FIELDS if name not in used}
    if "sliding_attention" not in values["layer_types"]:
        unused.add("sliding_window")
    if values["norm_type"] == "rmsnorm":
        unused.add("norm_bias")
    kind = values["position_embedding_type"]
    if kind == "rope":
        values["rope_parameters"] = rope_by_layer_type(values["rope_parameters"], values["layer_types"])
    of_kind = {"absolute": ("position_rule", "position_offset"), "rope": ("position_rule", "rope_parameters")}
    unused.update(name for name in _POSITION_FIELDS if name not in of_kind.get(kind, ("position_rule",)))
    if values.get("image_size") is None:
        unused.update(("patch_size", "num_channels"))
    else:
        unused.update((*_TEXT_FIELDS, *_POSITION_FIELDS))
    return {name: value for name, value in values.items() if name not in unused}


_KNOBS = {*ClozeBertConfig.__dataclass_fields__, "num_labels"} - set(PreTrainedConfig.__dataclass_fields__)


def _has_dense(values: Values, ending: str) -> bool:
    return values["classifier_dense"] != "none" if ending in POOLED else values["classifier_dense"] == "all"


def _used_by_head(values: Values, ending: str) -> set[str]:
    """Those of the heads' fields that a head reads, given what `_effective` makes of `classifier_dense`."""
    if ending == "Model":
        return {"classifier_pooling", *_DENSE_FIELDS} if values.get("base_pooler") else set()
    if ending == "ForMaskedLM":
        dense = {"prediction_activation", "head_bias"} if values["prediction_dense"] else set()
        return {"prediction_dense", "decoder_bias", "tie_word_embeddings", *dense}
    used = {"classifier_dense", "classifier_bias", "classifier_dropout", "num_labels"}
    if values["classifier_dense"] != "none":
        used.update(_DENSE_FIELDS)
    return used | ({"classifier_pooling"} if ending in POOLED else set())


def _check_token_ids(native: Mapping[str, Any]) -> None:
    for name in ("bos_token_id", "eos_token_id"):
        if isinstance(native.get(name), list):
            raise ValueError(f"{name}={native[name]} of the native configuration has no counterpart here: it is one id")


# Tensors


def tensor_names(architecture: Architecture, class_name: str, ours: Iterable[str]) -> list[tuple[tuple[str, ...], str]]:
    """Our tensor names (several where fused) and the native one, for each native tensor that is not a twin."""
    head = architecture.heads[class_name]
    if head.ours == "Model":
        renames = list(architecture.renames)
    else:
        renames = [_prefixed(rename, architecture.prefix) for rename in architecture.renames] + list(head.renames)
    present = set(ours)
    layers = {int(part) for name in present for part in name.split(".") if part.isdigit()}
    pairs = []
    for left, right in renames:
        modules = (left,) if isinstance(left, str) else left
        for layer in sorted(layers) if "{i}" in right else [0]:
            for ending in ("", ".weight", ".bias"):
                names = tuple(f"{module.replace('{i}', str(layer))}{ending}" for module in modules)
                if names[0] in present:
                    pairs.append((names, f"{right.replace('{i}', str(layer))}{ending}"))
    unnamed = present - {name for names, _ in pairs for name in names}
    assert not unnamed, f"no native name for {sorted(unnamed)}"
    return pairs


def _prefixed(rename: Rename, prefix: str) -> Rename:
    left, right = rename
    ours = f"model.{left}" if isinstance(left, str) else tuple(f"model.{name}" for name in left)
    return ours, f"{prefix}.{right}"


def build(model_class: Any, config: PreTrainedConfig, **options: Any) -> Any:
    """A model whose parameters are still without values, and whose buffers have theirs."""
    with init.no_init_weights():
        return model_class(config, **options)


def fill(model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> None:
    """Put tensors in place of the parameters, in their own type, and tie again what is tied."""
    model.load_state_dict(tensors, strict=True, assign=True)
    model.tie_weights()
    model.to(next(iter(tensors.values())).device)  # type: ignore[arg-type]  # the buffers, too


def _transformers_class(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


__all__ = [
    "architecture_of", "build", "choose_architecture", "config_from_native", "config_to_native", "convert_from_native",
    "fill", "find_obstacles", "from_native", "save_native", "tensor_names", "to_native",
]  # fmt: skip
