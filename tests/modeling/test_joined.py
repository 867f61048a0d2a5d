"""Joined layers (modeling/joined.py), compiled on a CPU, where nothing but the device keeps them apart."""

import pytest
import torch
from encoder_cases import MIXED_LAYERS, relative_error
from often import often
from rounding import Rounding, logits_and_gradients, make_batch, make_model
from torch.nn import functional as F

from clozebert.modeling import attention, blocks, joined
from clozebert.training.runtime.machine import compile_model

PRE_NORM = {"norm_position": "pre", "mlp_type": "glu", "norm_bias": False}
# With the number of norms per layer whose weight the joined layers take in.
SHAPES = {
    "RMS norm and all else": (
        {**PRE_NORM, "norm_type": "rmsnorm", "num_key_value_heads": 1, "qk_norm": True, "attention_bias": True,
         "mlp_bias": True}, 2,
    ),
    "layer norm and windows": ({**PRE_NORM, "layer_types": MIXED_LAYERS, "sliding_window": 16}, 2),
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


@pytest.mark.parametrize(
    ("shape", "split"),
    often(SHAPES.values(), 1),
    ids=SHAPES,
)
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


@pytest.mark.slow
@pytest.mark.parametrize("shape", [shape for shape, _ in list(SHAPES.values())[:2]], ids=list(SHAPES)[:2])
def test_it_is_as_near_to_the_truth_in_half_precision(shape, monkeypatch):
    model = make_model(**shape)
    compiled(model, monkeypatch)
    Rounding.of(shape, torch.bfloat16).check(logits_and_gradients(model, make_batch(), torch.bfloat16))


def seen_by(hook, model):
    """What a hook of each layer is given, in the steps to come."""
    seen = []
    for layer in model.model.layers:
        if hook == "of the norm":
            layer.mlp_norm.register_forward_hook(lambda norm, inputs, output: seen.append(output))
        elif hook == "of the norm's gradient":
            layer.mlp_norm.register_full_backward_hook(lambda norm, grads, given: seen.append(given[0]))
        else:  # it replaces all that the MLP is given
            layer.mlp.register_forward_pre_hook(lambda mlp, given: seen.append(given[0]) or (given[0],))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["of the norm's gradient", "of the norm", "of the MLP"])
def test_a_hook_sees_what_it_does_without_compilation(hook, monkeypatch):
    plain, model = (make_model(torch.float64, **PRE_NORM) for _ in range(2))
    wanted, found = (seen_by(hook, each) for each in (plain, model))
    outputs = logits_and_gradients(plain, make_batch())
    norms = compiled(model, monkeypatch)
    for name, value in logits_and_gradients(model, make_batch()).items():
        assert relative_error(value, outputs[name]) < 1e-13, name
    assert len(found) == len(wanted) == len(model.model.layers)
    for ours, theirs in zip(found, wanted, strict=True):
        assert relative_error(ours, theirs) < 1e-13
    assert {False, True} == set(norms)  # before attention, where no hook is, the weight is still taken in


@pytest.mark.parametrize("is_compiled", often([False, True]))
def test_an_mlp_of_a_user_gets_the_whole_norm(is_compiled, monkeypatch):
    """Such as ours with an adapter behind it."""
    plain, model = (make_model(torch.float64, **PRE_NORM) for _ in range(2))
    for layer in model.model.layers:
        layer.mlp = torch.nn.Sequential(layer.mlp, torch.nn.Identity())
    if is_compiled:
        compiled(model, monkeypatch)
    logits = logits_and_gradients(model, make_batch())["logits"]
    assert relative_error(logits, logits_and_gradients(plain, make_batch())["logits"]) < 1e-13


def test_parts_beyond_the_limit_of_graphs_run_uncompiled(monkeypatch):
    """As where attention breaks the graph, and layers differ: the norm is compiled and what reads it is not."""
    changes, _ = SHAPES["layer norm and windows"]
    plain, model = (make_model(torch.float64, **changes) for _ in range(2))
    wanted = logits_and_gradients(plain, make_batch())
    for kind in (attention.Attention, blocks.FeedForward):
        monkeypatch.setattr(kind, "forward", torch._dynamo.disable(kind.forward))
    norms = compiled(model, monkeypatch)
    found = logits_and_gradients(model, make_batch())
    assert False in norms
    for name in found:
        assert relative_error(found[name], wanted[name]) < 1e-13, name
