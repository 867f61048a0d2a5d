"""What a token may not see changes nothing: other documents of a packed run, padding, holes in the mask."""

import itertools
import shutil

import numpy as np
import pytest
import torch
from encoder_cases import (
    DOCUMENTS,
    LENGTH,
    MIXED_LAYERS,
    PAD,
    VOCABULARY,
    build,
    gradients,
    leave_flex_attention_uncompiled,
    random_ids,
    tiny_config,
)
from often import often
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from clozebert import (
    ClozeBertForMaskedLM,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
    ClozeBertModel,
)
from clozebert.modeling.packed import Packed

COMPILER = any(shutil.which(name) for name in ("g++", "clang++", "c++"))
COMPILES = [pytest.mark.skipif(not COMPILER, reason="FlexAttention needs a C++ compiler"), pytest.mark.slow]
LAYERS = pytest.mark.parametrize("layer_types", [None, MIXED_LAYERS], ids=["full", "mixed"])
HALF_AND_WHOLE = [torch.float32, torch.bfloat16]  # on a CPU they take different ways through attention
DTYPES = pytest.mark.parametrize("dtype", HALF_AND_WHOLE, ids=str)
SECOND = slice(DOCUMENTS[0], LENGTH)  # every document after the first


def as_it_is_called(implementation, monkeypatch):
    """The name for `attn_implementation`; FlexAttention is left uncompiled where nothing else is said."""
    if implementation == "flex_attention":
        leave_flex_attention_uncompiled(monkeypatch)
    return implementation.removeprefix("compiled ")


def packed_arguments(form):
    if form == "cu_seq_lens":
        bounds = torch.tensor([0, *np.cumsum(DOCUMENTS)], dtype=torch.int32)
        longest = max(DOCUMENTS)
        return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
    return {"position_ids": torch.cat([torch.arange(length) for length in DOCUMENTS])[None]}


@pytest.mark.parametrize("name", ["flash_attention_2", "kernels-community/flash-attn2"])
def test_flash_kernels_of_the_hub_get_the_boundaries_too(name, monkeypatch):
    """transformers stores such a name where the package is missing and `kernels` is installed."""
    calls = []

    def attention(module, query, key, value, mask, **options):
        calls.append((mask, options.get("cu_seq_lens_q")))
        return value.transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, attention)
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, name, lambda *_, **__: None)
    model = build(ClozeBertModel, tiny_config())
    model.config._attn_implementation_internal = name
    arguments = packed_arguments("cu_seq_lens")
    model(two_runs()[0], **arguments)
    assert len(calls) == model.config.num_hidden_layers
    assert all(mask is None and bounds.equal(arguments["cu_seq_lens_q"]) for mask, bounds in calls)


def test_an_attention_that_takes_no_mask_refuses_packed_documents(monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "mine", ALL_ATTENTION_FUNCTIONS["sdpa"])
    model = build(ClozeBertModel, tiny_config())
    model.config._attn_implementation_internal = "mine"
    with pytest.raises(ValueError, match="attn_implementation='mine' takes no mask, so packed documents would see one"):
        model(two_runs()[0], **packed_arguments("cu_seq_lens"))


def two_runs():
    """The same run twice, with another first document."""
    ids = torch.as_tensor(random_ids(1, LENGTH))
    other = ids.clone()
    other[:, : DOCUMENTS[0]] = (other[:, : DOCUMENTS[0]] + 7) % (VOCABULARY - PAD - 1) + PAD + 1
    return ids, other


def test_positions_that_are_given_beside_packed_documents_count():
    model = build(ClozeBertModel, tiny_config(positions="absolute", max_position_embeddings=64))
    ids, packed = torch.as_tensor(random_ids(1, LENGTH)), Packed.from_lengths(DOCUMENTS)
    positions = packed.position_ids + 3
    found = model(ids, packed=packed, position_ids=positions).last_hidden_state
    wanted = model(ids, position_ids=positions, **packed_arguments("cu_seq_lens")).last_hidden_state
    assert torch.equal(found, wanted)
    assert not torch.equal(found, model(ids, packed=packed).last_hidden_state)


