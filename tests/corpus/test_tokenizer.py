"""Trained tokenizers: loadable, lossless where they promise to be, the same every time."""

import random
import unicodedata
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from clozebert.corpus import tokenizer as tokenizer_module
from clozebert.corpus.tokenizer import ALGORITHMS, _settled, load_tokenizer, tokenizer_facts, train_tokenizer
from clozebert.utils.errors import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_auto_tokenizer_loads_what_was_saved(
    tokenizers: dict[str, PreTrainedTokenizerFast], algorithm: str, tmp_path: Path
) -> None:
    tokenizers[algorithm].save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.is_fast
    assert loaded.convert_tokens_to_ids(SPECIAL) == [0, 1, 2, 3, 4]
    assert (loaded.pad_token_id, loaded.unk_token_id, loaded.cls_token_id) == (0, 1, 2)
    assert (loaded.sep_token_id, loaded.mask_token_id) == (3, 4)
    assert sorted(loaded.all_special_ids) == [0, 1, 2, 3, 4]
    assert loaded.model_max_length > 1e9, "each model that is saved with it states its own"
    assert loaded.model_input_names == ["input_ids", "attention_mask"]
    assert len(loaded) == 900
    one, two = (loaded(text, add_special_tokens=False).input_ids for text in ("Return the list", "of items."))
    assert set(loaded("Return the list")) == {"input_ids", "attention_mask"}
    assert loaded("Return the list").input_ids == [2, *one, 3]
    assert loaded("Return the list", "of items.").input_ids == [2, *one, 3, *two, 3]
    assert 4 in loaded("Return the [MASK] of items.").input_ids
    facts = tokenizer_facts(loaded)
    assert facts == tokenizer_facts(tokenizers[algorithm])
    assert (facts["vocab_size"], facts["mask_token_id"], facts["special_token_ids"]) == (900, 4, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_text_gives_the_same_file(english: list[str], algorithm: str, tmp_path: Path) -> None:
    contents = set()
    for name in "ab":
        train_tokenizer(iter(english[:150]), algorithm=algorithm, vocab_size=600).save_pretrained(tmp_path / name)
        contents.add(b"".join(path.read_bytes() for path in sorted((tmp_path / name).iterdir())))
    assert len(contents) == 1


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@settings(max_examples=200, deadline=None)
@given(
    text=st.one_of(
        st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="▁")),
        st.lists(
            st.sampled_from(["  ", " ", "\n", "\t", "the", "Return", "naïve", "漢字", "🤗", "don't", "\u00a0"])
        ).map("".join),
    )
)
def test_decoding_gives_the_text_back(
    tokenizers: dict[str, PreTrainedTokenizerFast], algorithm: str, text: str
) -> None:
    tokenizer = tokenizers[algorithm]
    assume(not any(token in text for token in tokenizer.all_special_tokens))  # these are left out in decoding
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.unk_token_id not in ids


