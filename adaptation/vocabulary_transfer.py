"""Gives a trained model another tokenizer: which old embedding rows each new entry takes over.

A form is what an entry stands for, whatever the algorithm writes: its bytes, and whether a space or a word begins with
it. `##ing` and `ing` (of bytes) are one form, `the`, `Ġthe`, `▁the` and `the</w>` another: what ends a word is taken
for a word, as most such entries are.
"""

import json

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..utils.errors import UserError
from .merges import WORD_MARK
from .vocabulary import NewVocabulary, read_spec, rebuild

Form = tuple[bool, bytes]

# Which byte each letter of a byte-level vocabulary stands for.
_BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}
_ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


def swap(old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast) -> tuple[NewVocabulary, dict[str, int]]:
    """Where the rows of another tokenizer come from.

    Special tokens take the row of the old token of the same role. Other entries take the row of the old entry of the
    same form. Without one, they begin as the mean of the pieces into which the old tokenizer cuts them, and without
    those, as the mean of all.

    Returns:
        the vocabulary, whose tokenizer has the old one's length and inputs, as the model does; and how many entries
        came which way: `same_form`, `pieces`, `mean`.

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
            same = written_alike  # a byte and the letter that it is are one form
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
    """The old special token of each new one. A new one with several roles takes the first of `_ROLES`."""
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
    # Not all that mark words do it by Metaspace: Llama and Gemma replace spaces while normalizing.
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
    if len(entry) == 6 and entry.startswith("<0x") and entry.endswith(">"):
        return False, bytes.fromhex(entry[3:5])
    if marked:
        return entry.startswith(WORD_MARK), entry.removeprefix(WORD_MARK).replace(WORD_MARK, " ").encode("utf-8")
    if prefix is not None:
        return not entry.startswith(prefix), entry.removeprefix(prefix).encode("utf-8")
    return True, entry.encode("utf-8")
