"""The encoder against `tests/reference.py`, its formulas in NumPy, over a pairwise covering set of all knobs.

Errors are the largest difference over the largest magnitude. Measured over all cases: 1.6e-15 in float64, 6.7e-7 in
float32, 1.9e-2 in bfloat16 (weights rounded first), 5.2e-7 for FlexAttention, which knows no float64 on a CPU.
"""

import itertools

import numpy as np
import pytest
import reference
import torch
from encoder_cases import (
    DOCUMENTS,
    INPUT_KINDS,
    LENGTH,
    MIXED_LAYERS,
    PAD,
    arrays,
    build,
    for_model,
    for_reference,
    gradients,
    leave_flex_attention_uncompiled,
    make_inputs,
    pairwise,
    random_ids,
    relative_error,
    same_gradients,
    tiny_config,
)  # fmt: skip

from clozebert import (
    ClozeBertForImageClassification,
    ClozeBertForMaskedLM,
    ClozeBertForMultipleChoice,
    ClozeBertForQuestionAnswering,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
    ClozeBertModel,
)

KNOBS = {
    "norm_position": ("post", "pre"),
    "norm_type": ("layernorm", "rmsnorm"),
    "norm_bias": (True, False),
    "embedding_norm": (True, False),
    "final_norm": (None, True, False),
    "first_attention_norm": (True, False),
    "mlp_type": ("mlp", "glu"),
    "hidden_act": ("relu", "gelu", "silu", "gelu_new", "tanh"),
    "mlp_bias": (True, False),
    "attention_bias": (True, False),
    "qk_norm": (False, True),
    "num_key_value_heads": (None, 2),
    "layer_types": (None, MIXED_LAYERS, ["sliding_attention"] * 2),
    "sliding_window": (2, 5),  # 18 tokens: tiles for 2, a mask for 5
    "positions": ("absolute", "sinusoidal", "rope", "rope_linear", "rope_per_layer", "none"),
    "position_rule": ("row", "non_pad"),
    "type_vocab_size": (0, 3),
    "embedding_size": (None, 20),
    "implementation": ("sdpa", "eager"),
    "inputs": INPUT_KINDS,
}


def _allowed(case):
    if case.get("norm_position") == "post" and case.get("first_attention_norm") is False:
        return False
    return not (case.get("positions") == "rope_per_layer" and case.get("layer_types", MIXED_LAYERS) != MIXED_LAYERS)


CASES = pairwise(KNOBS, allowed=_allowed)


def _name(case):
    return "-".join(str(value) for value in case.values())


def _prepare(case, model_class=ClozeBertModel, dtype=torch.float64, seed=0):
    case = dict(case)
    kind = case.pop("inputs")
    config = tiny_config(**case)
    inputs = make_inputs(
        kind, seed=seed + 7, types=config.type_vocab_size, size=config.embedding_size or config.hidden_size
    )
    return config, build(model_class, config, seed=seed, dtype=dtype), inputs


def test_every_pair_of_values_occurs():
    for (a, values_a), (b, values_b) in itertools.combinations(KNOBS.items(), 2):
        for x, y in itertools.product(values_a, values_b):
            if _allowed({a: x, b: y}):
                assert any(case[a] == x and case[b] == y for case in CASES), (a, x, b, y)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["float64", "float32", "bfloat16"]
)
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_the_last_hidden_state_is_the_reference(case, dtype):
    config, model, inputs = _prepare(case, dtype=dtype)
    wanted = reference.encode(config, arrays(model), **for_reference(inputs))
    with torch.no_grad():
        found = model(**for_model(inputs, dtype)).last_hidden_state.reshape(wanted.shape)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    assert relative_error(found, wanted) <= tolerance


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_the_gradient_is_the_finite_difference_of_the_reference(case):
    """Along a random direction of all parameters: (L(w + e u) - L(w - e u)) / 2e. Measured: 8e-9 relative.

    The step is small because ReLU bends: with 1e-5 an activation or two cross zero on the way.
    """
    config, model, inputs = _prepare(case, ClozeBertForMaskedLM)
    weights, labels = arrays(model), _labels(inputs)
    loss = model(**for_model(inputs), labels=torch.as_tensor(labels)).loss
    directions, slope = {}, 0.0
    draw = np.random.default_rng(5)
    for name, gradient in gradients(loss, model).items():
        directions[name] = draw.normal(size=gradient.shape)
        slope += float((gradient.numpy() * directions[name]).sum())
    assert slope == pytest.approx(_difference(config, weights, directions, inputs, labels), rel=1e-6, abs=1e-8)
    assert loss.item() == pytest.approx(_reference_loss(config, weights, inputs, labels), rel=1e-12)


