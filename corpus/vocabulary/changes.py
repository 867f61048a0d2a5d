"""Extends a tokenizer by entries learned from text or by given words, or trims it to the entries that are used.

Guarantees for any text:

    extended BPE        the new tokens of a text are its old tokens, with some neighbours within words joined. New
                        merges come after all old ones, and no old merge uses a new token.
    extended Unigram    the same, unless two old segmentations of a word score the same to 1e-6 per token. The score of
                        a new entry is the sum of its old pieces' scores plus 1e-6 for each boundary that it saves.
    extended WordPiece  a word that holds no new entry is split as before. The longest entry is matched first, so a new
                        one may move the boundaries after it.
    trimmed, all three  a text whose old tokens are all kept is split as before.

An extended vocabulary keeps the old ids, a trimmed one keeps their order. Added tokens outside the model's vocabulary
are an exception: they stay outside, after it, since inside it they would be found within other words. An extended BPE
finds only what its merges make, so it takes them in under their ids.
"""

import copy
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer

from ...utils.errors import UserError
from .merges import LearnedMerge, best_merges, count_words, join_words, learn_merges, split_into_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WORD_BEFORE = "a"  # what stands before a word, with a space, to see how it is split within a text
EXTENDED = ("BPE", "WordPiece", "Unigram")
TRIMMED = (*EXTENDED, "WordLevel")
# Added to the log-probability of a Unigram entry for each boundary that it saves.
UNIGRAM_BONUS = 1e-6
# Unless merges are needed for longer entries (BPE), this many times the wanted entries are learned; the best are kept.
_SURPLUS = 1.5
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class NewVocabulary:
    """A tokenizer made from another, and the old rows from which its embedding rows are initialised.

    Attributes:
        sources: for each new id, the old ids; its row is initialised as the mean of their rows.
        merges: the merges that an extension learned.
    """

    tokenizer: "PreTrainedTokenizerFast"
    sources: list[list[int]]
    merges: tuple[LearnedMerge, ...] = ()


def check_algorithm(tokenizer: "PreTrainedTokenizerFast", known: Collection[str], *, flag: str) -> str:
    """The tokenizer's algorithm.

    Raises:
        UserError: `flag` cannot be used with this algorithm.
    """
    algorithm = read_spec(tokenizer)["model"]["type"]
    if algorithm not in known:
        raise UserError(f"{flag}: the tokenizer is a {algorithm}, and this works with {', '.join(known)}")
    return algorithm


def read_spec(tokenizer: "PreTrainedTokenizerFast") -> dict[str, Any]:
    """The content of a tokenizer's tokenizer.json."""
    return json.loads(tokenizer.backend_tokenizer.to_str())


def has_spaces_in_entries(tokenizer: Any) -> bool:
    """Whether the entry of a word may hold the space before it: in BPE and Unigram."""
    return getattr(tokenizer, "is_fast", False) and read_spec(tokenizer)["model"]["type"] in ("BPE", "Unigram")


# Extending -----------------------------------------------------------------------------------------------------------


def extend(tokenizer: "PreTrainedTokenizerFast", texts: Iterable[str], count: int) -> NewVocabulary:
    """Add at most `count` entries that shorten these texts; see the module for what stays the same.

    Raises:
        UserError: the tokenizer has another algorithm, or no pair of neighbours occurs twice.
    """
    if count < 1:
        raise UserError(f"extend_vocabulary={count} must be at least 1")
    algorithm = check_algorithm(tokenizer, EXTENDED, flag="extend_vocabulary")

    def learn(plain: Tokenizer, **known: Any) -> list[LearnedMerge]:
        words = count_words(plain, texts)
        if algorithm == "BPE":
            return learn_merges(words, count, **known)
        return best_merges(learn_merges(words, int(count * _SURPLUS), **known), count)

    new = _extended(tokenizer, learn)
    if not new.merges:
        reason = "a word of one piece, such as each Chinese character for BERT, has nothing to join"
        if algorithm == "Unigram":
            reason += "; nor have the single bytes of a script that the tokenizer does not know: give --tokenizer_name"
        raise UserError(
            f"extend_vocabulary={count}: no two pieces of a word occur twice side by side and are not an entry yet; "
            f"{reason}"
        )
    return new


