"""Splits running text into words, in every script, as tagged files and prediction need them."""

import re
import unicodedata

from ..corpus.encoding import UNSPACED_SCRIPTS

_JOINER = "\u200d"  # joins several emoji into one
_SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3\uffa0-\uffdc]")


def word_bounds(text: str) -> list[tuple[int, int]]:
    """(start, end) of the words of a text: sequences of letters, marks and digits.

    Each letter of a script without spaces, and each other sign, is a word by itself, with the marks that follow it.
    """
    bounds: list[tuple[int, int]] = []
    previous, joined = " ", False
    for position, character in enumerate(text):
        kind = _kind_of(character)
        if kind == "mark":  # it belongs to the character before it
            kind = "word" if previous == " " else previous
            goes_on = previous != " "
        else:
            goes_on = kind == previous == "word" or (joined and kind == "sign")
        if goes_on:
            bounds[-1] = (bounds[-1][0], position + 1)
        elif kind != " ":
            bounds.append((position, position + 1))
        previous, joined = kind, character == _JOINER
    return bounds


def unit_bounds(word: str) -> list[tuple[int, int]]:
    """(start, end) of the units of a word of a file, as which a model reads it.

    Each letter of a script without spaces is a unit, as in `word_bounds`, since running text does not show which of
    them make a word. What stands between such letters is not cut, so every other word is one unit.
    """
    if not has_unspaced_letter(word):
        return [(0, len(word))]
    units: list[tuple[int, int]] = []
    for start, end in word_bounds(word):
        joins = bool(units) and not _is_unspaced_letter(word[units[-1][0]]) and not _is_unspaced_letter(word[start])
        if joins:
            units[-1] = (units[-1][0], end)
        else:
            units.append((start, end))
    return units


def has_unspaced_letter(word: str) -> bool:
    """Whether a letter of a script without spaces between words occurs."""
    return not word.isascii() and any(map(_is_unspaced_letter, word))


def _kind_of(character: str) -> str:
    if character.isspace():
        return " "
    category = unicodedata.category(character)
    if category[0] == "M" or category == "Cf" or character in _SKIN_TONES:
        return "mark"
    if _is_unspaced_letter(character):
        return "sign"
    is_letter = category[0] in "LN" or category == "Co"  # for private use, as the letters of medieval fonts are
    return "word" if is_letter or character == "_" else "sign"


def _is_unspaced_letter(character: str) -> bool:
    return unicodedata.category(character) in ("Lo", "Lm") and is_unspaced(character)


def is_unspaced(character: str) -> bool:
    """Whether a letter, mark or full stop is of a script without spaces between words."""
    if UNSPACED_SCRIPTS.match(character):
        return True
    return unicodedata.east_asian_width(character) in "WFH" and not _HANGUL.match(character)