def test_the_gradient_of_every_parameter_by_itself():
    case = {
        "norm_position": "pre", "norm_type": "layernorm", "mlp_type": "glu", "hidden_act": "gelu", "qk_norm": True,
        "mlp_bias": True, "attention_bias": True, "norm_bias": True, "head_bias": True, "num_key_value_heads": 2,
        "layer_types": MIXED_LAYERS, "sliding_window": 2, "positions": "absolute", "type_vocab_size": 3,
        "embedding_size": 20, "implementation": "sdpa", "inputs": "holes",
    }  # fmt: skip
    config, model, inputs = _prepare(case, ClozeBertForMaskedLM)
    weights, labels = arrays(model), _labels(inputs)
    found = gradients(model(**for_model(inputs), labels=torch.as_tensor(labels)).loss, model)
    scale = max(float(gradient.norm()) for gradient in found.values())
    draw = np.random.default_rng(6)
    for name, gradient in found.items():
        direction = draw.normal(size=gradient.shape)
        slope = float((gradient.numpy() * direction).sum())
        difference = _difference(config, weights, {name: direction}, inputs, labels)
        assert slope == pytest.approx(difference, rel=1e-5, abs=1e-8 * scale), name


def _labels(inputs):
    ids = inputs.get("input_ids")
    shape = ids.shape if ids is not None else inputs["inputs_embeds"].shape[:2]
    labels = random_ids(*shape, seed=11)
    labels[np.random.default_rng(12).random(shape) < 0.6] = -100
    return labels


def _reference_loss(config, weights, inputs, labels):
    return reference.cross_entropy(reference.masked_lm_logits(config, weights, **for_reference(inputs)), labels)


def _difference(config, weights, directions, inputs, labels, step=1e-6):
    losses = []
    for sign in (1, -1):
        moved = {name: array + sign * step * directions.get(name, 0.0) for name, array in weights.items()}
        losses.append(_reference_loss(config, moved, inputs, labels))
    return (losses[0] - losses[1]) / (2 * step)


UNFUSED = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


# The masks are ours, the kernels PyTorch's: compiling takes 20 seconds for the first mask, and some for each other one.
@pytest.mark.parametrize(
    ("kind", "layer_types"),
    [
        ("holes", MIXED_LAYERS),
        ("packed", MIXED_LAYERS),
        ("right", None),
        ("packed", None),
        ("packed_rows", MIXED_LAYERS),
    ],
)
@UNFUSED
def test_flex_attention_forward(kind, layer_types, monkeypatch):
    leave_flex_attention_uncompiled(monkeypatch)
    check_flex_attention(kind, layer_types)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layer_types"),
    [
        ("packed", None),
        ("holes", MIXED_LAYERS),
        ("packed", MIXED_LAYERS),
        ("right", None),
        ("packed_rows", MIXED_LAYERS),
    ],
)
def test_compiled_flex_attention_forward(kind, layer_types):
    _needs_compiler()
    check_flex_attention(kind, layer_types)


def check_flex_attention(kind, layer_types):
    case = {
        "layer_types": layer_types,
        "positions": "rope",
        "num_key_value_heads": 2,
        "implementation": "flex_attention",
    }
    config, model, inputs = _prepare({**case, "inputs": kind}, dtype=torch.float32)
    wanted = reference.encode(config, arrays(model), **for_reference(inputs))
    with torch.no_grad():
        found = model(**for_model(inputs, torch.float32)).last_hidden_state.reshape(wanted.shape)
    assert relative_error(found, wanted) <= 1e-5


def _needs_compiler():
    import shutil

    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("compiling FlexAttention needs a C++ compiler")


LONG = 163


