"""Every shortcut beside its plain formula: against float64, and taken only where nothing else could be meant."""

import os
import types

import pytest
import torch
from encoder_cases import LENGTH, build, gradients, random_ids, relative_error, tiny_config
from often import often
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from clozebert import (
    ClozeBertForImageClassification,
    ClozeBertForMaskedLM,
    ClozeBertForMultipleChoice,
    ClozeBertForQuestionAnswering,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
    ClozeBertModel,
)
from clozebert.modeling import fast_paths
from clozebert.modeling.blocks import make_activation
from clozebert.modeling.fast_paths import has_global_hooks, linear
from clozebert.modeling.losses import cross_entropy, few_rows_at_once

needs_bf16 = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="needs a CPU that multiplies bf16",
)


def make_layer(*, bias: bool = True) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(48, 80, bias=bias).bfloat16(), torch.randn(3, 7, 48).bfloat16()


@pytest.fixture
def fused_calls(monkeypatch):
    """How often the fused kernel ran."""
    calls, has_fused = [], fast_paths._has_fused_linear

    def counted(x, layer):
        calls.append(has_fused(x, layer))
        return calls[-1]

    monkeypatch.setattr(fast_paths, "_has_fused_linear", counted)
    return calls


@needs_bf16
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", [None, "gelu", "gelu_pytorch_tanh", "relu", "silu"])
def test_one_kernel_computes_what_three_do(name, bias, fused_calls):
    layer, x = make_layer(bias=bias)
    activation = None if name is None else make_activation(name)
    with torch.no_grad():
        found = linear(layer, x, activation=activation, name=name)
        wanted = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
        wanted = wanted if activation is None else activation(wanted)
    assert fused_calls == [True]
    # bf16 keeps 8 bits: half of 2^-7 relative to the largest output.
    assert relative_error(found, wanted) <= 2**-8


@needs_bf16
@pytest.mark.parametrize("how", ["hook", "pre-hook", "other class", "own forward"])
def test_an_activation_that_was_changed_is_used(how):
    layer, x = make_layer()
    activation = make_activation("gelu")
    if how == "hook":
        activation.register_forward_hook(lambda module, inputs, output: 2 * output)
    elif how == "pre-hook":
        activation.register_forward_pre_hook(lambda module, inputs: 2 * inputs[0])
    elif how == "other class":
        activation = nn.Sigmoid()
    else:
        activation.forward = torch.sigmoid
    with torch.no_grad():
        assert torch.equal(linear(layer, x, activation=activation, name="gelu"), activation(layer(x)))


@needs_bf16
def test_a_flop_counter_sees_every_matmul():
    layer, x = make_layer()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        linear(layer, x, activation=make_activation("gelu"), name="gelu")
    assert counter.get_total_flops() == 2 * 21 * 48 * 80


@needs_bf16
def test_a_hook_on_all_modules_sees_every_layer():
    layer, x = make_layer()
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: seen.append(module))
    try:
        with torch.no_grad():
            linear(layer, x, activation=make_activation("gelu"), name="gelu")
    finally:
        handle.remove()
    assert layer in seen


class Quantised(torch.Tensor):
    """As torchao's: an ordinary parameter of an ordinary layer, but without most operators."""

    def __tensor_flatten__(self):
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.mkldnn._linear_pointwise:
            raise NotImplementedError("an operator that it does not have")
        return super().__torch_function__(function, types, args, kwargs or {})


@needs_bf16
def test_a_quantised_weight_meets_public_operators_alone():
    layer, x = make_layer()
    with torch.no_grad():
        wanted = layer(x)
        layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Quantised))
        assert torch.equal(torch.Tensor(linear(layer, x)), wanted)


@needs_bf16
def test_a_hook_an_adapter_and_a_gradient_are_never_passed_over(fused_calls):
    layer, x = make_layer()
    with torch.no_grad():
        linear(layer, x)
    assert fused_calls == [True]
    linear(layer, x).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        seen = []
        handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(output) or output + 1)
        hooked = linear(layer, x)
        handle.remove()
        torch.testing.assert_close(hooked, layer(x) + 1)
        assert len(seen) == 1
        torch.testing.assert_close(linear(nn.Sequential(layer, nn.ReLU()), x), layer(x).relu())
    assert fused_calls == [True]


