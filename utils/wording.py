"""Text for readers: counts in words, values in messages, cells of Markdown tables."""

import re
from typing import Any


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 file`, `2 files`, `12,000 files`; `plural` is for nouns that take more than an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def in_short(value: Any) -> str:
    """`repr(value)`, cut to 80 characters: a cell of a person's file may hold the whole file."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def in_cell(text: str) -> str:
    """A text in a cell of a table, on one line, with its signs of Markdown and HTML escaped."""
    return re.sub(r"[\\`*<&|]", r"\\\g<0>", " ".join(text.split()))
