"""Converts configurations of transformers' own architectures to ClozeBERT's and back, exactly.

The tables in `natives` map the fields. A round trip tells whether a configuration of ours equals a native one: the
fields that it changes are the obstacles.
"""

import copy
import logging
from collections.abc import Mapping
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from ..configuration.configuration_clozebert import ClozeBertConfig
from ..modeling.blocks import make_activation
from ..utils.errors import UserError, as_user_errors
from .natives import (
    FULL,
    NATIVE,
    PER_TOKEN,
    POOLED,
    SLIDING,
    Architecture,
    Values,
    architecture_of,
    rope_by_layer_type,
)

logger = logging.getLogger(__name__)

# Fields that mean the same on both sides. Every configuration has them, but for the last one: sentence-transformers'
# CrossEncoder reads there what it does with the outputs.
_SHARED = (
    "chunk_size_feed_forward", "dtype", "id2label", "label2id", "output_attentions", "output_hidden_states",
    "problem_type", "return_dict", "sentence_transformers",
)  # fmt: skip
# Fields in which a library describes itself; never compared.
_ADMINISTRATIVE = {"_name_or_path", "architectures", "auto_map", "model_type", "torch_dtype", "transformers_version"}
# If the architecture has no field for these, they become extra keys, which transformers keeps.
_EXTRA_IDS = ("cls_token_id", "sep_token_id", "mask_token_id")
# Our fields that do not change what the model computes from its inputs, so they are never obstacles.
_NOT_COMPARED = {
    "initializer_range", "output_projection_init", "sparse_prediction", "native_config", "bos_token_id", "eos_token_id",
    *_EXTRA_IDS,
}  # fmt: skip
# The fields of our configuration, without those that every configuration has.
_MODEL_FIELDS = {*ClozeBertConfig.__dataclass_fields__, "num_labels"} - set(PreTrainedConfig.__dataclass_fields__)
_TEXT_FIELDS = ("vocab_size", "type_vocab_size", "max_position_embeddings", "embedding_size", "pad_token_id")
_POSITION_FIELDS = ("position_rule", "position_offset", "rope_parameters")
_DENSE_FIELDS = ("classifier_activation", "classifier_norm", "head_bias")
_HEAD_FIELDS = (
    "classifier_pooling", "compare_pairs", "classifier_dense", *_DENSE_FIELDS, "classifier_bias", "classifier_dropout",
    "prediction_activation", "prediction_dense", "decoder_bias", "tie_word_embeddings", "num_labels",
)  # fmt: skip


def config_from_native(config: PreTrainedConfig, ending: str, *, base_pooler: bool = False) -> ClozeBertConfig:
    """Our configuration for a native one, for the head whose class name has this suffix.

    Raises:
        UserError: a field has no counterpart.
    """
    architecture = architecture_of(config.model_type)
    native = config.to_dict()
    if ending == "ForQuestionAnswering" and config.num_labels != 2:
        raise UserError(f"num_labels={config.num_labels}: question answering has two outputs, the start and the end")
    _check_token_ids(native)
    with as_user_errors():
        ours = ClozeBertConfig(**_to_ours(architecture, native, ending), **_shared_fields(config))
    _check_activations(ours)
    _return_what_is_asked(ours)
    ours.base_pooler = base_pooler and ending == "Model"
    ours.native_config = {"model_type": architecture.model_type}
    back = config_to_native(ours, architecture, ending).to_dict().items()
    kept = {key: value for key, value in native.items() if key not in _ADMINISTRATIVE and (key, value) not in back}
    declared = set(type(config).__dataclass_fields__)
    in_the_way = [key for key in kept if key in declared and key not in architecture.no_effect]
    if in_the_way:
        named = ", ".join(f"{key}={kept[key]!r}" for key in in_the_way)
        raise UserError(f"a {architecture.model_type} configuration with {named} has no counterpart here")
    ours.native_config.update(copy.deepcopy(kept))
    return ours


def config_to_native(config: ClozeBertConfig, architecture: Architecture, ending: str) -> PreTrainedConfig:
    """The native configuration for ours, assuming that there is an equal one."""
    values = _to_native(architecture, config.to_dict(), ending)
    kept = dict(config.native_config or {})
    if kept.pop("model_type", None) == architecture.model_type:
        same = _effective(_to_ours(architecture, _complete(architecture, values), ending), ending)
        for key, value in kept.items():
            changed = {**values, key: copy.deepcopy(value)}
            # A kept native field is left out if it contradicts a field of ours that was changed since.
            if _effective(_to_ours(architecture, _complete(architecture, changed), ending), ending) == same:
                values = changed
    native = _config_class(architecture)(**values)
    for name, value in _shared_fields(config).items():
        setattr(native, name, value)
    _return_what_is_asked(native)
    return native


