"""Corpora of token ids instead of text (DNA, events, logs), read by a minimal tokenizer of numbers.

The ids of a document stay what they are. The special tokens get the five ids behind them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from ..utils.errors import UserError
from .tables import BadText
from .tokenizer import SPECIAL_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from .readers import Reader

TOKENIZER_FOLDER = "tokenizer"


def make_id_tokenizer(vocab_size: int) -> "PreTrainedTokenizerFast":
    """A tokenizer of the numbers 0 to `vocab_size` - 1, which reads `5 17 3` as these ids, and of special tokens.

    Raises:
        UserError: no number.
    """
    from transformers import PreTrainedTokenizerFast

    if vocab_size < 1:
        raise UserError(f"vocab_size={vocab_size} must be at least 1: how many ids there are, special tokens left out")
    vocabulary = {str(number): number for number in range(vocab_size)}
    vocabulary |= {token: vocab_size + place for place, token in enumerate(SPECIAL_TOKENS.values())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    cls, sep = SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, vocabulary[token]) for token in (cls, sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **SPECIAL_TOKENS,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def id_reader(vocab_size: int) -> Callable[[Any, int, str], str | BadText]:
    """Reads a cell of ids, a list of numbers or a text of them, as `5 17 3`; see `formats.checked_text`."""

    def read(cell: Any, line: int, unit: str) -> str | BadText:
        items = [] if cell is None else cell.split() if isinstance(cell, str) else cell
        if isinstance(items, int) or not hasattr(items, "__iter__"):
            items = [items]
        numbers = []
        for place, item in enumerate(items, start=1):
            number = int(item) if isinstance(item, str) and item.isdecimal() else item
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < vocab_size:
                return BadText(
                    line, f"{item!r}, the id at place {place}, is none of 0 to {vocab_size - 1} (--vocab_size)", unit
                )
            numbers.append(str(number))
        return " ".join(numbers)

    return read


def check_id_column(reader: "Reader") -> None:
    """Read everything once, before any work.

    Raises:
        UserError: an id that is not one, with its file and line.
    """
    for _ in reader:
        pass


__all__ = ["TOKENIZER_FOLDER", "check_id_column", "id_reader", "make_id_tokenizer"]
