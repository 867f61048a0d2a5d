"""The whole forward pass in NumPy, float64, written from the formulas. It shares no code with `modeling/`.

A readable truth, not a fast one: sequences are encoded one at a time, a packed run is cut into its documents first, and
attention looks at one head at a time. The arguments are a configuration (only its fields are read) and the arrays of a
state dict by their names.

Shapes: T tokens of a sequence, D hidden size, H heads, K head size, V vocabulary, C labels.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Weights = Mapping[str, Array]


# ---------------------------------------------------------------------------------------------- elementary functions


def softmax(x: Array) -> Array:
    """exp(x_i) / sum_j exp(x_j) over the last axis; a row of -inf, which sees nothing, becomes zeros."""
    highest = x.max(axis=-1, keepdims=True)
    powers = np.exp(x - np.where(np.isfinite(highest), highest, 0.0))
    return powers / np.maximum(powers.sum(axis=-1, keepdims=True), np.finfo(np.float64).tiny)


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def gelu(x: Array) -> Array:
    """x Phi(x), with Phi the normal distribution function (Hendrycks & Gimpel 2016)."""
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation of GELU, as the first BERT and GPT codes had it."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
    "linear": lambda x: x,
}


def part(weights: Weights, prefix: str) -> Weights:
    """The arrays whose names begin with `prefix`, without it."""
    return {name[len(prefix) :]: array for name, array in weights.items() if name.startswith(prefix)}


def linear(weights: Weights, name: str, x: Array) -> Array:
    """x W^T + b, where there is a b."""
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def norm(config: Any, weights: Weights, name: str, x: Array) -> Array:
    """Layer norm (x - mean) / sqrt(var + eps) * w + b, or RMS norm x / sqrt(mean(x^2) + eps) * w; x if no weights."""
    if f"{name}.weight" not in weights:
        return x
    if config.norm_type == "rmsnorm":
        return rms_norm(x, weights[f"{name}.weight"], config.norm_eps)
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + config.norm_eps)
    return centred / scale * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0.0)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


# ---------------------------------------------------------------------------------------------------------- positions


def sinusoids(positions: Array, size: int) -> Array:
    """PE(p, 2i) = sin(p / 10000^(2i/size)), PE(p, 2i+1) = cos(p / 10000^(2i/size)) (Vaswani et al. 2017)."""
    table = np.zeros((len(positions), size))
    for channel in range(size):
        angle = positions / 10_000.0 ** (2 * (channel // 2) / size)
        table[:, channel] = np.sin(angle) if channel % 2 == 0 else np.cos(angle)
    return table


def rope_frequencies(config: Any, parameters: Mapping[str, Any], length: int) -> tuple[Array, float]:
    """The K/2 frequencies of a rope type, and the factor on its cosines and sines."""
    size = config.hidden_size // config.num_attention_heads
    theta, factor = parameters["rope_theta"], parameters.get("factor", 1.0)
    longest = config.max_position_embeddings
    pair = np.arange(size // 2)
    frequencies = theta ** (-2.0 * pair / size)
    if parameters["rope_type"] == "linear":  # positions squeezed by a factor
        return frequencies / factor, 1.0
    if parameters["rope_type"] == "dynamic":  # a larger base for sequences longer than those of training
        if length > longest:
            theta = theta * (factor * length / longest - (factor - 1)) ** (size / (size - 2))
        return theta ** (-2.0 * pair / size), 1.0
    if parameters["rope_type"] == "llama3":  # slow pairs squeezed, fast pairs kept, a ramp between
        original = parameters["original_max_position_embeddings"]
        low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
        turns = original * frequencies / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return frequencies * (kept + (1 - kept) / factor), 1.0
    if parameters["rope_type"] == "yarn":  # as llama3 with a ramp over pairs, and sharper scores (Peng et al. 2023)
        original = parameters["original_max_position_embeddings"]

        def pair_with_turns(turns: float) -> float:
            return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

        first = max(math.floor(pair_with_turns(parameters.get("beta_fast", 32.0))), 0)
        last = min(math.ceil(pair_with_turns(parameters.get("beta_slow", 1.0))), size - 1)
        kept = 1 - np.clip((pair - first) / max(last - first, 0.001), 0.0, 1.0)
        return frequencies * (kept + (1 - kept) / factor), 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return frequencies, 1.0


def rope(config: Any, x_TK: Array, positions_T: Array, layer_type: str, longest: int) -> Array:
    """Turn the pair (x_i, x_(i + K/2)) by the angle p f_i, that is multiply x_i + j x_(i+K/2) by exp(j p f_i)."""
    parameters = config.rope_parameters
    parameters = parameters.get(layer_type, parameters)
    frequencies, factor = rope_frequencies(config, parameters, longest)
    half = x_TK.shape[1] // 2
    pairs = x_TK[:, :half] + 1j * x_TK[:, half:]
    turned = pairs * np.exp(1j * positions_T[:, None] * frequencies) * factor
    return np.concatenate([turned.real, turned.imag], axis=1)


def token_positions(config: Any, ids_T: Array | None, length: int) -> Array:
    """Columns from 0; under `non_pad` the tokens that are not padding are counted, and padding stands at -1."""
    if config.position_rule == "row" or ids_T is None:
        return np.arange(length)
    is_token = ids_T != config.pad_token_id
    return np.where(is_token, np.cumsum(is_token) - 1, -1)


# --------------------------------------------------------------------------------------------------------- embeddings


def embed_tokens(
    config: Any,
    weights: Weights,
    ids_T: Array | None,
    embeds_TE: Array | None,
    types_T: Array | None,
    positions_T: Array,
) -> Array:
    """Token + token-type + position vectors, norm, projection to D where the embeddings are of another size."""
    x = weights["word_embeddings.weight"][ids_T] if embeds_TE is None else embeds_TE
    if config.type_vocab_size:
        x = x + weights["token_type_embeddings.weight"][np.zeros(len(x), int) if types_T is None else types_T]
    if config.position_embedding_type == "absolute":
        x = x + weights["positions.table.weight"][positions_T + config.position_offset]
    if config.position_embedding_type == "sinusoidal":
        x = x + sinusoids(positions_T, x.shape[1])
    x = norm(config, weights, "norm", x)
    return linear(weights, "projection", x) if "projection.weight" in weights else x


def embed_image(config: Any, weights: Weights, pixels: Array) -> Array:
    """Cut [channels, height, width] into patches, project each, put the class token first, add positions, norm."""
    size = config.patch_size
    rows, columns = pixels.shape[1] // size, pixels.shape[2] // size
    kernel = weights["projection.weight"].reshape(config.hidden_size, -1)
    patches = [
        kernel @ pixels[:, row * size : (row + 1) * size, column * size : (column + 1) * size].ravel()
        + weights["projection.bias"]
        for row in range(rows)
        for column in range(columns)
    ]
    x = np.concatenate([weights["class_token"][0], np.array(patches)])
    if config.position_embedding_type == "absolute":
        side = config.image_size // size
        table = weights["table"][0]
        grid = table[1:].reshape(side, side, -1)
        grid = np.einsum("ri,cj,ijd->rcd", bicubic(side, rows), bicubic(side, columns), grid)
        x = x + np.concatenate([table[:1], grid.reshape(rows * columns, -1)])
    if config.position_embedding_type == "sinusoidal":
        half = config.hidden_size // 2
        row_codes, column_codes = (
            sinusoids(np.arange(rows), half),
            sinusoids(np.arange(columns), config.hidden_size - half),
        )
        codes = [
            np.concatenate([row_codes[row], column_codes[column]]) for row in range(rows) for column in range(columns)
        ]
        x = x + np.concatenate([np.zeros((1, config.hidden_size)), codes])
    return norm(config, weights, "norm", x)


def bicubic(old: int, new: int) -> Array:
    """The matrix [new, old] of cubic convolution (Keys 1981, a = -0.75) between pixel centres, edges repeated."""
    if old == new:
        return np.eye(old)
    a = -0.75

    def kernel(t: float) -> float:
        t = abs(t)
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0

    matrix = np.zeros((new, old))
    for index in range(new):
        centre = (index + 0.5) * old / new - 0.5
        for neighbour in range(math.floor(centre) - 1, math.floor(centre) + 3):
            matrix[index, min(max(neighbour, 0), old - 1)] += kernel(centre - neighbour)
    return matrix


# ------------------------------------------------------------------------------------------------------- the encoder


def attention(q_TK: Array, k_TK: Array, v_TK: Array, sees_TT: Array | None = None) -> tuple[Array, Array]:
    """softmax(Q K^T / sqrt(K)) V over the keys that each query sees; also the weights."""
    scores_TT = q_TK @ k_TK.T / math.sqrt(q_TK.shape[1])
    if sees_TT is not None:
        scores_TT = np.where(sees_TT, scores_TT, -np.inf)
    weights_TT = softmax(scores_TT)
    return weights_TT @ v_TK, weights_TT


def multi_head_attention(
    config: Any, weights: Weights, x_TD: Array, positions_T: Array, visible_T: Array, layer: int, longest: int
) -> Array:
    """Concat(head_1, …, head_H) W_o, head_h = attention of the h-th slices of the projections (Vaswani et al. 2017)."""
    layer_type = config.layer_types[layer] if config.layer_types is not None else "full_attention"
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    size, columns = config.hidden_size // heads, np.arange(len(x_TD))
    sees_TT = np.repeat(visible_T[None, :], len(x_TD), axis=0)
    if layer_type == "sliding_attention":
        sees_TT = sees_TT & (abs(columns[:, None] - columns[None, :]) <= config.sliding_window)
    q, k, v = (linear(weights, f"{name}_proj", x_TD) for name in "qkv")

    def head_of(x: Array, head: int, name: str = "") -> Array:
        x_TK = x[:, head * size : (head + 1) * size]
        if name and config.qk_norm:
            x_TK = rms_norm(x_TK, weights[f"{name}_norm.weight"], config.norm_eps)
        if name and config.position_embedding_type == "rope":
            x_TK = rope(config, x_TK, positions_T, layer_type, longest)
        return x_TK

    outputs = []
    for head in range(heads):
        shared = head * key_heads // heads  # grouped queries: neighbouring heads share keys and values
        outputs.append(attention(head_of(q, head, "q"), head_of(k, shared, "k"), head_of(v, shared), sees_TT)[0])
    return linear(weights, "o_proj", np.concatenate(outputs, axis=1))


def feed_forward(config: Any, weights: Weights, x: Array) -> Array:
    """W_down act(W_up x), or W_down (act(W_gate x) * W_up x)."""
    act = ACTIVATIONS[config.hidden_act]
    up = linear(weights, "up_proj", x)
    return linear(
        weights, "down_proj", act(linear(weights, "gate_proj", x)) * up if config.mlp_type == "glu" else act(up)
    )


def encoder_layer(
    config: Any, weights: Weights, x: Array, positions_T: Array, visible_T: Array, layer: int, longest: int
) -> Array:
    def attend(x: Array) -> Array:
        return multi_head_attention(config, part(weights, "attention."), x, positions_T, visible_T, layer, longest)

    def feed(x: Array) -> Array:
        return feed_forward(config, part(weights, "mlp."), x)

    if config.norm_position == "post":
        x = norm(config, weights, "attention_norm", x + attend(x))
        return norm(config, weights, "mlp_norm", x + feed(x))
    x = x + attend(norm(config, weights, "attention_norm", x))
    return x + feed(norm(config, weights, "mlp_norm", x))


def encode_sequence(
    config: Any, weights: Weights, x_TD: Array, positions_T: Array, visible_T: Array, longest: int
) -> Array:
    """The layers over the embeddings of one sequence; rows of invisible tokens come out zero."""
    for layer in range(config.num_hidden_layers):
        x_TD = encoder_layer(config, part(weights, f"layers.{layer}."), x_TD, positions_T, visible_T, layer, longest)
    return norm(config, weights, "final_norm", x_TD) * visible_T[:, None]


def encode(
    config: Any,
    weights: Weights,
    *,
    input_ids: Array | None = None,
    attention_mask: Array | None = None,
    token_type_ids: Array | None = None,
    position_ids: Array | None = None,
    inputs_embeds: Array | None = None,
    cu_seq_lens: Array | None = None,
    pixel_values: Array | None = None,
) -> Array:
    """`ClozeBertModel(...).last_hidden_state`, [B, T, D]. `cu_seq_lens` cuts the one row of a packed run."""
    embeddings = part(weights, "embeddings.")
    if pixel_values is not None:
        images = [embed_image(config, embeddings, pixels) for pixels in pixel_values]
        lengths = np.arange(len(images[0]))
        return np.stack([encode_sequence(config, weights, x, lengths, lengths >= 0, len(lengths)) for x in images])
    given = input_ids if input_ids is not None else inputs_embeds
    assert given is not None
    if cu_seq_lens is not None:
        documents = []
        for start, end in itertools.pairwise(cu_seq_lens):
            piece = {
                name: None if x is None else x[:, start:end]
                for name, x in (
                    ("input_ids", input_ids), ("token_type_ids", token_type_ids), ("inputs_embeds", inputs_embeds),
                    ("position_ids", position_ids),
                )
            }  # fmt: skip
            documents.append(encode(config, weights, **piece))
        return np.concatenate(documents, axis=1)
    length = given.shape[1]
    rows = []
    for row in range(len(given)):
        ids_T, embeds_TE, types_T, visible_T = (
            None if x is None else x[row] for x in (input_ids, inputs_embeds, token_type_ids, attention_mask)
        )
        visible_T = np.ones(length, bool) if visible_T is None else visible_T.astype(bool)
        if position_ids is None:
            positions_T = token_positions(config, ids_T, length)
        else:
            positions_T = position_ids[row % len(position_ids)]
        x_TD = embed_tokens(config, embeddings, ids_T, embeds_TE, types_T, positions_T)
        rows.append(encode_sequence(config, weights, x_TD, positions_T, visible_T, int(positions_T.max()) + 1))
    return np.stack(rows)


# -------------------------------------------------------------------------------------------------- heads and losses


def pool(config: Any, weights: Weights, x_TD: Array, visible_T: Array | None = None) -> Array:
    """First token, mean, maximum, or sum of softmax(u . x) x, over the visible tokens: [D]."""
    if visible_T is not None and not visible_T.any():
        return x_TD[0] if config.classifier_pooling == "cls" else np.zeros(x_TD.shape[1])
    tokens = x_TD if visible_T is None else x_TD[visible_T.astype(bool)]
    if config.classifier_pooling == "cls":
        return tokens[0]
    if config.classifier_pooling == "mean":
        return tokens.mean(axis=0)
    if config.classifier_pooling == "max":
        return tokens.max(axis=0)
    return softmax(tokens @ weights["score.weight"][0]) @ tokens


def dense_head(config: Any, weights: Weights, x: Array, activation: str) -> Array:
    """norm(act(W x)); the input itself where there is no head."""
    return norm(config, weights, "norm", ACTIVATIONS[activation](linear(weights, "dense", x))) if weights else x


def masked_lm_logits(config: Any, weights: Weights, **inputs: Any) -> Array:
    """[B, T, V]: the vectors of the tokens against those of the vocabulary."""
    x = encode(config, part(weights, "model."), **inputs)
    x = dense_head(config, part(weights, "head."), x, config.prediction_activation or config.hidden_act)
    name = "model.embeddings.word_embeddings.weight" if config.tie_word_embeddings else "decoder.weight"
    return x @ weights[name].T + weights.get("decoder.bias", 0.0)


def pool_all(config: Any, weights: Weights, x_BTD: Array, inputs: Mapping[str, Array | None]) -> Array:
    """One vector for each sequence of a batch or each document of a packed run: [B, D]."""
    bounds, mask = inputs.get("cu_seq_lens"), inputs.get("attention_mask")
    if bounds is not None:
        return np.stack([pool(config, weights, x_BTD[0, start:end]) for start, end in itertools.pairwise(bounds)])
    return np.stack([pool(config, weights, x, None if mask is None else mask[row]) for row, x in enumerate(x_BTD)])


def compare(config: Any, weights: Weights, x_TD: Array, ids_T: Array) -> Array:
    """W [|u - v|, u v, sqrt(D) cos(u, v)] of the means before and behind the first separator, [D]; else zeros."""
    separators = np.flatnonzero(ids_T == config.sep_token_id)
    texts = [] if not len(separators) else [x_TD[: separators[0]], np.delete(x_TD, separators, axis=0)[separators[0] :]]
    if not texts or 0 in map(len, texts):
        return np.zeros(x_TD.shape[1])
    u, v = (text.mean(axis=0) for text in texts)
    cosine = u @ v / np.sqrt((u @ u) * (v @ v))
    return weights["dense.weight"] @ np.concatenate([np.abs(u - v), u * v, [np.sqrt(len(u)) * cosine]])


def compare_all(config: Any, weights: Weights, x_BTD: Array, inputs: Mapping[str, Array | None]) -> Array:
    """`compare` for each sequence of a batch or each document of a packed run: [B, D]."""
    ids, bounds, mask = (inputs.get(name) for name in ("input_ids", "cu_seq_lens", "attention_mask"))
    assert ids is not None
    if bounds is not None:
        spans = itertools.pairwise(bounds)
        return np.stack([compare(config, weights, x_BTD[0, start:end], ids[0, start:end]) for start, end in spans])
    tokens = np.ones(ids.shape, bool) if mask is None else mask.astype(bool)
    rows = zip(x_BTD, ids, tokens, strict=True)
    return np.stack([compare(config, weights, x[of_row], ids_T[of_row]) for x, ids_T, of_row in rows])


def pooler_output(config: Any, weights: Weights, **inputs: Any) -> Array:
    """[B, D] of a model without a head that has a pooler (`base_pooler`)."""
    pooled = pool_all(config, part(weights, "pooling."), encode(config, weights, **inputs), inputs)
    return dense_head(config, part(weights, "pooler."), pooled, config.classifier_activation)


def sequence_logits(config: Any, weights: Weights, **inputs: Any) -> Array:
    """[B, C] of the sequence or image classifier; B counts the documents of a packed run."""
    x = encode(config, part(weights, "model."), **inputs)
    pooled = pool_all(config, part(weights, "pooling."), x, inputs)
    if config.compare_pairs:
        pooled = pooled + compare_all(config, part(weights, "comparison."), x, inputs)
    return linear(
        weights, "classifier", dense_head(config, part(weights, "head."), pooled, config.classifier_activation)
    )


def token_logits(config: Any, weights: Weights, **inputs: Any) -> Array:
    """[B, T, C] of the token classifier; the question-answering head is one with C = 2 (start, end)."""
    x = encode(config, part(weights, "model."), **inputs)
    return linear(weights, "classifier", dense_head(config, part(weights, "head."), x, config.classifier_activation))


def multiple_choice_logits(config: Any, weights: Weights, **inputs: Any) -> Array:
    """[B, choices] from inputs [B, choices, T]."""
    some = inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"]
    flat = {name: None if x is None else x.reshape(-1, *x.shape[2:]) for name, x in inputs.items()}
    return sequence_logits(config, weights, **flat).reshape(some.shape[:2])


def cross_entropy(logits_MC: Array, labels_M: Array, items: int | None = None) -> float:
    """-sum log softmax(logits)[label] / items, over labels other than -100; items: their number, where not given."""
    labels = labels_M.reshape(-1)
    chosen = np.flatnonzero(labels != -100)
    logs = log_softmax(logits_MC.reshape(len(labels), -1)[chosen])
    return -logs[np.arange(len(chosen)), labels[chosen]].sum() / max(len(chosen) if items is None else items, 1)


def mean_squared_error(logits: Array, targets: Array, items: int | None = None) -> float:
    return ((logits.ravel() - targets.ravel()) ** 2).sum() / (targets.size if items is None else items)


def binary_cross_entropy(logits: Array, targets: Array, items: int | None = None) -> float:
    """-sum t log s(x) + (1 - t) log(1 - s(x)), with s the logistic function, over items."""
    x, t = logits.ravel(), targets.ravel()
    return -(t * np.log(sigmoid(x)) + (1 - t) * np.log(1 - sigmoid(x))).sum() / (t.size if items is None else items)