@pytest.mark.parametrize(
    ("dtype", "implementation", "layer_types", "form"),
    [
        *itertools.product(HALF_AND_WHOLE, ["eager", "sdpa"], [None, MIXED_LAYERS], ["cu_seq_lens", "position_ids"]),
        (torch.float32, "flex_attention", MIXED_LAYERS, "cu_seq_lens"),
        pytest.param(torch.float32, "compiled flex_attention", MIXED_LAYERS, "cu_seq_lens", marks=COMPILES),
    ],
)
def test_another_first_document_changes_the_second_by_exactly_zero(
    dtype, implementation, layer_types, form, monkeypatch
):
    implementation = as_it_is_called(implementation, monkeypatch)
    config = tiny_config(implementation, layer_types=layer_types)
    model = build(ClozeBertModel, config, dtype=dtype)
    with torch.no_grad():
        first, second = (model(ids, **packed_arguments(form)).last_hidden_state for ids in two_runs())
    assert not torch.equal(first[:, : DOCUMENTS[0]], second[:, : DOCUMENTS[0]])
    assert torch.equal(first[:, SECOND], second[:, SECOND])


@pytest.mark.parametrize(
    ("model_class", "form"),
    often(itertools.product([ClozeBertForSequenceClassification, ClozeBertModel], ["cu_seq_lens", "position_ids"])),
)
def test_a_compiled_model_keeps_documents_apart_too(model_class, form):
    """A pooled head gives one row for each document, as it does uncompiled."""
    torch._dynamo.reset()
    model = build(model_class, tiny_config(), dtype=torch.float32)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        for ids in two_runs():
            assert torch.equal(compiled(ids, **packed_arguments(form))[0], model(ids, **packed_arguments(form))[0])
    torch._dynamo.reset()


def test_a_graph_that_cannot_see_restarting_positions_is_not_exported():
    model = build(ClozeBertModel, tiny_config(), dtype=torch.float32)
    ids, _ = two_runs()
    with pytest.raises(ValueError, match="position_ids may restart"):
        torch.export.export(model, (ids,), {"position_ids": torch.arange(LENGTH)[None]}, strict=False)


@pytest.mark.gpu
@LAYERS
def test_another_first_document_changes_the_second_by_exactly_zero_on_the_varlen_kernel(layer_types):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    config = tiny_config(layer_types=layer_types, hidden_size=64)  # the kernel wants heads of a multiple of 8
    model = build(ClozeBertModel, config, dtype=torch.bfloat16).cuda()
    arguments = {name: x.cuda() if torch.is_tensor(x) else x for name, x in packed_arguments("cu_seq_lens").items()}
    first, second = (model(ids.cuda(), **arguments).last_hidden_state for ids in two_runs())
    assert not torch.equal(first[:, : DOCUMENTS[0]], second[:, : DOCUMENTS[0]])
    assert torch.equal(first[:, SECOND], second[:, SECOND])
    probe = torch.randn(first[:, SECOND].shape, device="cuda", dtype=torch.bfloat16)
    wanted, found = (gradients((x[:, SECOND] * probe).sum(), model) for x in (first, second))
    for name in wanted:
        if "word_embeddings" not in name:
            torch.testing.assert_close(found[name], wanted[name])


@DTYPES
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@LAYERS
@pytest.mark.parametrize("form", ["cu_seq_lens", "position_ids"])
def test_no_gradient_crosses_a_document_boundary(dtype, implementation, layer_types, form):
    """The outputs of the later documents have exactly zero gradient with respect to the first one's embeddings."""
    config = tiny_config(implementation, layer_types=layer_types)
    model = build(ClozeBertModel, config, dtype=dtype)
    embeds = (
        torch.randn(1, LENGTH, config.hidden_size, generator=torch.Generator().manual_seed(0))
        .to(dtype)
        .requires_grad_()
    )
    out = model(inputs_embeds=embeds, **packed_arguments(form)).last_hidden_state
    (gradient,) = torch.autograd.grad(out[:, SECOND].square().sum(), embeds)
    assert torch.equal(gradient[:, : DOCUMENTS[0]], torch.zeros_like(gradient[:, : DOCUMENTS[0]]))
    assert bool((gradient[:, SECOND] != 0).any(dim=-1).all())


