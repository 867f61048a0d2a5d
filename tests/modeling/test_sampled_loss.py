"""The masked-LM loss over a sample of the vocabulary, against its formula in NumPy and the loss over all of it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM
from clozebert.corpus.vocabulary_sample import VocabularySampler
from clozebert.modeling.losses import cross_entropy, sampled_cross_entropy

VOCABULARY, SIZE, PREDICTED = 300, 16, 40


def setting(*, bias: bool = True, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    decoder = nn.Linear(SIZE, VOCABULARY, bias=bias).to(dtype)
    nn.init.normal_(decoder.weight, std=0.5)
    labels = torch.randint(VOCABULARY, (PREDICTED,))
    labels[3] = -100
    return torch.randn(PREDICTED, SIZE, dtype=dtype), decoder, labels


def draw(step: int, *, size: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    counts = (1e5 / np.arange(1, VOCABULARY + 1)).astype(np.int64)
    sample = VocabularySampler(counts, size=size, seed=1).draw(step)
    return torch.from_numpy(sample.ids), torch.from_numpy(sample.log_rates)


@pytest.mark.parametrize("bias", [True, False])
def test_the_formula(bias: bool) -> None:
    x, decoder, labels = setting(bias=bias)
    ids, log_rates = draw(0)
    logits = x.numpy() @ decoder.weight.detach().numpy().T
    if bias:
        logits += decoder.bias.detach().numpy()
    rates, total, count = np.exp(log_rates.numpy().astype(np.float64)), 0.0, 0
    for row, label in zip(logits, labels.tolist(), strict=True):
        if label != -100:
            among = sum(np.exp(row[i]) / rate for i, rate in zip(ids.tolist(), rates, strict=True) if i != label)
            total += np.log(np.exp(row[label]) + among) - row[label]
            count += 1
    assert any(label in ids for label in labels)
    found = sampled_cross_entropy(x, decoder, labels, ids, log_rates)
    assert found.item() == pytest.approx(total / count, rel=1e-7)  # rates are float32
    assert sampled_cross_entropy(x, decoder, labels, ids, log_rates, 7).item() == pytest.approx(total / 7, rel=1e-7)


def test_the_whole_vocabulary_gives_the_loss_and_its_gradient() -> None:
    x, decoder, labels = setting()
    x.requires_grad_()
    inputs = (x, decoder.weight, decoder.bias)
    expected = cross_entropy(decoder(x), labels)
    found = sampled_cross_entropy(x, decoder, labels, torch.arange(VOCABULARY), torch.zeros(VOCABULARY))
    torch.testing.assert_close(found, expected)
    for one, other in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_the_estimate_of_the_sum_is_right_on_average() -> None:
    """Z = exp(loss + logit of the label), for one prediction; 1,500 samples."""
    x, decoder, labels = (part[:1] if isinstance(part, torch.Tensor) else part for part in setting())
    logits = decoder(x)[0].detach()
    losses = torch.stack([sampled_cross_entropy(x, decoder, labels, *draw(step)).detach() for step in range(1500)])
    found = (losses + logits[labels[0]]).exp()
    exact = logits.exp().sum()
    assert (found.mean() - exact).abs() < 4 * found.std() / 1500**0.5
    assert found.std() > 0.05 * exact
    assert losses.mean() < exact.log() - logits[labels[0]]  # the logarithm of an average is above that of its parts


def test_in_bf16_rates_keep_their_precision() -> None:
    x, decoder, labels = setting(dtype=torch.float32)
    expected = sampled_cross_entropy(x, decoder, labels, *draw(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = sampled_cross_entropy(x, decoder, labels, *draw(0))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=5e-3)  # measured 4e-4


def small_model() -> ClozeBertForMaskedLM:
    torch.manual_seed(1)
    return ClozeBertForMaskedLM(
        ClozeBertConfig(
            vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
        )
    )


def test_the_model_takes_a_sample_in_any_form_of_batch() -> None:
    model = small_model()
    ids = torch.randint(VOCABULARY, (2, 9))
    labels = torch.full((2, 9), -100)
    labels[0, 2], labels[1, 5] = 7, 250
    positions = (labels != -100).flatten().nonzero().squeeze(1)
    every = {"sampled_ids": torch.arange(VOCABULARY), "sampled_log_rates": torch.zeros(VOCABULARY)}
    expected = model(ids, labels=labels).loss
    dense = model(ids, labels=labels, **every)
    sparse = model(ids, labels=labels.flatten()[positions], masked_positions=positions, **every)
    assert dense.logits is None
    torch.testing.assert_close(dense.loss, expected)
    torch.testing.assert_close(sparse.loss, expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": None}, "need labels"),
        ({"sampled_log_rates": None}, "need labels and sampled_log_rates"),
        ({"labels": torch.full((1, 4), VOCABULARY)}, "300"),
    ],
)
def test_mistakes_are_errors(changes: dict[str, Any], words: str) -> None:
    inputs = {"labels": torch.ones(1, 4, dtype=torch.long), "sampled_ids": torch.arange(9),
              "sampled_log_rates": torch.zeros(9)}  # fmt: skip
    with pytest.raises(ValueError, match=words):
        small_model()(torch.ones(1, 4, dtype=torch.long), **{**inputs, **changes})
