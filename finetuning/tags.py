"""Tag schemes (IOB1, IOB2, BIOES): detects the scheme of a file, converts to IOB2, and finds the spans of entities.

Two adjacent entities of one type, the first of two words, the second of one:

    IOB1     I-PER I-PER B-PER      B- only between two adjacent entities of one type (B- elsewhere is accepted)
    IOB2     B-PER I-PER B-PER      B- on every first word
    BIOES    B-PER E-PER S-PER      the last word and a single word are marked, too (BILOU: L and U)

Plain tags (NOUN, VERB) mark no entities: each applies to its word alone.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..utils.errors import UserError

OUTSIDE = "O"
_AS_BIOES = {"L": "E", "U": "S", "M": "I"}  # BILOU and BMES use other letters for the same positions
_MISSPELT = re.compile(r"(?i:[BIESLUM]([-_].*)?)|.+[-_][BIESLU]")  # B_PER, b-per, B alone; PER-B
_LETTERS = {"iob1": "BI", "iob2": "BI", "bioes": "BIESLUM"}


@dataclass(frozen=True)
class TaggedSentence:
    """Words and their tags. A tag is None if the file gives none; `tags` is None if all are to be predicted.

    Attributes:
        spaces: whether a space precedes each word in the text (False for the first).
        line: the line of the file on which the sentence begins, or its row.
        lines: the line of each word, in files with one word per line.
        text, starts: running text and the character at which each word begins, if the file holds text.
        inexact_spans: how many of the entities begin or end inside a word of that text.
        unit: what `line` counts: `line` or `row`.
    """

    words: list[str]
    spaces: list[bool]
    tags: list[str | None] | None
    source: str
    line: int
    lines: list[int] | None = None
    text: str | None = None
    starts: list[int] | None = None
    inexact_spans: int = 0
    unit: str = "line"

    @property
    def labels(self) -> set[str]:
        """The tags that occur."""
        return {tag for tag in self.tags or [] if tag is not None}

    def where(self, word: int) -> str:
        """`train.conll, line 12`."""
        return f"{self.source}, {self.unit} {self.line if self.lines is None else self.lines[word]}"


def detect_scheme(sentences: Iterable[TaggedSentence]) -> str:
    """The scheme in which the tags of all sentences are valid.

    Raises:
        ValueError: some tags look like entity tags and some do not (the message names one, its file and line).
    """
    sentences = list(sentences)
    prefixes = {_prefix(tag) for sentence in sentences for tag in sentence.labels}
    letters = prefixes - {OUTSIDE, "plain"}
    if not letters & {"B", "I", "S", "U"} or (OUTSIDE not in prefixes and "plain" in prefixes):
        if "plain" in prefixes and _are_misspelt({tag for sentence in sentences for tag in sentence.labels}):
            odd, where = _first_plain(sentences)
            raise UserError(
                f"{where}: tag {odd!r} is neither O nor of the form B-TYPE, in which entities are read; write it so "
                "(B-X for B, B-PER for b-per, O for o), or give --tag_scheme plain to tag each word by itself"
            )
        return "plain"
    if "plain" in prefixes:
        odd, where = _first_plain(sentences)
        raise UserError(
            f"{where}: tag {odd!r} is neither O nor of the form B-TYPE, as the others are; "
            "correct it, or give --tag_scheme plain"
        )
    if letters - {"B", "I"}:
        return "bioes"
    return "iob1" if _is_iob1(sentences) else "iob2"


def _are_misspelt(tags: set[str]) -> bool:
    """Whether all tags are O and entity tags in another spelling.

    E, S and the like without B or I are none: they are languages where text mixes English and Spanish.
    """
    names = tags - {"O", "o"}
    return (
        names != tags and not {name.upper() for name in names} <= set("ESLUM") and all(map(_MISSPELT.fullmatch, names))
    )


def _prefix(tag: str) -> str:
    """The prefix letter of an entity tag, "O", or "plain"."""
    if tag == OUTSIDE:
        return OUTSIDE
    if len(tag) > 2 and tag[1] == "-" and tag[0] in "BIESLUM":
        return tag[0]
    return "plain"


def _first_plain(sentences: Sequence[TaggedSentence]) -> tuple[str, str]:
    """The first tag that is neither O nor an entity tag, and its place in the file."""
    return next(
        (tag, sentence.where(index))
        for sentence in sentences
        for index, tag in enumerate(sentence.tags or [])
        if tag is not None and _prefix(tag) == "plain"
    )


def _is_iob1(sentences: Sequence[TaggedSentence]) -> bool:
    """Whether any entity begins with I-. IOB2 with such mistakes gets the same entities when it is read as IOB1."""
    for sentence in sentences:
        previous = OUTSIDE
        for tag in filter(None, sentence.tags or []):
            if tag[0] == "I" and previous[2:] != tag[2:]:
                return True
            previous = tag
    return False


def to_iob2(sentence: TaggedSentence, scheme: str) -> TaggedSentence:
    """The same sentence with its tags in IOB2 (tags of the plain scheme stay as they are).

    A word without a tag changes nothing for the words after it: an entity may go on behind it.

    Raises:
        ValueError: a tag does not belong to the scheme, or is not allowed in its position (with file and line).
    """
    if scheme == "plain" or sentence.tags is None:
        return sentence
    tags: list[str | None] = []
    previous, open_entity = OUTSIDE, False
    for index, tag in enumerate(sentence.tags):
        if tag is None:
            tags.append(None)
            continue
        letter, entity_type = _split(tag, scheme, sentence.where(index))
        continues = letter in "IE" and previous[2:] == entity_type and open_entity
        if letter in "IE" and not continues:
            _check_may_begin(tag, previous, scheme, sentence.where(index))
        open_entity = letter in "BI"
        previous = tag
        tags.append(OUTSIDE if letter == OUTSIDE else f"{'I' if continues else 'B'}-{entity_type}")
    return replace(sentence, tags=tags)


def _check_may_begin(tag: str, previous: str, scheme: str, where: str) -> None:
    """Raise if a tag I- or E- begins an entity and the scheme does not allow it."""
    if scheme in ("iob2", "bioes"):
        other = ", or give --tag_scheme iob1 if I- may begin an entity" if scheme == "iob2" else ""
        raise UserError(
            f"{where}: tag {tag!r} follows {previous!r}, so it continues no entity, which --tag_scheme {scheme} "
            f"does not allow; correct the file{other}"
        )


def _split(tag: str, scheme: str, where: str) -> tuple[str, str]:
    """(letter of BIOES or O, entity type) of a tag; raises if it does not belong to the scheme."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if len(tag) < 3 or tag[1] != "-" or tag[0] not in _LETTERS[scheme]:
        letters = ", ".join(f"{letter}-TYPE" for letter in _LETTERS[scheme])
        raise UserError(f"{where}: tag {tag!r} is outside the scheme {scheme}, which has O, {letters}")
    return _AS_BIOES.get(tag[0], tag[0]), tag[2:]