def add_words(tokenizer: "PreTrainedTokenizerFast", words: Sequence[str]) -> NewVocabulary:
    """Add entries with which these words, after a space, are one token each.

    Left as they are: words that the pre-tokenizer splits, words with unknown letters, and all words if the tokenizer is
    neither a BPE nor a Unigram. In BPE, the steps to a word become entries, too.
    """
    if not has_spaces_in_entries(tokenizer):
        return _unchanged(tokenizer)

    algorithm = read_spec(tokenizer)["model"]["type"]

    def learn(plain: Tokenizer, *, never_merged: frozenset[int], **known: Any) -> list[LearnedMerge]:
        # After another word: some tokenizers put a space before the first one.
        (before,) = split_into_words(plain, [WORD_BEFORE])
        found = [one[len(before) :] for one in split_into_words(plain, [f"{WORD_BEFORE} {word}" for word in words])]
        whole = [one[0] for one in found if len(one) == 1 and not never_merged.intersection(one[0])]
        if algorithm == "BPE":
            return join_words(whole, **known)
        entries = {"".join(known["texts"][piece] for piece in word): word for word in whole}
        new = entries.keys() - known["texts"].values()
        return [LearnedMerge(word[0], word[-1], 0, text, word, 1) for text, word in entries.items() if text in new]

    return _extended(tokenizer, learn)


def _extended(tokenizer: "PreTrainedTokenizerFast", learn: Callable[..., list[LearnedMerge]]) -> NewVocabulary:
    """A tokenizer with the entries that `learn` makes from the old tokenizer, of texts without special tokens."""
    spec = read_spec(tokenizer)
    model = spec["model"]
    algorithm = model["type"]
    if algorithm == "BPE":
        for token in spec["added_tokens"]:
            model["vocab"].setdefault(token["content"], token["id"])
    entries = _entries(model)
    behind = _ids_behind(spec, entries)
    first_id = max(entries) + 1
    plain = Tokenizer.from_str(json.dumps({**spec, "padding": None, "truncation": None}))
    plain.encode_special_tokens = True
    merges = learn(
        plain,
        texts={**entries, **{token["id"]: token["content"] for token in spec["added_tokens"]}},
        concatenate=_join_of(model),
        first_id=max([*entries, *behind]) + 1,
        never_merged=frozenset(_not_text(spec, entries)),
    )
    if algorithm != "BPE":
        merges = [merge._replace(merged=first_id + place) for place, merge in enumerate(merges)]
    if not merges:
        return _unchanged(tokenizer)
    if algorithm == "Unigram":
        _add_unigrams(model, merges)
    else:
        model["vocab"].update({merge.text: merge.merged for merge in merges})
    if algorithm == "BPE":
        _add_merges(model, merges, entries)
    _renumber(spec, {number: number for number in entries} | _numbered(behind, first=first_id + len(merges)))
    sources = [[row] for row in range(first_id)]
    sources += [list(merge.pieces) for merge in merges] + [[row] for row in behind]
    return NewVocabulary(rebuild(tokenizer, spec), sources, tuple(merges))


def _unchanged(tokenizer: "PreTrainedTokenizerFast") -> NewVocabulary:
    return NewVocabulary(tokenizer, [[row] for row in range(len(tokenizer))])


def _add_unigrams(model: dict[str, Any], merges: Iterable[LearnedMerge]) -> None:
    score = [score for _, score in model["vocab"]]
    for merge in merges:
        bonus = UNIGRAM_BONUS * (len(merge.pieces) - 1)
        model["vocab"].append([merge.text, sum(score[piece] for piece in merge.pieces) + bonus])