def _shared_fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {name: copy.deepcopy(getattr(config, name)) for name in _SHARED if hasattr(config, name)}


def warn_of_dynamic_rope(config: ClozeBertConfig) -> None:
    """Say where outputs differ after all: transformers scales all rows of a batch by the longest of them."""
    if "'dynamic'" in str(config.rope_parameters):
        logger.warning(
            "rope_type dynamic: beyond max_position_embeddings, transformers scales a batch by its longest row, and "
            "ClozeBERT each row by its own length, so the shorter rows of a batch differ"
        )


def choose_architecture(
    config: ClozeBertConfig, ending: str, wanted: str | None = None, *, pooled: bool = False
) -> Architecture:
    """The architecture that equals a configuration: `wanted`, else the one it came from, else the first that does.

    If none equals it, one that differs only in dropout rates is taken, with a warning: the outputs are the same.

    Raises:
        UserError: there is none. The message names the fields in which the nearest one differs.
    """
    _check_activations(config)
    origin = (config.native_config or {}).get("model_type")
    obstacles: dict[str, dict[str, str]] = {}
    refused: dict[str, dict[str, str]] = {}
    for architecture in _candidates(ending, wanted, origin):
        try:
            found = find_obstacles(config, architecture, ending, pooled=pooled)
        except (StrictDataclassError, ValueError) as error:
            # The native configuration class rejects the values.
            text = " ".join(str(error).split())
            refused[architecture.model_type] = {"": f"{architecture.config_class}: {text}"}
            continue
        if not found:
            return architecture
        obstacles[architecture.model_type] = found
    for name, found in obstacles.items():
        if all("dropout" in field for field in found):
            logger.warning("as a %s it keeps its outputs, but further training differs: %s", name,
                           "; ".join(found.values()))  # fmt: skip
            return NATIVE[name]
    obstacles = obstacles or refused
    nearest = origin if origin in obstacles else min(obstacles, key=lambda name: len(obstacles[name]))
    raise UserError(
        f"no native architecture equals this configuration; the nearest is {nearest}, but for "
        f"{'; '.join(obstacles[nearest].values())}. Keep ClozeBERT's own format instead (publish: --format bundle)"
    )


def _candidates(ending: str, wanted: str | None, origin: str | None) -> list[Architecture]:
    """The architectures with such a head: only `wanted` if given, else all, with `origin` first."""
    if wanted is not None and wanted not in NATIVE:
        raise UserError(f"architecture={wanted!r} is not known; known: {', '.join(NATIVE)}")
    names = [wanted] if wanted else sorted(NATIVE, key=lambda name: name != origin)
    found = [NATIVE[name] for name in names if any(head.ours == ending for head in NATIVE[name].heads.values())]
    if not found:
        raise UserError(f"ClozeBert{ending} has no native counterpart" + (f" in {wanted}" if wanted else ""))
    return found


def find_obstacles(
    config: ClozeBertConfig, architecture: Architecture, ending: str, *, pooled: bool = False
) -> dict[str, str]:
    """The fields of a configuration that the architecture cannot express: those that change in a round trip.

    Returns:
        field name -> `name=value (there: value)`.
    """
    ours = config.to_dict()
    ours["base_pooler"] = pooled
    mine = _effective({**ours, "num_labels": config.num_labels}, ending)
    back = _to_ours(architecture, _complete(architecture, _to_native(architecture, ours, ending)), ending)
    if architecture.optional_pooler:
        back["base_pooler"] = pooled
    labels = 2 if ending == "ForQuestionAnswering" else config.num_labels
    theirs = _effective({**ClozeBertConfig().to_dict(), **back, "num_labels": labels}, ending)
    return {
        name: f"{name}={mine.get(name)!r} (there: {theirs.get(name)!r})"
        for name in sorted({*mine, *theirs})
        if mine.get(name) != theirs.get(name)
    }


def _to_ours(architecture: Architecture, native: Mapping[str, Any], ending: str) -> Values:
    translated = {ours: native[theirs] for ours, theirs in architecture.fields.items()}
    ids = {name: native[name] for name in _EXTRA_IDS if type(native.get(name)) is int}
    return {**architecture.fixed, **ids, **translated, **architecture.to_ours(dict(native), ending)}


