"""Model inputs from texts and words: subwords, and windows over long documents.

A window is one input of the model. A longer document becomes several overlapping windows, so nothing is cut off. Each
window knows its document and, for tagging, which words are predicted at which of its positions.

Shapes: B windows, T tokens of the longest one, N tokens of all of them, L labels.
"""

import copy
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ..modeling.losses import IGNORED_LABEL
from ..utils.errors import UserError
from ..utils.wording import counted

_NO_WORDS = np.zeros((0, 2), dtype=np.int32)


@dataclass(frozen=True)
class Window:
    """One model input.

    Attributes:
        input_ids, token_type_ids: int32, with special tokens; token types are None for tokenizers without them.
        example: the number of its document.
        target: the label of the sequence; for tagging, the label of each position; None if there is nothing to learn.
        words: int32 [words, 2], the number and the position of each word whose prediction is taken from this window.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray | None
    example: int
    target: Any = None
    words: np.ndarray = field(default_factory=lambda: _NO_WORDS)


# Special tokens ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens that a tokenizer puts before, between and after texts, each as (ids, token types)."""

    before: tuple[list[int], list[int]]
    between: tuple[list[int], list[int]]
    after: tuple[list[int], list[int]]
    type_of_text: int
    type_of_pair: int

    @property
    def count(self) -> int:
        return len(self.before[0]) + len(self.between[0]) + len(self.after[0])


_PROBES = ("a", "the", "0", ".", "一")


def probe_special_tokens(tokenizer: Any, *, pair: bool) -> SpecialTokens:
    """Find the special tokens from an encoded example, which works for any tokenizer and template."""
    for probe in _PROBES:
        encoded = tokenizer(probe, probe) if pair else tokenizer(probe)
        sides = encoded.sequence_ids(0)
        if 0 in sides and (1 in sides or not pair):
            break
    else:
        raise UserError("the tokenizer turns every probe ('a', 'the', '0', …) into nothing; is its vocabulary empty?")
    ids = encoded["input_ids"]
    types = encoded.get("token_type_ids", [0] * len(ids))
    first_end = len(sides) - sides[::-1].index(0)
    pair_start = sides.index(1) if pair else first_end
    pair_end = len(sides) - sides[::-1].index(1) if pair else first_end

    def part(start: int, end: int) -> tuple[list[int], list[int]]:
        return list(ids[start:end]), list(types[start:end])

    return SpecialTokens(
        before=part(0, sides.index(0)),
        between=part(first_end, pair_start),
        after=part(pair_end, len(ids)),
        type_of_text=types[sides.index(0)],
        type_of_pair=types[pair_start] if pair else 0,
    )


def pair_separator(tokenizer: Any) -> int | None:
    """The id of the token that stands between the two texts of a pair, and not before them; None if there is none."""
    special = probe_special_tokens(tokenizer, pair=True)
    ids = [token for token in special.between[0] if token not in special.before[0]]
    return ids[0] if ids else None


MANY_UNKNOWN = 0.01  # of the tokens
_ENCODED_TOGETHER = 1024  # texts; what the tokenizer notes of them takes about 100 bytes a token


def count_unknown(windows: Iterable[Window], tokenizer: Any) -> tuple[int, int]:
    """How many tokens of some windows the tokenizer does not know, and how many there are, without special ones."""
    if tokenizer.unk_token_id is None:  # it knows all bytes
        return 0, sum(len(window.input_ids) for window in windows)
    special = sorted({*tokenizer.all_special_ids} - {tokenizer.unk_token_id})
    ids = np.concatenate([np.zeros(0, dtype=np.int32), *(window.input_ids for window in windows)])
    return int((ids == tokenizer.unk_token_id).sum()), int(np.isin(ids, special, invert=True).sum())


def window_spans(length: int, *, size: int, overlap: int) -> list[tuple[int, int]]:
    """Spans of at most `size` that cover `range(length)`, each sharing at least `overlap` with the one before.

    The last span is moved back until it is full, so that no window has only a few tokens and little context.
    """
    if length <= size:
        return [(0, length)]
    starts = list(range(0, length - size, size - overlap))
    return [(start, start + size) for start in [*starts, length - size]]


