"""Parameters, FLOPs and activations of each part of the encoder, as closed formulas.

Each formula is one string in the symbols of `symbols_of`: `describe` prints the same string that is evaluated.
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
_OUTPUTS = {"ClozeBertForQuestionAnswering": "2", "ClozeBertForMultipleChoice": "1"}  # the others: one per label


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the model and its formulas: parameters, FLOPs of its matmuls, and the values that the matmuls write.

    `times`: how many copies the model has. `predicted`: training needs it at the predicted tokens only.
    """

    name: str
    times: int
    parameters: str
    flops: str
    written: str
    predicted: bool = False

    def count(self, formula: str, symbols: "Mapping[str, float]") -> int:
        """The value of one of the part's formulas, over all `times` copies."""
        return self.times * int(eval(formula, {"__builtins__": {}}, symbols))  # safe: only strings of this file


def default_length(config: "ClozeBertConfig") -> int:
    """512 tokens or the longest sequence, whichever is shorter; for images, all patches and the class token."""
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
    """The parts of a model of this class. For images, which have no masked-LM head, the head is a classifier."""
    layers = config.num_hidden_layers
    windowed = sum(config.attention_type(layer) == "sliding_attention" for layer in range(layers))
    glu = config.mlp_type == "glu"  # then two projections from D to F, and one back
    projections = _sum("2*D*D + 2*D*G", config.attention_bias and "2*D + 2*G")
    parts = _front(config)
    parts.append(Part("attention projections q k v o", layers, projections, "2*B*T*(2*D*D + 2*D*G)", "B*T*(2*D + 2*G)"))
    if layers > windowed:
        parts.append(Part("attention, all tokens", layers - windowed, "0", "4*B*T*T*D", "B*T*D"))
    if windowed:
        parts.append(Part("attention, window", windowed, "0", "4*B*(T*(2*W + 1) - W*(W + 1))*D", "B*T*D"))
    weights, bias, flops, written = (
        ("3*D*F", "2*F + D", "6*B*T*D*F", "2*F") if glu else ("2*D*F", "F + D", "4*B*T*D*F", "F")
    )
    parts.append(Part("feed-forward", layers, _sum(weights, config.mlp_bias and bias), flops, f"B*T*({written} + D)"))
    norms = 2 * layers - (not config.first_attention_norm) + config.has_final_norm
    parts.append(Part("norms", norms, _norm(config, "D"), "0", "0"))
    if config.qk_norm:
        parts.append(Part("norms of queries and keys", layers, "2*K", "0", "0"))
    return [*parts, *_head(config, model_class)]


def _sum(*terms: str | bool) -> str:
    """The terms that are strings, joined by `+`."""
    return " + ".join(term for term in terms if isinstance(term, str)) or "0"


def _linear(name: str, rows: str, inputs: str, outputs: str, *more: str | bool, predicted: bool = False) -> Part:
    """A linear layer applied to `rows` vectors. `more`: parameters besides the matrix."""
    matrix = f"{inputs}*{outputs}"
    return Part(name, 1, _sum(matrix, *more), f"2*{rows}*{matrix}", f"{rows}*{outputs}", predicted)


def _norm(config: "ClozeBertConfig", size: str) -> str:
    return f"2*{size}" if config.norm_type == "layernorm" and config.norm_bias else size


def _front(config: "ClozeBertConfig") -> list[Part]:
    absolute, norm = config.position_embedding_type == "absolute", config.embedding_norm and _norm(config, "E")
    if config.image_size is not None:
        parameters = _sum("D*Q + 2*D", absolute and f"{default_length(config)}*D", norm)
        return [Part("patches, class token", 1, parameters, "2*B*(T - 1)*D*Q", "B*(T - 1)*D")]
    tables = _sum("V*E", absolute and "P*E", config.type_vocab_size > 0 and "Y*E", norm)
    parts = [Part("embeddings", 1, tables, "0", "0")]
    if config.embedding_size not in (None, config.hidden_size):
        parts.append(_linear("embeddings to hidden size", "B*T", "E", "D", "D"))
    return parts


def _head(config: "ClozeBertConfig", model_class: str) -> list[Part]:
    if config.image_size is not None or model_class != _MASKED_LM:
        return _classifier(config, model_class)
    parts, beside = [], (config.head_bias and "E", _norm(config, "E"))
    if config.prediction_dense:
        parts.append(_linear("prediction's dense layer", "B*T", "D", "E", *beside, predicted=True))
    own = _sum(not config.tie_word_embeddings and "V*E", config.decoder_bias and "V")
    return [*parts, Part("decoder onto the vocabulary", 1, own, "2*B*T*E*V", "B*T*V", True)]


def _classifier(config: "ClozeBertConfig", model_class: str) -> list[Part]:
    """The classifier of sequences or of tokens; for the bare encoder its pooler, if it has one."""
    pools = model_class not in _OF_TOKENS
    rows = "B" if pools else "B*T"
    attends = pools and config.classifier_pooling == "attention"
    pooling = [_linear("pooling by attention", "B*T", "D", "1")] if attends else []
    beside = (config.head_bias and "D", config.classifier_norm and _norm(config, "D"))
    if model_class == "ClozeBertModel":
        return [*pooling, _linear("pooler", rows, "D", "D", *beside)] if config.base_pooler else []
    outputs = _OUTPUTS.get(model_class, "C")
    parts = [*pooling]
    if pools and config.compare_pairs:
        parts.append(_linear("comparison of a pair", rows, "(2*D + 1)", "D"))
    if config.classifier_dense == "all" or (pools and config.classifier_dense == "pooled"):
        parts.append(_linear("classifier's dense layer", rows, "D", "D", *beside))
    last = _linear("classifier", rows, "D", outputs, config.classifier_bias and outputs)
    return [*parts, last]


def short_number(number: int) -> str:
    """A number with three digits and an SI prefix: `1.23 G`."""
    value = float(number)
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 999.5:  # larger values would be formatted as 1e+03
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} E"
