"""A last layer that works for the tokens that are read alone gives what one that works for all gives."""

from typing import Any

import pytest
import torch
from encoder_cases import DOCUMENTS, LENGTH, MIXED_LAYERS, build, gradients, random_ids, tiny_config
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from clozebert import ClozeBertForMaskedLM, ClozeBertForSequenceClassification, ClozeBertModel
from clozebert.modeling import packed_attention
from clozebert.modeling.packed import Packed

BOUNDS = torch.tensor([0, *torch.tensor(DOCUMENTS).cumsum(0)], dtype=torch.int32)
POSITIONS = {
    "ascending": [0, 2, 3, LENGTH - 1],
    "of one document": [DOCUMENTS[0], DOCUMENTS[0] + 1],
    "in any order, twice": [5, LENGTH - 1, 0, 5, 1],
    "all": list(range(LENGTH)),
    "none": [],
}
SHAPES = {
    "post-norm": {"norm_position": "post"},
    "pre-norm, RoPE": {"norm_position": "pre", "position_embedding_type": "rope", "mlp_type": "glu"},
    "shared key heads": {"num_attention_heads": 4, "num_key_value_heads": 2, "qk_norm": True},
    "a window in the last layer": {"layer_types": MIXED_LAYERS[::-1]},
    "a window before it": {"layer_types": MIXED_LAYERS},
}


def inputs():
    return {"input_ids": torch.as_tensor(random_ids(1, LENGTH)), "cu_seq_lens_q": BOUNDS}


def same_gradients_as(found, wanted, model):
    """The largest difference of two outputs' gradients, by a random direction, relative to the largest gradient."""
    torch.manual_seed(5)
    direction = torch.randn_like(found)
    pairs = [gradients((states * direction).sum(), model) for states in (found, wanted)]
    names = pairs[1].keys()
    largest = max(pairs[1][name].abs().max() for name in names)
    return max((pairs[0].get(name, 0) - pairs[1][name]).abs().max() for name in names) / largest


@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_states_and_gradients_are_those_of_reading_all_and_picking(implementation, shape, positions):
    model = build(ClozeBertModel, tiny_config(implementation, **shape)).double().eval()
    places = torch.tensor(positions, dtype=torch.long)
    found = model(**inputs(), read_positions=places).last_hidden_state
    wanted = model(**inputs()).last_hidden_state[:, places]
    assert found.shape == (1, len(positions), model.config.hidden_size)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    if positions:
        assert same_gradients_as(found, wanted, model) <= 1e-12


def attend_by_document(q: Any, k: Any, v: Any, of_queries: Any, of_keys: Any, *lengths: int, **kwargs: Any) -> Any:
    """What PyTorch's varlen kernel computes, document by document, without a window."""
    assert kwargs["window_size"] == (-1, -1)
    assert max(of_keys.diff()) <= min(lengths)
    parts = []
    for document in range(len(of_keys) - 1):
        queries, keys = (slice(*bounds[document : document + 2].tolist()) for bounds in (of_queries, of_keys))
        vectors = (x.transpose(0, 1) for x in (q[queries], k[keys], v[keys]))
        parts.append(F.scaled_dot_product_attention(*vectors, enable_gqa=True).transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("shape", list(SHAPES)[:3])
def test_the_varlen_kernel_gets_the_queries_that_are_read(monkeypatch, shape, positions):
    """On CUDA; here the kernel is the formula, and the plans are those of CUDA."""
    seen = []
    monkeypatch.setattr(
        packed_attention,
        "_plan_packed",
        lambda packed, *args, **kwargs: packed_attention.PackedPlan(packed, None, "varlen"),
    )
    monkeypatch.setattr(
        packed_attention,
        "varlen_attn",
        lambda *args, **kwargs: seen.append(len(args[0])) or attend_by_document(*args, **kwargs),
    )
    model = build(ClozeBertModel, tiny_config("sdpa", layer_types=None, **SHAPES[shape])).double().eval()
    places = torch.tensor(positions, dtype=torch.long)
    found = model(**inputs(), read_positions=places).last_hidden_state
    assert seen == [LENGTH] * (model.config.num_hidden_layers - 1) + [len(positions) or LENGTH]
    monkeypatch.undo()
    wanted = model(**inputs()).last_hidden_state[:, places]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    if positions:
        assert same_gradients_as(found, wanted, model) <= 1e-12


def test_positions_that_are_written_anew_are_read_anew():
    model = build(ClozeBertModel, tiny_config("sdpa")).double().eval()
    places, packed = torch.tensor([0, 2]), Packed.from_lengths(DOCUMENTS)
    ids = torch.as_tensor(random_ids(1, LENGTH))
    for numbers in ([0, 2], [LENGTH - 1, 5]):
        places[:] = torch.tensor(numbers)
        found = model(input_ids=ids, packed=packed, read_positions=places).last_hidden_state
        wanted = model(**inputs()).last_hidden_state[:, places]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_padded_rows_and_asked_for_states_are_read_too():
    model = build(ClozeBertModel, tiny_config("sdpa")).double().eval()
    ids, mask = torch.as_tensor(random_ids(2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    places = torch.tensor([0, 8, 11, 16])  # the last one is padding
    found = model(ids, attention_mask=mask, read_positions=places).last_hidden_state
    wanted = model(ids, attention_mask=mask).last_hidden_state.flatten(0, 1)[places]
    assert torch.equal(found[0], wanted)
    assert not wanted[3].any()
    restarting = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1, 2]])  # two rows of two documents
    found = model(ids, position_ids=restarting, read_positions=places).last_hidden_state
    wanted = model(ids, position_ids=restarting).last_hidden_state.flatten(0, 1)[places]
    assert torch.equal(found[0], wanted)
    shown = model(**inputs(), read_positions=places, output_hidden_states=True)
    assert all(states.shape[1] == LENGTH for states in shown.hidden_states[:-1])


