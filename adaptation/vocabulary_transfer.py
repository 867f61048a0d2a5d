"""Gives a trained model another tokenizer: maps each new entry to old embedding rows.

The form of an entry is its meaning, whatever the algorithm's notation: its bytes, and whether it begins with a space or
a word. `##ing` and byte-level `ing` have one form; `the`, `Ġthe`, `▁the` and `the</w>` have another. An entry that ends
a word is taken for a whole word, as most such entries are.
"""

import json
import re

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..corpus.vocabulary.changes import NewVocabulary, read_spec, rebuild
from ..corpus.vocabulary.merges import WORD_MARK
from ..utils.errors import UserError

Form = tuple[bool, bytes]

_BYTE_ENTRY = re.compile("<0x[0-9A-Fa-f]{2}>")
# The byte of each letter of a byte-level vocabulary.
_BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}
_ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


def swap(old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast) -> tuple[NewVocabulary, dict[str, int]]:
    """The sources of another tokenizer's embedding rows.

    Special tokens take the row of the old token with the same role. Other entries take the row of the old entry with
    the same form. Without one, they are initialised as the mean of the pieces into which the old tokenizer splits them;
    without pieces, as the mean of all rows.

    Returns:
        the vocabulary, whose tokenizer keeps the old one's maximum length and inputs, to fit the model; and the number
        of entries by source: `same_form`, `pieces`, `mean`.

    Raises:
        UserError: the new tokenizer has no token for a role that masked-language modelling needs.
    """
    special = _same_roles(old, new)
    never = set(old.all_special_ids)
    old_forms, old_numbers = forms(old), old.get_vocab()
    everything = [number for number in sorted(old_forms) if number not in never]
    if not everything:
        raise UserError("tokenizer_name: the model's own tokenizer has no entry to take a row from")
    rows: dict[Form, int] = {}
    for number in everything:
        rows.setdefault(old_forms[number], number)
    sources: list[list[int]] = []
    counts = {"same_form": 0, "pieces": 0, "mean": 0}
    new_forms = forms(new)
    for number in range(max(new_forms, default=-1) + 1):
        if number in special:
            sources.append([special[number]])
            continue
        begins, content = form = new_forms.get(number, (False, b""))
        same = rows.get(form, rows.get((not begins, content)))
        written_alike = old_numbers.get(str(new.convert_ids_to_tokens(number)))
        if written_alike is not None and old_forms[written_alike] == form:
            same = written_alike  # an entry for a byte and one for the same character have the same form
        if same is not None:
            way, rows_taken = "same_form", [same]
        elif pieces := _pieces(old, form, never):
            way, rows_taken = "pieces", pieces
        else:
            way, rows_taken = "mean", everything
        sources.append(rows_taken)
        counts[way] += 1
    return NewVocabulary(rebuild(new, read_spec(new), like=old), sources), counts


def _same_roles(old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast) -> dict[int, int]:
    """New special token -> old one. A new token with several roles uses the first of `_ROLES`."""
    found = {}
    for role in reversed(_ROLES):
        ours, theirs = (getattr(tokenizer, f"{role}_token_id") for tokenizer in (new, old))
        if ours is not None and theirs is not None:
            found[ours] = theirs
    return found


def _pieces(tokenizer: PreTrainedTokenizerFast, form: Form, never: set[int]) -> list[int]:
    begins, content = form
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return []
    ids = tokenizer.backend_tokenizer.encode((" " if begins else "") + text, add_special_tokens=False).ids
    return [number for number in ids if number not in never]


def forms(tokenizer: PreTrainedTokenizerFast) -> dict[int, Form]:
    spec = read_spec(tokenizer)
    model = spec["model"]
    steps = [spec[name] for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")]
    # Not all tokenizers that mark words use Metaspace: Llama and Gemma replace spaces in the normalizer.
    written = json.dumps(steps, ensure_ascii=False)
    of_bytes = '"type": "ByteLevel"' in written
    marked = WORD_MARK in written or '"type": "Metaspace"' in written
    prefix, suffix = (model.get(name) or None for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    found = {}
    for entry, number in tokenizer.get_vocab().items():
        body = entry.removesuffix(suffix or "")
        begins, content = _form(body, of_bytes=of_bytes, marked=marked, prefix=prefix)
        found[number] = (begins if suffix is None else body != entry, content)
    return found


def _form(entry: str, *, of_bytes: bool, marked: bool, prefix: str | None) -> Form:
    if of_bytes:
        try:
            content = bytes(_BYTE_OF[letter] for letter in entry)
        except KeyError:  # an added token, which is plain text
            return False, entry.encode("utf-8")
        return content.startswith(b" "), content.removeprefix(b" ")
    if _BYTE_ENTRY.fullmatch(entry):
        return False, bytes.fromhex(entry[3:5])
    if marked:
        return entry.startswith(WORD_MARK), entry.removeprefix(WORD_MARK).replace(WORD_MARK, " ").encode("utf-8")
    if prefix is not None:
        return not entry.startswith(prefix), entry.removeprefix(prefix).encode("utf-8")
    return True, entry.encode("utf-8")