@pytest.mark.parametrize("kind", ["row", "padded", "packed"])
@pytest.mark.parametrize("window", [5, 40], ids=["many tiles", "few tiles"])
def test_long_rows_in_windows(kind, window):
    """Longer than a block of 64 queries, so that a document's tiles meet; window 40 of a padded row is under a mask."""
    config = tiny_config(
        layer_types=MIXED_LAYERS, sliding_window=window, positions="rope", max_position_embeddings=LONG
    )
    model = build(ClozeBertModel, config)
    inputs = {"input_ids": random_ids(1 if kind == "packed" else 2, LONG, seed=3)}
    if kind == "padded":
        mask = np.ones((2, LONG), np.int64)
        mask[0, :50], mask[1, 90:] = 0, 0
        inputs["attention_mask"] = mask
    if kind == "packed":
        inputs["cu_seq_lens"] = np.array([0, 1, 80, 150, LONG], np.int32)
    wanted = reference.encode(config, arrays(model), **inputs)
    assert relative_error(model(**for_model(inputs)).last_hidden_state, wanted) <= 1e-10


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0},
        {
            "rope_type": "llama3", "factor": 4.0, "rope_theta": 100.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 20,
        },
        {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "original_max_position_embeddings": 20},
    ],
    ids=lambda parameters: parameters["rope_type"],
)  # fmt: skip
@pytest.mark.parametrize("length", [18, 57])
def test_rotary_scalings(parameters, length):
    """transformers computes their frequencies in float32. Measured 2e-7."""
    config = tiny_config(position_embedding_type="rope", rope_parameters=parameters, num_attention_heads=2)
    model = build(ClozeBertModel, config)
    inputs = {"input_ids": random_ids(1, length)}
    wanted = reference.encode(config, arrays(model), **inputs)
    assert relative_error(model(**for_model(inputs)).last_hidden_state, wanted) <= 1e-5


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("layer_types", [None, MIXED_LAYERS], ids=["full", "mixed"])
@pytest.mark.parametrize("positions", ["absolute", "rope", "none"])
def test_packed_is_padded_is_one_document_at_a_time(implementation, layer_types, positions):
    """Loss and gradient of the same documents, laid out in five ways. Measured 1e-14."""
    config = tiny_config(implementation, layer_types=layer_types, positions=positions, norm_bias=True)
    model = build(ClozeBertForMaskedLM, config)
    ids, labels = random_ids(1, LENGTH), _labels({"input_ids": random_ids(1, LENGTH)})
    bounds = np.cumsum((0, *DOCUMENTS))
    items = int((labels != -100).sum())
    pieces = [(ids[:, a:b], labels[:, a:b]) for a, b in itertools.pairwise(bounds)]

    def padded(left):
        longest = max(DOCUMENTS)
        rows, mask, targets = (np.full((len(pieces), longest), fill) for fill in (PAD, 0, -100))
        for row, (document, wanted) in enumerate(pieces):
            length = document.shape[1]
            where = slice(longest - length, None) if left else slice(length)
            rows[row, where], mask[row, where], targets[row, where] = document[0], 1, wanted[0]
        positions = (mask.cumsum(1) - 1).clip(0)
        return {"input_ids": rows, "attention_mask": mask, "position_ids": positions}, targets

    restarts = np.concatenate([np.arange(length) for length in DOCUMENTS])[None]
    halves = {
        "input_ids": np.concatenate([ids, ids]), "position_ids": np.concatenate([restarts, restarts]),
    }  # fmt: skip
    layouts = {
        "packed": ({"input_ids": ids, "cu_seq_lens": bounds.astype(np.int32)}, labels),
        "restarting positions": ({"input_ids": ids, "position_ids": restarts}, labels),
        "two packed rows": (halves, np.concatenate([labels, np.full_like(labels, -100)])),
        "padded right": padded(left=False),
        "padded left": padded(left=True),
    }
    losses = [model(torch.as_tensor(a), labels=torch.as_tensor(b), num_items_in_batch=items).loss for a, b in pieces]
    loss = torch.stack(losses).sum()
    wanted = gradients(loss, model)
    for name, (inputs, targets) in layouts.items():
        found = model(**for_model(inputs), labels=torch.as_tensor(targets), num_items_in_batch=items).loss
        assert found.item() == pytest.approx(loss.item(), rel=1e-12), name
        assert same_gradients(gradients(found, model), wanted) <= 1e-10, name


# -------------------------------------------------------------------------------------------------- heads and images

SEPARATOR = 7
HEAD_KNOBS = {
    "classifier_pooling": ("cls", "mean", "max", "attention"),
    "compare_pairs": (False, True),
    "classifier_dense": ("none", "pooled", "all"),
    "classifier_activation": ("tanh", "gelu"),
    "classifier_norm": (True, False),
    "head_bias": (True, False),
    "classifier_bias": (True, False),
    "norm_type": ("layernorm", "rmsnorm"),
    "inputs": ("full", "right", "left", "holes", "packed"),
    "model_class": (ClozeBertForSequenceClassification, ClozeBertForTokenClassification, ClozeBertForQuestionAnswering),
}