def _to_native(architecture: Architecture, ours: Values, ending: str) -> Values:
    values = {theirs: ours[name] for name, theirs in architecture.fields.items()}
    values.update(architecture.to_native(ours, ending))
    known = _config_class(architecture).__dataclass_fields__
    for name in _EXTRA_IDS:
        if name not in known and ours[name] is not None:
            values[name] = ours[name]
    return copy.deepcopy(values)


def _complete(architecture: Architecture, values: Values) -> Values:
    """A native configuration as a dictionary; fields that were not given have their defaults."""
    return _config_class(architecture)(**copy.deepcopy(values)).to_dict()


def _effective(ours: Values, ending: str) -> Values:
    """Our fields as they affect one head: None is resolved, and fields that the head does not use are left out."""
    values = _resolved({name: x for name, x in ours.items() if name in _MODEL_FIELDS - _NOT_COMPARED})
    if ending in POOLED:  # only whether this head has a dense layer matters here
        values["classifier_dense"] = "none" if values["classifier_dense"] == "none" else "a dense layer"
    elif ending in PER_TOKEN:
        values["classifier_dense"] = "a dense layer" if values["classifier_dense"] == "all" else "none"
    unused = _unused_by_encoder(values) | (set(_HEAD_FIELDS) - _used_by_head(values, ending))
    return {name: value for name, value in values.items() if name not in unused}


def _resolved(values: Values) -> Values:
    """The values with each None replaced by what it means."""
    hidden_dropout = values["hidden_dropout_prob"]
    defaults = {
        "num_key_value_heads": values["num_attention_heads"],
        "embedding_size": values["hidden_size"],
        "embedding_dropout": hidden_dropout,
        "classifier_dropout": hidden_dropout,
        "final_norm": values["norm_position"] == "pre",
        "layer_types": [FULL] * values["num_hidden_layers"],
        "prediction_activation": values["hidden_act"],
    }
    values = {**values, **{name: value for name, value in defaults.items() if values.get(name) is None}}
    if values["position_embedding_type"] == "rope":
        values["rope_parameters"] = rope_by_layer_type(values["rope_parameters"], values["layer_types"])
    return values


def _unused_by_encoder(values: Values) -> set[str]:
    """The fields that an encoder of this configuration does not use."""
    unused: set[str] = set()
    if SLIDING not in values["layer_types"]:
        unused.add("sliding_window")
    if values["norm_type"] == "rmsnorm":
        unused.add("norm_bias")
    used_by_positions = {"absolute": ("position_rule", "position_offset"), "rope": ("position_rule", "rope_parameters")}
    used = used_by_positions.get(values["position_embedding_type"], ("position_rule",))
    unused.update(name for name in _POSITION_FIELDS if name not in used)
    if values.get("image_size") is None:
        unused.update(("patch_size", "num_channels"))
    else:
        unused.update((*_TEXT_FIELDS, *_POSITION_FIELDS))
    return unused


def _used_by_head(values: Values, ending: str) -> set[str]:
    """The head fields that a head uses, given the `classifier_dense` of `_effective`."""
    if ending == "Model":
        return {"classifier_pooling", *_DENSE_FIELDS} if values.get("base_pooler") else set()
    if ending == "ForMaskedLM":
        dense = {"prediction_activation", "head_bias"} if values["prediction_dense"] else set()
        return {"prediction_dense", "decoder_bias", "tie_word_embeddings", *dense}
    used = {"classifier_dense", "classifier_bias", "classifier_dropout", "num_labels"}
    if values["classifier_dense"] != "none":
        used.update(_DENSE_FIELDS)
    return used | ({"classifier_pooling", "compare_pairs"} if ending in POOLED else set())


def _check_token_ids(native: Mapping[str, Any]) -> None:
    for name in ("bos_token_id", "eos_token_id"):
        if isinstance(native.get(name), list):
            raise UserError(
                f"{name}={native[name]} of the native configuration has no counterpart here: it must be one id"
            )


def _check_activations(config: ClozeBertConfig) -> None:
    """Raise for activations with weights (PReLU, xIELU): the tables have no names for these.

    Raises:
        UserError: names the field.
    """
    for name in ("hidden_act", "prediction_activation", "classifier_activation"):
        value = getattr(config, name)
        if value is not None and next(make_activation(value).parameters(), None) is not None:
            raise UserError(f"{name}={value!r} has weights of its own: such a model cannot be converted")


def _return_what_is_asked(config: PreTrainedConfig) -> None:
    """Select eager attention if the configuration asks for attention weights: only it returns them."""
    if config.output_attentions:
        config._attn_implementation = "eager"


def _config_class(architecture: Architecture) -> Any:
    return getattr(transformers, architecture.config_class)