@DTYPES
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@LAYERS
def test_another_first_document_leaves_the_gradient_of_the_second_loss(dtype, implementation, layer_types):
    """To the bit: the loss of the later documents gives the parameters the same gradient."""
    config = tiny_config(implementation, layer_types=layer_types, tie_word_embeddings=False)
    model = build(ClozeBertForMaskedLM, config, dtype=dtype)
    labels = torch.as_tensor(random_ids(1, LENGTH, seed=4))
    labels[:, : DOCUMENTS[0]] = -100
    wanted, found = (
        gradients(model(ids, labels=labels, **packed_arguments("cu_seq_lens")).loss, model) for ids in two_runs()
    )
    for name in wanted:
        assert torch.equal(found[name], wanted[name]), name


def padded_mask(side):
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    for row, padding in enumerate((0, 4, 12)):
        if side == "right":
            mask[row, LENGTH - padding :] = 0
        elif side == "left":
            mask[row, :padding] = 0
        else:
            mask[row, torch.randperm(LENGTH, generator=torch.Generator().manual_seed(row))[:padding]] = 0
    return mask


@pytest.mark.parametrize(
    ("dtype", "implementation", "layer_types", "side"),
    [
        *itertools.product(HALF_AND_WHOLE, ["eager", "sdpa"], [None, MIXED_LAYERS], ["right", "left", "holes"]),
        (torch.float32, "flex_attention", MIXED_LAYERS, "holes"),
        pytest.param(torch.float32, "compiled flex_attention", MIXED_LAYERS, "holes", marks=COMPILES),
    ],
)
def test_what_stands_under_a_zero_of_the_mask_never_matters(dtype, implementation, layer_types, side, monkeypatch):
    implementation = as_it_is_called(implementation, monkeypatch)
    config = tiny_config(implementation, layer_types=layer_types, positions="absolute")
    model = build(ClozeBertModel, config, dtype=dtype)
    mask = padded_mask(side)
    ids = torch.as_tensor(random_ids(3, LENGTH))
    outputs = []
    with torch.no_grad():
        for filling in (PAD, 0, VOCABULARY - 1):
            outputs.append(model(ids.masked_fill(mask == 0, filling), attention_mask=mask).last_hidden_state)
    for out in outputs:
        assert torch.equal(out, outputs[0])
        assert torch.equal(out[mask == 0], torch.zeros_like(out[mask == 0]))


@DTYPES
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@LAYERS
@pytest.mark.parametrize("side", ["right", "left", "holes"])
def test_padding_gets_no_gradient(dtype, implementation, layer_types, side):
    config = tiny_config(implementation, layer_types=layer_types)
    model = build(ClozeBertModel, config, dtype=dtype)
    mask = padded_mask(side)
    embeds = (
        torch.randn(3, LENGTH, config.hidden_size, generator=torch.Generator().manual_seed(0))
        .to(dtype)
        .requires_grad_()
    )
    out = model(inputs_embeds=embeds, attention_mask=mask).last_hidden_state
    (gradient,) = torch.autograd.grad(out.square().sum(), embeds)
    assert torch.equal(gradient[mask == 0], torch.zeros_like(gradient[mask == 0]))
    assert bool((gradient[mask == 1] != 0).any(dim=-1).all())


