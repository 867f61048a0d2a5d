"""Scores whose values are known beforehand: a model that is a table, a uniform one, and one sentence at a time."""

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pretraining_helpers import make_corpus, make_tokenizer, model_config
from transformers import BertConfig, BertForMaskedLM, FNetConfig, FNetForMaskedLM, RobertaConfig, RobertaForMaskedLM

from clozebert import ClozeBertForMaskedLM
from clozebert.corpus import Corpus, Masking, ValidationBatches
from clozebert.modeling.packed_view import PackedView, packed_view
from clozebert.training import evaluation, pseudo_likelihood
from clozebert.training.initialization.initial_model import load_configuration
from clozebert.training.pseudo_likelihood import masked_log_likelihoods
from clozebert.training.runtime.machine import make_accelerator
from clozebert.training.scoring import (
    check_lengths,
    files_of_pairs,
    load_masked_lm,
    read_minimal_pairs,
    score_frozen_masks,
    score_minimal_pairs,
    score_pseudo_perplexity,
)

MASK = 4


class Bigrams(torch.nn.Module):
    """p(token | the token before it), from a table [V, V]: everything it says can be computed by hand."""

    def __init__(self, table_VV: torch.Tensor) -> None:
        super().__init__()
        self.table_VV = torch.nn.Parameter(table_VV)
        self.config = SimpleNamespace(model_type="bigrams", pad_token_id=0)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        assert (input_ids[attention_mask == 0] == 0).all(), "padding is masked, and only padding"
        logits_BTV = self.table_VV[input_ids.roll(1, dims=1)].log()
        return SimpleNamespace(logits=logits_BTV + 3.0)  # a constant changes no probability


@pytest.fixture
def bigrams() -> Bigrams:
    torch.manual_seed(0)
    return Bigrams(torch.rand(23, 23).softmax(dim=-1))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("scoring"), documents=30)


def test_a_table_gives_the_sum_that_one_computes_by_hand(bigrams: Bigrams) -> None:
    documents = [[2, 7, 9, 3], [2, 5, 3], [2, 3], [2, 11, 12, 13, 14, 3], []]
    scores = masked_log_likelihoods(bigrams, documents, mask_token_id=MASK, never_masked={0, 2, 3}, tokens_per_batch=9)
    table = bigrams.table_VV.detach()
    by_hand = [
        [math.log(table[before, token]) for before, token in itertools.pairwise(ids) if token != 3] for ids in documents
    ]
    assert [len(score) for score in scores] == [2, 1, 0, 4, 0]
    for score, expected in zip(scores, by_hand, strict=True):
        assert score.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("most", [None, 3])
def test_the_progress_of_a_score_counts_batches(text: Path, most: int | None) -> None:
    """On a CPU an evaluation asks in every layer whether to stop, which counted there as another batch."""
    corpus, seen = Corpus(text / "corpus", "validation"), []
    score_frozen_masks(
        ClozeBertForMaskedLM(model_config()),
        corpus,
        max_seq_length=40,
        batch_size=2,
        max_batches=most,
        report=lambda done, total: seen.append((done, total)),
    )
    total = most or len(seen)
    assert total > 2
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_a_large_vocabulary_makes_smaller_batches(bigrams: Bigrams, monkeypatch: pytest.MonkeyPatch) -> None:
    document, options = [2, *range(5, 15), 3], {"mask_token_id": MASK, "never_masked": {2, 3}}
    (whole,) = masked_log_likelihoods(bigrams, [document], **options)
    monkeypatch.setattr(pseudo_likelihood, "_MOST_LOGITS", 3 * 61)
    monkeypatch.setattr(bigrams.config, "vocab_size", 61, raising=False)
    seen: list[int] = []
    (parts,) = masked_log_likelihoods(bigrams, [document], report=lambda done, total: seen.append(done), **options)
    assert seen == [3, 6, 9, 10]
    assert parts.tolist() == pytest.approx(whole.tolist(), rel=1e-6)


