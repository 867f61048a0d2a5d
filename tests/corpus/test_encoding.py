"""Encoding: the tokenizer's own ids, whichever way they are found, and where words begin."""

import numpy as np
import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from clozebert.corpus.encoding import LONGEST_PART, Encoder
from clozebert.corpus.tokenizer import ALGORITHMS

# As the GPT-2 release spells it.
GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
SPACES = ["  ", " ", "\n", "\n\n", "\t", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u00a0", "\u2009", "\u3000", "\u200b"]
WORDS = [
    "हिन्दी",
    "می\u200cآیند",
    "❤\ufe0f",
    "Return",
    "the",
    "don't",
    "naïve",
    "NAÏVE",
    "x1y2",
    "a.b",
    "(see",
    "e.g.,",
    "--",
    "漢字",
    "ไทย",
    "🤗",
    "\u0301",
    "é",
]
texts = st.one_of(
    st.lists(st.sampled_from(SPACES + 2 * WORDS), max_size=30).map("".join),
    st.text(alphabet=st.characters(exclude_categories=["Cs"])),
)


def encode(encoder: Encoder, text: str) -> tuple[list[int], list[bool]]:
    numbers = np.frombuffer(encoder.encode([text])[0], dtype=np.uint32)
    return (numbers >> 1).tolist(), (numbers & 1).astype(bool).tolist()


@pytest.fixture(scope="module")
def encoders(tokenizers: dict[str, PreTrainedTokenizerFast]) -> dict[str, Encoder]:
    return {name: Encoder(tokenizer.backend_tokenizer.to_str()) for name, tokenizer in tokenizers.items()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=300, deadline=None)
@given(text=texts)
@example(text="0 \u3400")
@example(text="[UNK]")
def test_looking_up_words_gives_the_tokenizers_ids(
    tokenizers: dict[str, PreTrainedTokenizerFast], encoders: dict[str, Encoder], algorithm: str, text: str
) -> None:
    encoder = encoders[algorithm]
    assert encoder._split is not None
    ids, starts = encode(encoder, text)
    tokenizer = tokenizers[algorithm]
    assert ids == tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False).input_ids
    whole = Encoder.__new__(Encoder)
    whole.__dict__ = {**encoder.__dict__, "_split": None}
    assert encode(whole, text) == (ids, starts)
    if ids:
        assert starts[0]


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_wordpiece_words_begin_where_no_hash_marks_are(
    tokenizers: dict[str, PreTrainedTokenizerFast], encoders: dict[str, Encoder], text: str
) -> None:
    if regex.search(r"\p{Thai}", text):
        return  # each token of a script without spaces is a word
    ids, starts = encode(encoders["wordpiece"], text)
    tokens = tokenizers["wordpiece"].convert_ids_to_tokens(ids)
    assert starts == [not token.startswith("##") for token in tokens]


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_words_of_bpe_and_unigram_are_those_of_gpt2(
    tokenizers: dict[str, PreTrainedTokenizerFast], encoders: dict[str, Encoder], english: list[str], algorithm: str
) -> None:
    for text in [*english[:40], 'He said: "don\'t  use x1y2" …\n\n\tnaïve well-known (e.g., 3.14)! ']:
        ids, starts = encode(encoders[algorithm], text)
        edges = np.cumsum([0, *(len(word.encode()) for word in GPT2.findall(text))])
        pieces = [tokenizers[algorithm].decode([token]) for token in ids]
        if any("\ufffd" in piece for piece in pieces):
            continue  # a character in several tokens: their lengths in bytes are not to be seen one by one
        begins = np.cumsum([0, *(len(piece.encode()) for piece in pieces)])[:-1]
        assert begins[starts].tolist() == edges[:-1].tolist()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "text",
    [
        "सभी मनुष्यों को गौरव और अधिकारों के मामले में",  # vowel signs
        "يُولَدُ جَمِيعُ النَّاسِ أَحْرَارًا",  # short vowels
        "به دنیا می\u200cآیند می\u200cباشند",  # noqa: RUF001 - alef looks like l; joiners within words
        "du cafe\u0301 nai\u0308ve",  # accents as characters of their own
    ],
    ids=["hindi", "arabic", "persian", "accents"],
)
def test_marks_belong_to_the_words_of_their_letters(
    encoders: dict[str, Encoder], tokenizers: dict[str, PreTrainedTokenizerFast], algorithm: str, text: str
) -> None:
    ids, starts = encode(encoders[algorithm], text)
    assert sum(starts) == len(text.split())
    assert ids == tokenizers[algorithm](text, add_special_tokens=False).input_ids


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scripts_without_spaces_have_a_word_at_each_token(encoders: dict[str, Encoder], algorithm: str) -> None:
    _, starts = encode(encoders[algorithm], "the 漢字漢")
    before = len(encode(encoders[algorithm], "the")[0])
    # Two characters at least begin words, and never two tokens of one character's bytes.
    assert sum(starts[before:]) <= 5
    if algorithm != "unigram":  # whose bytes of unknown characters share one place in the text
        assert sum(starts[before:]) >= 3