def pair_spans(
    text_length: int, pair_length: int, *, size: int, overlap: int
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Windows over a pair. If the shorter text fits in half a window, each window of the longer one holds all of it."""
    if text_length + pair_length <= size:
        return [((0, text_length), (0, pair_length))]
    text_size = max(size - pair_length, size - size // 2) if text_length > pair_length else min(text_length, size // 2)
    pair_size = size - text_size
    texts = window_spans(text_length, size=text_size, overlap=min(overlap, text_size // 2))
    pairs = window_spans(pair_length, size=pair_size, overlap=min(overlap, pair_size // 2))
    count = max(len(texts), len(pairs))
    return [(texts[min(i, len(texts) - 1)], pairs[min(i, len(pairs) - 1)]) for i in range(count)]


def _remove_prefix(tokenizer: Any) -> Tokenizer | None:
    """A copy of the tokenizer that puts no space before a text; None if it puts none already."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = [spec["normalizer"] or {}, spec["pre_tokenizer"] or {}]
    before = copy.deepcopy(parts)
    for part in parts:
        for step in part.get("normalizers") or part.get("pretokenizers") or [part]:
            if step.get("type") == "ByteLevel":
                step["add_prefix_space"] = False
            elif step.get("type") == "Metaspace":
                step["prepend_scheme"] = "never"
            elif step.get("type") == "Prepend":
                step["prepend"] = ""
    if parts == before:
        return None
    return Tokenizer.from_str(json.dumps({**spec, "padding": None, "truncation": None}))


class WindowMaker:
    """Turns documents into windows of at most `max_seq_length` tokens with one tokenizer.

    Args:
        tokenizer: a fast tokenizer (transformers' `PreTrainedTokenizerFast` or a subclass).
        max_seq_length: tokens in a window, special tokens included.
        overlap: subwords that neighbouring windows share; None for a quarter of the window.
    """

    def __init__(self, tokenizer: Any, *, max_seq_length: int, overlap: int | None = None) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(f"{type(tokenizer).__name__} is a slow tokenizer; a fast one (tokenizer.json) is needed")
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.use_token_types = "token_type_ids" in tokenizer.model_input_names
        self.single = probe_special_tokens(tokenizer, pair=False)
        self.size = max_seq_length - self.single.count
        self.overlap = self.size // 4 if overlap is None else overlap
        if self.size < 2:
            raise UserError(
                f"--max_seq_length {max_seq_length} leaves room for {counted(max(0, self.size), 'token')} beside the "
                f"special ones: give at least {self.single.count + 2}"
            )
        if not 0 <= self.overlap < self.size:
            raise UserError(f"--window_overlap {self.overlap} must be below the {self.size} tokens of a window")

    @cached_property
    def _without_prefix(self) -> Tokenizer | None:
        """Made only when words are encoded, since it copies the vocabulary."""
        return _remove_prefix(self.tokenizer)

    @cached_property
    def _marks_words(self) -> bool:
        """Whether the tokenizer drops a space before a word, and marks the word instead, as XLM-RoBERTa's does."""
        bare = self._without_prefix
        if bare is None:
            return False
        ids = [[bare.encode(space + probe, add_special_tokens=False).ids for probe in _PROBES] for space in (" ", "")]
        return ids[0] == ids[1]

    def _ids(self, texts: Sequence[str], *, inside: bool = False) -> Iterator[list[int]]:
        """The ids of texts or, if `inside`, of pieces of a text, before which the tokenizer must add no space."""
        bare = self._without_prefix if inside else None
        for first in range(0, len(texts), _ENCODED_TOGETHER):
            some = list(texts[first : first + _ENCODED_TOGETHER])
            if bare is not None:
                yield from (one.ids for one in bare.encode_batch(some, add_special_tokens=False))
            else:
                yield from self.tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]

    # Sequences

    def of_texts(self, texts: Sequence[str], pairs: Sequence[str] | None, targets: Sequence[Any]) -> list[Window]:
        """Windows over texts (or pairs of texts); every window carries the target of its document."""
        if pairs is None:
            return [
                self._window(ids[start:end], [], self.single, example=number, target=target)
                for number, (ids, target) in enumerate(zip(self._ids(texts), targets, strict=True))
                for start, end in window_spans(len(ids), size=self.size, overlap=self.overlap)
            ]
        special = probe_special_tokens(self.tokenizer, pair=True)
        size = self.max_seq_length - special.count
        if size < 4:
            raise UserError(f"--max_seq_length {self.max_seq_length} is too small for pairs of texts")
        return [
            self._window(ids[a:b], pair_ids[c:d], special, example=number, target=target)
            for number, (ids, pair_ids, target) in enumerate(
                zip(self._ids(texts), self._ids(pairs), targets, strict=True)
            )
            for (a, b), (c, d) in pair_spans(len(ids), len(pair_ids), size=size, overlap=self.overlap)
        ]

    def _window(self, ids: list[int], pair: list[int], special: SpecialTokens, *, example: int, target: Any) -> Window:
        input_ids = special.before[0] + ids + special.between[0] + pair + special.after[0]
        types = (
            special.before[1]
            + [special.type_of_text] * len(ids)
            + special.between[1]
            + [special.type_of_pair] * len(pair)
            + special.after[1]
        )
        return Window(_as_array(input_ids), _as_array(types) if self.use_token_types else None, example, target)

    # Words

    def subwords_of(
        self, documents: Sequence[Sequence[str]], spaces: Sequence[Sequence[bool]]
    ) -> list[list[list[int]]]:
        """The subwords of every word of every document.

        Each word is encoded by itself, with a space before it if the text has one, so a subword never spans two words,
        as one does for the text as a whole if the tokenizer keeps `'s` or `://` together. Otherwise the result is the
        same as for the text: `" ".join` for words with spaces between them. If the tokenizer puts a space before a
        text, only the first word gets it. A word that gives no tokens (such as a lone
        zero-width space) becomes the unknown token.

        Args:
            documents: the words.
            spaces: whether a space precedes each word.
        """
        surfaces = [
            [
                (" " * space + word, place > 0 and not (space and self._marks_words))
                for place, (word, space) in enumerate(zip(words, befores, strict=True))
            ]
            for words, befores in zip(documents, spaces, strict=True)
        ]
        distinct = dict.fromkeys(surface for words in surfaces for surface in words)
        ids_of: dict[tuple[str, bool], list[int]] = {}
        for inside in (False, True):
            texts = [text for text, is_inside in distinct if is_inside == inside]
            for text, ids in zip(texts, self._ids(texts, inside=inside), strict=True):
                ids_of[text, inside] = ids or [self._unknown_id()]
        return [[ids_of[surface] for surface in words] for words in surfaces]

    def _unknown_id(self) -> int:
        for name in ("unk_token_id", "mask_token_id", "sep_token_id"):
            number = getattr(self.tokenizer, name)
            if number is not None:
                return number
        raise UserError("a word tokenises to nothing, and the tokenizer has no unknown token to stand for it")

    def of_words(
        self,
        documents: Sequence[Sequence[str]],
        spaces: Sequence[Sequence[bool]],
        targets: Sequence[Sequence[tuple[int, int]] | None],
    ) -> list[Window]:
        """Windows over documents of words.

        Each subword belongs to the one window in which it has most context, so every word counts exactly once in the
        loss and in the prediction, however the windows overlap.

        Args:
            targets: for each word, the label of its first subword and of the others; `IGNORED_LABEL`: none.
        """
        windows = []
        for number, (words, target) in enumerate(zip(self.subwords_of(documents, spaces), targets, strict=True)):
            windows += self._word_windows(number, words, target)
        return windows

    def _word_windows(
        self, number: int, words: list[list[int]], target: Sequence[tuple[int, int]] | None
    ) -> list[Window]:
        ids = [token for word in words for token in word]
        begins = list(accumulate(map(len, words), initial=0))[:-1]  # the first subword of each word
        labels: list[int] = []
        if target is not None:
            for word, (label, label_of_others) in zip(words, target, strict=True):
                labels += [label, *[label_of_others] * (len(word) - 1)]
        spans = window_spans(len(ids), size=self.size, overlap=self.overlap)
        # The overlap of two windows is split in half: each window owns the half nearer to its middle.
        cuts = [0, *((end + start + 1) // 2 for (_, end), (start, _) in pairwise(spans)), len(ids)]
        num_before = len(self.single.before[0])
        num_behind = self.single.count - num_before
        windows = []
        for (start, end), (first, last) in zip(spans, pairwise(cuts), strict=True):
            owned = range(bisect_left(begins, first), bisect_left(begins, last))
            read = [(word, num_before + begins[word] - start) for word in owned]
            full_target = None
            if target is not None:
                ignored_before = [IGNORED_LABEL] * (num_before + first - start)
                ignored_behind = [IGNORED_LABEL] * (end - last + num_behind)
                full_target = ignored_before + labels[first:last] + ignored_behind
            window = self._window(ids[start:end], [], self.single, example=number, target=full_target)
            windows.append(replace(window, words=np.array(read, dtype=np.int32).reshape(-1, 2)))
        return windows


def _as_array(ids: list[int]) -> np.ndarray:
    return np.array(ids, dtype=np.int32)  # a ninth of a list's memory
