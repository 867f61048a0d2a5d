"""Encodes texts with a tokenizer: token ids and word starts, as fast as the tokenizer allows.

Each token is one number, `id << 1 | starts_a_word`, so a document is one array of 32-bit integers.

A word is what the pre-tokenizer says it is (`word_ids`), for WordPiece, BPE and Unigram alike. Two cases differ. If the
pre-tokenizer does not split at spaces, words begin at spaces all the same. In scripts written without spaces (Chinese,
Japanese, Thai, …) a "word" would be a whole clause, so each token is a word.

A long text is encoded in parts, cut before spaces, since an encoding takes over a hundred bytes per character.

Most words of a text were seen before. If the tokenizer provably encodes the pieces between spaces independently, each
distinct piece is encoded once and then looked up, which takes a fraction of the time.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

# GPT-2's pre-tokenization: contractions; sequences of letters, digits or other characters, each with a leading space.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The same, but a letter keeps the marks and joiners behind it. GPT-2 cuts there: each Hindi syllable becomes two words.
WORD_PATTERN = GPT2_PATTERN.replace(r"\p{L}+", "\\p{L}[\\p{L}\\p{M}\u200c\u200d]*")

_CACHED_PIECES, _CACHED_CHARACTERS = 1 << 19, 1 << 25
# Pre-tokenizers behind such a pattern, and the settings with which they cut nowhere else.
_WITHOUT_CUTS: dict[str, dict[str, Any]] = {
    "ByteLevel": {"use_regex": False, "add_prefix_space": False},
    "Metaspace": {"prepend_scheme": "never", "split": False},
}
LONGEST_PART = 1 << 18  # characters
_CUT = re.compile(r"(?<=\w)[ \n\t]")  # after a word character and before a space, where any tokenizer can be cut
# Normalizers that never combine characters across a space.
_LOCAL_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
_DELETING = {"BertNormalizer", "StripAccents"}
_SPACE_DROPPING = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_PIECES_WITH_THEIR_SPACES = re.compile(r"\s*\S+|\s+")
# Python and the tokenizers disagree on whether these are spaces; a document that holds one is not cut into pieces.
_RARE_SPACES = "\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
# Scripts written without spaces between words.
UNSPACED_SCRIPTS = re.compile(
    "["
    "\u0e00-\u0fff"  # Thai, Lao, Tibetan
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u19e0-\u19ff"  # Burmese, Khmer
    "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf"  # the scripts of the Tai
    "\u1b00-\u1b7f\ua980-\ua9df"  # Balinese, Javanese
    "\u3031-\u3035\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001afff\U0001b000-\U0001b16f"  # kana
    "\u3100-\u312f\u31a0-\u31bf"  # bopomofo
    "\u3005-\u3007\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
    "\ua000-\ua4cf\U00016fe0-\U00018d8f\U0001b170-\U0001b2ff"  # Yi, Tangut, Khitan, Nushu
    "]"
)


class Encoder:
    """Encodes documents without special tokens; a special token written in a text is treated as plain text.

    Args:
        tokenizer_json: a serialized `tokenizers.Tokenizer`.
        unk_token_id: the token for unknown text, which `encode_counting` looks for.
    """

    def __init__(self, tokenizer_json: str, *, unk_token_id: int | None = None) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True
        self._words_known = len(set(self.tokenizer.encode("one two", add_special_tokens=False).word_ids)) > 1
        self._split = _piece_splitter(json.loads(tokenizer_json))
        self._cache: dict[str, bytes] = {}
        self._cached_characters = 0
        self._unk_token_id = unk_token_id
        # As `encode` writes it. Bytes are found in less time than it takes to make an array.
        self._unknown_marks = [array("I", [(unk_token_id or 0) << 1 | start]).tobytes() for start in (0, 1)]
        self._unknown: dict[str, int] = {}  # the pieces that hold unknown tokens, and how many bytes these stand for

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Each text as uint32 [tokens] in bytes: `id << 1 | starts_a_word`."""
        return [document for document, _ in self.encode_counting(texts)]

    def encode_counting(self, texts: Sequence[str]) -> list[tuple[bytes, int]]:
        """The same, each with the number of bytes of its text that unknown tokens stand for.

        A single unknown token may stand for a word of hundreds of letters.
        """
        if not any(len(text) > LONGEST_PART for text in texts):
            return self._encode_short(texts)
        found = []
        for text in texts:
            parts = [part for cut in _parts(text) for part in self._encode_short([cut])]
            found.append((b"".join(document for document, _ in parts), sum(unknown for _, unknown in parts)))
        return found

    def _encode_short(self, texts: Sequence[str]) -> list[tuple[bytes, int]]:
        if self._split is None:
            self._unknown.clear()
            documents = self._encode(texts)
            return [(document, self._unknown.get(text, 0)) for text, document in zip(texts, documents, strict=True)]
        pieces = [[text] if _has_rare_space(text) else self._split(text) for text in texts]
        if len(self._cache) > _CACHED_PIECES or self._cached_characters > _CACHED_CHARACTERS:
            self._cache.clear()
            self._unknown.clear()
            self._cached_characters = 0
        new = list(set(chain.from_iterable(pieces)).difference(self._cache))
        self._cached_characters += sum(map(len, new))
        self._cache.update(zip(new, self._encode(new), strict=True))
        documents = [b"".join(map(self._cache.__getitem__, found)) for found in pieces]
        return [
            (document, self._unknown_bytes(document, found)) for document, found in zip(documents, pieces, strict=True)
        ]

    def _unknown_bytes(self, document: bytes, pieces: list[str]) -> int:
        """The bytes that the unknown tokens of a document of these pieces stand for; most documents have none."""
        if not self._unknown or not any(map(document.__contains__, self._unknown_marks)):
            return 0
        return sum(map(self._unknown.__getitem__, filter(self._unknown.__contains__, pieces)))

    def _encode(self, texts: Sequence[str]) -> list[bytes]:
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [self._with_starts(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def _with_starts(self, text: str, encoding: Encoding) -> bytes:
        ids, words = encoding.ids, encoding.word_ids
        if self._unk_token_id in ids:
            places = zip(ids, encoding.offsets, strict=True)
            unknown = (text[begin:end] for token, (begin, end) in places if token == self._unk_token_id)
            self._unknown[text] = sum(len(part.encode("utf-8")) for part in unknown)
        starts = [word != before for word, before in zip(words, [None, *words], strict=False)]
        if not self._words_known:
            starts = [one or other for one, other in zip(starts, _after_spaces(text, encoding), strict=True)]
        if not text.isascii() and UNSPACED_SCRIPTS.search(text):
            starts = [one or other for one, other in zip(starts, _in_unspaced_script(text, encoding), strict=True)]
        return array("I", [token << 1 | start for token, start in zip(ids, starts, strict=True)]).tobytes()


def _parts(text: str) -> Iterator[str]:
    """A text in parts of at most `LONGEST_PART` characters, cut before spaces where possible."""
    begin = 0
    while len(text) - begin > LONGEST_PART:
        part = text[begin : begin + LONGEST_PART]
        ends = [match.start() for match in _CUT.finditer(part, LONGEST_PART // 2)]
        begin += ends[-1] if ends else LONGEST_PART
        yield part[: ends[-1]] if ends else part
    yield text[begin:]


def _after_spaces(text: str, encoding: Encoding) -> Iterator[bool]:
    """Whether each token follows or begins with a space."""
    before = 0
    for begin, end in encoding.offsets:
        yield any(map(str.isspace, text[before : begin + 1]))
        before = end


def _in_unspaced_script(text: str, encoding: Encoding) -> Iterator[bool]:
    """Whether each token begins a new character of a script without spaces."""
    before = -1
    for begin, end in encoding.offsets:
        if begin == end:  # a space by itself, which byte-level tokenizers trim to an empty range
            yield False
            continue
        # One character may become several byte tokens.
        yield begin != before and bool(UNSPACED_SCRIPTS.match(text, begin))
        before = begin


def split_encoded(document: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Split the result of `Encoder.encode`: ids, uint32 [tokens], and whether a word starts at each, bool [tokens]."""
    numbers = np.frombuffer(document, dtype=np.uint32)
    return numbers >> 1, (numbers & 1).astype(bool)


def _has_rare_space(text: str) -> bool:
    return any(map(text.__contains__, _RARE_SPACES))


def _piece_splitter(spec: dict[str, Any]) -> Callable[[str], list[str]] | None:
    """A function that cuts a text into pieces that the tokenizer encodes independently; None if that is not certain.

    The pre-tokenizers accepted here always cut between a non-space and a space, and the normalizers never look across
    such a cut.
    """
    if any(not token["special"] for token in spec["added_tokens"]):
        return None
    normalizers = {step["type"] for step in _steps(spec["normalizer"], "normalizers")}
    if not normalizers <= _LOCAL_NORMALIZERS:
        return None
    steps = _steps(spec["pre_tokenizer"], "pretokenizers")
    kinds = [step["type"] for step in steps]
    if len(kinds) == 1 and kinds[0] in _SPACE_DROPPING:
        return str.split
    if normalizers & _DELETING:  # spaces on both sides of what is deleted join
        return None
    if kinds == ["ByteLevel"] and _has(steps[0], use_regex=True, add_prefix_space=False):
        return _PIECES_WITH_THEIR_SPACES.findall
    if len(kinds) == 2 and _splits_at_words(steps[0]):
        settings = _WITHOUT_CUTS.get(kinds[1])
        if settings and _has(steps[1], **settings):
            return _PIECES_WITH_THEIR_SPACES.findall
    return None


def _splits_at_words(step: dict[str, Any]) -> bool:
    patterns = [{"Regex": pattern} for pattern in (WORD_PATTERN, GPT2_PATTERN)]
    return step["type"] == "Split" and step["pattern"] in patterns and _has(step, behavior="Isolated", invert=False)


def _has(component: dict[str, Any], **settings: Any) -> bool:
    """Whether a component of a tokenizer has these settings."""
    return all(component[name] == value for name, value in settings.items())


def _steps(component: dict[str, Any] | None, name_of_list: str) -> list[dict[str, Any]]:
    if component is None:
        return []
    return component[name_of_list] if component["type"] == "Sequence" else [component]
