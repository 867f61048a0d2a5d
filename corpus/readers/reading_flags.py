"""The flags that say how text is read, which every program with `--input` has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...utils.command_line import flag
from .formats import BadTextRule, Separator

if TYPE_CHECKING:
    from .inputs import Reader

_READING = "reading the text"


@dataclass(kw_only=True)
class ReadingFlags:
    """A base of the programs' dataclasses of flags; see `Reader` for the meaning of each."""

    text_column: str | None = flag("the column of the text (default: found by name: text, content, …)", None, _READING)
    document_separator: Separator = flag("what ends a document in text files", "blank_line", _READING)
    on_bad_text: BadTextRule = flag(
        "what to do about documents that are not valid UTF-8: error, or skip, which counts them", "error", _READING
    )

    def reader(self, inputs: Sequence[str], **more: Any) -> "Reader":
        """A reader of `inputs` by these flags; `more`: what else `Reader` takes."""
        from .inputs import Reader

        flags = {name: getattr(self, name) for name in ReadingFlags.__dataclass_fields__}
        return Reader(inputs, **{**flags, **more})
