"""`encode`: each text's vectors, whatever stands beside it, in the order of the texts."""

import copy

import accelerate
import numpy as np
import pandas as pd
import pytest
import torch
from encoder_cases import build, random_ids, relative_error, tiny_config
from transformers import (
    BertConfig,
    BertModel,
    ConvBertConfig,
    ConvBertModel,
    ModernBertConfig,
    ModernBertModel,
    RobertaConfig,
    RobertaModel,
)

from clozebert import ClozeBertForMaskedLM, ClozeBertModel, encode, encode_ids
from clozebert.modeling.packed import Packed
from clozebert.modeling.packed_view import fewer_if_eager

LENGTHS = [3, 17, 1, 9, 17, 2, 24, 5]


@pytest.fixture(scope="module")
def model():
    return build(ClozeBertModel, tiny_config(classifier_pooling="mean"))


@pytest.fixture(scope="module")
def sequences():
    return [random_ids(length, seed=index).tolist() for index, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def alone(model, sequences):
    """Each sequence's tokens, from a forward of its own."""
    with torch.no_grad():
        return [model(torch.tensor([sequence])).last_hidden_state[0].numpy() for sequence in sequences]


@pytest.mark.parametrize("tokens_per_batch", [None, 1, 20, 41])
def test_tokens_are_those_of_each_sequence_by_itself(model, sequences, alone, tokens_per_batch):
    found = encode_ids(model, sequences, pooling=None, tokens_per_batch=tokens_per_batch)
    assert [len(x) for x in found] == LENGTHS
    for x, wanted in zip(found, alone, strict=True):
        assert relative_error(x, wanted) <= 1e-12


def test_on_a_gpu_no_batch_is_padded_beyond_its_budget(model, monkeypatch):
    """In float32 its documents become rows of one length, so a few long texts must not take many short ones along."""
    sizes, padded_index = [], Packed.padded_index

    def noted(self, documents, longest):
        sizes.append(len(documents) * longest)
        return padded_index(self, documents, longest)

    monkeypatch.setattr(Packed, "padded_index", noted)
    # As a GPU, this device has no lengths to read, and no tiles.
    found = encode_ids(copy.deepcopy(model).to("meta"), [[5] * 24, *[[5] * 2] * 40], tokens_per_batch=60)
    assert found.shape == (41, model.config.hidden_size)
    assert 0 < max(sizes) <= 60


def test_a_model_that_returns_tuples(model, sequences, monkeypatch):
    wanted = encode_ids(model, sequences)
    monkeypatch.setattr(model.config, "return_dict", False)
    assert torch.equal(torch.as_tensor(encode_ids(model, sequences)), torch.as_tensor(wanted))


@pytest.mark.parametrize(
    ("pooling", "pool"), [("mean", lambda x: x.mean(0)), ("max", lambda x: x.max(0)), ("cls", lambda x: x[0])]
)
def test_pooling(model, sequences, alone, pooling, pool):
    found = encode_ids(model, sequences, pooling=pooling, tokens_per_batch=30)
    # The mean is summed in float32.
    assert relative_error(found, np.stack([pool(x) for x in alone])) <= 1e-6


def test_the_mean_of_a_float64_model_is_in_float64(model, sequences):
    double = copy.deepcopy(model).double()
    tokens = encode_ids(double, sequences, pooling=None)
    found = encode_ids(double, sequences, pooling="mean")
    assert relative_error(found, np.stack([np.asarray(x).mean(0) for x in tokens])) <= 1e-14


def test_texts_go_through_the_tokenizer_with_its_special_tokens(model, sequences, alone):
    class Tokenizer:
        def __call__(self, texts, **options):
            assert options["add_special_tokens"]
            return {"input_ids": [sequences[int(text)] for text in texts]}

    found = encode(model, Tokenizer(), ["6", "0", "1"], pooling="cls")
    assert relative_error(found, np.stack([alone[6][0], alone[0][0], alone[1][0]])) <= 1e-12


def test_texts_may_come_one_after_another(model, sequences, alone):
    def tokenizer(texts, **options):
        return {"input_ids": [sequences[int(text)] for text in texts]}

    found = encode(model, tokenizer, (str(index) for index in (2, 4)), pooling="cls")
    assert relative_error(found, np.stack([alone[2][0], alone[4][0]])) <= 1e-12


def test_a_model_whose_weights_are_offloaded(sequences, alone):
    """Accelerate keeps such weights on the meta device, and moves them where its hooks say."""
    model = build(ClozeBertModel, tiny_config(classifier_pooling="mean"))
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert model.device.type == "meta"
    for x, wanted in zip(encode_ids(model, sequences, pooling=None), alone, strict=True):
        assert relative_error(x, wanted) <= 1e-12


def test_nothing_to_encode(model):
    nothing = encode(model, None, [])
    assert nothing.shape == (0, model.config.hidden_size)
    assert nothing.dtype == torch.float64  # the model's
    assert encode_ids(model, [], pooling=None) == []


def test_the_model_is_left_in_its_mode_without_gradients(sequences):
    model = build(ClozeBertModel, tiny_config(hidden_dropout_prob=0.5)).train()
    first, second = encode_ids(model, sequences), encode_ids(model, sequences)
    assert torch.equal(first, second)
    assert model.training
    assert not first.requires_grad


def test_mistakes(model, sequences):
    with pytest.raises(ValueError, match="is one text: give a list"):
        encode(model, None, "one text")
    for table in ({"text": ["a", "b"]}, pd.DataFrame({"text": ["a", "b"]})):
        with pytest.raises(ValueError, match=f"texts is a {type(table).__name__}: give one column of it"):
            encode(model, None, table)
    for other, kind in ((None, "NoneType"), (float("nan"), "float"), (("one", "pair"), "tuple")):
        with pytest.raises(ValueError, match=rf"texts\[1\]=.* is a {kind} and not a string"):
            encode(model, None, ["one", other])
    with pytest.raises(ValueError, match="pooling='sum' must be one of mean, cls, max"):
        encode_ids(model, sequences, pooling="sum")
    with pytest.raises(ValueError, match="tokens_per_batch=0 must be at least 1"):
        encode_ids(model, sequences, tokens_per_batch=0)
    with pytest.raises(ValueError, match="sequence 1 is empty"):
        encode_ids(model, [[5], []])
    limited = build(ClozeBertModel, tiny_config(positions="absolute", max_position_embeddings=32))
    with pytest.raises(ValueError, match="33 tokens is longer than max_position_embeddings=32"):
        encode_ids(limited, [[5] * 4, [5] * 33])


@pytest.mark.parametrize(
    ("model_class", "config_class"),
    [(BertModel, BertConfig), (RobertaModel, RobertaConfig), (ModernBertModel, ModernBertConfig)],
)
def test_models_of_transformers_own_classes_are_padded(model_class, config_class, sequences):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    native = model_class(config_class(vocab_size=99, pad_token_id=1, max_position_embeddings=64, **sizes))
    found = encode_ids(native.train(), sequences, tokens_per_batch=41)
    assert native.training
    native.eval()
    with torch.no_grad():
        alone = [native(torch.tensor([sequence])).last_hidden_state[0].mean(0).numpy() for sequence in sequences]
    # Measured: 1.7e-7 at most in float32, five seeds each, on a CPU with bf16 and with instructions limited to AVX2.
    assert relative_error(found, np.stack(alone)) <= 3e-6


@pytest.mark.parametrize(
    ("model_class", "config_class", "most"), [(BertModel, BertConfig, 64), (RobertaModel, RobertaConfig, 62)]
)
def test_a_text_longer_than_learned_positions_of_a_native_model(model_class, config_class, most):
    """RoBERTa's table has two rows for no position."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    native = model_class(config_class(vocab_size=99, pad_token_id=1, max_position_embeddings=64, **sizes))
    assert encode_ids(native, [[5] * most]).shape == (1, 32)
    with pytest.raises(ValueError, match=f"a text of {most + 1} tokens is longer than the model's {most} positions"):
        encode_ids(native, [[5] * 4, [5] * (most + 1)])


def test_a_model_that_reads_its_padding_gets_none():
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    native = ConvBertModel(ConvBertConfig(**sizes, intermediate_size=64, max_position_embeddings=64)).eval()
    lengths = [12, 3, 12, 5]
    rows = [random_ids(length, seed=index).tolist() for index, length in enumerate(lengths)]
    alone = torch.cat([encode_ids(native, [row]) for row in rows])
    torch.testing.assert_close(encode_ids(native, rows), alone, rtol=0, atol=1e-6)


def test_padding_counts_as_tokens_of_a_batch(sequences):
    """One long text must not stretch a whole batch of short ones to its length."""
    shapes = []

    class Watched(BertModel):
        def forward(self, input_ids=None, **others):
            shapes.append(tuple(input_ids.shape))
            return super().forward(input_ids=input_ids, **others)

    sizes = {"vocab_size": 99, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
    model = Watched(BertConfig(**sizes, num_hidden_layers=1, max_position_embeddings=64))
    found = encode_ids(model, sequences, tokens_per_batch=40)
    assert shapes == [(1, 24), (2, 17), (4, 9), (1, 1)]
    # A longer text than the budget is a batch of its own.
    shapes.clear()
    one = encode_ids(model, sequences, tokens_per_batch=16)
    assert all(rows == 1 or rows * length <= 16 for rows, length in shapes)
    assert sum(rows for rows, _ in shapes) == len(LENGTHS)
    assert relative_error(found, one.numpy()) <= 1e-6


def test_a_model_with_a_head_is_refused(sequences):
    with pytest.raises(ValueError, match="the model has a head"):
        encode_ids(build(ClozeBertForMaskedLM, tiny_config()), sequences)


def test_eager_attention_packs_few_tokens_into_a_row(sequences, alone):
    """It computes all pairs of a row: at 4,096 tokens a row, a call took seven times as long as at 512."""
    model = build(ClozeBertModel, tiny_config(classifier_pooling="mean"))
    assert fewer_if_eager(model, 4096) == 4096
    model.set_attn_implementation("eager")
    assert fewer_if_eager(model, 4096) == 512
    assert fewer_if_eager(model, 30) == 30
    rows = []
    model.embeddings.register_forward_hook(lambda _, __, states: rows.append(states.shape[-2]))
    for x, wanted in zip(encode_ids(model, sequences * 40, pooling=None), alone * 40, strict=True):
        assert relative_error(x, wanted) <= 1e-12
    assert sum(map(len, sequences * 40)) > 1024
    assert max(rows) <= 512
