"""Alignment: words, subwords and windows, for every kind of tokenizer."""

import itertools
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from often import often

from clozebert.finetuning.batches import PackedCollator, PaddedCollator, make_collator, predict_logits
from clozebert.finetuning.tagged_files import read_tagged_file, sentence_of_text
from clozebert.finetuning.tags import TaggedSentence
from clozebert.finetuning.token_task import TokenTask
from clozebert.finetuning.windows import (
    Window,
    WindowMaker,
    pair_separator,
    pair_spans,
    probe_special_tokens,
    window_spans,
)
from clozebert.modeling.losses import IGNORED_LABEL

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import TOKENIZER_KINDS, make_tokenizer

TOKENIZERS = {kind: make_tokenizer(kind, token_types=True) for kind in TOKENIZER_KINDS}
every_tokenizer = pytest.mark.parametrize("kind", TOKENIZER_KINDS)

WORD = st.text(min_size=1, max_size=8).filter(lambda word: word.strip() != "")
PLAIN_WORD = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789äé", min_size=1, max_size=10)
SENTENCES = st.lists(st.lists(WORD, min_size=1, max_size=12), min_size=1, max_size=3)


def with_spaces(documents: list[list[str]]) -> list[list[bool]]:
    return [[index > 0 for index in range(len(words))] for words in documents]


@every_tokenizer
@settings(max_examples=40, deadline=None)
@given(documents=SENTENCES)
def test_every_word_has_subwords_and_is_read_exactly_once(kind: str, documents: list[list[str]]) -> None:
    """words -> subwords -> words, for words of any characters, in windows so small that they overlap."""
    maker = WindowMaker(TOKENIZERS[kind], max_seq_length=9, overlap=3)
    subwords = maker.subwords_of(documents, with_spaces(documents))
    assert [[bool(word) for word in words] for words in subwords] == [[True] * len(words) for words in documents]
    targets = [[(index, 1000 + index) for index in range(len(words))] for words in documents]
    windows = maker.of_words(documents, with_spaces(documents), targets)
    seen = [(window.example, word) for window in windows for word, _ in window.words]
    assert sorted(seen) == [(number, word) for number, words in enumerate(documents) for word in range(len(words))]
    for window in windows:
        assert len(window.input_ids) <= 9
        assert len(window.target) == len(window.input_ids)
        for word, position in window.words:
            assert window.target[position] == word
            assert window.input_ids[position] == subwords[window.example][word][0]
    # every subword of every word is trained on exactly once
    labels = [label for window in windows for label in window.target if label != IGNORED_LABEL]
    assert len(labels) == sum(len(word) for words in subwords for word in words)


@every_tokenizer
@settings(max_examples=40, deadline=None)
@given(words=st.lists(PLAIN_WORD, min_size=1, max_size=10))
def test_words_with_spaces_between_tokenise_like_their_text(kind: str, words: list[str]) -> None:
    tokenizer = TOKENIZERS[kind]
    maker = WindowMaker(tokenizer, max_seq_length=500)
    (window,) = maker.of_words([words], with_spaces([words]), [None])
    assert window.input_ids.tolist() == tokenizer(" ".join(words), verbose=False)["input_ids"]


@pytest.mark.parametrize("kind", ["bpe", "bpe_prefix_space"])
@settings(max_examples=40, deadline=None)
@given(documents=SENTENCES)
def test_bytes_of_a_word_come_back_from_its_subwords(kind: str, documents: list[list[str]]) -> None:
    """Byte-level tokenizers lose nothing, so decoding a word's own subwords must give the word."""
    tokenizer = TOKENIZERS[kind]
    subwords = WindowMaker(tokenizer, max_seq_length=9).subwords_of(documents, with_spaces(documents))
    for words, ids in zip(documents, subwords, strict=True):
        for index, (word, word_ids) in enumerate(zip(words, ids, strict=True)):
            decoded = tokenizer.decode(word_ids, clean_up_tokenization_spaces=False)
            spaced = (" " if index > 0 else "") + word
            if kind == "bpe_prefix_space":
                spaced, decoded = spaced.lstrip(" "), decoded.lstrip(" ")
            assert decoded == spaced