def label_names_of_tags(sentences: Iterable[TaggedSentence], *, entities: bool) -> list[str]:
    """Every label once, in an order that does not depend on the sentences; entity types get both B- and I-."""
    tags = {tag for sentence in sentences for tag in sentence.tags or [] if tag is not None}
    if not entities:
        if len(tags) < 2:
            raise UserError(f"only one tag in the training data: {next(iter(tags), None)!r}; nothing to learn")
        return sorted(tags)
    types = sorted({tag[2:] for tag in tags if tag != OUTSIDE})
    if not types:
        raise UserError("no entity in the training data, every tag is O; nothing to learn")
    return [OUTSIDE, *(f"{letter}-{entity_type}" for entity_type in types for letter in "BI")]


def entity_spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first word, word after the last) of each entity; an I- that continues no entity begins one."""
    spans: list[tuple[str, int, int]] = []
    for index, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        entity_type = tag[2:]
        touches = bool(spans) and spans[-1][0] == entity_type and spans[-1][2] == index
        if tag[0] == "I" and touches:
            spans[-1] = (entity_type, spans[-1][1], index + 1)
        else:
            spans.append((entity_type, index, index + 1))
    return spans


def repair_iob2(tags: Sequence[str]) -> list[str]:
    """Write B- for every I- that continues no entity of its type: the same entities, in valid IOB2."""
    repaired: list[str] = []
    for tag in tags:
        continues = bool(repaired) and repaired[-1] != OUTSIDE and repaired[-1][2:] == tag[2:]
        repaired.append(f"B-{tag[2:]}" if tag[0] == "I" and not continues else tag)
    return repaired
