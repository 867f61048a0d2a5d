"""Text in Markdown."""

import re


def in_cell(text: str) -> str:
    """A text in a cell of a table, on one line, with its signs of Markdown and HTML escaped."""
    return re.sub(r"[\\`*<&|]", r"\\\g<0>", " ".join(text.split()))
