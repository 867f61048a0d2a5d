"""Each block does what the text that introduced it says. Tests are named after the texts."""

import math

import numpy as np
import pytest
import torch
from encoder_cases import PAD, build, random_ids, relative_error, tiny_config
from torch import nn
from torch.nn import functional as F

from clozebert import (
    ClozeBertConfig,
    ClozeBertForMaskedLM,
    ClozeBertModel,
)
from clozebert.modeling.attention import Attention, eager_attention, rotate
from clozebert.modeling.blocks import EncoderLayer, FeedForward, make_norm
from clozebert.modeling.embeddings import RotaryEmbedding, sinusoidal_positions
from clozebert.modeling.heads import Pooling

VASWANI = {
    "num_hidden_layers": 1, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048,
    "norm_position": "post", "mlp_type": "mlp", "hidden_act": "relu", "position_embedding_type": "sinusoidal",
    "norm_bias": True, "mlp_bias": True, "attention_bias": True, "vocab_size": 59,
}  # fmt: skip


def config_of(**changes):
    config = ClozeBertConfig(**{**VASWANI, **changes})
    config._attn_implementation = "eager"
    return config


def layer_of(norm_position="post", **changes):
    torch.manual_seed(0)
    return EncoderLayer(config_of(norm_position=norm_position, **changes), 0).double().eval()


def batch(*shape):
    return torch.randn(*(shape or (2, 4, 512)), dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def parameters_of(module):
    return sum(parameter.numel() for parameter in module.parameters())


# ------------------------------------------------------------------------------------- attention: Vaswani et al. 2017


def test_vaswani_3_2_1_scaled_dot_product_attention():
    """softmax(Q K^T / sqrt(d_k)) V with X = [[1,0],[0,1],[1,1]] for all three, d_k = 2."""
    x_11TK = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)[None, None]
    out, weights = eager_attention(nn.Identity(), x_11TK, x_11TK, x_11TK, None, scaling=2**-0.5)
    wanted = [[0.401, 0.198, 0.401], [0.198, 0.401, 0.401], [0.248, 0.248, 0.503]]
    assert np.round(weights[0, 0].numpy(), 3).tolist() == wanted
    torch.testing.assert_close(out[0, :, 0], weights[0, 0] @ x_11TK[0, 0])


def test_vaswani_3_2_1_scores_of_unit_normal_vectors_have_unit_variance():
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(20_000, 64, generator=draw) for _ in range(2))
    attention = Attention(config_of(), 0)
    assert float(((q * k).sum(-1) * attention.scaling).var()) == pytest.approx(1.0, abs=0.05)