def _add_merges(model: dict[str, Any], merges: Iterable[LearnedMerge], entries: dict[int, str]) -> None:
    entries = {**entries, **{merge.merged: merge.text for merge in merges}}
    pairs = [[entries[merge.left], entries[merge.right]] for merge in merges]
    # Older tokenizer files store a merge as one string.
    as_strings = bool(model["merges"]) and isinstance(model["merges"][0], str)
    model["merges"] += [" ".join(pair) for pair in pairs] if as_strings else pairs


def _entries(model: dict[str, Any]) -> dict[int, str]:
    if model["type"] == "Unigram":
        return {number: entry for number, (entry, _) in enumerate(model["vocab"])}
    return {number: entry for entry, number in model["vocab"].items()}


def _not_text(spec: dict[str, Any], entries: dict[int, str]) -> set[int]:
    """Ids that are not parts of words: added tokens, the unknown token, and the bytes of byte fallback."""
    model = spec["model"]
    ids = {token["id"] for token in spec["added_tokens"]}
    unknown = model.get("unk_id") if model["type"] == "Unigram" else model["vocab"].get(model.get("unk_token"))
    if unknown is not None:
        ids.add(unknown)
    if model.get("byte_fallback"):
        ids.update(number for number, entry in entries.items() if len(entry) == 6 and entry.startswith("<0x"))
    return ids


def _ids_behind(spec: dict[str, Any], entries: Mapping[int, str]) -> list[int]:
    """The ids of added tokens outside the model's vocabulary. Loading numbers them in order, from its size on."""
    return sorted(token["id"] for token in spec["added_tokens"] if token["id"] not in entries)


def _numbered(old_ids: Iterable[int], *, first: int = 0) -> dict[int, int]:
    return {old: number for number, old in enumerate(old_ids, start=first)}


# Trimming ------------------------------------------------------------------------------------------------------------


def trim(tokenizer: "PreTrainedTokenizerFast", used: Collection[int]) -> NewVocabulary:
    """Drop the entries that are neither `used`, nor special, nor needed to build others; ids are renumbered.

    Args:
        used: the ids to keep.

    Raises:
        UserError: the tokenizer has another algorithm.
    """
    check_algorithm(tokenizer, TRIMMED, flag="trim_vocabulary")
    spec = read_spec(tokenizer)
    model = spec["model"]
    entries = _entries(model)
    kept = sorted(_with_needed(model, entries, {*used, *_not_text(spec, entries)} & set(entries)))
    order = kept + _ids_behind(spec, entries)
    number_of = _numbered(order)
    if model["type"] == "Unigram":
        model["vocab"] = [model["vocab"][old] for old in kept]
        model["unk_id"] = None if model["unk_id"] is None else number_of[model["unk_id"]]
    else:
        model["vocab"] = {entries[old]: number_of[old] for old in kept}
    if model["type"] == "BPE":
        _drop_merges(model)
    _renumber(spec, number_of)
    return NewVocabulary(rebuild(tokenizer, spec), [[old] for old in order])


def _with_needed(model: dict[str, Any], entries: dict[int, str], kept: set[int]) -> set[int]:
    """`kept`, and the entries that the algorithm needs to build these and to encode any text."""
    if model["type"] == "BPE":
        return _with_parts(model, entries, kept)
    if model["type"] == "WordPiece":
        prefix = model["continuing_subword_prefix"]
        return kept | {n for n, entry in entries.items() if len(entry.removeprefix(prefix)) == 1 and entry.isascii()}
    if model["type"] == "Unigram":
        # The score of an unknown character depends on the lowest score.
        return kept | {min(entries, key=lambda number: model["vocab"][number][1])}
    return kept


def _drop_merges(model: dict[str, Any]) -> None:
    """Drop the merges with a part or a result that is no longer an entry."""
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
    """`kept`, the letters or bytes, and every intermediate entry in the merging of `kept`."""
    numbers, joined = model["vocab"], _join_of(model)
    pairs = [_pair(merge) for merge in model["merges"]]
    rank = {pair: place for place, pair in reversed(list(enumerate(pairs)))}
    letters = _letters_of(model)
    found = kept | _alphabet(entries, letters, made={joined(*pair) for pair in pairs})
    for number in kept:
        found.update(numbers[text] for text in _steps_to(letters(entries[number]), rank, joined) if text in numbers)
    return found