def test_few_positions_are_evenly_spaced(bigrams: Bigrams) -> None:
    document = [2, *range(5, 15), 3]
    options = {"mask_token_id": MASK, "never_masked": {2, 3}}
    (every,) = masked_log_likelihoods(bigrams, [document], **options)
    (some,) = masked_log_likelihoods(bigrams, [document], positions_per_document=4, **options)
    assert some.tolist() == every[[0, 2, 5, 7]].tolist()


def test_a_uniform_model_needs_log_v_for_each_token(text: Path) -> None:
    corpus = Corpus(text / "corpus", "validation")
    uniform = Bigrams(torch.full((61, 61), 1 / 61))
    pseudo = score_pseudo_perplexity(uniform, corpus, max_seq_length=40)
    assert pseudo["pseudo_loss"] == pytest.approx(math.log(61), rel=1e-6)
    assert pseudo["pseudo_perplexity"] == pytest.approx(61, rel=1e-5)
    assert pseudo["pseudo_tokens"] == corpus.num_tokens
    frozen = score_frozen_masks(uniform, corpus, max_seq_length=40)
    assert frozen["eval_loss"] == pytest.approx(math.log(61), rel=1e-6)
    some = score_pseudo_perplexity(uniform, corpus, max_seq_length=40, max_documents=3, positions_per_piece=2)
    assert some["pseudo_tokens"] == 2 * 3
    # However many pieces the documents are cut into, as many of them are scored as there are documents.
    some = score_pseudo_perplexity(uniform, corpus, max_seq_length=8, max_documents=3)
    assert 3 <= some["pseudo_tokens"] <= 3 * 6
    # As many as documents were asked for, not as there are: a book can be one document.
    asked = 2 * corpus.num_documents
    some = score_pseudo_perplexity(uniform, corpus, max_seq_length=3, max_documents=asked)
    assert some["pseudo_tokens"] == asked


def test_frozen_masks_score_as_the_table_says(text: Path) -> None:
    """In the corpus each word is its predecessor plus 3: a model that knows is right wherever it sees that word."""
    corpus, words = Corpus(text / "corpus", "validation"), 56
    table = torch.full((61, 61), 1e-9)
    ids = torch.arange(words)
    table[5 + ids, 5 + (ids + 3) % words] = 1.0
    table[[0, 1, 2, 3, MASK]] = 1 / 61
    model = Bigrams(table / table.sum(-1, keepdim=True))
    masking = Masking(rate=0.2, random_share=0.0)
    metrics = score_frozen_masks(model, corpus, max_seq_length=40, masking=masking)
    hits = total = 0
    loss = 0.0
    for batch in ValidationBatches(corpus, max_seq_length=40, batch_size=32, masking=masking, seed=42):
        before = batch.input_ids[0][batch.masked_positions - 1]
        total += len(before)
        hits += int(np.sum(before > MASK))
        loss += float(np.sum(before <= MASK)) * math.log(61)
    assert 0.5 < hits / total < 1
    assert metrics["eval_loss"] == pytest.approx(loss / total, abs=1e-4)
    assert hits / total <= metrics["eval_accuracy"] <= hits / total + 0.1


def foreign_models() -> dict[str, torch.nn.Module]:
    sizes = {"vocab_size": 67, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3,
             "intermediate_size": 52, "initializer_range": 0.3}  # fmt: skip
    torch.manual_seed(1)
    return {
        "ours": ClozeBertForMaskedLM(model_config(initializer_range=0.3)),
        "bert": BertForMaskedLM(BertConfig(**sizes, max_position_embeddings=50)),
        "roberta": RobertaForMaskedLM(RobertaConfig(**sizes, max_position_embeddings=52, pad_token_id=0)),
        "fnet": FNetForMaskedLM(FNetConfig(**{**sizes, "num_attention_heads": None}, max_position_embeddings=50)),
    }