def test_vaswani_3_2_2_multi_head_attention_splits_512_into_8_heads_of_64():
    attention = Attention(config_of(), 0).double()
    x_BTD = batch(2, 4, 512)
    assert attention.head_dim == 64
    assert attention.scaling == 1 / math.sqrt(64)
    out_BTD, weights_BHTT = attention(x_BTD)
    assert out_BTD.shape == (2, 4, 512)
    assert weights_BHTT.shape == (2, 8, 4, 4)
    torch.testing.assert_close(weights_BHTT.sum(-1), torch.ones(2, 8, 4, dtype=torch.float64))
    # Concat(head_1, …, head_8) W_o, one head at a time.
    heads = []
    for head in range(8):
        rows = slice(64 * head, 64 * (head + 1))
        q, k, v = (
            F.linear(x_BTD, projection.weight[rows], projection.bias[rows])
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        heads.append(torch.softmax(q @ k.transpose(1, 2) / 8, -1) @ v)
    torch.testing.assert_close(out_BTD, attention.o_proj(torch.cat(heads, -1)))


def test_vaswani_3_3_feed_forward_512_2048_512_acts_on_each_position_alone():
    feed = FeedForward(config_of()).double()
    assert feed.up_proj.weight.shape == (2048, 512)
    assert feed.down_proj.weight.shape == (512, 2048)
    x_BTD = batch()
    out_BTD = feed(x_BTD)
    assert out_BTD.shape == (2, 4, 512)
    relu = torch.clamp(x_BTD @ feed.up_proj.weight.T + feed.up_proj.bias, min=0)
    torch.testing.assert_close(out_BTD, relu @ feed.down_proj.weight.T + feed.down_proj.bias)
    torch.testing.assert_close(feed(x_BTD[:, [2]]), out_BTD[:, [2]])


def test_vaswani_3_5_sinusoids_and_their_shift():
    """PE(p, 2i) = sin(p / 10000^(2i/d)); PE(p + k) is the same linear map of PE(p) for every p."""
    table = sinusoidal_positions(torch.arange(100), 16)
    assert table[7, 4] == pytest.approx(math.sin(7 / 10_000 ** (4 / 16)), abs=1e-12)
    assert table[7, 5] == pytest.approx(math.cos(7 / 10_000 ** (4 / 16)), abs=1e-12)
    shift, *_ = torch.linalg.lstsq(table[:50], table[3:53], driver="gelsd")
    torch.testing.assert_close(table[40:90] @ shift, table[43:93], rtol=1e-6, atol=1e-6)


def test_vaswani_without_positions_a_permutation_of_tokens_permutes_the_output():
    model = build(ClozeBertModel, tiny_config(positions="none"))
    ids, order = torch.as_tensor(random_ids(1, 9)), torch.tensor([4, 0, 8, 2, 1, 7, 3, 6, 5])
    torch.testing.assert_close(model(ids[:, order]).last_hidden_state, model(ids).last_hidden_state[:, order])


# ------------------------------------------------------------------------------ residuals and where the norms stand


def test_vaswani_post_norm_is_norm_of_x_plus_sublayer():
    layer, x = layer_of("post"), batch()
    x_after = layer.attention_norm(x + layer.attention(x)[0])
    wanted = layer.mlp_norm(x_after + layer.mlp(x_after))
    assert torch.equal(layer(x), wanted)


def test_xiong_pre_norm_is_x_plus_sublayer_of_norm():
    layer, x = layer_of("pre"), batch()
    x_after = x + layer.attention(layer.attention_norm(x))[0]
    wanted = x_after + layer.mlp(layer.mlp_norm(x_after))
    assert torch.equal(layer(x), wanted)


def zero_sublayers(layer):
    with torch.no_grad():
        for projection in (layer.attention.o_proj, layer.mlp.down_proj):
            for parameter in projection.parameters():
                parameter.zero_()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_xiong_with_zeroed_sublayers_a_pre_norm_block_is_the_identity_to_the_bit(dtype):
    layer, x = layer_of("pre").to(dtype), batch().to(dtype)
    zero_sublayers(layer)
    assert torch.equal(layer(x), x)


def test_vaswani_with_zeroed_sublayers_a_post_norm_block_is_two_norms():
    layer, x = layer_of("post"), batch()
    zero_sublayers(layer)
    assert torch.equal(layer(x), layer.mlp_norm(layer.attention_norm(x)))


def test_zero_initialised_output_projections_start_as_the_identity():
    config = tiny_config(output_projection_init="zero", norm_position="pre", final_norm=False)
    model = ClozeBertModel(config).eval()
    ids = torch.as_tensor(random_ids(2, 9))
    hidden = model(ids, output_hidden_states=True).hidden_states
    assert all(torch.equal(after, hidden[0]) for after in hidden)


def test_modernbert_has_no_norm_before_the_first_attention():
    model = ClozeBertModel(tiny_config(first_attention_norm=False))
    assert isinstance(model.layers[0].attention_norm, nn.Identity)
    assert isinstance(model.layers[1].attention_norm, nn.LayerNorm)


def test_ba_layer_norm_and_zhang_sennrich_rms_norm():
    x = 3 + 5 * batch()
    layer_norm = make_norm(config_of(norm_eps=0.0), 512).double()
    torch.testing.assert_close(layer_norm(x).mean(-1), torch.zeros(2, 4, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(layer_norm(x).var(-1, correction=0), torch.ones(2, 4, dtype=torch.float64))
    rms_norm = make_norm(config_of(norm_type="rmsnorm", norm_eps=0.0), 512).double()
    torch.testing.assert_close(rms_norm(x).square().mean(-1), torch.ones(2, 4, dtype=torch.float64))
    torch.testing.assert_close(rms_norm(7 * x), rms_norm(x))


# --------------------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_srivastava_dropout_falls_on_a_sublayers_output_before_the_addition(norm_position):
    layer, x = layer_of(norm_position, hidden_dropout_prob=0.4).train(), batch()
    seen = {"in": [], "out": [], "sublayer": []}

    def remember(module, given, out):
        seen["in"].append(given[0])
        seen["out"].append(out)

    def remember_sublayer(module, given, out):
        seen["sublayer"].append(out[0] if isinstance(out, tuple) else out)

    layer.dropout.register_forward_hook(remember)
    layer.attention.register_forward_hook(remember_sublayer)
    layer.mlp.register_forward_hook(remember_sublayer)
    out = layer(x)
    for given, sublayer in zip(seen["in"], seen["sublayer"], strict=True):
        assert torch.equal(given, sublayer)
    for given, dropped in zip(seen["in"], seen["out"], strict=True):
        kept = dropped != 0
        assert 0.5 < kept.double().mean() < 0.7
        # The probability is rounded to a multiple of 2^-16.
        torch.testing.assert_close(dropped[kept], given[kept] / 0.6, rtol=2**-16 / 0.6, atol=0)
    if norm_position == "pre":
        assert torch.equal(out, x + seen["out"][0] + seen["out"][1])
    else:
        assert torch.equal(out, layer.mlp_norm(layer.attention_norm(x + seen["out"][0]) + seen["out"][1]))


@pytest.mark.parametrize("mlp_type", ["mlp", "glu"])
def test_dropout_in_training_falls_without_a_gradient_too(mlp_type):
    layer, x = layer_of("pre", mlp_type=mlp_type, mlp_dropout=0.5).train(), batch()
    torch.manual_seed(0)
    wanted = layer.mlp(x)
    torch.manual_seed(0)
    with torch.no_grad():
        found = layer.mlp(x)
    assert torch.equal(found, wanted)
    assert not torch.equal(found, layer.eval().mlp(x))


def test_with_all_of_a_sublayer_dropped_the_residual_still_passes():
    layer, x = layer_of("pre", hidden_dropout_prob=1.0).train(), batch()
    assert torch.equal(layer(x), x)
    assert not torch.equal(layer.eval()(x), x)


def test_attention_dropout_falls_on_the_weights():
    attention, x = Attention(config_of(attention_probs_dropout_prob=1.0), 0).double(), batch()
    out, weights = attention.train()(x)
    assert torch.equal(weights, torch.zeros_like(weights))
    torch.testing.assert_close(out, attention.o_proj.bias.expand(2, 4, 512))
    torch.testing.assert_close(attention.eval()(x)[1].sum(-1), torch.ones(2, 8, 4, dtype=torch.float64))


def test_feed_forward_dropout_falls_between_its_two_maps():
    feed, x = FeedForward(config_of(mlp_dropout=1.0)).double().train(), batch()
    torch.testing.assert_close(feed(x), feed.down_proj.bias.expand(2, 4, 512))


def test_embedding_dropout_falls_after_the_norm():
    model = ClozeBertModel(tiny_config(embedding_dropout=1.0)).train()
    embedded = model.embeddings(
        torch.as_tensor(random_ids(1, 5)), inputs_embeds=None, token_type_ids=None, position_ids=None
    )
    assert torch.equal(embedded, torch.zeros_like(embedded))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_evaluation_is_deterministic_whatever_the_dropouts(implementation):
    rates = dict.fromkeys(
        ("hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout", "mlp_dropout"), 0.5
    )
    ids = torch.as_tensor(random_ids(2, 9))
    model = build(ClozeBertModel, tiny_config(implementation, **rates))
    without = build(ClozeBertModel, tiny_config(implementation))
    assert torch.equal(model(ids).last_hidden_state, without(ids).last_hidden_state)
    model.train()
    assert not torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)


# ------------------------------------------------------------------------------------------- later parts of the block


def test_shazeer_glu_is_a_gated_product():
    feed, x = FeedForward(config_of(mlp_type="glu", hidden_act="silu")).double(), batch()
    gate = x @ feed.gate_proj.weight.T + feed.gate_proj.bias
    up = x @ feed.up_proj.weight.T + feed.up_proj.bias
    wanted = (gate * torch.sigmoid(gate) * up) @ feed.down_proj.weight.T + feed.down_proj.bias
    torch.testing.assert_close(feed(x), wanted)


def test_su_rotary_scores_depend_on_the_distance_alone():
    rotary = RotaryEmbedding(config_of(position_embedding_type="rope", hidden_size=48, num_attention_heads=8))
    q, k = batch(1, 1, 1, 6), batch(1, 1, 1, 6) + 1

    def score(query_position, key_position):
        tables = [rotary(q, torch.tensor([[position]])) for position in (query_position, key_position)]
        return float((rotate(q, *tables[0]) * rotate(k, *tables[1])).sum())

    assert score(17, 11) == pytest.approx(score(6, 0), rel=1e-12)
    assert score(17, 11) != pytest.approx(score(11, 17), rel=1e-3)


def test_su_rotary_output_depends_on_relative_positions_alone():
    model = build(ClozeBertModel, tiny_config(positions="rope"))
    ids = torch.as_tensor(random_ids(1, 9))
    wanted = model(ids).last_hidden_state
    moved = model(ids, position_ids=torch.arange(100, 109)[None]).last_hidden_state
    assert relative_error(moved, wanted) <= 1e-10


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [11, 30])
def test_beltagy_a_window_sees_its_tokens_on_either_side_and_no_other(implementation, length):
    """One layer: output t has a gradient with respect to input s where |t - s| <= 3, and nowhere else."""
    config = tiny_config(implementation, num_hidden_layers=1, layer_types=["sliding_attention"], sliding_window=3)
    model = build(ClozeBertModel, config)
    embeds = batch(1, length, 24).requires_grad_()
    out = model(inputs_embeds=embeds).last_hidden_state
    for position in range(length):
        (gradient,) = torch.autograd.grad(out[0, position].square().sum(), embeds, retain_graph=True)
        seen = (gradient[0] != 0).any(-1).nonzero().flatten()
        assert seen.tolist() == [s for s in range(length) if abs(s - position) <= 3]


def test_henry_qk_norm_makes_scores_independent_of_the_size_of_queries_and_keys():
    attention = Attention(config_of(qk_norm=True, norm_eps=0.0, attention_bias=False), 0).double()
    x = batch()
    wanted = attention(x)[1]
    with torch.no_grad():
        attention.q_proj.weight.mul_(50)
        attention.k_proj.weight.mul_(0.1)
    torch.testing.assert_close(attention(x)[1], wanted)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_ainslie_grouped_queries_share_the_keys_of_their_group(implementation):
    """Two key heads under eight query heads are eight key heads of which four and four are the same."""
    grouped = Attention(config_of(num_key_value_heads=2), 0).double()
    full = Attention(config_of(), 0).double()
    for attention in (grouped, full):
        attention.config._attn_implementation = implementation
    with torch.no_grad():
        for name in ("q_proj", "o_proj"):
            getattr(full, name).load_state_dict(getattr(grouped, name).state_dict())
        for name in ("k_proj", "v_proj"):
            for kind in ("weight", "bias"):
                few = getattr(getattr(grouped, name), kind).unflatten(0, (2, 64))
                getattr(getattr(full, name), kind).copy_(few.repeat_interleave(4, dim=0).flatten(0, 1))
    x = batch()
    torch.testing.assert_close(grouped(x)[0], full(x)[0])


# ---------------------------------------------------------------------------------------------------------- poolings


@pytest.mark.parametrize("kind", ["cls", "mean", "max", "attention"])
def test_poolings_by_hand(kind):
    pooling = Pooling(tiny_config(classifier_pooling=kind, hidden_size=24)).double()
    x, mask = batch(3, 5, 24), torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 0], [0, 1, 0, 0, 0]])
    found = pooling(x, mask)
    for row in range(3):
        tokens = x[row][mask[row].bool()]
        if kind == "attention":
            wanted = torch.softmax(tokens @ pooling.score.weight[0], 0) @ tokens
        else:
            wanted = {"cls": tokens[0], "mean": tokens.sum(0) / len(tokens), "max": tokens.max(0).values}[kind]
        torch.testing.assert_close(found[row], wanted)