@needs_bf16
@pytest.mark.parametrize("mlp_type", ["mlp", "glu"])
def test_a_model_in_bf16_encodes_as_in_float64(mlp_type, fused_calls):
    config = tiny_config(mlp_type=mlp_type)
    model, half = (build(ClozeBertModel, config, dtype=dtype) for dtype in (torch.float64, torch.bfloat16))
    ids = torch.as_tensor(random_ids(3, 17))
    with torch.no_grad():
        found, wanted = (m(ids).last_hidden_state for m in (half, model))
        # The float64 model asks too, and is refused; q, k, v, o and two or three of the feed-forward in each layer.
        of_a_layer = 6 + (mlp_type == "glu")
        assert fused_calls.count(True) == fused_calls.count(False) == of_a_layer * config.num_hidden_layers
        count = len(fused_calls)
        # Measured: 0.009 (mlp) and 0.012 (glu).
        assert relative_error(found, wanted) <= 0.03
        with torch.autocast("cpu", torch.bfloat16):
            half(ids)
    assert not any(fused_calls[count:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_of_half_precision_logits_is_float32s(dtype):
    torch.manual_seed(0)
    logits, labels = (4 * torch.randn(400, 5000)).to(dtype), torch.randint(5000, (400,))
    labels[::7] = -100
    half, wide = logits.clone().requires_grad_(), logits.double().requires_grad_()
    found, wanted = cross_entropy(half, labels, 50), cross_entropy(wide, labels, 50)
    found.backward()
    wanted.backward()
    assert found.dtype == torch.float32
    assert abs(found.item() / wanted.item() - 1) <= 1e-6  # measured: 8e-8
    # The gradient itself is stored in half precision: its rounding, relative to the largest.
    assert relative_error(half.grad, wide.grad) <= torch.finfo(dtype).eps
    assert not half.grad[::7].any()


@pytest.mark.parametrize(("rows", "columns", "sizes"), [(5, 1 << 19, [2, 2, 1]), (2, 1 << 21, [1, 1]), (0, 7, [0])])
def test_few_rows_are_taken_at_once(rows, columns, sizes):
    """Of every tensor the same, 4 MB of float32 at most, or one row."""
    logits, others = torch.zeros(rows, columns, dtype=torch.bfloat16), torch.arange(rows)
    parts = list(few_rows_at_once(logits, others))
    assert [len(part) for part, _ in parts] == [len(part) for _, part in parts] == sizes
    assert torch.cat([part for _, part in parts]).equal(others)


def test_the_gradient_of_a_half_precision_loss_has_a_gradient():
    """As a penalty on gradients asks for, and a product with the Hessian: sum of (d loss / d logits)^2."""
    torch.manual_seed(0)
    logits, labels = (4 * torch.randn(40, 50)).bfloat16(), torch.randint(50, (40,))
    labels[::7] = -100
    second = []
    for x in (logits.clone().requires_grad_(), logits.double().requires_grad_()):
        first = torch.autograd.grad(cross_entropy(x, labels, 5), x, create_graph=True)[0]
        second.append(torch.autograd.grad(first.to(x.dtype).square().sum(), x)[0])
    # Measured: 0.0025, the rounding of the gradients.
    assert relative_error(second[0], second[1]) <= 0.02


def test_masked_lm_in_bf16_learns_from_the_loss_of_half_precision():
    model = build(ClozeBertForMaskedLM, tiny_config(), dtype=torch.bfloat16)
    ids = torch.as_tensor(random_ids(2, 9))
    model(ids, labels=ids).loss.backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("keys", [9, 1000])
def test_bf16_is_left_to_pytorch_where_the_processor_does_not_multiply_it(keys, monkeypatch):
    """Emulated products took 9 to 23 times as long as PyTorch's own attention."""
    matmuls = []
    attention = fast_paths._matmul_attention
    monkeypatch.setattr(
        fast_paths, "_matmul_attention", lambda *x, **options: matmuls.append(x) or attention(*x, **options)
    )
    q_BHTK = torch.randn(1, 2, keys, 16, dtype=torch.bfloat16)
    for is_fast in (False, True):
        monkeypatch.setattr(fast_paths, "_multiplies_bf16", lambda is_fast=is_fast: is_fast)
        with torch.no_grad():
            out_BHTK = fast_paths.attend(q_BHTK, q_BHTK, q_BHTK, None, scaling=0.25, dropout=0.0)
        assert bool(matmuls) is is_fast
        plain = nn.functional.scaled_dot_product_attention(*[q_BHTK.double()] * 3, scale=0.25)
        assert relative_error(out_BHTK, plain) <= 2e-2


@pytest.mark.parametrize("masked", [False, True])
def test_long_sequences_are_attended_in_blocks_of_queries(masked, monkeypatch):
    monkeypatch.setattr(fast_paths, "LARGEST_BLOCK", 2 * 3 * 700 * 64)  # 64 queries at a time
    monkeypatch.setattr(fast_paths, "_multiplies_bf16", lambda: True)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 700, 16).bfloat16()
    mask = torch.rand(2, 1, 700, 700) < 0.5 if masked else None
    with torch.no_grad():
        assert fast_paths.matmul_attention_pays(q, k.shape[2], 0.0)
        found = fast_paths.attend(q, k, v, mask, scaling=0.25, dropout=0.0)
        scores = q.double() @ k.double().transpose(-1, -2) / 4
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        wanted = scores.softmax(dim=-1) @ v.double()
    # Measured: 0.010 and 0.015; PyTorch's kernel, with scores in float32, 0.003. bf16 keeps 8 bits of a score.
    assert relative_error(found, wanted) <= 0.03
    q.requires_grad_()
    assert not fast_paths.matmul_attention_pays(q, k.shape[2], 0.0)


@pytest.mark.parametrize("masked", [False, True])
def test_many_short_sequences_are_attended_some_at_a_time(masked, monkeypatch):
    monkeypatch.setattr(fast_paths, "_multiplies_bf16", lambda: True)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 7, 48, 3, 16).bfloat16().transpose(2, 3)  # as projections give them
    mask = torch.rand(7, 1, 48, 48) < 0.5 if masked else None
    with torch.no_grad():
        at_once = fast_paths.attend(q, k, v, mask, scaling=0.25, dropout=0.0)
        monkeypatch.setattr(fast_paths, "LARGEST_BLOCK", 3 * 48 * 48 * 3)  # three sequences at a time
        matmuls, sizes = fast_paths._matmul_attention, []
        monkeypatch.setattr(
            fast_paths,
            "_matmul_attention",
            lambda *args, **kwargs: sizes.append(len(args[0])) or matmuls(*args, **kwargs),
        )
        found = fast_paths.attend(q, k, v, mask, scaling=0.25, dropout=0.0)
    assert sizes == [3, 3, 1]
    assert torch.equal(found, at_once)