@pytest.mark.parametrize("name", ["ours", "bert", "roberta", "fnet"])
def test_batches_give_what_one_sequence_at_a_time_gives(name: str) -> None:
    model = foreign_models()[name].train()
    draws = np.random.default_rng(3)
    documents = [[2, *draws.integers(5, 60, size=length).tolist(), 3] for length in (3, 11, 3, 7, 1)]
    scores = masked_log_likelihoods(model, documents, mask_token_id=MASK, never_masked={2, 3}, tokens_per_batch=40)
    assert model.training, "scoring leaves the model as it was"
    model.eval()
    for document, score in zip(documents, scores, strict=True):
        expected = []
        for place in range(1, len(document) - 1):
            ids = torch.tensor([document])
            ids[0, place] = MASK
            with torch.no_grad():
                expected.append(model(input_ids=ids).logits[0, place].log_softmax(-1)[document[place]].item())
        assert score.tolist() == pytest.approx(expected, rel=1e-4)


def test_processes_agree_that_a_batch_can_be_read_before_any_runs_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would run a sharded model without this one, which they cannot."""
    failures: list[Exception | None] = []

    def agree(failure: Exception | None, stop: bool, accelerator: Any) -> None:
        failures.append(failure)
        if failure is not None:
            raise failure

    class Unread(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            raise OSError("the disk is away")

    monkeypatch.setattr(evaluation, "_agree_to_go_on", agree)
    accelerator = make_accelerator(mixed_precision="no", use_cpu=True)
    with pytest.raises(OSError, match="the disk is away"):
        evaluation.evaluate_masked_lm(foreign_models()["ours"], Unread([0]), accelerator=accelerator)
    assert [type(failure) for failure in failures] == [OSError]


def test_packed_and_padded_give_the_same_metrics(text: Path) -> None:
    ours = foreign_models()["ours"]
    corpus = Corpus(text / "corpus", "validation")
    assert packed_view(ours) is ours
    packed = score_frozen_masks(ours, corpus, max_seq_length=40, batch_size=3)
    ours.config.model_type = "another"
    assert isinstance(packed_view(ours), PackedView)
    padded = score_frozen_masks(ours, corpus, max_seq_length=40, batch_size=3)
    assert packed["eval_loss"] == pytest.approx(padded["eval_loss"], rel=1e-5)
    assert packed["eval_accuracy"] == padded["eval_accuracy"]


def write_pairs(path: Path, pairs: list[tuple[str, str]], **more: str) -> Path:
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad, **more}) for good, bad in pairs]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_batch_in_which_nothing_is_masked_counts_nothing(text: Path) -> None:
    """A document a batch, of which some have no masked token: the same figures as from larger batches."""
    config = BertConfig(vocab_size=80, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=9)
    model, corpus, masking = BertForMaskedLM(config).eval(), Corpus(text / "corpus"), Masking(rate=0.02)
    small, large = (ValidationBatches(corpus, max_seq_length=12, batch_size=size, masking=masking, seed=42)
                    for size in (1, 99))  # fmt: skip
    assert min(len(batch.labels) for batch in small) == 0 < min(len(batch.labels) for batch in large)
    found, wanted = (
        score_frozen_masks(model, corpus, max_seq_length=12, batch_size=size, masking=masking) for size in (1, 99)
    )
    assert found == pytest.approx(wanted, rel=1e-6)


def test_minimal_pairs_by_a_table(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(18)  # words w0 … w17 have the ids 5 … 22; no special tokens are added
    table = torch.full((23, 23), 1.0)
    table[5, 6] = 30.0  # w1 follows w0
    table[7, 8] = 0.01  # w3 does not follow w2
    model = Bigrams(table / table.sum(-1, keepdim=True))
    write_pairs(tmp_path / "one.jsonl", [("w9 w0 w1", "w9 w0 w4"), ("w9 w2 w4", "w9 w2 w3"), ("w9 w2 w3", "w9 w2 w4")])
    write_pairs(tmp_path / "other.jsonl", [("w9 w0 w1", "w9 w0 zebra")], UID="named")
    paradigms = read_minimal_pairs(files_of_pairs([tmp_path]))
    assert list(paradigms) == ["one", "named"]
    results = score_minimal_pairs(model, tokenizer, paradigms)
    assert results["blimp_pairs"] == 4
    one = {"accuracy": 2 / 3, "pairs": 3, "same_tokens": 0, "unknown_share": 0.0}
    named = {"accuracy": 1.0, "pairs": 1, "same_tokens": 0, "unknown_share": 1 / 6}
    assert results["blimp_paradigms"] == {"one": one, "named": named}
    assert results["blimp_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    lines = (tmp_path / "one.jsonl").read_text() + (tmp_path / "other.jsonl").read_text()
    (tmp_path / "one.jsonl").write_text(lines)  # a file of two paradigms
    assert read_minimal_pairs([tmp_path / "one.jsonl"]) == paradigms
    same = read_minimal_pairs([write_pairs(tmp_path / "same.jsonl", [("w5", "w5")])])
    assert score_minimal_pairs(model, tokenizer, same)["blimp_accuracy"] == 0, "a tie is no preference"
    unknown = read_minimal_pairs([write_pairs(tmp_path / "unknown.jsonl", [("w5 zebra", "w5 zebras"), ("w5", "w6")])])
    assert score_minimal_pairs(model, tokenizer, unknown)["blimp_same_tokens"] == 1
    with pytest.raises(ValueError, match="a sentence has 3 tokens, more than 2"):
        check_lengths(tokenizer, paradigms, longest=2)


def test_mistakes_are_named(tmp_path: Path, text: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        files_of_pairs([tmp_path / "absent"])
    with pytest.raises(ValueError, match=r"holds no \.jsonl file"):
        files_of_pairs([tmp_path])
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"sentence_good": "a"}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 1 has no text under 'sentence_bad'"):
        read_minimal_pairs([bad])
    bad.write_text("\n{oops\n")
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2: not JSON"):
        read_minimal_pairs([bad])
    bad.write_text("\n")
    with pytest.raises(ValueError, match=r"bad\.jsonl holds no pair"):
        read_minimal_pairs([bad])
    twice = [write_pairs(tmp_path / f"{name}.jsonl", [("a", "b")], UID="same") for name in ("x", "y")]
    with pytest.raises(ValueError, match="second file of the paradigm 'same'"):
        read_minimal_pairs(twice)
    with pytest.raises(ValueError, match="there is no folder"):
        load_masked_lm(str(tmp_path / "nowhere"), device=torch.device("cpu"))


def test_a_model_without_the_head_is_refused(tmp_path: Path) -> None:
    foreign_models()["bert"].bert.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no masked-LM head: \d weights"):
        load_masked_lm(str(tmp_path), device=torch.device("cpu"))


def test_a_model_without_a_weight_of_its_encoder_is_not_said_to_have_no_head(tmp_path: Path) -> None:
    model = foreign_models()["bert"]
    name = "bert.encoder.layer.0.attention.self.query.weight"
    model.save_pretrained(tmp_path, state_dict={key: v for key, v in model.state_dict().items() if key != name})
    with pytest.raises(ValueError, match=f"lacks a part of its encoder: 1 weight, {name} among them, would be random"):
        load_masked_lm(str(tmp_path), device=torch.device("cpu"))


def test_the_folder_of_a_model_has_no_say_in_how_it_answers(tmp_path: Path) -> None:
    """It may ask for tuples; for states, which fill the memory; for attention weights, and then it cannot be saved."""
    foreign_models()["ours"].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    says = {"return_dict": False, "output_hidden_states": True, "output_attentions": True}
    (tmp_path / "config.json").write_text(json.dumps({**config, **says}))
    ours = load_configuration(str(tmp_path))
    assert not any(getattr(ours, name) is value for name, value in says.items())
    model = load_masked_lm(str(tmp_path), device=torch.device("cpu"))
    with torch.no_grad():
        assert list(model(torch.tensor([[2, 7, 3]]))) == ["logits"]
    model.save_pretrained(tmp_path / "again")
