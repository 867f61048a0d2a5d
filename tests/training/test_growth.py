"""Warm starts: what must stay the same does, what is new is what the formula says, and both are measured."""

import math

import pytest
import torch
from growth_cases import DOCUMENTS, KINDS, WINDOWED, logits, make
from pretraining_helpers import make_tokenizer

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM, ClozeBertModel
from clozebert.hub import to_native
from clozebert.training import extend_positions, grow, grow_depth, grow_width, pseudo_perplexity
from clozebert.utils.errors import UserError


def test_pseudo_perplexity_is_the_formula():
    model, total, count = make().requires_grad_(False), 0.0, 0
    for document in DOCUMENTS:
        for position, token in enumerate(document):
            if token in (2, 3):
                continue
            masked = torch.tensor([[4 if index == position else t for index, t in enumerate(document)]])
            total -= float(model(input_ids=masked).logits[0, position].log_softmax(-1)[token])
            count += 1
    assert pseudo_perplexity(model, DOCUMENTS) == pytest.approx(math.exp(total / count), rel=1e-5)
    assert pseudo_perplexity(model, DOCUMENTS) == pytest.approx(math.exp(total / count), rel=1e-5)


def test_pseudo_perplexity_needs_a_mask_token_and_text():
    with pytest.raises(ValueError, match="mask_token_id"):
        pseudo_perplexity(make(mask_token_id=None), DOCUMENTS)
    with pytest.raises(ValueError, match="no token that could be masked"):
        pseudo_perplexity(make(), [[2, 3]])
    with pytest.raises(ValueError, match="documents holds text: give token ids"):
        pseudo_perplexity(make(), ["a text"])


def test_documents_may_come_one_after_another():
    documents = [[2, 5, 6, 3], [2, 7, 3]]
    wanted = grow_depth(make(), num_hidden_layers=3, documents=documents)
    found = grow_depth(make(), num_hidden_layers=3, documents=(document for document in documents))
    assert (found.before, found.after) == (wanted.before, wanted.after)


def test_depth_repeats_layers_in_place():
    model = make("modernbert")
    result = grow_depth(model, 7, documents=DOCUMENTS)
    sources = [0, 0, 0, 1, 1, 2, 2]
    assert result.model.config.layer_types == [WINDOWED["layer_types"][source] for source in sources]
    old, new = model.state_dict(), result.model.state_dict()
    for layer, source in enumerate(sources):
        name = "model.layers.{}.attention.o_proj.weight"
        assert torch.equal(new[name.format(layer)], old[name.format(source)])
    # Layer 0 has no norm before its attention; its copies have layer 1's.
    name = "model.layers.{}.attention_norm.weight"
    assert name.format(0) not in new
    assert torch.equal(new[name.format(1)], old[name.format(1)])
    assert torch.equal(new["decoder.weight"], old["decoder.weight"])
    assert model.config.num_hidden_layers == 3
    assert type(to_native(result.model)).__name__ == "ModernBertForMaskedLM"


def test_depth_of_layers_that_write_nothing_changes_nothing():
    model = make("bert", norm_position="pre")
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.attention.o_proj, layer.mlp.down_proj):
                projection.weight.zero_()
                projection.bias.zero_()
    result = grow_depth(model, 5, documents=DOCUMENTS)
    assert result.after == pytest.approx(result.before, rel=1e-5)
    assert torch.allclose(logits(model), logits(result.model), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [2, 3])
def test_whole_multiples_compute_the_same(kind, times):
    model = make(kind)
    result = grow_width(
        model,
        hidden_size=24 * times,
        num_attention_heads=4 * times,
        intermediate_size=50,
        documents=DOCUMENTS,
        noise=0.0,
    )
    assert result.model.config.hidden_size == 24 * times
    assert torch.allclose(logits(model), logits(result.model), atol=2e-5)
    assert result.after == pytest.approx(result.before, rel=1e-4)


