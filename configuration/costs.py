"""Parameters, FLOPs and activations of each part of the encoder, as closed formulas.

Each formula is one string in the symbols of `symbols_of`: what is computed is what `describe` prints.
"""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .configuration_clozebert import ClozeBertConfig

SYMBOLS = {
    "B": "batch", "T": "length", "D": "hidden size", "H": "heads", "K": "head size", "G": "key heads * head size",
    "F": "feed-forward size", "V": "vocabulary", "E": "embedding size", "P": "positions", "Y": "token types",
    "W": "window on each side, at most T - 1", "C": "labels", "Q": "values of a patch",
}  # fmt: skip
_MASKED_LM = "ClozeBertForMaskedLM"
_OF_TOKENS = ("ClozeBertForTokenClassification", "ClozeBertForQuestionAnswering")  # a score for each token
_OUTPUTS = {"ClozeBertForQuestionAnswering": "2", "ClozeBertForMultipleChoice": "1"}  # of the others, the labels


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the model and its formulas: parameters, FLOPs of its matrix products, values that these write.

    `times`: how many of it there are. `predicted`: training needs it at the predicted tokens only.
    """

    name: str
    times: int
    parameters: str
    flops: str
    written: str
    predicted: bool = False

    def count(self, formula: str, symbols: "Mapping[str, float]") -> int:
        """The value of one of the part's formulas, for all of its kind."""
        return self.times * int(eval(formula, {"__builtins__": {}}, symbols))  # our own strings, our own symbols


def default_length(config: "ClozeBertConfig") -> int:
    """512 tokens or the longest sequence, whichever is shorter; all patches and the class token of an image."""
    if config.image_size is not None and config.patch_size is not None:
        return (config.image_size // config.patch_size) ** 2 + 1
    return min(512, config.max_position_embeddings)


def symbols_of(config: "ClozeBertConfig", *, batch_size: int, length: int) -> dict[str, int]:
    """The values of SYMBOLS."""
    head_size = config.hidden_size // config.num_attention_heads
    return {
        "B": batch_size,
        "T": length,
        "D": config.hidden_size,
        "H": config.num_attention_heads,
        "K": head_size,
        "G": (config.num_key_value_heads or config.num_attention_heads) * head_size,
        "F": config.intermediate_size,
        "V": config.vocab_size,
        "E": (config.embedding_size if config.image_size is None else None) or config.hidden_size,
        "P": config.max_position_embeddings + config.position_offset,
        "Y": config.type_vocab_size,
        "W": min(config.sliding_window or 0, length - 1),
        "C": config.num_labels or 2,
        "Q": config.num_channels * (config.patch_size or 0) ** 2,
    }


def parts_of(config: "ClozeBertConfig", model_class: str = _MASKED_LM) -> list[Part]:
    """The parts of a model of this class; of a configuration of images, which has no masked LM, its classifier."""
    layers = config.num_hidden_layers
    windowed = sum(config.attention_type(layer) == "sliding_attention" for layer in range(layers))
    glu = config.mlp_type == "glu"  # then two projections from D to F, and one back
    attention_bias = " + 2*D + 2*G" if config.attention_bias else ""
    mlp_bias = (" + 2*F + D" if glu else " + F + D") if config.mlp_bias else ""
    parts = [*_front(config)]
    parts.append(
        Part(
            "attention projections q k v o",
            layers,
            f"2*D*D + 2*D*G{attention_bias}",
            "2*B*T*(2*D*D + 2*D*G)",
            "B*T*(2*D + 2*G)",
        )
    )
    if layers > windowed:
        parts.append(Part("attention, all tokens", layers - windowed, "0", "4*B*T*T*D", "B*T*D"))
    if windowed:
        parts.append(Part("attention, window", windowed, "0", "4*B*(T*(2*W + 1) - W*(W + 1))*D", "B*T*D"))
    weights, flops, written = ("3*D*F", "6*B*T*D*F", "2*F") if glu else ("2*D*F", "4*B*T*D*F", "F")
    parts.append(Part("feed-forward", layers, weights + mlp_bias, flops, f"B*T*({written} + D)"))
    norms = 2 * layers - (not config.first_attention_norm)
    norms += config.norm_position == "pre" if config.final_norm is None else config.final_norm
    parts.append(Part("norms", norms, _norm(config, "D"), "0", "0"))
    if config.qk_norm:
        parts.append(Part("norms of queries and keys", layers, "2*K", "0", "0"))
    return [*parts, *_head(config, model_class)]


def _norm(config: "ClozeBertConfig", size: str) -> str:
    return f"2*{size}" if config.norm_type == "layernorm" and config.norm_bias else size


def _front(config: "ClozeBertConfig") -> list[Part]:
    absolute = config.position_embedding_type == "absolute"
    norm = f" + {_norm(config, 'E')}" if config.embedding_norm else ""
    if config.image_size is not None:
        positions = f" + {default_length(config)}*D" if absolute else ""
        return [Part("patches, class token", 1, f"D*Q + 2*D{positions}{norm}", "2*B*(T - 1)*D*Q", "B*(T - 1)*D")]
    tables = "V*E" + (" + P*E" if absolute else "") + (" + Y*E" if config.type_vocab_size else "")
    projected = config.embedding_size is not None and config.embedding_size != config.hidden_size
    parts = [Part("embeddings", 1, tables + norm, "0", "0")]
    if projected:
        parts.append(Part("embeddings to hidden size", 1, "E*D + D", "2*B*T*E*D", "B*T*D"))
    return parts


def _head(config: "ClozeBertConfig", model_class: str) -> list[Part]:
    if config.image_size is not None or model_class != _MASKED_LM:
        return _classifier(config, model_class)
    parts, head_norm, bias = [], f" + {_norm(config, 'E')}", " + E" if config.head_bias else ""
    if config.prediction_dense:
        parts.append(Part("prediction's dense layer", 1, f"D*E{bias}{head_norm}", "2*B*T*D*E", "B*T*E", True))
    terms = [term for term, own in (("V*E", not config.tie_word_embeddings), ("V", config.decoder_bias)) if own]
    return [*parts, Part("decoder onto the vocabulary", 1, " + ".join(terms) or "0", "2*B*T*E*V", "B*T*V", True)]


def _classifier(config: "ClozeBertConfig", model_class: str) -> list[Part]:
    """A classifier of rows or of each token; of the bare encoder its pooler, where it has one."""
    bare, pools = model_class == "ClozeBertModel", model_class not in _OF_TOKENS
    if bare and not config.base_pooler:
        return []
    rows, parts = "B" if pools else "B*T", []
    pooled = "D" if pools and config.classifier_pooling == "attention" else ""
    if bare or config.classifier_dense == "all" or (pools and config.classifier_dense == "pooled"):
        terms = ["D*D", "D" if config.head_bias else "", _norm(config, "D") if config.classifier_norm else ""]
        name, terms = ("pooler", [*terms, pooled]) if bare else ("classifier's dense layer", terms)
        parts.append(Part(name, 1, " + ".join(filter(None, terms)), f"2*{rows}*D*D", f"{rows}*D"))
    if bare:
        return parts
    outputs = _OUTPUTS.get(model_class, "C")
    terms = [pooled, f"D*{outputs}", outputs if config.classifier_bias else ""]
    counts = " + ".join(filter(None, terms)), f"2*{rows}*D*{outputs}", f"{rows}*{outputs}"
    return [*parts, Part("classifier", 1, *counts)]


def short_number(number: int) -> str:
    """`1.23 G`: three digits and a thousand's prefix."""
    value = float(number)
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 999.5:  # three digits of more are 1e+03
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} E"