def test_a_word_that_tokenises_to_nothing_becomes_the_unknown_token() -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    words = ["fox", "\u200b", "dog"]
    assert tokenizer.tokenize("\u200b") == []
    subwords = WindowMaker(tokenizer, max_seq_length=9).subwords_of([words], with_spaces([words]))
    assert subwords[0][1] == [tokenizer.unk_token_id]


@pytest.mark.parametrize(("subwords", "expected"), [("first", [1, -100, -100]), ("all", [1, 2, 2])])
def test_which_subwords_carry_the_label(subwords: str, expected: list[int]) -> None:
    """An entity begins but once: its B- stands on the first subword alone."""
    tokenizer = TOKENIZERS["wordpiece"]
    word = next(w for w in ("xyz", "qzj", "zqx") if len(tokenizer.tokenize(w)) == 3)
    task = TokenTask(label_names=["O", "B-X", "I-X"], entities=True, label_subwords=subwords)
    sentence = TaggedSentence([word], [False], ["B-X"], "f", 1)
    (window,) = task.windows([sentence], WindowMaker(tokenizer, max_seq_length=9))
    assert window.target == [IGNORED_LABEL, *expected, IGNORED_LABEL]


def test_a_model_without_a_class_for_the_inside_of_an_entity_can_be_scored() -> None:
    """As of another program whose entities of a type are always one word."""
    task = TokenTask(label_names=["O", "B-X"], entities=True, label_subwords="all")
    assert task.target("B-X") == (1, IGNORED_LABEL)
    assert task.target("B-X", continues=True) == (IGNORED_LABEL, IGNORED_LABEL)


UNSPACED = [
    (
        ["สมชาย", "อยู่", "ที่", "เชียงใหม่", "ขอนแก่น"],
        ["B-P", "O", "O", "B-L", "B-L"],
        [(0, 5, "P"), (12, 21, "L"), (21, 28, "L")],
    ),
    (
        ["山本", "さん", "は", "東京", "スカイツリー", "へ", "行く", "。"],
        ["B-P", "I-P", "O", "B-L", "I-L", "O", "O", "O"],
        [(0, 4, "P"), (5, 13, "L")],
    ),
]


@every_tokenizer
@pytest.mark.parametrize("subwords", ["first", "all"])
@pytest.mark.parametrize(("words", "tags", "spans"), UNSPACED)
def test_words_of_unspaced_scripts_are_learned_as_running_text_is_read(
    kind: str, subwords: str, words: list[str], tags: list[str], spans: list[tuple[int, int, str]]
) -> None:
    """A tagger of Thai that was trained on words had an F1 of 1.0 on words, and of 0.05 on text."""
    in_words = TaggedSentence(words, [False] * len(words), list(tags), "f", 1)
    in_text = sentence_of_text("".join(words), spans, source="f", line=1)
    task = TokenTask(label_names=["O", "B-L", "I-L", "B-P", "I-P"], entities=True, label_subwords=subwords)
    maker = WindowMaker(TOKENIZERS[kind], max_seq_length=14, overlap=4)
    of_words, of_text = task.windows([in_words], maker), task.windows([in_text], maker)
    assert [(w.input_ids.tolist(), w.target) for w in of_words] == [(w.input_ids.tolist(), w.target) for w in of_text]
    # each word is read once, at its first character
    begins = [0, *itertools.accumulate(map(len, words))][:-1]
    assert in_text.starts is not None
    of_character = {in_text.starts[unit]: (n, place) for n, w in enumerate(of_text) for unit, place in w.words}
    read = [(word, (n, place)) for n, w in enumerate(of_words) for word, place in w.words]
    assert read == list(enumerate(of_character[begin] for begin in begins))


@every_tokenizer
def test_if_first_subwords_are_labelled_words_of_files_are_cut_as_running_text_is(kind: str) -> None:
    """A tagger that was trained on whole words found none of 176 such entities in text."""
    words, tags = ["the", "New-York", "O'Hara", "runs"], ["O", "B-L", "B-P", "O"]
    in_words = TaggedSentence(words, [False, True, True, True], list(tags), "f", 1)
    in_text = sentence_of_text(" ".join(words), [(4, 12, "L"), (13, 19, "P")], source="f", line=1)
    names, maker = ["O", "B-L", "I-L", "B-P", "I-P"], WindowMaker(TOKENIZERS[kind], max_seq_length=64)
    # The second task is the one that prediction makes from a saved model.
    trained = TokenTask(label_names=names, entities=True, label_subwords="first")
    saved = TokenTask.of_config(SimpleNamespace(id2label=dict(enumerate(names))), {"label_subwords": "first"})
    for task in (trained, saved):
        (of_words,), (of_text,) = task.windows([in_words], maker), task.windows([in_text], maker)
        assert (of_words.input_ids.tolist(), of_words.target) == (of_text.input_ids.tolist(), of_text.target)
        place = dict(of_text.words)
        assert [tuple(word) for word in of_words.words] == [
            (0, place[0]),
            (1, place[1]),
            (2, place[4]),
            (3, place[7]),
        ]  # New - York O ' Hara


