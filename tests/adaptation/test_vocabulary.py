"""Extended and trimmed vocabularies: what holds for any text, by algorithm, on texts that were not learned from."""

import random

import pytest
import torch
from small_models import NEW_WORDS, OLD_WORDS, make_tokenizer, new_documents, old_documents, save_native
from transformers import PreTrainedTokenizerFast

from clozebert.adaptation.start import open_source_model, used_ids
from clozebert.adaptation.vocabulary import UNIGRAM_BONUS, NewVocabulary, extend, read_spec, trim
from clozebert.training.rebuilding import take_rows
from clozebert.utils.errors import UserError

ALGORITHMS = ("bpe", "wordpiece", "unigram")


def other_texts(count: int = 400) -> list[str]:
    """Words of both kinds of text, glued, cut and misspelt at random, with some that neither has."""
    draws = random.Random(7)
    texts = []
    for _ in range(count):
        words = []
        for _ in range(draws.randint(1, 12)):
            word = draws.choice(OLD_WORDS + NEW_WORDS)
            cut = draws.randint(0, len(word))
            words.append(draws.choice([word, word[cut:] + draws.choice(NEW_WORDS), word[:cut] + "ein", word * 2]))
        texts.append(" ".join(words))
    return texts


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def split_again(new: list[int], vocabulary: NewVocabulary) -> list[int]:
    """The old pieces of new tokens."""
    return [piece for token in new for piece in vocabulary.sources[token]]


@pytest.fixture(scope="module", params=ALGORITHMS)
def extended(request: pytest.FixtureRequest) -> tuple[PreTrainedTokenizerFast, NewVocabulary]:
    old = make_tokenizer(request.param)
    return old, extend(old, new_documents(), 25)


def test_old_ids_stay_and_new_ones_come_behind(extended: tuple[PreTrainedTokenizerFast, NewVocabulary]) -> None:
    old, new = extended
    assert new.tokenizer.convert_ids_to_tokens(range(len(old))) == old.convert_ids_to_tokens(range(len(old)))
    assert len(new.tokenizer) == len(old) + 25 == len(new.sources)
    assert new.sources[: len(old)] == [[row] for row in range(len(old))]
    assert new.tokenizer.mask_token_id == old.mask_token_id
    assert new.tokenizer.all_special_ids == old.all_special_ids
    assert new.tokenizer("")["input_ids"] == old("")["input_ids"] == [old.cls_token_id, old.sep_token_id]


def test_the_text_learned_from_has_fewer_tokens(extended: tuple[PreTrainedTokenizerFast, NewVocabulary]) -> None:
    old, new = extended
    before, after = (sum(len(ids(one, text)) for text in new_documents()) for one in (old, new.tokenizer))
    assert after < 0.8 * before


def test_bpe_joins_neighbours_and_does_nothing_else() -> None:
    old = make_tokenizer("bpe")
    new = extend(old, new_documents(), 25)
    for text in other_texts() + old_documents() + new_documents():
        assert split_again(ids(new.tokenizer, text), new) == ids(old, text)


def test_unigram_joins_neighbours_unless_two_cuts_score_the_same() -> None:
    old = make_tokenizer("unigram")
    new = extend(old, new_documents(), 25)
    scores = [score for _, score in read_spec(old)["model"]["vocab"]]
    ties = 0
    for text in other_texts() + old_documents() + new_documents():
        now, before = split_again(ids(new.tokenizer, text), new), ids(old, text)
        if now != before:
            ties += 1
            difference = sum(scores[piece] for piece in now) - sum(scores[piece] for piece in before)
            assert abs(difference) <= UNIGRAM_BONUS * len(before)
    assert ties < 30


def test_wordpiece_leaves_words_without_a_new_entry_alone() -> None:
    old = make_tokenizer("wordpiece")
    new = extend(old, new_documents(), 25)
    entries = [merge.text.removeprefix("##") for merge in new.merges]
    words = {word for text in other_texts() + old_documents() for word in text.split()}
    untouched = [word for word in words if not any(entry in word for entry in entries)]
    assert len(untouched) > 50
    for word in untouched:
        assert ids(new.tokenizer, word) == ids(old, word)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trimming_leaves_texts_of_kept_tokens_alone(algorithm: str) -> None:
    old = make_tokenizer(algorithm)
    old = extend(old, new_documents(), 25).tokenizer
    used = used_ids(old, new_documents())
    new = trim(old, used)
    assert len(new.tokenizer) < len(old)
    kept = [source for (source,) in new.sources]
    assert kept == sorted(kept)
    assert used <= set(kept)
    assert new.tokenizer.convert_ids_to_tokens(range(len(kept))) == old.convert_ids_to_tokens(kept)
    compared = 0
    for text in new_documents() + other_texts():
        before = old(text)["input_ids"]
        if set(before) <= set(kept):
            compared += 1
            assert [kept[token] for token in new.tokenizer(text)["input_ids"]] == before
    assert compared > 120


def test_trimmed_and_extended_models_give_the_same_logits(tmp_path: object) -> None:
    source = open_source_model(str(save_native(tmp_path, "bert")))  # type: ignore[arg-type]
    model = source.load().eval()
    text = "the little garden said nothing"
    with torch.no_grad():
        before = model(**source.tokenizer(text, return_tensors="pt")).logits
        larger = extend(source.tokenizer, new_documents(), 25)
        after = take_rows(model, larger.sources).eval()(**larger.tokenizer(text, return_tensors="pt")).logits
        # Rows of another number may be multiplied by another kernel: measured 0 here, 5e-7 at most elsewhere.
        torch.testing.assert_close(after[..., : before.shape[-1]], before, rtol=0, atol=1e-6)
        smaller = trim(source.tokenizer, used_ids(source.tokenizer, [text]))
        kept = [row for (row,) in smaller.sources]
        after = take_rows(model, smaller.sources).eval()(**smaller.tokenizer(text, return_tensors="pt")).logits
        torch.testing.assert_close(after, before[..., kept], rtol=0, atol=1e-6)


def test_new_rows_are_the_mean_of_their_pieces(tmp_path: object) -> None:
    source = open_source_model(str(save_native(tmp_path, "roberta")))  # type: ignore[arg-type]
    model = source.load()
    new = extend(source.tokenizer, new_documents(), 10)
    rows = take_rows(model, new.sources).get_input_embeddings().weight
    old = model.get_input_embeddings().weight
    assert torch.equal(rows[: len(old)], old)
    for number, pieces in list(enumerate(new.sources))[len(old) :]:
        assert len(pieces) > 1
        torch.testing.assert_close(rows[number], sum(old[piece] for piece in pieces) / len(pieces))


def test_what_cannot_be_learned_is_said() -> None:
    with pytest.raises(UserError, match="extend_vocabulary=3: the text holds nothing that occurs twice"):
        extend(make_tokenizer("wordpiece"), ["the cat"], 3)
