"""Counts in words."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 file`, `2 files`, `12,000 files`; `plural` is for nouns that take more than an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
