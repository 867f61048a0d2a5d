"""Learns new vocabulary entries from text by merging frequent pairs of neighbouring pieces.

The old tokenizer first splits the words into pieces. Then the most frequent pair of neighbours is merged repeatedly, as
in byte-pair encoding (Sennrich et al. 2016), but starting from the old pieces instead of characters.
"""

import functools
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tokenizers import Encoding, Tokenizer

Word = tuple[int, ...]
Pair = tuple[int, int]

# Pairs that occur less often are not merged.
LEAST_COUNT = 2
# The most text that entries are learned from.
_MOST_CHARACTERS = 1 << 28
_BATCH = 4096
_PIECES_WITH_THEIR_SPACES = re.compile(r"\s*\S+")
WORD_MARK = "\u2581"  # SentencePiece's sign for a space


class LearnedMerge(NamedTuple):
    """An entry made from two neighbours.

    Attributes:
        left, right, merged: their ids. text: the entry.
        pieces: the old ids that it replaces.
        uses: how often it occurs in the text when all merges are made.
    """

    left: int
    right: int
    merged: int
    text: str
    pieces: Word
    uses: int


def count_words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[Word]:
    """How often each word occurs, as a sequence of old ids; only for words of several pieces.

    The tokenizer's pre-tokenizer defines the words.
    """
    pieces: Counter[str] = Counter()
    characters = 0
    for text in texts:
        pieces.update(_PIECES_WITH_THEIR_SPACES.findall(text))
        characters += len(text)
        if characters > _MOST_CHARACTERS:
            break
    words: Counter[Word] = Counter()
    for piece, found in zip(pieces, split_into_words(tokenizer, list(pieces)), strict=True):
        for word in found:
            if len(word) > 1:
                words[word] += pieces[piece]
    return words


def split_into_words(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[Word]]:
    """The words of each text, as sequences of ids."""
    marked = {i for token, i in tokenizer.get_vocab(with_added_tokens=False).items() if token.startswith(WORD_MARK)}
    for first in range(0, len(texts), _BATCH):
        for encoding in tokenizer.encode_batch(texts[first : first + _BATCH], add_special_tokens=False):
            yield _words(encoding, marked)


def _words(encoding: Encoding, marked: set[int]) -> list[Word]:
    words: list[list[int]] = []
    before = None
    for token, number in zip(encoding.ids, encoding.word_ids, strict=True):
        if not words or number != before or token in marked:
            words.append([])
        words[-1].append(token)
        before = number
    return [tuple(word) for word in words]


def learn_merges(
    words: Mapping[Word, int],
    count: int,
    *,
    texts: Mapping[int, str],
    concatenate: Callable[[str, str], str],
    first_id: int,
    never_merged: frozenset[int] = frozenset(),
) -> list[LearnedMerge]:
    """Merge the most frequent pair of neighbours `count` times, or until none occurs `LEAST_COUNT` times.

    Of equally frequent pairs, the one with smaller ids comes first. No entry is made if the vocabulary already holds
    its text.

    Args:
        words: how often each word occurs, by its old ids.
        texts: the old entries by id.
        concatenate: makes the text of an entry from those of two neighbours.
        first_id: the id of the first new entry.
        never_merged: ids that are never merged, such as special tokens.
    """
    cut = [list(word) for word in words]
    counts = list(words.values())
    text_of = dict(texts)
    taken = set(text_of.values())
    pieces_of: dict[int, Word] = {}
    pairs, where = _count_pairs(cut, counts)
    heap = [(-found, pair) for pair, found in pairs.items()]
    heapq.heapify(heap)
    merges: list[tuple[Pair, int]] = []
    while heap and len(merges) < count:
        negative, pair = heapq.heappop(heap)
        if -negative != pairs[pair]:  # outdated: the heap holds it again, with its current count
            continue
        if -negative < LEAST_COUNT:
            break
        text = concatenate(text_of[pair[0]], text_of[pair[1]])
        if text in taken or never_merged.intersection(pair):
            continue
        merged = first_id + len(merges)
        taken.add(text)
        text_of[merged] = text
        pieces_of[merged] = (*pieces_of.get(pair[0], pair[:1]), *pieces_of.get(pair[1], pair[1:]))
        merges.append((pair, merged))
        for other in _replace(pair, merged, cut, counts, pairs, where):
            heapq.heappush(heap, (-pairs[other], other))
    usage: Counter[int] = Counter()
    for word, found in zip(cut, counts, strict=True):
        for token in word:
            usage[token] += found
    return [LearnedMerge(*pair, merged, text_of[merged], pieces_of[merged], usage[merged]) for pair, merged in merges]