def _letters_of(model: dict[str, Any]) -> Callable[[str], list[str]]:
    """A function that splits an entry into letters as the algorithm writes them: with its prefix or suffix."""
    prefix, suffix = (model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))

    def letters(entry: str) -> list[str]:
        body = entry.removeprefix(prefix)
        ends = suffix if body.endswith(suffix) else ""
        begins = "" if body == entry else prefix
        body = body.removesuffix(ends)
        last = len(body) - 1
        return [
            (prefix if place else begins) + letter + (ends if place == last else "")
            for place, letter in enumerate(body)
        ]

    return letters


def _alphabet(entries: dict[int, str], letters: Callable[[str], list[str]], *, made: set[str]) -> set[int]:
    """The single letters or bytes that no merge makes, to encode any text; only the ASCII ones if over 256."""
    single = {number for number, entry in entries.items() if len(letters(entry)) == 1 and entry not in made}
    return single if len(single) <= 256 else {number for number in single if entries[number].isascii()}


def _steps_to(pieces: list[str], rank: dict[tuple[str, str], int], joined: Any) -> set[str]:
    """All entries that occur while these letters are merged."""
    met = set(pieces)
    while True:
        ranked = [(rank[pair], place) for place, pair in enumerate(pairwise(pieces)) if pair in rank]
        if not ranked:
            return met
        place = min(ranked)[1]
        pieces[place : place + 2] = [joined(pieces[place], pieces[place + 1])]
        met.add(pieces[place])


def _renumber(spec: dict[str, Any], number_of: Mapping[int, int]) -> None:
    """Set the new ids of added tokens, and of the special tokens around a text."""
    for token in spec["added_tokens"]:
        token["id"] = number_of[token["id"]]
    _renumber_around(spec["post_processor"], number_of)


def _renumber_around(processor: dict[str, Any] | None, number_of: Mapping[int, int]) -> None:
    if processor is None:
        return
    for inner in processor.get("processors", []):
        _renumber_around(inner, number_of)
    for name in ("sep", "cls"):  # BertProcessing, RobertaProcessing
        if isinstance(processor.get(name), list):
            processor[name][1] = number_of[processor[name][1]]
    for token in (processor.get("special_tokens") or {}).values():  # TemplateProcessing
        token["ids"] = [number_of[number] for number in token["ids"]]


# Both ----------------------------------------------------------------------------------------------------------------


def rebuild(
    tokenizer: "PreTrainedTokenizerFast", spec: dict[str, Any], *, like: "PreTrainedTokenizerFast | None" = None
) -> "PreTrainedTokenizerFast":
    """A tokenizer with this specification and the special tokens of `tokenizer`.

    Args:
        like: the tokenizer from which the maximum length, inputs and sides are taken (default: `tokenizer`).
    """
    from transformers import PreTrainedTokenizerFast

    like = like or tokenizer
    spec = {**copy.deepcopy(spec), "padding": None, "truncation": None}
    added = {
        token["content"]: AddedToken(
            token["content"],
            **{name: token[name] for name in ("single_word", "lstrip", "rstrip", "normalized", "special")},
        )
        for token in spec["added_tokens"]
    }
    special = {name: added.get(text, text) for name in _SPECIAL_NAMES if (text := getattr(tokenizer, name)) is not None}
    further = [text for text in tokenizer.all_special_tokens if text not in map(str, special.values())]
    new = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)),
        **special,
        extra_special_tokens=[added.get(text, text) for text in further],
        model_max_length=like.model_max_length,
        model_input_names=list(like.model_input_names),
        padding_side=like.padding_side,
        truncation_side=like.truncation_side,
        clean_up_tokenization_spaces=False,
    )
    expected = {entry: number for number, entry in _entries(spec["model"]).items()}
    expected |= {token["content"]: token["id"] for token in spec["added_tokens"]}
    found = new.get_vocab()
    assert found == expected, sorted(set(found.items()) ^ set(expected.items()))[:5]
    return new
