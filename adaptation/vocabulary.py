"""Extends a tokenizer by entries learned from text, or trims it to the entries that are used.

What is certain, whatever the text:

    extended BPE        the new tokens of a text are its old tokens, some neighbours of a word joined. New merges come
                        after all old ones, and no old merge takes a new token.
    extended Unigram    the same, but where two old cuts of a word score the same to 1e-6 for each of its tokens. A new
                        entry scores what its old pieces score together, and a millionth for each boundary it saves.
    extended WordPiece  a word that holds no new entry is cut as before. The longest entry is taken first, so a new one
                        may move the boundaries behind it.
    trimmed, all three  a text whose old tokens are all kept is cut as before.

Old ids stay in an extended vocabulary, and their order in a trimmed one.
"""

import copy
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from ..utils.errors import UserError
from .merges import LearnedMerge, best_merges, count_words, learn_merges

EXTENDED = ("BPE", "WordPiece", "Unigram")
TRIMMED = (*EXTENDED, "WordLevel")
# What a boundary that is saved adds to the log-probability of a Unigram entry.
UNIGRAM_BONUS = 1e-6
# Where one that is not needed by a longer entry is dropped again, more are learned than are wanted.
_SURPLUS = 1.5
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class NewVocabulary:
    """A tokenizer made from another, and where the rows of its ids come from.

    Attributes:
        sources: for each new id, the old ids whose mean its row begins as.
        merges: what an extension learned.
    """

    tokenizer: PreTrainedTokenizerFast
    sources: list[list[int]]
    merges: tuple[LearnedMerge, ...] = ()


def check_algorithm(tokenizer: PreTrainedTokenizerFast, known: Collection[str], *, flag: str) -> str:
    """The tokenizer's algorithm.

    Raises:
        UserError: it is not one that `flag` can be used with.
    """
    algorithm = read_spec(tokenizer)["model"]["type"]
    if algorithm not in known:
        raise UserError(f"{flag}: the tokenizer is a {algorithm}, and this takes {', '.join(known)}")
    return algorithm