def join_words(
    words: Iterable[Word], *, texts: Mapping[int, str], concatenate: Callable[[str, str], str], first_id: int
) -> list[LearnedMerge]:
    """Merges that make one token of each word, as `learn_merges` makes them.

    Neighbours are merged from the left. So a word that is split otherwise than before begins like a new one, unless
    such a beginning is an entry already. A word that is itself an entry is left out.
    """
    text_of, taken = dict(texts), set(texts.values())
    merges: dict[Pair, LearnedMerge] = {}
    pieces_of: dict[int, Word] = {}
    for word in words:
        parts = list(word)
        if functools.reduce(concatenate, (texts[part] for part in word)) in taken:
            continue
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            known = [(merges[pair].merged, place) for place, pair in enumerate(pairs) if pair in merges]
            if known:
                merged, place = min(known)  # as BPE does: the oldest merge first
            else:
                made = [concatenate(text_of[left], text_of[right]) for left, right in pairs]
                place = next((place for place, text in enumerate(made) if text not in taken), len(made))
                if place == len(made):
                    break
                merged, (left, right) = first_id + len(merges), pairs[place]
                taken.add(made[place])
                text_of[merged] = made[place]
                pieces_of[merged] = (*pieces_of.get(left, (left,)), *pieces_of.get(right, (right,)))
                merges[left, right] = LearnedMerge(left, right, merged, made[place], pieces_of[merged], uses=1)
            parts[place : place + 2] = [merged]
    return list(merges.values())


def _count_pairs(cut: list[list[int]], counts: list[int]) -> tuple[Counter[Pair], dict[Pair, set[int]]]:
    """How often each pair of neighbours occurs, and the numbers of the words that hold it."""
    pairs: Counter[Pair] = Counter()
    where: dict[Pair, set[int]] = defaultdict(set)
    for number, word in enumerate(cut):
        for pair in pairwise(word):
            pairs[pair] += counts[number]
            where[pair].add(number)
    return pairs, where


def _replace(
    pair: Pair, merged: int, cut: list[list[int]], counts: list[int], pairs: Counter[Pair],
    where: dict[Pair, set[int]],
) -> set[Pair]:  # fmt: skip
    """Merge a pair in all words that hold it, from left to right; returns the pairs whose count has changed."""
    changed: set[Pair] = set()
    for number in where.pop(pair):
        word = cut[number]
        for old in pairwise(word):
            pairs[old] -= counts[number]
            changed.add(old)
        new: list[int] = []
        place = 0
        while place < len(word):
            if tuple(word[place : place + 2]) == pair:
                new.append(merged)
                place += 2
            else:
                new.append(word[place])
                place += 1
        cut[number] = new
        for fresh in pairwise(new):
            pairs[fresh] += counts[number]
            where[fresh].add(number)
            changed.add(fresh)
    changed.discard(pair)
    return changed


def best_merges(merges: list[LearnedMerge], count: int) -> list[LearnedMerge]:
    """The `count` merges that save the most tokens, in the order in which they were learned.

    Only for tokenizers that find a long entry without the shorter ones that it was merged from.
    """
    saved = sorted(merges, key=lambda merge: (-merge.uses * (len(merge.pieces) - 1), merge.merged))[:count]
    return sorted(saved, key=lambda merge: merge.merged)
