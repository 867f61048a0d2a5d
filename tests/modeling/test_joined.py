"""Joined layers (modeling/joined.py), compiled on a CPU, where nothing but the device keeps them apart."""

import pytest
import torch
from encoder_cases import MIXED_LAYERS, relative_error
from rounding import Rounding, logits_and_gradients, make_batch, make_model
from torch.nn import functional as F

from clozebert.modeling import attention, blocks, joined
from clozebert.training.runtime.machine import compile_model

PRE_NORM = {"norm_position": "pre", "mlp_type": "glu", "norm_bias": False}
# With the number of norms per layer whose weight the joined layers take in.
SHAPES = {
    "layer norm and windows": ({**PRE_NORM, "layer_types": MIXED_LAYERS, "sliding_window": 16}, 2),
    "RMS norm and all else": (
        {**PRE_NORM, "norm_type": "rmsnorm", "num_key_value_heads": 1, "qk_norm": True, "attention_bias": True,
         "mlp_bias": True}, 2,
    ),
    "no gate": ({**PRE_NORM, "mlp_type": "mlp"}, 1),
    "norms with a bias": ({**PRE_NORM, "norm_bias": True}, 0),
    "post-norm": ({**PRE_NORM, "norm_position": "post", "first_attention_norm": True}, 0),
}  # fmt: skip


def compiled(model, monkeypatch):
    """Compile as a run on CUDA does. Returns the norms of its graphs: whether each still has its weight."""
    is_cuda = type("Anywhere", (), {"device": torch.device("cuda")})()
    can_join = joined.can_join
    for module in (attention, blocks, joined):
        monkeypatch.setattr(module, "can_join", lambda layers, x: can_join(layers, is_cuda))
    norms = []

    def backend(graph, inputs):
        for node in graph.graph.nodes:
            if node.target in (F.layer_norm, F.rms_norm, torch.rms_norm):
                weight = node.args[2] if len(node.args) > 2 else node.kwargs.get("weight")
                norms.append(weight is not None)
        return graph.forward

    torch._dynamo.reset()
    compile_model(model, torch.device("cuda"), backend=backend)
    return norms


@pytest.mark.parametrize(("shape", "split"), SHAPES.values(), ids=SHAPES)
def test_a_weight_that_the_joined_layers_take_in_changes_nothing(shape, split, monkeypatch):
    """In float64: outputs and all gradients are those of the plain layers (measured: at most 3e-15 apart)."""
    wanted = logits_and_gradients(make_model(torch.float64, **shape), make_batch())
    model = make_model(torch.float64, **shape)
    norms = compiled(model, monkeypatch)
    found = logits_and_gradients(model, make_batch())
    assert found.keys() == wanted.keys()
    for name in found:
        assert relative_error(found[name], wanted[name]) < 1e-13, name
    assert norms.count(False) >= split
    assert (norms.count(False) > 0) == (split > 0)


@pytest.mark.parametrize("shape", [shape for shape, _ in list(SHAPES.values())[:2]], ids=list(SHAPES)[:2])
def test_it_is_as_near_to_the_truth_in_half_precision(shape, monkeypatch):
    model = make_model(**shape)
    compiled(model, monkeypatch)
    Rounding.of(shape, torch.bfloat16).check(logits_and_gradients(model, make_batch(), torch.bfloat16))


def test_a_norm_with_a_hook_keeps_its_weight(monkeypatch):
    model = make_model(torch.float64, **PRE_NORM)
    seen = []
    for layer in model.model.layers:
        layer.mlp_norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    wanted = logits_and_gradients(make_model(torch.float64, **PRE_NORM), make_batch())
    norms = compiled(model, monkeypatch)
    found = logits_and_gradients(model, make_batch())
    assert len(seen) == len(model.model.layers)
    assert relative_error(found["logits"], wanted["logits"]) < 1e-13
    assert True in norms