def test_plain_tags_stand_on_every_unit_of_a_word() -> None:
    sentence = TaggedSentence(["東京", "AWS社", "x"], [False, True, True], ["N", None, "V"], "f", 1)
    task = TokenTask(label_names=["N", "V"], entities=False, label_subwords="first")
    (window,) = task.windows([sentence], WindowMaker(TOKENIZERS["wordpiece"], max_seq_length=20))
    labels = [label for label in window.target if label != IGNORED_LABEL]
    assert labels == [0, 0, 1]
    assert [word for word, _ in window.words] == [0, 1, 2]


# Windows


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), st.integers(1, 12), st.integers(0, 11))
def test_spans_cover_everything_and_overlap(length: int, size: int, overlap: int) -> None:
    overlap = min(overlap, size - 1)
    spans = window_spans(length, size=size, overlap=overlap)
    assert spans[0][0] == 0
    assert spans[-1][1] == length
    assert all(end - start == min(size, length) for start, end in spans)
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end - start >= overlap
    assert len(set(spans)) == len(spans)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(4, 15), st.integers(0, 5))
def test_pair_spans_cover_both_sides(text: int, pair: int, size: int, overlap: int) -> None:
    spans = pair_spans(text, pair, size=size, overlap=overlap)
    assert {p for (a, b), _ in spans for p in range(a, b)} == set(range(text))
    assert {p for _, (c, d) in spans for p in range(c, d)} == set(range(pair))
    assert all((b - a) + (d - c) <= size for (a, b), (c, d) in spans)


def test_a_word_is_read_where_it_has_most_context() -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    words = list("abcdefghijkl")
    windows = WindowMaker(tokenizer, max_seq_length=10, overlap=4).of_words([words], with_spaces([words]), [None])
    assert [[word for word, _ in window.words] for window in windows] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