def test_embeddings_that_are_said_to_be_as_wide_as_the_layers_stay_so():
    model = make("bert", embedding_size=24)
    result = grow_width(model, hidden_size=48, num_attention_heads=8, documents=DOCUMENTS, noise=0.0)
    assert result.model.get_input_embeddings().weight.shape[1] == 48
    assert torch.allclose(logits(model), logits(result.model), atol=2e-5)


def test_feed_forward_alone_computes_the_same():
    model = make("modernbert")
    result = grow_width(model, intermediate_size=53, documents=DOCUMENTS, noise=0.0)
    assert torch.allclose(logits(model), logits(result.model), atol=1e-5)


@pytest.mark.parametrize("noise", [-1.0, float("nan"), float("inf")])
def test_noise_that_is_none_is_refused(noise):
    with pytest.raises(UserError, match=rf"noise={noise} must be at least 0 and finite"):
        grow_width(make("bert"), hidden_size=48, num_attention_heads=8, documents=DOCUMENTS, noise=noise)


def test_broken_multiples_are_close_and_noise_tells_copies_apart():
    model = make("bert")
    result = grow_width(model, hidden_size=30, num_attention_heads=5, documents=DOCUMENTS, noise=0.0)
    assert result.model.config.hidden_size == 30
    assert math.isfinite(result.after)
    noisy = grow_width(model, hidden_size=48, num_attention_heads=8, documents=DOCUMENTS)
    weight = noisy.model.model.layers[1].mlp.up_proj.weight
    assert not torch.equal(weight[:, :24], weight[:, 24:])
    assert noisy.after == pytest.approx(noisy.before, rel=0.1)
    again = grow_width(model, hidden_size=48, num_attention_heads=8, documents=DOCUMENTS)
    assert torch.equal(again.model.model.layers[1].mlp.up_proj.weight, weight)


@pytest.mark.parametrize(
    ("kind", "changes", "sizes", "message"),
    [
        ("bert", {}, {"hidden_size": 12, "num_attention_heads": 2}, "hidden_size=12 is less than the model's 24"),
        ("bert", {}, {"hidden_size": 48}, "hidden_size=48 and num_attention_heads=4 .* num_attention_heads=8"),
        ("bert", {}, {"hidden_size": 32}, "hidden_size=32 .* has 6 channels, so give hidden_size=30 or 36"),
        (
            "bert",
            {"position_embedding_type": "sinusoidal"},
            {"hidden_size": 48, "num_attention_heads": 8},
            "sinusoidal",
        ),
        ("bert", {"embedding_size": 48}, {"hidden_size": 48, "num_attention_heads": 8}, "the model's embedding_size"),
        ("rmsnorm", {}, {"hidden_size": 36, "num_attention_heads": 6}, "must be a multiple of the model's 4"),
    ],
)
def test_width_mistakes(kind, changes, sizes, message):
    with pytest.raises(ValueError, match=message):
        grow_width(make(kind, **changes), **sizes, documents=DOCUMENTS)


def test_learned_positions_are_interpolated():
    model = make("roberta")
    table = model.model.embeddings.positions.table.weight
    with torch.no_grad():  # rows that lie on a line stay on it
        table[1:] = torch.linspace(0, 28, 29)[:, None] * torch.linspace(-1, 1, 24)
    result = extend_positions(model, 57, documents=DOCUMENTS)
    new = result.model.model.embeddings.positions.table.weight
    assert new.shape == (58, 24)
    assert torch.equal(new[0], table[0])  # the row before the first position
    assert torch.allclose(new[1:], torch.linspace(0, 28, 57)[:, None] * torch.linspace(-1, 1, 24), atol=1e-5)
    assert torch.isfinite(logits(result.model, length=57)).all()


