"""Extended and trimmed vocabularies: what holds for any text, by algorithm, on texts that were not learned from."""

import json
import random
from pathlib import Path

import pytest
import small_models
import torch
from small_models import NEW_WORDS, OLD_WORDS, make_tokenizer, new_documents, old_documents, run, save_native
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM
from clozebert.adaptation.start import open_source_model, used_ids
from clozebert.corpus.tokenizer import make_id_tokenizer
from clozebert.corpus.vocabulary import changes
from clozebert.corpus.vocabulary.changes import UNIGRAM_BONUS, NewVocabulary, add_words, extend, read_spec, trim
from clozebert.training.initialization.rebuilding import take_rows
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


def split_again(new: list[int], made: NewVocabulary) -> list[int]:
    """The old pieces of new tokens."""
    return [piece for token in new for piece in made.sources[token]]


def with_padding_last(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same with [PAD] behind all others, whose ids close up."""
    spec = read_spec(tokenizer)
    order = [*range(1, len(tokenizer)), 0]
    number_of = {old: new for new, old in enumerate(order)}
    spec["model"]["vocab"] = {entry: number_of[old] for entry, old in spec["model"]["vocab"].items()}
    changes._renumber(spec, number_of)
    return changes.rebuild(tokenizer, spec)


def with_suffixes() -> PreTrainedTokenizerFast:
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<m>"}
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=170, special_tokens=[*special.values()], end_of_word_suffix="</w>")
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokenizer.train_from_iterator([*old_documents(), letters, *letters], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


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


def test_words_added_to_a_bpe_are_one_token_each_and_other_texts_join_neighbours_only() -> None:
    old = make_tokenizer("bpe")
    new = add_words(old, NEW_WORDS)
    assert all(len(ids(new.tokenizer, f" {word}")) == 1 for word in NEW_WORDS)
    for text in other_texts() + old_documents() + new_documents():
        assert split_again(ids(new.tokenizer, text), new) == ids(old, text)


def test_words_added_to_a_unigram_are_its_only_new_entries() -> None:
    old = make_tokenizer("unigram")
    words = [word for word in NEW_WORDS if len(ids(old, f" {word}")) > 1]
    new = add_words(old, words)
    assert len(new.tokenizer) == len(old) + len(words)
    assert all(len(ids(new.tokenizer, f" {word}")) == 1 for word in words)


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


@pytest.mark.parametrize("model_type", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("padding", ["first", "last"])
def test_trimmed_and_extended_models_give_the_same_logits(model_type: str, padding: str, tmp_path: Path) -> None:
    if padding == "last":  # as in ModernBERT's vocabulary
        tokenizer = with_padding_last(make_tokenizer(small_models.ALGORITHMS[model_type]))
        # RoBERTa's positions are counted from behind the padding's id.
        positions = {"max_position_embeddings": 65 + tokenizer.pad_token_id} if model_type == "roberta" else {}
        save_native(tmp_path, model_type, tokenizer, **positions)
    else:
        save_native(tmp_path, model_type)
    source = open_source_model(str(tmp_path))
    model = source.load().eval()
    text = "the little garden said nothing"
    with torch.no_grad():
        before = model(**source.tokenizer(text, return_tensors="pt")).logits
        larger = extend(source.tokenizer, new_documents(), 25)
        after = take_rows(model, larger.sources).eval()(**larger.tokenizer(text, return_tensors="pt")).logits
        # Rows of another number may be multiplied by another kernel: measured 0 here, 5e-7 at most elsewhere.
        torch.testing.assert_close(after[..., : before.shape[-1]], before, rtol=0, atol=1e-6)
        smaller = trim(source.tokenizer, used_ids(source.tokenizer, [text]))
        assert len(smaller.tokenizer) < len(source.tokenizer) - 20
        kept = [row for (row,) in smaller.sources]
        small = take_rows(model, smaller.sources, pad_token_id=smaller.tokenizer.pad_token_id).eval()
        after = small(**smaller.tokenizer(text, return_tensors="pt")).logits
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


def test_an_id_tokenizer_is_trimmed_although_its_special_tokens_stand_last() -> None:
    tokenizer = make_id_tokenizer(100)
    new = trim(tokenizer, used_ids(tokenizer, ["5 17 3", "17 98"]))
    assert new.sources == [[3], [5], [17], [98], [100], [101], [102], [103], [104]]
    assert new.tokenizer("17 3")["input_ids"] == [6, 2, 0, 7]


def test_trimming_leaves_words_that_end_in_a_suffix_alone() -> None:
    """As HerBERT and XLM write them: `the</w>`, and `the` where the word goes on."""
    old = with_suffixes()
    texts = new_documents()
    new = trim(old, used_ids(old, texts))
    assert len(new.tokenizer) < len(old) - 20
    for text in texts:
        assert [new.sources[token] for token in new.tokenizer(text)["input_ids"]] == [[i] for i in ids(old, text)]
    extended = extend(old, texts, 10)
    for text in texts + other_texts():
        assert split_again(ids(extended.tokenizer, text), extended) == ids(old, text)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_added_words_are_found_as_before_and_special_tokens_stay_special(algorithm: str) -> None:
    old = make_tokenizer(algorithm)
    old.add_tokens([AddedToken("gard", single_word=True)])
    old.add_special_tokens({"extra_special_tokens": ["<entity>"]})
    texts = ["the garden", "a gard said nothing", "<entity> the house"]
    special = [old.convert_tokens_to_ids("<entity>")]
    assert special[0] in old.all_special_ids
    trimmed, extended = trim(old, used_ids(old, texts)), extend(old, new_documents(), 10)
    for new in (trimmed, extended):
        for text in texts:
            assert split_again(ids(new.tokenizer, text), new) == ids(old, text)
        number = new.tokenizer.convert_tokens_to_ids("<entity>")
        assert new.sources[number] == special
        assert number in new.tokenizer.all_special_ids
        assert len(new.sources) == len(new.tokenizer)


def test_what_cannot_be_learned_is_said() -> None:
    with pytest.raises(UserError, match="extend_vocabulary=3: no two pieces of a word occur twice"):
        extend(make_tokenizer("wordpiece"), ["the cat"], 3)


@pytest.mark.parametrize("kind", ["rope", "sinusoidal"])
def test_tokens_move_where_positions_count_from_the_padding_and_are_not_learned(kind: str) -> None:
    """RoBERTa's rule without its table: there are no rows of positions to move."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ClozeBertConfig.from_name("roberta-base", vocab_size=20, position_embedding_type=kind, **sizes)
    model = ClozeBertForMaskedLM(config).eval()
    padding = config.pad_token_id
    ids = torch.tensor([[0, 5, 6, 7, 2, padding]])
    mask = (ids != padding).long()
    smaller = take_rows(model, [[padding], *([row] for row in (0, 2, 5, 6, 7))], pad_token_id=0).eval()
    moved = torch.tensor([[1, 3, 4, 5, 2, 0]])
    with torch.no_grad():
        before, after = model(ids, attention_mask=mask).logits, smaller(moved, attention_mask=mask).logits
    torch.testing.assert_close(after[0, :5], before[0, :5, [padding, 0, 2, 5, 6, 7]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("stated", [30, 10**30])
def test_the_tokenizer_states_what_the_adapted_model_takes(texts: Path, tmp_path: Path, stated: int) -> None:
    model = save_native(tmp_path / "roberta", "roberta")
    settings = Path(model, "tokenizer_config.json")
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "model_max_length": stated}))
    run(model, texts / "new.txt", tmp_path / "out", max_seq_length=48)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 64
