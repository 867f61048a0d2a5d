"""What the encoder's tests share: tiny configurations, random weights and inputs, and a pairwise covering set.

Dimensions never coincide, so that a wrong axis cannot go unnoticed: vocabulary 53, hidden 24 = 4 heads of 6, 2 key
heads, feed-forward 37, embeddings 20, labels 5.
"""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from clozebert import ClozeBertConfig

PAD = 3
VOCABULARY = 53
LENGTH = 18
DOCUMENTS = (5, 1, 8, 4)  # lengths of the packed documents; they add up to LENGTH
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 41,
    "pad_token_id": PAD,
    "num_labels": 5,
    "norm_eps": 1e-5,
}
MIXED_LAYERS = ["full_attention", "sliding_attention"]
ROPE = {
    "rope": {},
    "rope_linear": {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0},
    "rope_per_layer": {
        "full_attention": {"rope_type": "default", "rope_theta": 777.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 55.0},
    },
}


def tiny_config(implementation: str = "sdpa", **changes: Any) -> ClozeBertConfig:
    """A tiny encoder. `positions` may be any position_embedding_type or a key of ROPE."""
    values = {**TINY, **changes}
    positions = values.pop("positions", None)
    if positions in ROPE:
        values.update(position_embedding_type="rope", rope_parameters=dict(ROPE[positions]))
        if positions == "rope_per_layer":
            values["layer_types"] = values.get("layer_types") or MIXED_LAYERS
    elif positions is not None:
        values["position_embedding_type"] = positions
    if values.get("position_rule") == "non_pad":
        values.setdefault("position_offset", PAD + 1)
    if values.get("layer_types"):
        values.setdefault("sliding_window", 2)
    if values.get("norm_position") == "post":
        values["first_attention_norm"] = True
    config = ClozeBertConfig(**values)
    config._attn_implementation = implementation
    return config


def build(model_class: Any, config: ClozeBertConfig, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    """A model in evaluation mode whose every parameter matters: norm weights near 1, all else normal with std 0.2."""
    torch.manual_seed(seed)
    model = model_class(config).to(torch.float64)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.1 * noise if name.endswith("norm.weight") else 0.2 * noise)
    return model.to(dtype).eval()