@every_tokenizer
def test_short_texts_and_pairs_are_what_the_tokenizer_makes_of_them(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    maker = WindowMaker(tokenizer, max_seq_length=50)
    (single,) = maker.of_texts(["the quick fox"], None, [1])
    (pair,) = maker.of_texts(["the quick fox"], ["lazy dog"], [None])
    for window, encoded in ((single, tokenizer("the quick fox")), (pair, tokenizer("the quick fox", "lazy dog"))):
        assert window.input_ids.tolist() == encoded["input_ids"]
        assert window.token_type_ids is not None
        assert window.token_type_ids.tolist() == encoded["token_type_ids"]


def test_windows_of_many_texts_take_few_bytes_a_token() -> None:
    maker = WindowMaker(TOKENIZERS["bpe"], max_seq_length=300)
    texts = ["the quick brown fox jumps over the lazy dog " * 20] * 1500
    maker.of_texts(texts[:2], None, [0, 0])
    tracemalloc.start()
    try:
        windows = maker.of_texts(texts, None, [0] * len(texts))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tokens = sum(len(window.input_ids) for window in windows)
    assert held < 16 * tokens  # measured: 10.6, token types included; as lists of integers 49.6


def test_nothing_of_a_long_text_is_lost() -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    text = "the quick brown fox jumps over the lazy dog " * 7
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    windows = WindowMaker(tokenizer, max_seq_length=16, overlap=3).of_texts([text], None, [1])
    rebuilt: list[int] = windows[0].input_ids[1:-1].tolist()
    for index, window in enumerate(windows[1:], start=1):
        inner = window.input_ids[1:-1].tolist()
        start = len(ids) - 14 if index == len(windows) - 1 else index * 11
        assert inner == ids[start : start + 14]
        rebuilt += inner[len(rebuilt) - start :]
    assert rebuilt == ids


def test_windows_too_small_are_an_error() -> None:
    with pytest.raises(
        ValueError, match="--max_seq_length 3 leaves room for 1 token beside the special ones: give at least 4"
    ):
        WindowMaker(TOKENIZERS["bpe"], max_seq_length=3)
    with pytest.raises(ValueError, match="--window_overlap 7 must be below the 7 tokens of a window"):
        WindowMaker(TOKENIZERS["bpe"], max_seq_length=9, overlap=7)


# Batches


def test_padded_and_packed_batches_of_known_windows() -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    maker = WindowMaker(tokenizer, max_seq_length=20)
    windows = maker.of_words([["fox"], ["dog", "fox"]], [[False], [False, True]], [[(1, 1)], [(2, 2), (3, 3)]])
    cls, sep, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    fox, dog = tokenizer.convert_tokens_to_ids(["fox", "dog"])
    padded = PaddedCollator(pad, per_token=True)(windows)
    assert padded["input_ids"].tolist() == [[cls, fox, sep, pad], [cls, dog, fox, sep]]
    assert padded["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert padded["labels"].tolist() == [[-100, 1, -100, -100], [-100, 2, 3, -100]]
    on_left = PaddedCollator(pad, per_token=True, on_left=True)
    assert on_left(windows)["input_ids"].tolist() == [[pad, cls, fox, sep], [cls, dog, fox, sep]]
    assert on_left(windows)["attention_mask"].tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    assert on_left(windows)["labels"].tolist() == [[-100, -100, 1, -100], [-100, 2, 3, -100]]
    assert [row[:, 0].tolist() for row in on_left.split(torch.arange(8).view(2, 4, 1), windows)] == [
        [1, 2, 3],
        [4, 5, 6, 7],
    ]
    packed = PackedCollator(per_token=True)(windows)
    assert packed["input_ids"].tolist() == [[cls, fox, sep, cls, dog, fox, sep]]
    assert packed["labels"].tolist() == [[-100, 1, -100, -100, 2, 3, -100]]
    assert packed["packed"].cu_seq_lens.tolist() == [0, 3, 7]
    assert packed["packed"].position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3]]


@pytest.mark.parametrize(("target", "dtype"), [(1, torch.int64), (0.5, torch.float32), ([1.0, 0.0], torch.float32)])
def test_targets_of_sequences_get_their_type(target: Any, dtype: torch.dtype) -> None:
    windows = WindowMaker(TOKENIZERS["bpe"], max_seq_length=20).of_texts(["fox", "dog"], None, [target, target])
    for collator in (PaddedCollator(0, per_token=False), PackedCollator(per_token=False)):
        labels = collator(windows)["labels"]
        assert labels.dtype == dtype
        assert labels.tolist() == [target, target]


def test_special_tokens_of_a_tokenizer_without_any() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.WordLevel({"[UNK]": 0, "x": 1}, unk_token="[UNK]"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    special = probe_special_tokens(PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="[UNK]"), pair=True)
    assert special.count == 0