def test_rotary_base_is_stretched_where_attention_is_full():
    model = make("modernbert")
    result = extend_positions(model, 29 * 4, documents=DOCUMENTS)
    old, new = model.config.rope_parameters, result.model.config.rope_parameters
    size = 6  # of a head
    assert new["sliding_attention"] == old["sliding_attention"]
    theta = new["full_attention"]["rope_theta"]
    assert theta == pytest.approx(old["full_attention"]["rope_theta"] * 4 ** (size / (size - 2)))
    # The slowest pair turns at the new end by as much as it did at the old.
    slowest = (size - 2) / size
    assert 4 * theta**-slowest == pytest.approx(old["full_attention"]["rope_theta"] ** -slowest)
    assert extend_positions(model, 58, rope_theta=5e5, documents=DOCUMENTS).model.config.rope_parameters[
        "full_attention"
    ]["rope_theta"] == 5e5  # fmt: skip
    assert result.after > 1


def test_what_has_grown_keeps_the_mode_and_the_attention_of_its_model_and_trains_all_it_has():
    model = make("modernbert")
    model.model.requires_grad_(False)
    for mode, attention in ((False, "eager"), (True, "sdpa")):
        model.train(mode).set_attn_implementation(attention)
        grown = [
            grow_width(model, hidden_size=48, num_attention_heads=8, documents=DOCUMENTS),
            grow_depth(model, 5, documents=DOCUMENTS),
            extend_positions(model, 58, documents=DOCUMENTS),
        ]
        assert [result.model.training for result in grown] == [mode] * 3
        assert [result.model.config._attn_implementation for result in grown] == [attention] * 3
        assert all(tensor.requires_grad for result in grown for tensor in result.model.parameters())


def test_length_mistakes():
    windows = make("modernbert", layer_types=["sliding_attention"] * 3, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"rope_theta=1\.0 is that of layers with full attention, and the model has"):
        extend_positions(windows, 58, rope_theta=1.0, documents=DOCUMENTS)
    with pytest.raises(ValueError, match="must exceed the model's 29"):
        extend_positions(make(), 29, documents=DOCUMENTS)
    with pytest.raises(ValueError, match=r"rope_theta=1\.0 needs rotary positions"):
        extend_positions(make(), 58, rope_theta=1.0, documents=DOCUMENTS)


def test_only_masked_lm_models():
    base = ClozeBertModel(make().config)
    with pytest.raises(ValueError, match="ClozeBertModel was given"):
        grow_depth(base, 5, documents=DOCUMENTS)


def test_no_text_to_measure_on_is_refused_at_the_call():
    with pytest.raises(UserError, match="texts is empty: give some text"):
        grow(make(), make_tokenizer(40), texts=[], num_hidden_layers=5)


def test_fewer_layers_are_refused():
    with pytest.raises(ValueError, match="num_hidden_layers=2 is less than"):
        grow_depth(make(), 2, documents=DOCUMENTS)


def test_reported_in_words_and_trains_on(tmp_path):
    result = grow_width(make(), hidden_size=48, num_attention_heads=8, documents=DOCUMENTS)
    assert "before" in str(result)
    assert "after" in str(result)
    result.model(input_ids=torch.tensor(DOCUMENTS[:1]), labels=torch.tensor(DOCUMENTS[:1])).loss.backward()
    assert all(parameter.grad is not None for parameter in result.model.parameters())
    result.model.save_pretrained(tmp_path)
    assert torch.equal(logits(ClozeBertForMaskedLM.from_pretrained(tmp_path)), logits(result.model.eval()))


def test_a_model_with_the_code_of_its_folder_is_told_how_to_be_loaded():
    copied = type("ClozeBertForMaskedLM", (torch.nn.Module,), {})()
    with pytest.raises(UserError, match="import clozebert, and load it without trust_remote_code"):
        grow_depth(copied, 4, documents=[[2, 5, 3]])
    with pytest.raises(UserError, match="a ClozeBertModel was given: only a ClozeBertForMaskedLM can grow"):
        grow_depth(ClozeBertModel(ClozeBertConfig(vocab_size=8, hidden_size=8, num_attention_heads=2)), 4, documents=[])