def arrays(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """The state dict as float64 arrays."""
    return {name: tensor.detach().double().numpy().copy() for name, tensor in model.state_dict().items()}


def random_ids(*shape: int, seed: int = 0) -> np.ndarray:
    """Ids other than the padding id."""
    ids = np.random.default_rng(seed).integers(PAD + 1, VOCABULARY, shape)
    return ids.astype(np.int64)


def make_inputs(kind: str, *, seed: int = 0, types: int = 0, size: int = 24) -> dict[str, np.ndarray]:
    """A batch as arrays, by kind. `types`: the number of token types; `size`: the width of embeddings given as such."""
    generator = np.random.default_rng(seed)
    rows = 1 if kind in ("packed", "restarts") else 3
    inputs = {"input_ids": random_ids(rows, LENGTH, seed=seed)}
    if kind in ("right", "left", "holes"):
        mask = np.ones((rows, LENGTH), np.int64)
        for row, padding in enumerate((0, 4, 11)):
            if kind == "right":
                mask[row, LENGTH - padding :] = 0
            elif kind == "left":
                mask[row, :padding] = 0
            else:
                mask[row, generator.choice(LENGTH, padding, replace=False)] = 0
        inputs["attention_mask"] = mask
        if kind != "holes":
            inputs["input_ids"][mask == 0] = PAD
    if kind == "embeds":
        inputs = {"inputs_embeds": generator.normal(size=(rows, LENGTH, size))}
    if types:
        inputs["token_type_ids"] = generator.integers(0, types, (rows, LENGTH))
    if kind == "packed":
        inputs["cu_seq_lens"] = np.cumsum((0, *DOCUMENTS)).astype(np.int32)
    if kind == "restarts":
        inputs["position_ids"] = np.concatenate([np.arange(length) for length in DOCUMENTS])[None]
    if kind == "packed_rows":
        cuts = ((5, 13), (18,), (1, 16, 1))
        inputs["position_ids"] = np.stack([np.concatenate([np.arange(n) for n in row]) for row in cuts])
    return inputs


INPUT_KINDS = ("full", "right", "left", "holes", "embeds", "packed", "restarts", "packed_rows")


def for_model(inputs: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """The arguments of a model's `forward`."""
    tensors: dict[str, Any] = {
        name: torch.as_tensor(x).to(dtype) if x.dtype == np.float64 else torch.as_tensor(x)
        for name, x in inputs.items()
    }
    if "cu_seq_lens" in tensors:
        bounds = tensors.pop("cu_seq_lens")
        longest = int(bounds.diff().max())
        tensors.update(cu_seq_lens_q=bounds, cu_seq_lens_k=bounds, max_length_q=longest, max_length_k=longest)
    return tensors


def for_reference(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arguments of `reference.encode`: rows of packed documents become one run with its boundaries."""
    inputs = dict(inputs)
    positions = inputs.get("position_ids")
    if positions is not None and (np.diff(positions, axis=1) != 1).any():
        starts = np.flatnonzero(positions.ravel() == 0)
        inputs = {name: x.reshape(1, -1, *x.shape[2:]) for name, x in inputs.items()}
        inputs["cu_seq_lens"] = np.append(starts, positions.size)
    return inputs


def relative_error(found: Any, wanted: Any) -> float:
    """Largest difference over the largest magnitude of `wanted`."""
    found = found.detach().double().numpy() if isinstance(found, torch.Tensor) else np.asarray(found)
    wanted = wanted.detach().double().numpy() if isinstance(wanted, torch.Tensor) else np.asarray(wanted)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    assert np.isfinite(found).all()
    return float(abs(found - wanted).max() / max(abs(wanted).max(), 1e-300))


def gradients(loss: torch.Tensor, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradient of `loss` for each parameter (zeros where it has none), leaving `.grad` alone."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for name, parameter, gradient in zip(names, parameters, found, strict=True)
    }


def same_gradients(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    """The largest difference over all parameters, relative to the largest gradient."""
    assert found.keys() == wanted.keys()
    scale = max(float(gradient.abs().max()) for gradient in wanted.values())
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted) / max(scale, 1e-300)


def pairwise(
    knobs: Mapping[str, Sequence[Any]], *, allowed: Callable[[dict[str, Any]], bool] = lambda case: True, seed: int = 0
) -> list[dict[str, Any]]:
    """Cases in which every allowed pair of values of two knobs occurs, by the greedy choice among random candidates."""
    draw = random.Random(seed)
    names = list(knobs)
    indices = {name: range(len(knobs[name])) for name in names}

    def named(choice: Mapping[str, int]) -> dict[str, Any]:
        return {name: knobs[name][index] for name, index in choice.items()}

    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in indices[a]
        for j in indices[b]
        if allowed(named({a: i, b: j}))
    }
    cases = []
    while missing:
        seed_pair = min(missing)
        best, best_covered = None, set()
        for _ in range(60):
            candidate = {name: draw.choice(indices[name]) for name in names} | dict(seed_pair)
            if not allowed(named(candidate)):
                continue
            covered = {pair for pair in missing if all(candidate[name] == index for name, index in pair)}
            if len(covered) > len(best_covered):
                best, best_covered = candidate, covered
        assert best is not None, f"no allowed case holds {seed_pair}"
        missing -= best_covered
        cases.append(named(best))
    return cases


def leave_flex_attention_uncompiled(monkeypatch: Any) -> None:
    """Have transformers call PyTorch's own formula of FlexAttention, which takes the same masks as its kernels."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from transformers import masking_utils
    from transformers.integrations.flex_attention import WrappedFlexAttention

    def uncompiled(*args: Any, _compile: bool = False, **others: Any) -> Any:
        return create_block_mask(*args, **others)

    monkeypatch.setattr(masking_utils, "create_block_mask", uncompiled)
    monkeypatch.setattr(WrappedFlexAttention, "__call__", lambda self: flex_attention)
