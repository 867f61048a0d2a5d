"""Trains tokenizers (WordPiece, BPE, Unigram), loads them, and records what a corpus must know about its tokenizer.

A corpus of token ids instead of text (DNA, events, logs) has a minimal tokenizer that reads numbers.
"""

import hashlib
import json
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ..utils.errors import UserError, check_choice, first_line
from ..utils.tokenizer_files import VOCABULARY_FILES, forget_lengths
from ..utils.untrusted import check_model_folder
from ..utils.wording import in_short
from .encoding import WORD_PATTERN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ALGORITHMS = ("wordpiece", "bpe", "unigram")
SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
# What train_tokenizer writes; see `files.written_in`.
TOKENIZER_FILES = (r"tokenizer\.json", r"tokenizer_config\.json", r"special_tokens_map\.json")
_BYTES = 256
_LETTERS, _COVERAGE = 1000, 0.9995
# WordPiece makes a longer word one [UNK]; a warning says so if such words hold more of the letters than this.
_LONGEST_WORD, _LONG_WORDS = 100, 0.01
# BERT's normalizer deletes private-use characters, and with `lowercase` every mark; a warning says so if these are a
# larger share of the text. Combining accents (U+0300 to U+036F) are meant to go.
_DELETED = 0.005
_REPEATED = 10_000
_SMALLEST = {"wordpiece": 128, "bpe": _BYTES + len(SPECIAL_TOKENS), "unigram": _BYTES + 128}


def train_tokenizer(
    texts: Iterable[str],
    *,
    algorithm: str = "wordpiece",
    vocab_size: int = 30_522,
    lowercase: bool = False,
    model_max_length: int | None = None,
    progress: bool = False,
) -> "PreTrainedTokenizerFast":
    """Train a tokenizer with ids 0 to 4 for `[PAD] [UNK] [CLS] [SEP] [MASK]`; a pair becomes `[CLS] a [SEP] b [SEP]`.

    `wordpiece` splits as BERT does, at spaces, punctuation and Chinese characters. `bpe` (on bytes) and `unigram` (with
    byte fallback) split as GPT-2 does, but keep marks with their letters; in practice they give no unknown tokens, and
    decoding restores the text. The same texts give the same tokenizer. The vocabulary is smaller than `vocab_size` if
    the texts are too small.

    Args:
        texts: documents.
        algorithm: `wordpiece`, `bpe` or `unigram`.
        vocab_size: entries, the special tokens included.
        lowercase: lower-case the text; `wordpiece` also strips accents, as BERT does.
        model_max_length: the longest input in tokens, recorded in the tokenizer. None: each model that is saved with
            it states its own.
        progress: show the trainer's progress bars.

    Raises:
        ValueError: a value out of range, or no text.
    """
    check_choices(algorithm, vocab_size, model_max_length)
    if isinstance(texts, str):
        raise UserError("texts is one string: give a list of texts")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # their items are the names of columns
        raise UserError(f"texts is a {type(texts).__name__}: give the texts of one column, as a list")
    train = {"wordpiece": _wordpiece, "bpe": _bpe, "unigram": _unigram}[algorithm]
    trained = train(_not_empty(texts), vocab_size, lowercase, progress)
    # A new tokenizer, since the special tokens that the trainer added cannot be changed.
    tokenizer = Tokenizer(trained.model)
    tokenizer.pre_tokenizer, tokenizer.decoder = trained.pre_tokenizer, trained.decoder
    if trained.normalizer is not None:
        tokenizer.normalizer = trained.normalizer
    # The offsets of a byte-level token leave out its leading space.
    trims = [processors.ByteLevel(trim_offsets=True)] if algorithm == "bpe" else []
    tokenizer.post_processor = processors.Sequence([*trims, _template(tokenizer)])
    # If a space belongs to the token after it, the mask token absorbs the space before it: "a [MASK] b" hides " word".
    mask = AddedToken(SPECIAL_TOKENS["mask_token"], lstrip=algorithm != "wordpiece", special=True, normalized=False)
    stated = {} if model_max_length is None else {"model_max_length": int(model_max_length)}
    return _pretrained(tokenizer, mask_token=mask, **stated)


