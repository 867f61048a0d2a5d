"""Embeddings that begin from the text, against a plain count and NumPy's SVD in float64."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from pretraining_helpers import changed_weights, check_killed_run, make_tokenizer, model_config

from clozebert import ClozeBertForMaskedLM
from clozebert.corpus import Mixture, ShardWriter
from clozebert.corpus.tokenizer import tokenizer_facts
from clozebert.training.initialization.initial_embeddings import embed_by_text

WORDS = 40
SIZE = 45  # of the vocabulary, five special tokens included


def write_corpus(folder: Path, documents: list[list[int]]) -> Mixture:
    writer = ShardWriter(folder / "train", vocab_size=SIZE)
    for document in documents:
        writer.append(np.array(document), np.ones(len(document), dtype=bool))
    writer.close({"tokenizer": tokenizer_facts(make_tokenizer(WORDS))})
    return Mixture([str(folder)])


def zipfian_documents(seed: int = 0, *, count: int = 60) -> list[list[int]]:
    """Documents of 1 to 30 tokens; ids 40 and above do not occur."""
    draws = np.random.default_rng(seed)
    return [(5 + np.minimum(draws.zipf(1.5, draws.integers(1, 30)), 35) - 1).tolist() for _ in range(count)]


def expected_gram(documents: list[list[int]], *, length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """E Eᵀ of the formula, in float64, up to its scale; and how often each token occurs."""
    pairs: Counter[tuple[int, str, int]] = Counter()
    counts = np.zeros(SIZE)
    for document in documents:
        for begin in range(0, len(document), length - 2):
            piece = document[begin : begin + length - 2]
            for i, token in enumerate(piece):
                counts[token] += 1
                for j in range(max(0, i - 4), min(len(piece), i + 5)):
                    if i != j:
                        near = "next to it" if abs(i - j) == 1 else "near"
                        pairs[token, f"{near}, {'before' if j < i else 'after'}", piece[j]] += 1
    contexts = sorted({(place, other) for _, place, other in pairs})
    table = np.zeros((SIZE, len(contexts)))
    for (token, place, other), count in pairs.items():
        table[token, contexts.index((place, other))] = count
    with np.errstate(divide="ignore", invalid="ignore"):
        ppmi = np.log(table * table.sum() / (table.sum(1, keepdims=True) * table.sum(0, keepdims=True)))
    ppmi = np.where(np.isfinite(ppmi) & (ppmi > 0), ppmi, 0.0)
    left, singular, _ = np.linalg.svd(ppmi)
    found = left[:, :size] * np.sqrt(singular[:size])
    found = found - found.mean(0)
    return found @ found.T, counts


def fresh(**changes: object) -> ClozeBertForMaskedLM:
    torch.manual_seed(1)
    return ClozeBertForMaskedLM(model_config(vocab_size=SIZE, pad_token_id=0, decoder_bias=True, **changes))


@pytest.mark.parametrize("length", [8, 64])
@pytest.mark.parametrize("size", [12, 36])
def test_embeddings_are_the_factors_of_ppmi(tmp_path, length, size):
    documents = zipfian_documents()
    model = fresh(hidden_size=size)
    before = model.get_input_embeddings().weight.detach().clone()
    embed_by_text(model, write_corpus(tmp_path, documents), max_seq_length=length, seed=0)
    gram, counts = expected_gram(documents, length=length, size=min(size, len(set(itertools.chain(*documents)))))
    seen = counts > 0
    found = model.get_input_embeddings().weight.detach().double().numpy()
    ours = found[seen] @ found[seen].T
    theirs = gram[np.ix_(seen, seen)]
    # Measured, in shares of the largest entry: 7e-7 and 9e-5 with 12 columns; 8e-4 with all 34, some of which have a
    # singular value of 0 whose root is that of a rounding error.
    np.testing.assert_allclose(ours / np.abs(ours).max(), theirs / np.abs(theirs).max(), atol=3e-3)
    np.testing.assert_array_equal(found[~seen], before.double().numpy()[~seen])
    bias = model.decoder.bias.detach().double().numpy()
    np.testing.assert_allclose(bias, np.log((counts + 1) / (counts.sum() + SIZE)), rtol=1e-6)


def test_an_untied_decoder_gets_the_same_rows(tmp_path):
    model = fresh(tie_word_embeddings=False)
    embed_by_text(model, write_corpus(tmp_path, zipfian_documents()), max_seq_length=64, seed=0)
    assert torch.equal(model.decoder.weight, model.get_input_embeddings().weight)


@pytest.mark.parametrize("documents", [[[7]], [[7]] * 9 + [[8]], [[7] * 20], [[7, 8]]])
def test_a_text_that_says_nothing_gives_finite_embeddings(tmp_path, documents):
    model = fresh()
    embed_by_text(model, write_corpus(tmp_path, documents), max_seq_length=64, seed=0)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("continued", [False, True])
def test_a_run_begins_from_the_text_only_with_a_new_model(tmp_path, continued):
    changed = changed_weights(tmp_path, "embedding_init", "text", continued=continued)
    assert changed == ([] if continued else ["decoder.bias", "model.embeddings.word_embeddings.weight"])


def test_a_run_that_is_killed_goes_on_to_the_same_weights(tmp_path):
    check_killed_run(tmp_path, embedding_init="text")
