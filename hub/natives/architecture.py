"""The parts of an architecture's conversion table, and what several tables share.

A table has three parts: names of tensors, names of configuration fields, and our fields that have a fixed value in the
architecture. Both directions of conversion read the same table, so a round trip gives the same model.

In the names of tensors, `{i}` is the layer. The left side is our module, the right side the architecture's. If the
architecture fuses several of our modules into one, the left side lists them in the order in which their rows are
stacked. `.weight` and `.bias` are added if they exist.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...utils.errors import UserError

Rename = tuple[str | tuple[str, ...], str]
Values = dict[str, Any]

# Suffixes of our class names, by the input of the head: one vector for each sequence, or one for each token.
POOLED = ("ForSequenceClassification", "ForMultipleChoice", "ForImageClassification")
PER_TOKEN = ("ForTokenClassification", "ForQuestionAnswering")

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Head:
    """One class of an architecture: the suffix of our class's name, and the renames of the head."""

    ours: str
    renames: tuple[Rename, ...] = ()


@dataclass(frozen=True)
class Architecture:
    """A `model_type` of transformers.

    Attributes:
        prefix: the name of the encoder inside its classes with heads. heads: its classes by name.
        renames: the encoder's modules. tied: name of a tensor -> name of the tensor that it always equals.
        fields: our configuration fields -> its fields with the same values.
        fixed: our fields that have a fixed value in the architecture.
        to_ours, to_native: conversions beyond renaming: (its values, ending) -> ours, and (ours, ending) -> its.
        no_effect: its fields that do not change what it computes; they are kept beside our configuration.
        optional_pooler: whether its model without a head takes `add_pooling_layer`.
    """

    model_type: str
    config_class: str
    prefix: str
    heads: Mapping[str, Head]
    renames: tuple[Rename, ...]
    fields: Mapping[str, str]
    fixed: Mapping[str, Any]
    to_ours: Callable[[Values, str], Values]
    to_native: Callable[[Values, str], Values]
    tied: Mapping[str, str] = field(default_factory=dict)
    no_effect: tuple[str, ...] = ()
    optional_pooler: bool = False

    def head_of(self, class_name: str, *, where: str = "") -> Head:
        """The head of one of its classes.

        Args:
            where: where the name was read, for the message.

        Raises:
            UserError: none of our classes corresponds to it.
        """
        if class_name not in self.heads:
            known = ", ".join(self.heads)
            raise UserError(f"{class_name}{where} has no counterpart here; of {self.model_type}, these have: {known}")
        return self.heads[class_name]

    def class_of(self, ending: str) -> str:
        """The name of its class whose counterpart of ours has this suffix."""
        return next(name for name, head in self.heads.items() if head.ours == ending)


# Heads


def heads_of(stem: str, **modules: str | tuple[str, ...]) -> dict[str, Head]:
    """Class name -> head, for the classes that begin with `stem`; the one without a head is always included.

    Args:
        modules: suffix of a class name -> the class's names for our last linear layer (`decoder` or `classifier`) and,
            if it has them, our `head.dense` and `head.norm`, in this order.
    """
    heads = {f"{stem}Model": Head("Model")}
    for ending, given in modules.items():
        theirs = (given,) if isinstance(given, str) else given
        ours = ("decoder" if ending == "ForMaskedLM" else "classifier", "head.dense", "head.norm")
        heads[f"{stem}{ending}"] = Head(ending, tuple(zip(ours, theirs, strict=False)))
    return heads


# Names

# Attention and feed-forward of the architectures that use Llama's names.
LLAMA_LAYERS: tuple[Rename, ...] = (
    ("layers.{i}.attention.q_proj", "layers.{i}.self_attn.q_proj"),
    ("layers.{i}.attention.k_proj", "layers.{i}.self_attn.k_proj"),
    ("layers.{i}.attention.v_proj", "layers.{i}.self_attn.v_proj"),
    ("layers.{i}.attention.o_proj", "layers.{i}.self_attn.o_proj"),
    ("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.gate_proj"),
    ("layers.{i}.mlp.up_proj", "layers.{i}.mlp.up_proj"),
    ("layers.{i}.mlp.down_proj", "layers.{i}.mlp.down_proj"),
)


def same(*names: str) -> dict[str, str]:
    """Fields with the same name on both sides."""
    return {name: name for name in names}


SIZES = same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
TOKEN_IDS = same("pad_token_id", "bos_token_id", "eos_token_id")

# The values of our fields that no table translates, in every architecture whose table does not say otherwise.
COMMON_VALUES: Values = {
    "num_key_value_heads": None,
    "embedding_size": None,
    "norm_position": "post",
    "norm_type": "layernorm",
    "norm_bias": True,
    "embedding_norm": True,
    "final_norm": None,
    "first_attention_norm": True,
    "mlp_type": "mlp",
    "mlp_bias": True,
    "attention_bias": True,
    "qk_norm": False,
    "layer_types": None,
    "sliding_window": None,
    "position_embedding_type": "absolute",
    "position_rule": "row",
    "position_offset": 0,
    "rope_parameters": None,
    "embedding_dropout": None,
    "mlp_dropout": 0.0,
    "classifier_dropout": None,
    "classifier_pooling": "cls",
    "compare_pairs": False,
    "classifier_dense": "pooled",
    "classifier_activation": "tanh",
    "classifier_norm": False,
    "prediction_activation": None,
    "prediction_dense": True,
    "head_bias": True,
    "classifier_bias": True,
    "decoder_bias": True,
    "sparse_prediction": False,
    "base_pooler": False,
    "image_size": None,
    "patch_size": None,
    "num_channels": 3,
    "output_projection_init": "normal",
    "cls_token_id": None,
    "sep_token_id": None,
    "mask_token_id": None,
}

# Values


def no_changes(values: Values, ending: str) -> Values:
    """`to_ours` or `to_native` of an architecture that differs only in names."""
    return {}


def value_or(value: Any, default: Any) -> Any:
    """`value`, or `default` if it is None."""
    return default if value is None else value


def at_least_one_type(native: Values, ending: str) -> Values:
    """`type_vocab_size`, at least 1: a native token-type table without rows could not be used."""
    return {"type_vocab_size": max(1, native["type_vocab_size"])}


def prediction_activation(name: str, values: Values) -> str | None:
    """`prediction_activation` for a head that uses `name`; None means the encoder's activation."""
    return None if name == values["hidden_act"] else name


def rope_by_layer_type(rope_parameters: Values | None, layer_types: list[str] | None) -> Values:
    """`rope_parameters` with one entry for each layer type, from either of its two forms."""
    parameters = rope_parameters or {}
    kinds = sorted(set(layer_types or [FULL]))
    nested = FULL in parameters or SLIDING in parameters
    return {kind: dict(parameters[kind] if nested else parameters) for kind in kinds}


# Refusals


def no_counterpart(name: str, value: Any, need: str) -> UserError:
    """The error for a native field whose value our configuration cannot express."""
    return UserError(f"{name}={value!r} of the native configuration has no counterpart here: {need}")


def check_head_size(native: Values) -> None:
    """Raise if the head size is not `hidden_size / num_attention_heads`.

    Raises:
        UserError: `head_dim` has another value.
    """
    size = native["hidden_size"] // native["num_attention_heads"]
    if native["head_dim"] not in (None, size):
        raise no_counterpart(
            "head_dim", native["head_dim"], f"a head has hidden_size / num_attention_heads = {size} channels"
        )