def test_mean_pooling_divides_by_the_number_of_tokens_or_one():
    pooling = Pooling(tiny_config(classifier_pooling="mean"))
    x, mask = torch.ones(3, 5, 24), torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    assert pooling(x, mask)[:, 0].tolist() == [1.0, 1.0, 0.0]


# ---------------------------------------------------------------------------------------------- sizes and beginnings


def test_initial_weights_are_normal_biases_and_the_padding_row_zero():
    torch.manual_seed(0)
    config = tiny_config(
        hidden_size=96, vocab_size=211, intermediate_size=307, attention_bias=True, mlp_bias=True, norm_bias=True,
        initializer_range=0.05, positions="absolute",
    )  # fmt: skip
    model = ClozeBertForMaskedLM(config)
    embeddings = model.model.embeddings.word_embeddings.weight
    assert torch.equal(embeddings[PAD], torch.zeros(96))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert torch.equal(parameter, torch.zeros_like(parameter)), name
        elif name.endswith("norm.weight"):
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            assert float(parameter.detach().std()) == pytest.approx(0.05, rel=0.06), name


def test_radford_scaled_output_projections():
    torch.manual_seed(0)
    config = tiny_config(hidden_size=96, intermediate_size=307, output_projection_init="scaled", num_hidden_layers=8)
    model = ClozeBertModel(config)
    for layer in model.layers:
        for projection in (layer.attention.o_proj, layer.mlp.down_proj):
            assert float(projection.weight.detach().std()) == pytest.approx(0.02 / 16**0.5, rel=0.06)
        assert float(layer.mlp.up_proj.weight.detach().std()) == pytest.approx(0.02, rel=0.06)