def make_id_tokenizer(vocab_size: int) -> "PreTrainedTokenizerFast":
    """A tokenizer of the numbers 0 to `vocab_size` - 1, which reads `5 17 3` as these ids.

    The special tokens get the five ids after these.

    Raises:
        UserError: `vocab_size` is below 1.
    """
    if vocab_size < 1:
        raise UserError(f"vocab_size={vocab_size} must be at least 1: how many ids there are, special tokens left out")
    vocabulary = {str(number): number for number in range(vocab_size)}
    vocabulary |= {token: vocab_size + place for place, token in enumerate(SPECIAL_TOKENS.values())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = _template(tokenizer)
    return _pretrained(tokenizer)


def _template(
    core: Tokenizer, cls: str = SPECIAL_TOKENS["cls_token"], sep: str = SPECIAL_TOKENS["sep_token"]
) -> processors.TemplateProcessing:
    """The template `[CLS] a [SEP]`, and `[CLS] a [SEP] b [SEP]` for a pair."""
    return processors.TemplateProcessing(
        single=[cls, "$A", sep],
        pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
        special_tokens=[(token, core.token_to_id(token)) for token in (cls, sep)],
    )


def _pretrained(tokenizer: Tokenizer, **options: Any) -> "PreTrainedTokenizerFast":
    """transformers' tokenizer with our special tokens."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **{**SPECIAL_TOKENS, **options},
    )


def check_choices(algorithm: str, vocab_size: int, model_max_length: int | None) -> None:
    """Raise the `ValueError` that `train_tokenizer` would raise for these values, before any text is read."""
    check_choice("algorithm", algorithm, ALGORITHMS)
    if vocab_size < _SMALLEST[algorithm]:
        raise UserError(f"vocab_size={vocab_size} must be at least {_SMALLEST[algorithm]} for algorithm={algorithm!r}")
    if model_max_length is not None and (model_max_length < 3 or model_max_length != int(model_max_length)):
        raise UserError(
            f"model_max_length={model_max_length} must be a whole number, at least 3: [CLS], a token, [SEP]"
        )


_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


def _wordpiece(texts: Iterable[str], vocab_size: int, lowercase: bool, progress: bool) -> Tokenizer:
    pieces: Counter[str] = Counter()
    for text in texts:
        # As the normalizer does later. So a Chinese text of any length has a few thousand different pieces.
        pieces.update((text if text.isascii() else _IDEOGRAPH.sub(r" \g<0> ", text)).split())
    _warn_of_deleted(pieces, lowercase)
    frequent, follow, count = _alphabet(_untrained_wordpiece(lowercase), pieces, vocab_size)
    entries = np.cumsum([1 + (letter in follow) for letter in frequent])
    while True:
        tokenizer = _untrained_wordpiece(lowercase)
        letters = sorted(frequent[:count])
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            # Otherwise the trainer numbers the ##letters in a random hash order, and breaks ties by number.
            special_tokens=[
                *SPECIAL_TOKENS.values(), *(f"##{letter}" for letter in letters if letter in follow)
            ],
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            show_progress=progress,
        )  # fmt: skip
        tokenizer.train_from_iterator(_repeated(pieces), trainer)
        # If words of these letters do not fill the vocabulary, as in Chinese, more letters do.
        free = vocab_size - tokenizer.get_vocab_size()
        more = int(np.searchsorted(entries, entries[count - 1] + free, side="right")) if count else 0
        if more <= count:
            return tokenizer
        count = more


def _untrained_wordpiece(lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _alphabet(tokenizer: Tokenizer, pieces: Counter[str], vocab_size: int) -> tuple[list[str], set[str], int]:
    """The letters of words, the most frequent first; those that follow another letter; and how many enter at first.

    Each letter may enter twice, as x and as ##x, so rare letters must not fill the vocabulary. Up to 1,000 letters
    enter, at most a quarter of the vocabulary. If covering 99.95 % of the text needs more, as in Chinese, more enter,
    at most a third.
    """
    counts: Counter[str] = Counter()
    follow: set[str] = set()
    in_long_words = 0
    for piece, count in pieces.items():
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(piece)):
            follow.update(word[1:])
            in_long_words += count * len(word) * (len(word) > _LONGEST_WORD)
            for letter in word:
                counts[letter] += count
    _warn_of_long_words(in_long_words, counts.total())
    frequent = sorted(counts, key=lambda letter: (-counts[letter], letter))
    covered = np.cumsum([counts[letter] for letter in frequent])
    enough = 1 + int(np.searchsorted(covered, _COVERAGE * covered[-1])) if frequent else 0
    count = min(len(frequent), max(min(_LETTERS, vocab_size // 4), min(enough, vocab_size // 3)))
    return frequent, follow, count


def _warn_of_deleted(pieces: Counter[str], lowercase: bool) -> None:
    total = private = joiners = marks = 0
    for piece, count in pieces.items():
        total += count * len(piece)
        if not piece.isascii():
            taken_apart = unicodedata.normalize("NFD", piece)  # as the normalizer does with `lowercase`
            categories = [unicodedata.category(letter) for letter in taken_apart if not "\u0300" <= letter <= "\u036f"]
            private += count * categories.count("Co")
            joiners += count * (piece.count("\u200c") + piece.count("\u200d"))
            marks += count * categories.count("Mn")
    keep = "take --algorithm bpe, which keeps every character"
    for number, what in (
        (private, f"are for private use (such as U+E000), and WordPiece deletes them: {keep}"),
        (joiners, f"are zero-width joiners and non-joiners, as in Persian, and WordPiece deletes them: {keep}"),
        (
            marks if lowercase else 0,
            "are marks other than accents, such as vowel signs, and WordPiece deletes them with --lowercase: leave it "
            "out, or take --algorithm bpe",
        ),
    ):
        if number > _DELETED * total:
            warnings.warn(f"{number / total:.1%} of the characters {what}", stacklevel=3)


def _warn_of_long_words(in_long_words: int, total: int) -> None:
    if in_long_words > _LONG_WORDS * total:
        warnings.warn(
            f"{in_long_words / total:.1%} of the text is in words of more than {_LONGEST_WORD} letters, and WordPiece "
            "makes each of them one [UNK]: put spaces between the words, or take --algorithm bpe, which needs none",
            stacklevel=2,
        )


def _repeated(pieces: Counter[str]) -> Iterator[str]:
    """Text that repeats each piece as often as it was counted."""
    for piece, count in sorted(pieces.items()):
        for first in range(0, count, _REPEATED):
            yield " ".join([piece] * min(_REPEATED, count - first))


def _split_words(written: pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """Split at words, then write their spaces and letters as `written` does."""
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"), written])


def _bpe(texts: Iterable[str], vocab_size: int, lowercase: bool, progress: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = _split_words(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=progress,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _unigram(texts: Iterable[str], vocab_size: int, lowercase: bool, progress: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = _split_words(pre_tokenizers.Metaspace(prepend_scheme="never", split=False))
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size - _BYTES,
        special_tokens=list(SPECIAL_TOKENS.values()),
        unk_token=SPECIAL_TOKENS["unk_token"],
        show_progress=progress,
    )
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:  # the library raises nothing more specific
        if "not large enough to contain all chars" not in str(error):
            raise
        raise _too_many_characters(vocab_size) from None
    vocab = [(token, score) for token, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
    if any(score is None for _, score in vocab):  # not a number
        raise UserError("the input holds too little text for algorithm='unigram': give more of it")
    if len(vocab) + _BYTES > vocab_size:
        raise _too_many_characters(vocab_size)
    special, learned = vocab[: len(SPECIAL_TOKENS)], _settled(vocab[len(SPECIAL_TOKENS) :])
    # The trainer adds no bytes. With all bytes after the learned pieces, no character is unknown.
    lowest = learned[-1][1] - 10.0
    all_bytes = [(f"<0x{byte:02X}>", lowest) for byte in range(_BYTES)]
    unknown = list(SPECIAL_TOKENS).index("unk_token")
    tokenizer.model = models.Unigram(special + learned + all_bytes, unk_id=unknown, byte_fallback=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never"), decoders.Fuse()]
    )
    return tokenizer


def _too_many_characters(vocab_size: int) -> UserError:
    places = vocab_size - _BYTES - len(SPECIAL_TOKENS)
    return UserError(
        f"vocab_size={vocab_size} is too small for algorithm='unigram': beside bytes and special tokens are {places} "
        "entries, too few for the characters of the text; give a larger vocab_size, or algorithm='bpe', which needs "
        "none for them"
    )


def _settled(learned: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """The trainer's pieces and scores, made the same from run to run.

    The trainer sums in a random order, which changes the last digits of the scores, so they are rounded. It also gives
    the letters that no piece covers low scores in a random order, 0.0001 apart; here they all get the lowest score.
    Other pieces may lie between them.
    """
    pieces = sorted(((piece, round(score, 6)) for piece, score in learned), key=lambda entry: (-entry[1], entry[0]))
    lowest = bound = pieces[-1][1]
    uncovered: set[str] = set()
    for letter, score in (entry for entry in reversed(pieces) if len(entry[0]) == 1):
        if score > bound:
            break
        uncovered.add(letter)
        bound = score + 1.1e-4
    return [entry for entry in pieces if entry[0] not in uncovered] + [(letter, lowest) for letter in sorted(uncovered)]


def _not_empty(texts: Iterable[str]) -> Iterator[str]:
    found = False
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise UserError(f"text {number} is no string but {type(text).__name__}: {in_short(text)}")
        found = found or bool(text.strip())
        yield text
    if not found:
        raise UserError("the input holds no text; a tokenizer needs some to learn from")


def load_tokenizer(name_or_path: str, *, flag: str = "tokenizer_name") -> "PreTrainedTokenizerFast":
    """Load a fast tokenizer that has the special tokens of masked-language modelling. Errors name the flag.

    Raises:
        ValueError: it cannot be loaded, is not a fast tokenizer, or lacks a special token.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(name_or_path)
    if path.is_file():
        raise UserError(f"{flag}={name_or_path!r} is a file: give its folder, {str(path.parent)!r}")
    if path.exists() and not any((path / name).is_file() for name in VOCABULARY_FILES):
        raise UserError(
            f"{flag}={name_or_path!r} holds no tokenizer.json and no older vocabulary, such as vocab.txt: put the "
            f"tokenizer's files there, or train one with train-tokenizer"
        )
    check_model_folder(name_or_path, allow_pickle=True)  # no weights are read
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
    except Exception as error:  # a library may raise anything for files that others made
        here = "" if path.exists() else "is no folder here, and "
        raise UserError(f"{flag}={name_or_path!r} {here}cannot be loaded: {first_line(error)}") from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(f"{flag}={name_or_path!r} is not a fast tokenizer; word boundaries need one")
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # a class that reads other files makes an empty vocabulary
        raise UserError(
            f"{flag}={name_or_path!r} holds no vocabulary that {type(tokenizer).__name__} reads: load it with its own "
            f"class, and save it"
        )
    missing = [name for name in SPECIAL_TOKENS if getattr(tokenizer, name) is None and name != "unk_token"]
    if missing:
        wanted = {name: SPECIAL_TOKENS[name] for name in missing}
        raise UserError(
            f"{flag}={name_or_path!r} has no {', '.join(missing)}, which masked LM needs; add them by "
            f"tokenizer.add_special_tokens({wanted}) and save it, or train another with train-tokenizer"
        )
    _frame_texts(tokenizer, f"{flag}={name_or_path!r}")
    forget_lengths(tokenizer)
    return tokenizer


def _frame_texts(tokenizer: "PreTrainedTokenizerFast", given: str) -> None:
    """Make a tokenizer that adds no special tokens put [CLS] before a text and [SEP] after it, as in pretraining."""
    if tokenizer.num_special_tokens_to_add():
        return
    core, cls, sep = tokenizer.backend_tokenizer, tokenizer.cls_token, tokenizer.sep_token
    before = [] if core.post_processor is None else [core.post_processor]
    core.post_processor = processors.Sequence([*before, _template(core, cls, sep)])
    warnings.warn(
        f"{given} puts no special tokens around a text; the one that is saved with the model "
        f"puts {cls} before it and {sep} behind it, as pretraining does",
        stacklevel=2,
    )


def tokenizer_differences(tokenizer: "PreTrainedTokenizerFast", facts: Mapping[str, Any]) -> list[str]:
    """The names of the `tokenizer_facts` in which a tokenizer differs from `facts`."""
    return [name for name, value in tokenizer_facts(tokenizer).items() if facts.get(name) != value]


def tokenizer_facts(tokenizer: "PreTrainedTokenizerFast") -> dict[str, Any]:
    """What the manifest records about a tokenizer: a hash of the vocabulary, its size, and the special ids."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= len(tokenizer):
        raise UserError(f"the tokenizer has {len(tokenizer)} tokens, and ids up to {largest}: number them without gaps")
    vocab = json.dumps(sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1]), ensure_ascii=True)
    return {
        "vocab_sha256": hashlib.sha256(vocab.encode()).hexdigest(),
        "vocab_size": len(tokenizer),
        **{f"{name}_id": getattr(tokenizer, f"{name}_id") for name in SPECIAL_TOKENS},
        "special_token_ids": sorted(tokenizer.all_special_ids),
    }