@pytest.mark.parametrize(
    "letters", ["\u0f40\u0f41\u0f42", "\ua997\ua9ae\ua9af", "\uff76\uff77\uff78", "\ua000\ua001\ua002"]
)
def test_each_letter_of_tibetan_javanese_yi_and_narrow_kana_begins_a_word(
    encoders: dict[str, Encoder], letters: str
) -> None:
    _, starts = encode(encoders["bpe"], f"the{letters}")
    assert sum(starts) == 4


@pytest.mark.parametrize(
    "normalizer", [normalizers.BertNormalizer(), normalizers.StripAccents()], ids=["bert", "accents"]
)
def test_what_a_normalizer_deletes_between_spaces_joins_them(
    tokenizers: dict[str, PreTrainedTokenizerFast], normalizer: normalizers.Normalizer
) -> None:
    """Encoded piece by piece, the two spaces stayed apart."""
    backend = Tokenizer.from_str(tokenizers["bpe"].backend_tokenizer.to_str())
    backend.normalizer = normalizer
    encoder = Encoder(backend.to_str())
    for text in ("the \u0301 list", "the \u200b list", "the  list \u0301"):
        assert encode(encoder, text)[0] == backend.encode(text, add_special_tokens=False).ids


def test_where_the_tokenizer_does_not_split_words_begin_at_spaces(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    backend = Tokenizer.from_str(tokenizers["unigram"].backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    encoder = Encoder(backend.to_str())
    assert encoder._split is None
    ids, starts = encode(encoder, "Return the iterable of items")
    pieces = [backend.id_to_token(token) for token in ids]
    assert starts == [place == 0 or piece.startswith("▁") for place, piece in enumerate(pieces)]
    assert sum(starts) == 5


def test_the_bytes_that_unknown_tokens_stand_for(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    """WordPiece makes a word of more than 100 letters one token."""
    spec, long_word = tokenizers["wordpiece"].backend_tokenizer.to_str(), "ก" * 120
    added = Tokenizer.from_str(spec)
    added.add_tokens(["New York"])
    texts = [
        f"the list, {long_word} of {long_word}.",
        "the list",
        f"{long_word}",
        "the " * (LONGEST_PART // 4) + long_word,
    ]
    for encoder in (Encoder(spec, unk_token_id=1), Encoder(added.to_str(), unk_token_id=1)):
        for _ in range(2):  # looked up the second time
            encoded = encoder.encode_counting(texts)
            assert [unknown for _, unknown in encoded] == [720, 0, 360, 360]
        assert [document for document, _ in encoded] == encoder.encode(texts)
    assert encoder._split is None
    for algorithm in ("bpe", "unigram"):
        encoder = Encoder(tokenizers[algorithm].backend_tokenizer.to_str(), unk_token_id=1)
        assert [unknown for _, unknown in encoder.encode_counting(texts)] == [0, 0, 0, 0]


def test_special_tokens_in_a_text_are_text(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    for tokenizer in tokenizers.values():
        ids, _ = encode(Encoder(tokenizer.backend_tokenizer.to_str()), "a [MASK] b [SEP] [CLS]")
        assert not {2, 3, 4} & set(ids)


def test_added_words_are_encoded_whole(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    backend = Tokenizer.from_str(tokenizers["wordpiece"].backend_tokenizer.to_str())
    backend.add_tokens(["New York"])
    encoder = Encoder(backend.to_str())
    assert encoder._split is None
    ids, starts = encode(encoder, "the New York list")
    assert ids[1] == backend.token_to_id("New York")
    assert starts[1:3] == [True, True]
