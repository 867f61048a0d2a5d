"""What CUDA's kernels are given, shown without CUDA: real passes over fake tensors (on_fake_cuda.py)."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from clozebert.configuration import list_recipes

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "benchmarks"))
import fake_cuda  # noqa: E402

pytestmark = pytest.mark.skipif(fake_cuda.find_obstacle() is not None, reason=str(fake_cuda.find_obstacle()))

HALF = {"bf16": "bfloat16", "fp16": "float16"}


def run_on_fake_cuda(*parts):
    script = Path(__file__).with_name("on_fake_cuda.py")
    done = subprocess.run([sys.executable, str(script), *parts], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def on_fake_cuda():
    return run_on_fake_cuda("programs", "kernels", "loop", "doors", "windows", "compiled operators", "residual")


@pytest.fixture(scope="module")
def steps(on_fake_cuda):
    """A training step of recipes, precisions, variants and capabilities."""
    return on_fake_cuda["kernels"]


def test_every_two_choices_are_there_together(on_fake_cuda, steps):
    """For each recipe whose model has operators of its own; the others are there, too."""
    firsts = [recipe for recipe, *_ in on_fake_cuda["programs"]]
    choices = {"recipe": 4, "precision": 2, "variant": 5, "capability": 2}
    assert choices["recipe"] == len(firsts)
    assert {step["recipe"] for step in steps} == set(list_recipes())
    assert steps[-1]["precision"] == "no"
    steps = [{name: str(step[name]) for name in choices} for step in steps[:-1] if step["recipe"] in firsts]
    for two in itertools.combinations(choices, 2):
        assert len({tuple(step[name] for name in two) for step in steps}) == math.prod(choices[name] for name in two)


def test_a_training_step_never_waits_for_the_device(steps):
    for step in steps:
        assert step["forward"]["waits"] == step["backward"]["waits"] == [], describe(step)


def test_the_loop_waits_no_more_often(on_fake_cuda):
    """It would for a number that is copied to the device, or for the last of the documents' boundaries."""
    assert on_fake_cuda["loop"] == {"as it is": [], "dynamic RoPE": []}


def test_the_residual_stream_has_the_type_that_is_asked_for(on_fake_cuda):
    """CUDA's autocast computes norms in float32; the sums and their gradients stay what they are."""
    for asked, found in on_fake_cuda["residual"].items():
        assert (found["types"], found["waits"]) == ([asked], [])
        assert found["states"] >= 8, "two layers, in and out, forward and backward"


def test_every_tensor_lies_on_the_device(steps):
    for step in steps:
        assert step["forward"]["devices"] == step["backward"]["devices"] == ["cuda"], describe(step)


def test_every_parameter_has_a_gradient(steps):
    for step in steps:
        assert step["without_gradient"] == [], describe(step)


def test_every_matmul_is_in_half_precision(steps):
    for step in steps:
        wanted = [HALF.get(step["precision"], "float32")]
        assert step["forward"]["products"] == step["backward"]["products"] == wanted, describe(step)


def test_attention_is_the_variable_length_kernel_where_it_can_be(steps):
    """From capability 8.0 on, in half precision, without dropout."""
    for step in steps:
        of_layers = len(step["forward"]["attention"]), len(step["rows"])
        assert of_layers == ((2, 0) if can_be_varlen(step) else (0, 2)), describe(step)


def test_attention_over_padded_rows_gets_one_type_and_a_boolean_mask(steps):
    """Everywhere else: documents as rows of the longest one's length, [documents, heads, longest, head size]."""
    for step in steps:
        wanted, shape = HALF.get(step["precision"], "float32"), [3, step["heads"], 40, step["head_size"]]
        for layer, (*vectors, mask) in enumerate(step["rows"]):
            assert vectors == [[wanted, shape]] * 3, describe(step)
            assert mask == ["bool", [3, 1, 40 if is_windowed(step, layer) else 1, 40]], describe(step)


def test_the_variable_length_kernel_gets_one_half_type_and_its_own_shapes(steps):
    """Queries, keys and values [tokens, heads, head size] alike in type; boundaries int32; the window on both sides.

    A last layer without a window has the 20 predicted tokens as queries, with boundaries of their own.
    """
    seen = 0
    for step in steps:
        for layer, call in enumerate(step["forward"]["attention"]):
            seen += 1
            assert call["types"] == [HALF[step["precision"]]] * 3 + ["int32"] * 2, describe(step)
            tokens = 20 if layer == 1 and not is_windowed(step, layer) else 96
            queries, keys = [tokens, step["heads"], step["head_size"]], [96, step["key_heads"], step["head_size"]]
            assert call["shapes"] == [queries, keys, keys, [4], [4]], describe(step)
            window = step["window"] if is_windowed(step, layer) else -1
            assert call["numbers"][:3] == [40, 40, False], describe(step)  # the longest document, twice; not causal
            assert [window, window] in call["numbers"], describe(step)
            assert (True in call["numbers"][3:]) == (step["heads"] != step["key_heads"]), describe(step)
    assert seen == 2 * sum(map(can_be_varlen, steps)) > 0