def read_spec(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The tokenizer.json of a tokenizer."""
    return json.loads(tokenizer.backend_tokenizer.to_str())


# Extending -----------------------------------------------------------------------------------------------------------


def extend(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], count: int) -> NewVocabulary:
    """Add at most `count` entries that shorten these texts; see the module for what stays the same.

    Raises:
        UserError: a tokenizer of another algorithm, or no pair of neighbours occurs twice.
    """
    if count < 1:
        raise UserError(f"extend_vocabulary={count} must be at least 1")
    algorithm = check_algorithm(tokenizer, EXTENDED, flag="extend_vocabulary")
    spec, entries = _spec_and_entries(tokenizer)
    model = spec["model"]
    first_id = max(entries) + 1
    plain = Tokenizer.from_str(json.dumps({**spec, "padding": None, "truncation": None}))
    plain.encode_special_tokens = True
    merges = learn_merges(
        count_words(plain, texts),
        count if algorithm == "BPE" else int(count * _SURPLUS),
        texts=entries,
        concatenate=_join_of(model),
        first_id=first_id,
        never_merged=frozenset(_not_text(spec, entries)),
    )
    if not merges:
        raise UserError(f"extend_vocabulary={count}: the text holds nothing that occurs twice and is no entry yet")
    if algorithm != "BPE":
        merges = [merge._replace(merged=first_id + place) for place, merge in enumerate(best_merges(merges, count))]
    if algorithm == "Unigram":
        _add_unigrams(model, merges)
    else:
        model["vocab"].update({merge.text: merge.merged for merge in merges})
    if algorithm == "BPE":
        _add_merges(model, merges, entries)
    sources = [[row] for row in range(first_id)] + [list(merge.pieces) for merge in merges]
    return NewVocabulary(rebuild(tokenizer, spec), sources, tuple(merges))


def _add_unigrams(model: dict[str, Any], merges: Iterable[LearnedMerge]) -> None:
    score = [score for _, score in model["vocab"]]
    for merge in merges:
        bonus = UNIGRAM_BONUS * (len(merge.pieces) - 1)
        model["vocab"].append([merge.text, sum(score[piece] for piece in merge.pieces) + bonus])


def _add_merges(model: dict[str, Any], merges: Iterable[LearnedMerge], entries: dict[int, str]) -> None:
    entries = {**entries, **{merge.merged: merge.text for merge in merges}}
    pairs = [[entries[merge.left], entries[merge.right]] for merge in merges]
    # Older tokenizer files write a merge as one string.
    as_strings = bool(model["merges"]) and isinstance(model["merges"][0], str)
    model["merges"] += [" ".join(pair) for pair in pairs] if as_strings else pairs


def _entries(model: dict[str, Any]) -> dict[int, str]:
    if model["type"] == "Unigram":
        return {number: entry for number, (entry, _) in enumerate(model["vocab"])}
    return {number: entry for entry, number in model["vocab"].items()}


def _not_text(spec: dict[str, Any], entries: dict[int, str]) -> set[int]:
    """Ids that are no part of a word: added tokens, the unknown token, bytes that stand for a character's parts."""
    model = spec["model"]
    ids = {token["id"] for token in spec["added_tokens"]}
    unknown = model.get("unk_id") if model["type"] == "Unigram" else model["vocab"].get(model.get("unk_token"))
    if unknown is not None:
        ids.add(unknown)
    if model.get("byte_fallback"):
        ids.update(number for number, entry in entries.items() if len(entry) == 6 and entry.startswith("<0x"))
    return ids


def _spec_and_entries(tokenizer: PreTrainedTokenizerFast) -> tuple[dict[str, Any], dict[int, str]]:
    """The tokenizer.json with added tokens in the model's own vocabulary too, under their ids; and all entries by id.

    One that is not there gets its id from the vocabulary's size when it is loaded, and a larger one would shift it.
    """
    spec = read_spec(tokenizer)
    model = spec["model"]
    if model["type"] == "Unigram":
        for token in sorted(spec["added_tokens"], key=lambda token: token["id"]):
            number = token["id"]
            while len(model["vocab"]) < number:
                model["vocab"].append([f"<unused{len(model['vocab'])}>", 0.0])
            if number == len(model["vocab"]):
                model["vocab"].append([token["content"], 0.0])
    else:
        for token in spec["added_tokens"]:
            model["vocab"].setdefault(token["content"], token["id"])
    return spec, _entries(model)


# Trimming ------------------------------------------------------------------------------------------------------------


def trim(tokenizer: PreTrainedTokenizerFast, used: Collection[int]) -> NewVocabulary:
    """Drop the entries that are neither `used`, nor special, nor needed to make up others; ids close up.

    Args:
        used: the ids that stay.

    Raises:
        UserError: a tokenizer of another algorithm.
    """
    check_algorithm(tokenizer, TRIMMED, flag="trim_vocabulary")
    spec, entries = _spec_and_entries(tokenizer)
    model = spec["model"]
    kept = {*used, *_not_text(spec, entries)} & set(entries)
    # RoBERTa counts positions from the id after padding's, so that id must not move.
    kept.update(number for number in entries if number <= (tokenizer.pad_token_id or 0))
    order = sorted(_with_needed(model, entries, kept))
    number_of = {old: new for new, old in enumerate(order)}
    if model["type"] == "Unigram":
        model["vocab"] = [model["vocab"][old] for old in order]
        model["unk_id"] = None if model["unk_id"] is None else number_of[model["unk_id"]]
    else:
        model["vocab"] = {entries[old]: new for old, new in number_of.items()}
    if model["type"] == "BPE":
        _drop_merges(model)
    for token in spec["added_tokens"]:
        token["id"] = number_of[token["id"]]
    _renumber(spec["post_processor"], number_of)
    return NewVocabulary(rebuild(tokenizer, spec), [[old] for old in order])


def _with_needed(model: dict[str, Any], entries: dict[int, str], kept: set[int]) -> set[int]:
    """`kept`, and what the algorithm needs to make these and to write any text."""
    if model["type"] == "BPE":
        return _with_parts(model, entries, kept)
    if model["type"] == "WordPiece":
        prefix = model["continuing_subword_prefix"]
        return kept | {n for n, entry in entries.items() if len(entry.removeprefix(prefix)) == 1 and entry.isascii()}
    if model["type"] == "Unigram":
        # What an unknown character scores depends on the lowest score.
        return kept | {min(entries, key=lambda number: model["vocab"][number][1])}
    return kept


def _drop_merges(model: dict[str, Any]) -> None:
    """Drop the merges of which a part, or the result, is no entry any more."""
    joined, vocabulary = _join_of(model), model["vocab"]
    model["merges"] = [
        merge for merge in model["merges"] if vocabulary.keys() >= {*_pair(merge), joined(*_pair(merge))}
    ]


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _join_of(model: dict[str, Any]) -> Any:
    prefix = model.get("continuing_subword_prefix") or ""
    return lambda left, right: left + right.removeprefix(prefix)


def _with_parts(model: dict[str, Any], entries: dict[int, str], kept: set[int]) -> set[int]:
    """`kept`, the letters or bytes, and every entry that merging goes through on the way to one of these."""
    numbers, joined = model["vocab"], _join_of(model)
    pairs = [_pair(merge) for merge in model["merges"]]
    rank = {pair: place for place, pair in reversed(list(enumerate(pairs)))}
    found = kept | _alphabet(entries, made={joined(*pair) for pair in pairs})
    prefix = model.get("continuing_subword_prefix") or ""
    for number in kept:
        found.update(numbers[text] for text in _steps_to(entries[number], rank, joined, prefix) if text in numbers)
    return found


def _alphabet(entries: dict[int, str], *, made: set[str]) -> set[int]:
    """Single letters and bytes that no merge makes: with them, any text can be written. Of many, the ASCII ones."""
    single = {number for number, entry in entries.items() if len(entry) == 1 and entry not in made}
    return single if len(single) <= 256 else {number for number in single if entries[number].isascii()}


def _steps_to(entry: str, rank: dict[tuple[str, str], int], joined: Any, prefix: str) -> set[str]:
    """All entries that merging a text meets, from its letters on."""
    body = entry.removeprefix(prefix) if prefix else entry
    pieces = [letter if place == 0 and body == entry else prefix + letter for place, letter in enumerate(body)]
    met = set(pieces)
    while True:
        ranked = [(rank[pair], place) for place, pair in enumerate(pairwise(pieces))
                  if pair in rank]  # fmt: skip
        if not ranked:
            return met
        place = min(ranked)[1]
        pieces[place : place + 2] = [joined(pieces[place], pieces[place + 1])]
        met.add(pieces[place])


def _renumber(processor: dict[str, Any] | None, number_of: dict[int, int]) -> None:
    """The ids of special tokens in a post-processor."""
    if processor is None:
        return
    for inner in processor.get("processors", []):
        _renumber(inner, number_of)
    for name in ("sep", "cls"):  # BertProcessing, RobertaProcessing
        if isinstance(processor.get(name), list):
            processor[name][1] = number_of[processor[name][1]]
    for token in (processor.get("special_tokens") or {}).values():  # TemplateProcessing
        token["ids"] = [number_of[number] for number in token["ids"]]


# Both ----------------------------------------------------------------------------------------------------------------


def rebuild(tokenizer: PreTrainedTokenizerFast, spec: dict[str, Any]) -> PreTrainedTokenizerFast:
    """A tokenizer of this specification, with the settings and the special tokens of `tokenizer`."""
    spec = {**copy.deepcopy(spec), "padding": None, "truncation": None}
    added = {
        token["content"]: AddedToken(
            token["content"],
            **{name: token[name] for name in ("single_word", "lstrip", "rstrip", "normalized", "special")},
        )
        for token in spec["added_tokens"]
    }
    special = {name: added.get(text, text) for name in _SPECIAL_NAMES if (text := getattr(tokenizer, name)) is not None}
    new = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)),
        **special,
        model_max_length=tokenizer.model_max_length,
        model_input_names=list(tokenizer.model_input_names),
        padding_side=tokenizer.padding_side,
        clean_up_tokenization_spaces=False,
    )
    expected = {entry: number for number, entry in _entries(spec["model"]).items()}
    found = new.get_vocab()
    assert found == expected, sorted(set(found.items()) ^ set(expected.items()))[:5]
    return new