@pytest.mark.parametrize("kind", [bool, torch.long, torch.float32, torch.uint8], ids=str)
def test_a_mask_of_any_type_is_the_same_mask(kind):
    config = tiny_config()
    model = build(ClozeBertModel, config)
    ids, mask = torch.as_tensor(random_ids(3, LENGTH)), padded_mask("holes")
    kind = torch.bool if kind is bool else kind
    wanted, found = (model(ids, attention_mask=m).last_hidden_state for m in (mask, mask.to(kind)))
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("positions", ["absolute", "rope"])
@pytest.mark.parametrize("window", [None, 2, 5])
def test_rows_of_nothing_but_padding_give_no_nan(implementation, dtype, positions, window):
    """Forward and gradient, with rows of padding alone, and beside a row of tokens."""
    layer_types = None if window is None else MIXED_LAYERS
    config = tiny_config(implementation, positions=positions, layer_types=layer_types, sliding_window=window)
    model = build(ClozeBertForTokenClassification, config, dtype=dtype)
    ids = torch.as_tensor(random_ids(3, LENGTH))
    for tokens in ([0, 0, 0], [LENGTH, 0, 3]):
        mask = (torch.arange(LENGTH) < torch.tensor(tokens)[:, None]).long()
        labels = torch.where(mask == 1, ids % 5, -100)
        outputs = model(ids.masked_fill(mask == 0, PAD), attention_mask=mask, labels=labels)
        assert bool(outputs.logits.isfinite().all())
        assert bool(outputs.loss.isfinite())
        for name, gradient in gradients(outputs.loss, model).items():
            assert bool(gradient.isfinite().all()), name


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "attention"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_pooling_a_row_of_padding_gives_no_nan(pooling, dtype):
    config = tiny_config(classifier_pooling=pooling, compare_pairs=True, sep_token_id=9)
    model = build(ClozeBertForSequenceClassification, config, dtype=dtype)
    ids, mask = torch.full((2, LENGTH), PAD), torch.ones(2, LENGTH, dtype=torch.long)
    ids[:, 5] = 9
    mask[1] = 0
    outputs = model(ids, attention_mask=mask, labels=torch.tensor([1, 2]))
    assert bool(outputs.logits.isfinite().all())
    for name, gradient in gradients(outputs.loss, model).items():
        assert bool(gradient.isfinite().all()), name


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "attention"])
@pytest.mark.parametrize("positions", ["rope", "none"])
def test_the_side_of_the_padding_does_not_matter(pooling, positions):
    """Under relative positions, a row padded left is the row padded right. Measured 1e-15."""
    config = tiny_config(classifier_pooling=pooling, positions=positions, compare_pairs=True, sep_token_id=9)
    model = build(ClozeBertForSequenceClassification, config)
    ids = torch.as_tensor(random_ids(1, 11))
    ids[0, 4] = 9
    padding = torch.full((1, 6), PAD)
    right = model(torch.cat([ids, padding], 1), attention_mask=torch.tensor([[1] * 11 + [0] * 6])).logits
    left = model(torch.cat([padding, ids], 1), attention_mask=torch.tensor([[0] * 6 + [1] * 11])).logits
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(ids).logits, right, rtol=1e-10, atol=1e-12)


def test_inputs_are_not_changed():
    config = tiny_config(layer_types=MIXED_LAYERS, type_vocab_size=2)
    model = build(ClozeBertForMaskedLM, config)
    inputs = {
        "input_ids": torch.as_tensor(random_ids(3, LENGTH)), "attention_mask": padded_mask("holes"),
        "token_type_ids": torch.ones(3, LENGTH, dtype=torch.long), "labels": torch.as_tensor(random_ids(3, LENGTH)),
    }  # fmt: skip
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    model(**inputs).loss.backward()
    assert all(torch.equal(before[name], inputs[name]) for name in inputs)


@pytest.mark.parametrize(
    "shape", [{}, {"position_embedding_type": "rope", "num_attention_heads": 4, "num_key_value_heads": 2}]
)
@pytest.mark.parametrize(("length", "gathers"), [(32, False), (31, True)])
def test_documents_of_one_length_are_attended_where_they_stand(shape, length, gathers, monkeypatch):
    from clozebert.modeling import attention_tiles

    model = build(ClozeBertModel, tiny_config("sdpa", max_position_embeddings=64, **shape)).double().eval()
    ids = torch.as_tensor(random_ids(3, length))
    bounds = torch.arange(0, 3 * length + 1, length, dtype=torch.int32)
    take, taken = attention_tiles._take, []
    monkeypatch.setattr(attention_tiles, "_take", lambda *args: taken.append(1) or take(*args))
    found = model(ids.reshape(1, -1), cu_seq_lens_q=bounds).last_hidden_state.view(3, length, -1)
    wanted = model(ids).last_hidden_state
    assert bool(taken) == gathers
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    of_found, of_wanted = (gradients(states.pow(3).sum(), model) for states in (found, wanted))
    for name, gradient in of_wanted.items():
        torch.testing.assert_close(of_found[name], gradient, rtol=1e-10, atol=1e-10)