def test_press_wolf_the_decoder_is_the_embedding_table():
    tied, untied = (ClozeBertForMaskedLM(tiny_config(tie_word_embeddings=tie)) for tie in (True, False))
    assert tied.decoder.weight is tied.model.embeddings.word_embeddings.weight
    assert untied.decoder.weight is not untied.model.embeddings.word_embeddings.weight
    assert parameters_of(untied) - parameters_of(tied) == 53 * 24


def test_liu_positions_of_roberta_count_tokens_that_are_not_padding():
    model = build(ClozeBertModel, tiny_config(positions="absolute", position_rule="non_pad"))
    embeddings = model.embeddings
    ids = torch.tensor([[PAD, PAD, 9, 8, PAD], [7, 7, 7, 7, 7]])
    x = torch.zeros(2, 5, 24, dtype=torch.float64)
    assert embeddings.count_positions(ids, x).tolist() == [[-1, -1, 0, 1, -1], [0, 1, 2, 3, 4]]
    rows = embeddings.positions(x, embeddings.count_positions(ids, x))
    assert torch.equal(rows[0, 2], embeddings.positions.table.weight[PAD + 1])
    assert torch.equal(rows[0, 0], embeddings.positions.table.weight[PAD])


def test_dosovitskiy_patches_are_read_row_by_row_after_a_class_token():
    config = ClozeBertConfig(
        hidden_size=24, num_attention_heads=4, num_hidden_layers=1, image_size=12, patch_size=4, num_channels=2,
        position_embedding_type="absolute", embedding_norm=False,
    )  # fmt: skip
    model = build(ClozeBertModel, config)
    embeddings = model.embeddings
    pixels = batch(1, 2, 12, 12)
    x = embeddings(pixels)
    assert x.shape == (1, 10, 24)
    torch.testing.assert_close(x[0, 0], embeddings.class_token[0, 0] + embeddings.table[0, 0])
    patch = pixels[0, :, 4:8, 8:12].flatten()  # row 1, column 2: the sixth patch
    kernel = embeddings.projection.weight.flatten(1)
    wanted = kernel @ patch + embeddings.projection.bias + embeddings.table[0, 6]
    torch.testing.assert_close(x[0, 6], wanted)