@every_tokenizer
def test_the_separator_of_pairs(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    separator = pair_separator(tokenizer)
    encoded = tokenizer("fox", "dog")
    assert separator == encoded["input_ids"][encoded.sequence_ids(0).index(0) + len(tokenizer.tokenize("fox"))]


def test_no_separator_of_pairs() -> None:
    """A tokenizer without special tokens, and one that begins a text with the token that separates two."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.WordLevel({"[UNK]": 0, "x": 1, "[S]": 2}, unk_token="[UNK]"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    assert pair_separator(PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="[UNK]")) is None
    bare.post_processor = processors.TemplateProcessing(
        single="[S] $A [S]", pair="[S] $A [S] $B [S]", special_tokens=[("[S]", 2)]
    )
    assert pair_separator(PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="[UNK]")) is None


@every_tokenizer
@pytest.mark.parametrize(
    "path",
    often(
        [
            "multi_ud_chinese_gsd/zh_gsd-ud-dev.conllu",
            "tok_ner_wnut17/emerging.dev.conll",
            "tok_ud_english_ewt/en_ewt-ud-dev.conllu",
            "multi_ud_finnish_tdt/fi_tdt-ud-dev.conllu",
        ],
        2,
    ),
)
def test_round_trip_on_real_text(shared_data: Path, kind: str, path: str) -> None:
    sentences = read_tagged_file(str(shared_data / path))
    documents, spaces = [s.words for s in sentences], [s.spaces for s in sentences]
    maker = WindowMaker(TOKENIZERS[kind], max_seq_length=40)
    subwords = maker.subwords_of(documents, spaces)
    windows = maker.of_words(documents, spaces, [None] * len(documents))
    seen = [(w.example, word, w.input_ids[position]) for w in windows for word, position in w.words]
    expected = [(d, w, ids[0]) for d, words in enumerate(subwords) for w, ids in enumerate(words)]
    assert sorted(seen) == expected


@pytest.mark.parametrize("kind", ["byte level", "metaspace", "sentencepiece", "sequence", "marked words", "stripped"])
def test_a_prefix_space_stands_before_the_first_word_alone(kind: str) -> None:
    """Word by word, the ids are those of the whole text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    space = "Ġ" if kind == "byte level" else "▁"
    letters = [*"abc(.東京", *("æ", "Ŀ", "±", "ä", "º", "¬")]  # the last six: the bytes of the two ideographs
    vocabulary = {token: number for number, token in enumerate(["<unk>", space, *letters, f"{space}a", f"{space}b"])}
    core = Tokenizer(models.BPE(vocabulary, [(space, "a"), (space, "b")], unk_token="<unk>"))
    if kind == "byte level":
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif kind == "metaspace":
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    elif kind == "sentencepiece":
        core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif kind == "sequence":
        core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first")])
    else:  # XLM-RoBERTa and ALBERT: a space is dropped, and the word behind it marked
        if kind == "stripped":
            core.normalizer = normalizers.Strip()
        marked = pre_tokenizers.Metaspace(prepend_scheme="always")
        core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marked])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")
    maker = WindowMaker(tokenizer, max_seq_length=20)
    for words, spaces in (
        (["a", "(", "b", ".", "b"], [False, True, False, False, True]),
        (["東", "京", "a"], [False, False, True]),
    ):
        text = "".join(" " * before + word for word, before in zip(words, spaces, strict=True))
        (found,) = maker.subwords_of([words], [spaces])
        assert [number for ids in found for number in ids] == tokenizer(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize("name", ["FNet", "Funnel"])
def test_a_model_that_reads_the_padding_answers_by_the_text_alone(name: str) -> None:
    """FNet mixes all positions of a row, padding included; Funnel takes means over neighbours."""
    sizes: dict[str, Any] = {"vocab_size": 40, "block_sizes": [1, 1, 1], "d_model": 24, "n_head": 3, "d_head": 8}
    if name == "FNet":
        sizes = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval()
    windows = [
        Window(np.arange(5, 5 + length), np.zeros(length, dtype=int), number)
        for number, length in enumerate((12, 18, 12, 15))
    ]
    together = predict_logits(model, windows, PaddedCollator(3, per_token=False), batch_size=4)
    for one, window in zip(together, windows, strict=True):
        (alone,) = predict_logits(model, [window], PaddedCollator(3, per_token=False), batch_size=1)
        np.testing.assert_allclose(one, alone, rtol=0, atol=1e-6)  # measured: 3e-8; with padding, 2e-3 and 2e-2


def test_a_model_that_reads_the_last_position_is_padded_as_its_tokenizer_says() -> None:
    """XLNet classifies by the last position: with padding there, answers would depend on the batch."""
    config = transformers.XLNetConfig(vocab_size=40, d_model=24, n_layer=2, n_head=3, d_inner=40, num_labels=2)
    torch.manual_seed(0)
    model = transformers.XLNetForSequenceClassification(config).eval()
    tokenizer = SimpleNamespace(pad_token_id=5, padding_side="left", pad_token_type_id=3)
    collator = make_collator(model, tokenizer, per_token=False, packing=True)
    windows = [
        Window(np.array([7, 8, 9, 10]), np.array([0, 0, 0, 2]), 0),
        Window(np.array([11, 12, 4, 3, 6, 7]), np.zeros(6, dtype=int), 1),
    ]
    together = predict_logits(model, windows, collator, batch_size=2)
    for one, window in zip(together, windows, strict=True):
        (alone,) = predict_logits(model, [window], collator, batch_size=1)
        np.testing.assert_allclose(one, alone, rtol=0, atol=1e-6)  # measured: 3e-8; with padding on the right, 0.03