@pytest.mark.parametrize(
    "case", pairwise(HEAD_KNOBS), ids=lambda case: "-".join(getattr(v, "__name__", str(v)) for v in case.values())
)
def test_classifiers(case):
    case = dict(case)
    model_class = case.pop("model_class")
    config, model, inputs = _prepare({"positions": "rope", "sep_token_id": SEPARATOR, **case}, model_class)
    inputs["input_ids"][:, 7] = SEPARATOR
    found = model(**for_model(inputs))
    logits = reference.sequence_logits if model_class is ClozeBertForSequenceClassification else reference.token_logits
    wanted = logits(config, arrays(model), **for_reference(inputs))
    if model_class is ClozeBertForQuestionAnswering:
        is_token = np.asarray(inputs.get("attention_mask", np.ones(wanted.shape[:2]))) != 0
        for index, scores in enumerate((found.start_logits, found.end_logits)):
            assert relative_error(scores[torch.as_tensor(is_token)], wanted[is_token][:, index]) <= 1e-10
            assert (scores[torch.as_tensor(~is_token)] == torch.finfo(scores.dtype).min).all()
    else:
        assert relative_error(found.logits, wanted) <= 1e-10


@pytest.mark.parametrize("kind", ["full", "right", "left", "holes", "packed", "packed_rows"])
@pytest.mark.parametrize("separators", [(), (0,), (7,), (2, 3, 11, 17)], ids=str)
def test_comparison_of_pairs(kind, separators):
    """Pairs, single texts, a text that is empty, two separators in a row, and one within the second text."""
    config, model, inputs = _prepare(
        {"compare_pairs": True, "sep_token_id": SEPARATOR, "inputs": kind, "positions": "rope"},
        ClozeBertForSequenceClassification,
    )
    ids = inputs["input_ids"]
    ids[ids == SEPARATOR] += 1
    ids[:, list(separators)] = SEPARATOR
    if "attention_mask" in inputs and kind != "holes":
        ids[inputs["attention_mask"] == 0] = PAD
    logits = model(**for_model(inputs)).logits
    assert relative_error(logits, reference.sequence_logits(config, arrays(model), **for_reference(inputs))) <= 1e-10
    for name, gradient in gradients(logits.square().sum(), model).items():
        assert bool(gradient.isfinite().all()), name
    if not separators:
        config.compare_pairs = False
        plain = ClozeBertForSequenceClassification(config).double().eval()
        plain.load_state_dict(model.state_dict(), strict=False)
        assert torch.equal(plain(**for_model(inputs)).logits, logits)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "attention"])
@pytest.mark.parametrize("kind", ["left", "holes", "packed", "packed_rows"])
def test_the_pooler_of_the_model_without_a_head(pooling, kind):
    config, model, inputs = _prepare({"base_pooler": True, "classifier_pooling": pooling, "inputs": kind})
    wanted = reference.pooler_output(config, arrays(model), **for_reference(inputs))
    assert relative_error(model(**for_model(inputs)).pooler_output, wanted) <= 1e-10


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("decoder_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("sizes", [{}, {"embedding_size": 20}, {"prediction_dense": False}], ids=str)
def test_masked_lm(tied, decoder_bias, activation, sizes):
    config, model, inputs = _prepare(
        {
            "tie_word_embeddings": tied, "decoder_bias": decoder_bias, "prediction_activation": activation,
            "inputs": "holes", **sizes,
        },
        ClozeBertForMaskedLM,
    )  # fmt: skip
    wanted = reference.masked_lm_logits(config, arrays(model), **for_reference(inputs))
    assert relative_error(model(**for_model(inputs)).logits, wanted) <= 1e-10


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "attention"])
def test_multiple_choice(pooling):
    config = tiny_config(
        classifier_pooling=pooling, type_vocab_size=2, compare_pairs=pooling == "mean", sep_token_id=SEPARATOR
    )
    model = build(ClozeBertForMultipleChoice, config)
    draw = np.random.default_rng(1)
    inputs = {
        "input_ids": random_ids(2, 3, 11),
        "attention_mask": (np.arange(11) < draw.integers(4, 12, (2, 3))[..., None]).astype(np.int64),
        "token_type_ids": draw.integers(0, 2, (2, 3, 11)),
    }
    found = model(**for_model(inputs)).logits
    assert relative_error(found, reference.multiple_choice_logits(config, arrays(model), **inputs)) <= 1e-10


@pytest.mark.parametrize("size", [(12, 12), (20, 8)], ids=["own size", "interpolated"])
@pytest.mark.parametrize("positions", ["absolute", "sinusoidal", "none"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("embedding_norm", [True, False])
def test_images(size, positions, pooling, embedding_norm):
    config = tiny_config(
        positions=positions, image_size=12, patch_size=4, num_channels=2, hidden_size=28, classifier_pooling=pooling,
        embedding_norm=embedding_norm,
    )  # fmt: skip
    model = build(ClozeBertForImageClassification, config)
    pixels = np.random.default_rng(2).normal(size=(2, 2, *size))
    wanted = reference.sequence_logits(config, arrays(model), pixel_values=pixels)
    assert relative_error(model(torch.as_tensor(pixels)).logits, wanted) <= 1e-10