@pytest.mark.parametrize(("norm_position", "falls"), [("post", True), ("pre", False)])
def test_xiong_post_norm_gradients_pile_up_in_the_last_layers(norm_position, falls):
    """At initialisation (Xiong et al. 2020, theorem 1) the last feed-forward's gradient is of one size under post-norm,
    however deep the network, and shrinks with depth under pre-norm."""
    torch.manual_seed(0)
    last = {}
    for layers in (2, 12):
        config = tiny_config(
            norm_position=norm_position, num_hidden_layers=layers, hidden_size=48, intermediate_size=192,
            mlp_type="mlp", positions="none", initializer_range=48**-0.5, vocab_size=211,
        )  # fmt: skip
        model = ClozeBertForMaskedLM(config).eval()
        ids = torch.randint(4, 211, (8, 16), generator=torch.Generator().manual_seed(1))
        model(ids, labels=ids).loss.backward()
        last[layers] = float(model.model.layers[-1].mlp.down_proj.weight.grad.norm())
    ratio = last[12] / last[2]
    assert (ratio > 0.8) if falls else (ratio < 0.7)


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic"])
def test_rotary_tables_take_only_type_and_device_of_the_input(kind):
    """As those of transformers, whose tests call them with a single number."""
    parameters = {"rope_type": kind, "rope_theta": 1e4, **({} if kind == "default" else {"factor": 4.0})}
    rotary = RotaryEmbedding(config_of(position_embedding_type="rope", rope_parameters=parameters))
    positions = torch.arange(rotary.config.max_position_embeddings + 8)[None]
    wanted = rotary(torch.zeros(1, positions.shape[1], 4, dtype=torch.float64), positions)
    found = rotary(torch.zeros(1, dtype=torch.float64), positions)
    assert all(map(torch.equal, found, wanted))