def test_the_last_layer_works_for_the_masked_tokens_only():
    """FLOPs of a packed batch of full tiles: queries, scores, output map and feed-forward of the others are spared."""
    config = tiny_config("sdpa", num_hidden_layers=2, layer_types=None)
    model = build(ClozeBertForMaskedLM, config).eval()
    ids, bounds = torch.as_tensor(random_ids(1, 256)), torch.tensor([0, 64, 128, 192, 256], dtype=torch.int32)
    places = torch.arange(0, 256, 2)

    def flops(**kwargs):
        with (
            FlopCounterMode(display=False) as counter,
            torch.no_grad(),
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            model.model(ids, cu_seq_lens_q=bounds, **kwargs)
        return counter.get_total_flops()

    d, f = config.hidden_size, config.intermediate_size
    of_a_token = 4 * d * d + 4 * 64 * d + (6 if config.mlp_type == "glu" else 4) * d * f
    assert flops() - flops(read_positions=places) == 128 * of_a_token


def test_a_packed_classifier_reads_first_tokens_only_and_scores_the_same():
    model = build(ClozeBertForSequenceClassification, tiny_config("sdpa", num_labels=3)).double().eval()
    ids = inputs()["input_ids"]
    seen = []
    model.model.layers[-1].register_forward_hook(lambda module, given, out: seen.append(out.shape[1]))
    packed = model(ids, cu_seq_lens_q=BOUNDS).logits
    alone = torch.cat([model(part).logits for part in ids.split(DOCUMENTS, dim=1)])
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)
    assert seen[0] == len(DOCUMENTS)


def test_one_batch_serves_models_of_other_windows_and_heads():
    """A `Packed` keeps the plans of its attention. A model must not take those of another."""
    shapes = [{"sliding_window": 2}, {"sliding_window": 5}, {"sliding_window": 2, "num_attention_heads": 2}]
    models = [build(ClozeBertModel, tiny_config("sdpa", layer_types=MIXED_LAYERS, **shape)) for shape in shapes]
    shared, ids = Packed.from_lengths(DOCUMENTS), inputs()["input_ids"]
    for model in models:
        found = model(ids, packed=shared).last_hidden_state
        assert torch.equal(found, model(ids, packed=Packed.from_lengths(DOCUMENTS)).last_hidden_state)


@pytest.mark.parametrize("wrong", [-1, LENGTH])
def test_a_position_outside_is_an_error(wrong):
    model = build(ClozeBertModel, tiny_config("sdpa"))
    with pytest.raises(ValueError, match=f"read_positions holds {wrong}"):
        model(**inputs(), read_positions=torch.tensor([0, wrong]))