# All shortcuts against none ------------------------------------------------------------------------------------------

HEADS = (
    ClozeBertModel,
    ClozeBertForMaskedLM,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
    ClozeBertForQuestionAnswering,
    ClozeBertForMultipleChoice,
    ClozeBertForImageClassification,
)
SHAPES = {
    "post-norm, absolute": {"norm_position": "post", "positions": "absolute", "mlp_type": "mlp"},
    "pre-norm, RoPE, windows": {"positions": "rope_per_layer", "qk_norm": True, "num_key_value_heads": 2},
}
# Largest difference of outputs and of gradients, relative to the largest value. Measured: 1e-15, 9e-7, 0.02.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.06}


def batch_of(model_class, form):
    """A batch in a form that the head takes, with labels."""
    if model_class is ClozeBertForImageClassification:
        torch.manual_seed(0)
        return {"pixel_values": torch.randn(3, 2, 12, 12), "labels": torch.tensor([0, 3, 2])}
    documents = 1 if form == "packed" else 3
    batch = {"input_ids": torch.as_tensor(random_ids(documents, LENGTH))}
    if form == "packed":
        batch["cu_seq_lens_q"] = torch.tensor([0, 5, 6, 14, 18], dtype=torch.int32)
    elif form == "padded":
        batch["attention_mask"] = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [11], [4]])).long()
    sequences = 4 if form == "packed" else documents
    if model_class is ClozeBertForMultipleChoice:
        batch = {name: torch.stack([value, value], dim=1) for name, value in batch.items()}
        batch["input_ids"][:, 1] = torch.as_tensor(random_ids(documents, LENGTH, seed=5))
        batch["labels"] = torch.tensor([0, 1, 1])
    elif model_class is ClozeBertForSequenceClassification:
        batch["labels"] = torch.arange(sequences)
    elif model_class is ClozeBertForTokenClassification:
        batch["labels"] = batch["input_ids"] % 5
    elif model_class is ClozeBertForQuestionAnswering and form != "packed":
        batch |= {"start_positions": torch.tensor([1] * documents), "end_positions": torch.tensor([3] * documents)}
    elif model_class is ClozeBertForMaskedLM and form == "packed":
        batch |= {"masked_positions": torch.tensor([3, 0, 17]), "labels": torch.tensor([7, 8, 9])}
    elif model_class is ClozeBertForMaskedLM:
        batch["labels"] = batch["input_ids"]
    return batch