def test_windows_are_for_our_own_kernels_where_triton_is(on_fake_cuda):
    """One type, queries [tokens, 12 heads, 64], keys and values of 4 heads, the documents int32; then the gradient."""
    found = on_fake_cuda["windows"]
    assert [name for name, _, _ in found] == ["clozebert::window_attention", "clozebert::window_attention_backward"] * 2
    for index, (name, given, waits) in enumerate(found):
        of_queries, of_all = given_to_windows("bfloat16" if index < 2 else "float16")
        assert given == (of_all if name.endswith("backward") else of_queries)
        assert waits == []


def test_compiled_windows_write_one_gradient_of_joined_heads(on_fake_cuda):
    """So their kernels need RoPE's tables, [tokens, half of 64]."""
    of_queries, of_all = given_to_windows("bfloat16")
    assert [call for call in on_fake_cuda["compiled operators"] if "window" in call[0]] == [
        ["clozebert::window_attention", of_queries],
        ["clozebert::window_attention_backward_joined", [*of_all, *[["float32", [96, 32]]] * 2]],
    ]


def test_compiled_layers_without_a_window_use_flash_attention_4_if_asked(on_fake_cuda):
    """Fewer key heads are given as they are, and the documents' boundaries, int32, once for both sides."""
    (*of_queries, _), (*of_all, _) = given_to_windows("bfloat16")
    bounds = ["int32", [4]]
    assert [call for call in on_fake_cuda["compiled operators"] if "flash" in call[0]] == [
        ["clozebert::flash_attention", [*of_queries, bounds]],
        ["clozebert::flash_attention_backward", [*of_all, bounds]],
    ]


def given_to_windows(half):
    """What the operator is given, and that of its gradient."""
    queries, keys, documents = [half, [96, 12, 64]], [half, [96, 4, 64]], ["int32", [96]]
    inputs = [queries, keys, keys]
    return [*inputs, documents], [queries, *inputs, queries, ["float32", [12, 96]], documents]


def test_logits_are_half_precision_and_never_copied(steps):
    for step in steps:
        of_logits = [x for x in step["forward"]["results"] if x["shape"][-1] == step["vocabulary"]]
        wanted = HALF.get(step["precision"], "float32")
        assert [x["type"] for x in of_logits] == [wanted], describe(step)


def test_host_waits_of_the_other_ways_in(on_fake_cuda):
    """Only where nobody said how long the documents are, and in transformers' look at a mask of padded rows."""
    waits = {name: found["waits"] for name, found in on_fake_cuda["doors"].items()}
    one = ["aten::_local_scalar_dense"]
    assert waits == {
        "whole rows": [], "boundaries with max_length": [], "boundaries alone": one, "padded rows": one,
    }  # fmt: skip


@pytest.mark.slow
def test_inductor_runs_few_kernels_beside_matmuls_and_attention():
    """Forward: norm; RoPE; sum and norm; gate; sum. Backward: a cast; gate; each norm with its sum, in one.

    A norm's weight that its linear layers did not take in would cost the backward pass a kernel more.
    """
    found = run_on_fake_cuda("inductor")["inductor"]
    of_layers = [graph for graph in found if any("attn" in name or "window" in name for name in graph["operators"])]
    assert [(graph["backward"], graph["runs"], graph["large"]) for graph in of_layers] == [
        (False, 1, 5), (True, 1, 4),  # the first layer, which has no norm before its attention: a cast instead
        (False, 3, 5), (True, 3, 4),
        (False, 1, 5), (True, 1, 4),
    ]  # fmt: skip
    matmuls = [sum(name == "mm" for name in graph["operators"]) for graph in of_layers]
    assert matmuls == [4, 8] * 3
    assert {name for graph in of_layers for name in graph["operators"]} == {
        "mm", "_varlen_attn", "_varlen_attn_backward", "turn_back_and_join",
        "window_attention", "window_attention_backward_joined",
    }  # fmt: skip


@pytest.mark.slow
def test_a_compiled_step_of_every_recipe_has_a_graph_for_each_kind_of_layer_and_never_another():
    """Of recipes whose models differ in numbers alone, one is compiled.

    Ten steps with other numbers of documents, tokens and predictions, and another longest document.
    """
    found = run_on_fake_cuda("graphs")["graphs"]
    assert sorted(itertools.chain.from_iterable([recipe, *found[recipe]["same"]] for recipe in found)) == list_recipes()
    for recipe, facts in found.items():
        assert facts["breaks"] == {}, recipe
        assert facts["graphs"][0] <= 3 + facts["layers"], recipe
        assert set(facts["graphs"]) == {facts["graphs"][0]}, recipe
        # Queries, keys and values are one matmul; gate and up are; then the two that lead back. The last layer has
        # queries of the predicted tokens alone. 2 in the head.
        kinds = facts["graphs"][0] - 2
        assert sorted(facts["matmuls"]) == [0, 2, *[4] * (kinds - 1), 6], recipe


def is_windowed(step, layer):
    return step["windowed"][layer]


def can_be_varlen(step):
    return step["capability"] >= [8, 0] and not step["dropout"] and step["precision"] in HALF


def describe(step):
    return {name: step[name] for name in ("recipe", "precision", "variant", "capability")}
