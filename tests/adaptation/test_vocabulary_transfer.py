"""Rows carried to another tokenizer by the form of its entries, and overlap counted word by word."""

import numpy as np
import pytest
from small_models import OLD_WORDS, make_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from clozebert.adaptation.overlap import RUN_WORDS, run_hashes
from clozebert.adaptation.vocabulary_transfer import _form, forms, swap


@pytest.mark.parametrize("old", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("new", ["wordpiece", "bpe", "unigram"])
def test_entries_take_the_row_of_the_same_form(old: str, new: str) -> None:
    theirs, ours = make_tokenizer(old), make_tokenizer(new)
    vocabulary, counts = swap(theirs, ours)
    assert len(vocabulary.sources) == len(ours)
    assert sum(counts.values()) == len(ours) - len(ours.all_special_ids)
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert vocabulary.sources[getattr(ours, f"{name}_token_id")] == [getattr(theirs, f"{name}_token_id")]
    marks = {"wordpiece": "", "bpe": "Ġ", "unigram": "▁"}
    of_theirs, of_ours = theirs.get_vocab(), ours.get_vocab()
    beginnings = {word[:length] for word in OLD_WORDS for length in range(1, 9)}
    common = [word for word in sorted(beginnings) if marks[old] + word in of_theirs and marks[new] + word in of_ours]
    assert common
    for word in common:
        assert vocabulary.sources[of_ours[marks[new] + word]] == [of_theirs[marks[old] + word]]
    if old == new:
        assert vocabulary.sources == [[row] for row in range(len(ours))]


def test_an_entry_that_only_looks_like_a_byte_is_text() -> None:
    assert _form("<0xZZ>", of_bytes=False, marked=False, prefix="##") == (True, b"<0xZZ>")
    assert _form("<0x0a>", of_bytes=False, marked=False, prefix="##") == (False, b"\n")


def test_forms_of_bytes_are_the_bytes() -> None:
    tokenizer = make_tokenizer("bpe")
    found = forms(tokenizer)
    assert found[tokenizer.convert_tokens_to_ids("Ġ")] == (True, b"")
    assert {content for _, content in found.values()} >= {bytes([byte]) for byte in range(256) if byte != 32}


@pytest.mark.parametrize("kind", ["metaspace", "replaced", "prepended"])
def test_forms_of_marked_words_have_no_mark(kind: str) -> None:
    """However the mark gets into the text: as in XLM-RoBERTa, in Gemma and in Llama."""
    vocabulary = {entry: number for number, entry in enumerate(["<unk>", "▁", "t", "▁t", "a", "<0x41>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "t")], unk_token="<unk>", byte_fallback=True))
    if kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        steps = [normalizers.Prepend("▁")] if kind == "prepended" else []
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    found = forms(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>"))
    assert [found[number] for number in range(1, 6)] == [
        (True, b""), (False, b"t"), (True, b"t"), (False, b"a"), (False, b"A")
    ]  # fmt: skip


def test_a_suffix_marks_a_word_and_an_entry_without_it_its_part() -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = [*special, "t", "h", "e</w>", "he</w>", "the</w>", "e", "he", "the"]
    merges = [("h", "e</w>"), ("t", "he</w>"), ("h", "e"), ("t", "he")]
    core = Tokenizer(models.BPE({e: i for i, e in enumerate(entries)}, merges, end_of_word_suffix="</w>"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    roles = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    suffixed, ours = PreTrainedTokenizerFast(tokenizer_object=core, **roles), make_tokenizer("bpe")
    of_ours = ours.get_vocab()
    there = swap(ours, suffixed)[0].sources
    assert there[entries.index("the</w>")] == [of_ours["Ġthe"]]
    assert there[entries.index("t")] == [of_ours["t"]]
    back = swap(suffixed, ours)[0].sources
    assert back[of_ours["Ġthe"]] == [entries.index("the</w>")]
    assert back[of_ours["t"]] == [entries.index("t")]


def naive(documents: list[list[list[int]]], others: list[list[list[int]]]) -> tuple[int, int]:
    """Documents with a run that others hold too, and such runs; by tuples of words."""

    def runs(document: list[list[int]]) -> list[tuple]:
        words = [tuple(word) for word in document]
        return [tuple(words[i : i + RUN_WORDS]) for i in range(len(words) - RUN_WORDS + 1)]

    theirs = {run for other in others for run in runs(other)}
    hits = [sum(run in theirs for run in runs(document)) for document in documents]
    return sum(hit > 0 for hit in hits), sum(hits)


def hashes(documents: list[list[list[int]]]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array([token for document in documents for word in document for token in word])
    starts = np.array([place == 0 for document in documents for word in document for place, _ in enumerate(word)])
    return run_hashes(ids, starts, np.array([sum(map(len, document)) for document in documents]))


def test_runs_are_counted_as_by_hand() -> None:
    draws = np.random.default_rng(3)

    def document(words: int) -> list[list[int]]:
        return [draws.integers(0, 50, draws.integers(1, 4)).tolist() for _ in range(words)]

    others = [document(40) for _ in range(6)]
    documents = [document(30), others[0][5:20], others[1][:12], [*document(4), *others[2][3:19]], document(5)]
    expected = naive(documents, others)
    assert expected == (2, 3 + 4)
    theirs, _ = hashes(others)
    ours, owners = hashes(documents)
    hits = np.isin(ours, theirs)
    assert (len(np.unique(owners[hits])), int(hits.sum())) == expected
    # The same tokens in other words are another run.
    one = [[1, 2], *([[3]] * 12)]
    other = [[1], [2], *([[3]] * 12)]
    assert not np.isin(hashes([one])[0], hashes([other])[0]).any()