POOLED = (ClozeBertForSequenceClassification, ClozeBertForMultipleChoice, ClozeBertForImageClassification)
CASES = [
    (model_class, form, pooling)
    for model_class in HEADS
    for form in ("whole", "padded", "packed")
    for pooling in (("cls", "mean", "max", "attention") if model_class in POOLED else ("cls",))
    # Choices are rows, and so are images.
    if not (form == "packed" and model_class is ClozeBertForMultipleChoice)
    if form == "whole" or model_class is not ClozeBertForImageClassification
]


@pytest.mark.parametrize("dtype", often(TOLERANCES, 2), ids=str)
@pytest.mark.parametrize(("model_class", "form", "pooling"), CASES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shortcuts_change_nothing_but_rounding(model_class, shape, form, pooling, dtype, monkeypatch):
    changes = {"classifier_pooling": pooling, **shape}
    if model_class is ClozeBertForImageClassification:
        changes |= {"image_size": 12, "patch_size": 4, "num_channels": 2, "positions": "absolute", "layer_types": None}
    model = build(model_class, tiny_config("sdpa", **changes), dtype=dtype)
    batch = batch_of(model_class, form)
    monkeypatch.setattr(fast_paths, "RECOMPUTE_FROM", 1)
    found = outputs_and_gradients(model, batch)
    monkeypatch.setattr(fast_paths, "_PLAIN", True)
    wanted = outputs_and_gradients(model, batch)
    assert found.keys() == wanted.keys()
    largest = max(value.abs().max().item() for name, value in wanted.items() if name.startswith("gradient"))
    for name, value in wanted.items():
        if name.startswith("gradient") and pooling == "max" and dtype == torch.bfloat16:
            continue  # two tokens a rounding apart: another one is the highest
        scale = largest if name.startswith("gradient") else value.abs().max().item()
        assert (found[name] - value).abs().max().item() <= TOLERANCES[dtype] * scale, name


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_autocast_leaves_a_float64_model_as_it_is(implementation):
    model = build(ClozeBertForMaskedLM, tiny_config(implementation)).double()
    ids = torch.arange(5, 17)[None]
    with torch.autocast("cpu", torch.bfloat16):
        found = model(ids).logits
    assert torch.equal(found, model(ids).logits)
    assert found.dtype == torch.float64


def outputs_and_gradients(model, batch):
    """With a gradient and without one, where other shortcuts are taken."""
    with torch.no_grad():
        found = {f"inference {name}": x for name, x in model(**batch).items() if isinstance(x, torch.Tensor)}
    outputs = model(**batch)
    found |= {f"training {name}": x.detach() for name, x in outputs.items() if isinstance(x, torch.Tensor)}
    value = outputs.loss if "loss" in outputs else outputs[0].double().square().mean()
    found |= {f"gradient of {name}": x for name, x in gradients(value, model).items()}
    # The lowest number there is, at padding, is not to be compared.
    return {name: x.double().clamp(min=-1e30) for name, x in found.items()}


def test_one_variable_switches_all_off(python):
    code = "from clozebert.modeling import fast_paths; print(fast_paths.is_plain())"
    for value, wanted in (("1", "True"), ("0", "False")):
        done = python.run(["-c", code], env={**os.environ, "CLOZEBERT_PLAIN": value})
        assert done.stdout.strip() == wanted, done.stderr


def test_without_pytorchs_private_operators_the_model_still_works(monkeypatch):
    """A published checkpoint outlives the release it was written with."""
    model = build(ClozeBertForMaskedLM, tiny_config("sdpa"), dtype=torch.bfloat16)
    ids = torch.as_tensor(random_ids(3, LENGTH))
    with torch.no_grad():
        wanted = model(ids).logits
        monkeypatch.setattr(torch.ops, "mkldnn", types.SimpleNamespace())
        monkeypatch.delattr(torch._C, "_functorch")
        found = model(ids).logits
    assert relative_error(found, wanted.double()) <= 0.03
    model(ids, labels=ids).loss.backward()


@pytest.mark.parametrize(
    "register",
    [
        torch.nn.modules.module.register_module_forward_hook,
        torch.nn.modules.module.register_module_forward_pre_hook,
        torch.nn.modules.module.register_module_full_backward_hook,
        torch.nn.modules.module.register_module_full_backward_pre_hook,
    ],
)
def test_hooks_that_look_at_all_models_are_seen(register):
    handle = register(lambda *_: None)
    try:
        assert has_global_hooks()
    finally:
        handle.remove()
    assert not has_global_hooks()
