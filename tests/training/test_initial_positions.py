"""Positions that begin as sines and cosines, and heads that begin looking at near tokens, against NumPy in float64."""

import copy
import re

import numpy as np
import pytest
import torch
from pretraining_helpers import changed_weights, check_killed_run, make_corpus, model_config, run_here, settings

from clozebert import ClozeBertForMaskedLM
from clozebert.training import PretrainingArguments, pretrain
from clozebert.training.checks import check_run
from clozebert.training.initialization.initial_positions import begin_sinusoidal
from clozebert.utils.errors import UserError

LEARNED = {"position_embedding_type": "absolute", "norm_position": "post"}
DISTANCES = (-1, 1, 0)


def begin(**changes: object) -> tuple[ClozeBertForMaskedLM, ClozeBertForMaskedLM]:
    """A new model with learned positions, before and after."""
    torch.manual_seed(1)
    before = ClozeBertForMaskedLM(model_config(**{"pad_token_id": 0, **LEARNED, **changes})).eval()
    after = copy.deepcopy(before)
    begin_sinusoidal(after)
    return before, after


def waves(positions: int, size: int) -> np.ndarray:
    """sin and cos of each position times 10000^(-2i / size), one row for each position."""
    table = np.zeros((positions, size))
    for row in range(positions):
        for channel in range(size):
            angle = row / 10_000 ** ((channel - channel % 2) / size)
            table[row, channel] = np.cos(angle) if channel % 2 else np.sin(angle)
    return table


@pytest.mark.parametrize("size", [36, 45])  # one that is odd
def test_the_positions_are_the_waves_and_as_large_as_the_tokens(size):
    _, after = begin(hidden_size=size)
    tokens = after.get_input_embeddings().weight.detach().double().numpy()
    found = after.model.embeddings.positions.table.weight.detach().double().numpy()
    expected = waves(48, size) * tokens.std(ddof=1) * np.sqrt(2)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-8)  # measured: 3e-9
    assert np.linalg.norm(found, axis=1).mean() == pytest.approx(np.linalg.norm(tokens, axis=1).mean(), rel=0.1)


def test_the_positions_of_a_roberta_begin_behind_the_row_of_padding():
    before, after = begin(position_rule="non_pad", position_offset=2, pad_token_id=1)
    old, new = (model.model.embeddings.positions.table.weight.detach() for model in (before, after))
    assert torch.equal(old[:2], new[:2])
    assert not new[1].any()
    scale = after.get_input_embeddings().weight.detach().std().item() * np.sqrt(2)
    np.testing.assert_allclose(new[2:].numpy(), waves(48, 36) * scale, atol=2e-8)


@pytest.mark.parametrize(
    "shape",
    [
        {"hidden_size": 96},
        {"hidden_size": 96, "num_key_value_heads": 1},
        {"hidden_size": 90, "num_attention_heads": 2},  # heads of an odd size
        {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 1},
    ],
    ids=str,
)
def test_each_head_looks_at_its_distance(shape):
    before, after = begin(**shape)
    config = after.config
    size, tokens = config.hidden_size // config.num_attention_heads, 40
    x = waves(tokens, config.hidden_size)
    for old, new in zip(before.model.layers, after.model.layers, strict=True):
        queries, keys = (
            x @ (getattr(new.attention, name).weight - getattr(old.attention, name).weight).detach().double().numpy().T
            for name in ("q_proj", "k_proj")
        )
        for head in range(config.num_attention_heads):
            shared = head * (config.num_key_value_heads or config.num_attention_heads) // config.num_attention_heads
            q, k = queries[:, head * size :][:, :size], keys[:, shared * size :][:, :size]
            logits = q @ k.T / np.sqrt(size)
            distance = DISTANCES[head % 3]
            for token in range(2, tokens - 2):
                assert logits[token].argmax() == token + distance
                # 3 for heads of an even size; an odd one has a channel without a wave.
                peak = 3.0 * (size - size % 2) / size
                assert logits[token].max() == pytest.approx(peak, rel=1e-5)  # measured: 3e-7


def test_attention_over_random_tokens_is_near_from_the_start():
    before, after = begin(hidden_size=96, num_hidden_layers=4, attn_implementation="eager")
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 61, (8, 40)))
    shares = {}
    for name, model in (("before", before), ("after", after)):
        with torch.no_grad():
            attentions = model(ids, output_attentions=True).attentions
        near = torch.arange(40)[:, None].sub(torch.arange(40)).abs() <= 2
        shares[name] = [(weights * near).sum(dim=-1).mean().item() for weights in attentions]
    # Five of 40 tokens. Measured: 0.12 in all layers before; 0.85, 0.85, 0.12, 0.12 after.
    assert max(shares["before"]) < 0.2
    assert min(shares["after"][:2]) > 0.7
    assert max(shares["after"][2:]) < 0.2


@pytest.mark.parametrize("continued", [False, True])
def test_a_run_begins_so_only_with_a_new_model(tmp_path, continued):
    changed = changed_weights(tmp_path, "position_init", "sinusoidal", continued=continued, **LEARNED)
    heads = [f"model.layers.{layer}.attention.{name}.weight" for layer in (0, 1) for name in ("k_proj", "q_proj")]
    assert changed == ([] if continued else ["model.embeddings.positions.table.weight", *heads])


def test_a_run_that_continues_from_a_model_without_such_positions_can_be_timed(tmp_path):
    folder = make_corpus(tmp_path)
    run_here(folder, tmp_path / "base", position_embedding_type="rope", max_steps=1, warmup_steps=0, eval_steps=0)
    given = settings(folder, output_dir=str(tmp_path / "run"), max_steps=None, warmup_steps=0, eval_steps=0)
    given |= {"position_init": "sinusoidal", "embedding_init": "text", "model_name_or_path": str(tmp_path / "base")}
    pretrain(PretrainingArguments(**given, max_minutes=0.05, num_train_epochs=1), model_config())
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_run_that_is_killed_goes_on_to_the_same_weights(tmp_path):
    check_killed_run(tmp_path, position_init="sinusoidal", **LEARNED)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"position_embedding_type": "rope"}, "is for learned positions, and position_embedding_type is 'rope'"),
        ({"position_embedding_type": "sinusoidal"}, "position_embedding_type is 'sinusoidal'"),
        ({**LEARNED, "embedding_size": 12}, "needs embeddings of the model's width, and embedding_size=12"),
    ],
)
def test_a_model_without_such_positions_is_refused(tmp_path, model, message):
    make_corpus(tmp_path)
    given = settings(tmp_path, output_dir=str(tmp_path / "run"), position_init="sinusoidal", max_steps=9)
    with pytest.raises(UserError, match=re.escape(message)):
        check_run(PretrainingArguments(**given), model_config(**model))