def test_half_precision_runs_are_filled_up_and_nothing_shows_it():
    """In bf16 on a CPU a run gets up to 63 tokens more; its own tokens neither see them nor stand elsewhere."""
    model = build(ClozeBertModel, tiny_config("sdpa")).bfloat16().eval()
    lengths = []
    model.layers[0].register_forward_hook(lambda module, given, out: lengths.append(out.shape[1]))
    with torch.no_grad():
        filled = model(**inputs()).last_hidden_state
        shown = model(**inputs(), output_hidden_states=True)
    assert lengths == [64 * -(-LENGTH // 64), LENGTH]
    assert filled.shape[1] == LENGTH
    assert shown.hidden_states[1].shape[1] == LENGTH
    # Measured: equal; a product of another number of rows may be summed in another order.
    torch.testing.assert_close(filled, shown.last_hidden_state, rtol=0, atol=0.02)


def test_positions_of_a_later_call_are_not_those_of_an_earlier_one():
    """A run that is filled up is kept for the next call, which may bring positions of its own."""
    model = build(ClozeBertModel, tiny_config("sdpa")).bfloat16().eval()
    ids, others = inputs()["input_ids"], torch.arange(LENGTH)[None] // 2
    packed = Packed.from_lengths(DOCUMENTS)
    with torch.no_grad():
        before = model(ids, packed=packed).last_hidden_state
        kept = model(ids, packed=packed, position_ids=others).last_hidden_state
        fresh = model(ids, packed=Packed.from_lengths(DOCUMENTS), position_ids=others).last_hidden_state
    assert packed.filled is not None
    assert torch.equal(kept, fresh)
    assert not torch.equal(kept, before)


def test_large_feed_forwards_are_computed_again_and_give_the_same_gradient(monkeypatch):
    from clozebert.modeling import fast_paths

    model = build(ClozeBertForMaskedLM, tiny_config("sdpa", mlp_dropout=0.2)).double().train()
    results = []
    for least in (1 << 60, 1):
        monkeypatch.setattr(fast_paths, "RECOMPUTE_FROM", least)
        kept = []
        torch.manual_seed(7)
        with torch.autograd.graph.saved_tensors_hooks(lambda x, kept=kept: kept.append(x.numel()) or x, lambda x: x):
            loss = model(**inputs(), labels=inputs()["input_ids"]).loss
        results.append((gradients(loss, model), sum(kept)))
    (whole, kept_whole), (again, kept_again) = results
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert kept_again < kept_whole


def test_what_changes_before_the_backward_pass_does_not_change_the_gradient(monkeypatch):
    """`functional_call` puts other weights into the model for the forward pass alone; dropout may be switched off."""
    from clozebert.modeling import fast_paths

    ids, model = inputs()["input_ids"], build(ClozeBertForMaskedLM, tiny_config("sdpa", mlp_dropout=0.2)).double()
    others = {name: (1.5 * weight).detach().requires_grad_() for name, weight in model.named_parameters()}
    found = []
    for least in (1 << 60, 1):
        monkeypatch.setattr(fast_paths, "RECOMPUTE_FROM", least)
        for trains in (True, False):
            torch.manual_seed(7)
            model.train(trains)
            loss = torch.func.functional_call(model, others, (ids,), {"labels": ids}).loss
            model.eval()
            found.append(torch.autograd.grad(loss, list(others.values())))
    assert all(torch.equal(*pair) for pair in zip(found[0], found[2], strict=True))
    assert all(torch.equal(*pair) for pair in zip(found[1], found[3], strict=True))


@pytest.mark.parametrize("model_class", [ClozeBertForMaskedLM, ClozeBertForSequenceClassification])
def test_asked_for_states_are_those_of_all_tokens_also_where_a_head_reads_few(model_class):
    model = build(model_class, tiny_config("sdpa", sparse_prediction=True)).double().eval()
    batch = inputs()
    if model_class is ClozeBertForMaskedLM:
        batch["labels"] = torch.full((1, LENGTH), -100)
        batch["labels"][:, [2, 7]] = 3
    plain, shown = model(**batch), model(**batch, output_hidden_states=True)
    assert len(shown.hidden_states) == 3
    assert all(states.shape == shown.hidden_states[0].shape for states in shown.hidden_states)
    torch.testing.assert_close(shown.logits, plain.logits, rtol=0, atol=1e-12)  # measured: 1e-15