def test_wordpiece_is_berts(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    tokens = tokenizers["wordpiece"].tokenize("Return the iterable's 漢 item-list.")
    words = "".join(token if not token.startswith("##") else "\0" + token[2:] for token in tokens)
    assert tokens[0] == "Return"
    assert [token for token in tokens if token in {"'", "-", ".", "[UNK]"}] == ["'", "[UNK]", "-", "."]
    assert words.replace("\0", "").startswith("Returntheiterable's")
    ids = tokenizers["wordpiece"]("Return the iterable in another dictionary").input_ids
    decoded = tokenizers["wordpiece"].decode(ids, skip_special_tokens=True)
    assert decoded == "Return the iterable in another dictionary"
    assert len(ids) > 2 + len(decoded.split())


def test_unigrams_letters_are_the_same_in_whatever_order_the_trainer_numbers_them() -> None:
    """As in Chinese: its trainer scores rare letters 0.0001 apart, in a random order, and other pieces lie between."""
    letters, draws = [chr(0x4E00 + number) for number in range(150)], random.Random(0)
    learned = [("人们", -3.0), ("人", -4.0), ("什么", -10.99505), ("我们", -10.9921)]
    found = []
    for _ in range(3):
        draws.shuffle(letters)
        found.append(_settled(learned + [(letter, -11 + 0.0001 * place) for place, letter in enumerate(letters)]))
    assert found[0] == found[1] == found[2]
    expected = [("人们", -3.0), ("人", -4.0), ("我们", -10.9921), ("什么", -10.99505)]
    assert found[0] == expected + [(letter, -11.0) for letter in sorted(letters)]


def test_wordpiece_warns_of_words_that_it_cannot_split() -> None:
    """As in Thai, which has spaces between clauses only."""
    draws = random.Random(0)
    clauses = ["".join(draws.choices("กขคง", k=length)) for length in [20] * 30 + [101] * 2]
    share = 2 * 101 / (2 * 101 + 30 * 20)
    with pytest.warns(UserWarning, match=rf"{share:.1%} of the text is in words of more than 100 letters, .*bpe"):
        tokenizer = train_tokenizer([" ".join(clauses)], algorithm="wordpiece", vocab_size=200)
    assert tokenizer(" ".join(clauses)).input_ids.count(tokenizer.unk_token_id) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_tokenizer([" ".join([*clauses[:30], "x" * 100])], algorithm="wordpiece", vocab_size=200)


DELETED = [
    ("\ue001\ue002 word word", True, r"20\.0% of the characters are for private use .*--algorithm bpe"),
    ("\ue001\ue002 word word", False, r"20\.0% of the characters are for private use"),
    (
        "\u0e01\u0e34\u0e19 \u0e14\u0e37\u0e48\u0e21",
        True,
        r"42\.9% of the characters are marks other than accents, .*--lowercase",
    ),
    ("\u304b\u304c\u304e\u3050", True, r"75\.0% of the characters are marks other than accents"),
    (
        "\u0645\u06cc\u200c\u0631\u0648\u0645",
        False,
        r"16\.7% of the characters are zero-width joiners .*--algorithm bpe",
    ),
]


@pytest.mark.parametrize(("text", "lowercase", "message"), DELETED)
def test_wordpiece_warns_of_characters_that_it_deletes(text: str, lowercase: bool, message: str) -> None:
    """The share is of the characters that are not spaces; a voiced kana is a letter and a mark to the normalizer."""
    with pytest.warns(UserWarning, match=message):
        tokenizer = train_tokenizer([text], algorithm="wordpiece", vocab_size=200, lowercase=lowercase)
    normalized = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
    assert len(normalized.replace(" ", "")) < len(unicodedata.normalize("NFD", text).replace(" ", ""))


@pytest.mark.parametrize(("text", "lowercase"), [("caf\u00e9 na\u00efve \ud55c\uad6d", True), (DELETED[2][0], False)])
def test_accents_and_what_stays_are_no_reason_to_warn(text: str, lowercase: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_tokenizer([text], algorithm="wordpiece", vocab_size=200, lowercase=lowercase)


def test_wordpiece_knows_nearly_all_characters_of_a_text_that_has_thousands() -> None:
    """Frequencies fall as 1/rank, as those of Chinese characters do; the vocabulary has place for all."""
    characters = [chr(0x4E00 + number) for number in range(3000)]
    draws = random.Random(0).choices(characters, weights=[1 / (1 + rank) for rank in range(3000)], k=100_000)
    texts = ["".join(draws[first : first + 100]) for first in range(0, len(draws), 100)]
    tokenizer = train_tokenizer(texts, algorithm="wordpiece", vocab_size=12_000)
    ids = [number for text in texts for number in tokenizer(text, add_special_tokens=False).input_ids]
    assert ids.count(tokenizer.unk_token_id) <= 0.0005 * len(ids)


def test_wordpiece_holds_words_of_a_chinese_text_and_not_its_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory: a text of any length has no more words than characters."""
    draws, counted, repeated = random.Random(0), [], tokenizer_module._repeated
    texts = ["".join(draws.choices("我们今天去北京看电影回家", k=20)) for _ in range(500)]

    def count(pieces: Any) -> Any:
        counted.append(len(pieces))
        return repeated(pieces)

    monkeypatch.setattr(tokenizer_module, "_repeated", count)
    train_tokenizer(texts, algorithm="wordpiece", vocab_size=128)
    assert set(counted) == {12}


@pytest.mark.parametrize("vocab_size", [1000, 2500, 4000])
def test_wordpiece_fills_a_vocabulary_with_characters_that_stand_alone(vocab_size: int) -> None:
    """Each Chinese character is a word of its own, so no longer pieces fill the places that characters leave."""
    characters = [chr(0x4E00 + number) for number in range(3000)]
    frequencies = [1 + 3000 // (1 + rank) for rank in range(3000)]
    texts = ["".join(character * count for character, count in zip(characters, frequencies, strict=True))]
    tokenizer = train_tokenizer([*texts, "ab abc bcd"], algorithm="wordpiece", vocab_size=vocab_size)
    assert len(tokenizer) == vocab_size if vocab_size < 3000 else 3000 < len(tokenizer) < 3030
    known = [tokenizer.convert_tokens_to_ids(character) != tokenizer.unk_token_id for character in characters]
    assert known == sorted(known, reverse=True)  # the most frequent ones
    assert sum(known) >= min(3000, vocab_size - 30)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lower_casing(english: list[str], algorithm: str) -> None:
    tokenizer = train_tokenizer(english[:150], algorithm=algorithm, vocab_size=600, lowercase=True)
    assert tokenizer.tokenize("RETURN The LIST") == tokenizer.tokenize("return the list")
    learned = [token for token in tokenizer.get_vocab() if token not in SPECIAL and not token.startswith("<0x")]
    if algorithm != "bpe":  # whose alphabet of bytes has capital letters by construction
        assert all(token == token.lower() for token in learned)
    assert tokenizer.convert_tokens_to_ids(SPECIAL) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_small_text_gives_a_small_vocabulary(algorithm: str) -> None:
    texts = ["the cat sat on the mat and the dog sat on the log"] * 5
    tokenizer = train_tokenizer(texts, algorithm=algorithm, vocab_size=5000)
    assert len(tokenizer) < 600
    assert tokenizer.convert_ids_to_tokens(tokenizer("the cat").input_ids)[0] == "[CLS]"


def test_the_mask_hides_a_word_and_its_space(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    for algorithm in ("bpe", "unigram"):
        tokenizer = tokenizers[algorithm]
        with_mask = tokenizer("of the [MASK] of", add_special_tokens=False).input_ids
        expected = tokenizer("of the", add_special_tokens=False).input_ids
        assert with_mask[: len(expected) + 1] == [*expected, 4]


@pytest.mark.parametrize("places", [150, 200])
def test_unigram_needs_an_entry_for_each_character(places: int) -> None:
    characters = [chr(0x4E00 + number) for number in range(200)]
    texts = ["".join(characters[first : first + 3]) for first in range(198)]
    with pytest.raises(UserError, match=rf"vocab_size={261 + places} is too small .* are {places} entries, .*'bpe'"):
        train_tokenizer(texts, algorithm="unigram", vocab_size=261 + places)
    assert len(train_tokenizer(texts, algorithm="unigram", vocab_size=500)) == 500
    with pytest.raises(UserError, match="too little text for algorithm='unigram'"):
        train_tokenizer(["aaaaaaaaaa"], algorithm="unigram", vocab_size=500)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"algorithm": "wordpeice"}, "did you mean 'wordpiece'"),
        ({"vocab_size": 100}, "vocab_size=100 must be at least 128"),
        ({"algorithm": "bpe", "vocab_size": 260}, "vocab_size=260 must be at least 261"),
        ({"model_max_length": 2}, "model_max_length=2"),
        ({"model_max_length": 64.5}, "model_max_length=64.5 must be a whole number"),
    ],
)
def test_what_is_wrong_is_said(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_tokenizer(["some text"], **wrong)
    with pytest.raises(ValueError, match="holds no text"):
        train_tokenizer(["", " \n"], vocab_size=300)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"text": ["some text"]}, "texts is a dict: give the texts of one column"),
        (SimpleNamespace(columns=["text"]), "texts is a SimpleNamespace: give the texts of one column"),
        ([{"text": "some text"}], "text 1 is no string but dict: {'text': 'some text'}"),
        (["some text", None], "text 2 is no string but NoneType: None"),
        (["some text", b"more"], "text 2 is no string but bytes: b'more'"),
    ],
)
@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_tables_are_no_texts(texts: Any, message: str, algorithm: str) -> None:
    """The items of a dictionary or a DataFrame are the names of its columns."""
    with pytest.raises(UserError, match=message):
        train_tokenizer(texts, algorithm=algorithm, vocab_size=300)


def test_a_length_may_be_of_numpy(tmp_path: Path) -> None:
    trained = train_tokenizer(["some text"], vocab_size=300, model_max_length=np.int64(64))
    trained.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).model_max_length == 64


def test_ids_with_gaps_are_refused(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    """A model and a corpus have as many rows and ids as the tokenizer has tokens."""
    words = {name: number for number, name in enumerate([*SPECIAL, "a", "b"])} | {"c": 30}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[UNK]")))
    with pytest.raises(UserError, match="has 8 tokens, and ids up to 30: number them without gaps"):
        tokenizer_facts(tokenizer)


def test_loading_names_what_is_missing(tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    for absent in (str(tmp_path / "absent"), "./absent", "one/two/three", "absent/", "no such"):
        with pytest.raises(FileNotFoundError, match=f"there is no folder {absent}"):
            load_tokenizer(absent)
    incomplete = PreTrainedTokenizerFast(tokenizer_object=tokenizers["bpe"].backend_tokenizer, pad_token="[PAD]")
    incomplete.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no cls_token, .*'\[SEP\]', 'mask_token': '\[MASK\]'\}"):
        load_tokenizer(str(tmp_path))


def test_the_folder_of_an_older_model_has_only_its_vocabulary(tmp_path: Path) -> None:
    """As BERTs of 2019 on the Hub; its configuration says whose vocabulary it is."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "film", "the", "##s"]) + "\n")
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer("The films").input_ids == [2, 6, 5, 7, 3]
    assert Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()).encode("the film").ids == [2, 6, 5, 3]
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')  # reads SentencePiece, and would know nothing
    with pytest.raises(UserError, match="holds no vocabulary that AlbertTokenizer reads: load it with its own class"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_that_frames_no_text_does_so_once_it_is_loaded(
    tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path
) -> None:
    """Pretraining reads [CLS] text [SEP], so whoever uses the model must."""
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    for post_processor in (None, processors.ByteLevel(trim_offsets=True)):
        bare = Tokenizer.from_str(tokenizers["bpe"].backend_tokenizer.to_str())
        bare.post_processor = post_processor or processors.Sequence([])
        PreTrainedTokenizerFast(tokenizer_object=bare, **names).save_pretrained(tmp_path)
        with pytest.warns(UserWarning, match=r"puts no special tokens around a text; .*\[CLS\] before it and \[SEP\]"):
            loaded = load_tokenizer(str(tmp_path))
        loaded.save_pretrained(tmp_path)
        again = AutoTokenizer.from_pretrained(tmp_path)
        for texts in (("Return the list",), ("a b", "c d")):
            assert again(*texts).input_ids == tokenizers["bpe"](*texts).input_ids
