"""Adds tokens to a trained model and its tokenizer."""

import copy
import dataclasses
import unicodedata
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken

from ...corpus.encoding import UNSPACED_SCRIPTS
from ...corpus.vocabulary.changes import WORD_BEFORE, add_words, has_spaces_in_entries
from ...modeling.modeling_clozebert import ClozeBertForMaskedLM
from ...utils.errors import UserError
from ...utils.input_length import beginning_of
from ..evaluation import perplexity
from .initial_model import set_token_ids
from .pseudo_perplexity import WarmStart, check_masked_lm, check_several, masked_loss
from .rebuilding import take_rows

# Tokens of a text on which all tokens are masked one at a time: that work grows with the square of the length.
_EXCERPT = 64


@dataclasses.dataclass(frozen=True)
class Enlarged:
    """A tokenizer with further tokens.

    Attributes:
        sources: for each of its ids, the old ids; its row is the mean of theirs.
        entries: new tokens that are entries of the vocabulary, with the space before them.
        beside: new tokens beside the vocabulary.
        left_out: tokens that cannot be added, and why.
        moves_special: whether special tokens may have other ids than before.
    """

    tokenizer: Any
    sources: list[list[int]]
    entries: list[str]
    beside: list[str]
    left_out: dict[str, str]
    moves_special: bool


def add_tokens(
    model: ClozeBertForMaskedLM, tokenizer: Any, new_tokens: Sequence[str], *, texts: Sequence[str]
) -> WarmStart:
    """Add tokens. The rows of each are initialised to the mean of the rows of its pieces in the old tokenizer.

    In BPE and Unigram a word becomes an entry with the space before it, as their other words are. In BPE, so do the
    steps by which it is merged. All else is added beside the vocabulary, and is not found inside other words: `ring`
    does not change how "during" is split. In scripts without spaces, a token is found wherever its letters stand.

    Args:
        tokenizer: the model's; it is left as it is.
        new_tokens: words or other strings that the tokenizer does not have.
        texts: pseudo-perplexity is measured on their first 64 tokens, per token of the old tokenizer.

    Raises:
        UserError: some tokens cannot be added. The message says why.
    """
    check_masked_lm(model)
    check_several(new_tokens=new_tokens, texts=texts)
    return fit_to_enlarged(model, tokenizer, check_new_tokens(tokenizer, new_tokens), texts=texts)


def fit_to_enlarged(
    model: ClozeBertForMaskedLM, tokenizer: Any, enlarged: Enlarged, *, texts: Sequence[str]
) -> WarmStart:
    """Make a model fit the tokenizer that `enlarge` made of its own; see `add_tokens`."""
    larger, sources = enlarged.tokenizer, list(enlarged.sources)
    # A model may have more rows than its tokenizer has tokens; these rows are used first.
    sources += [[row] for row in range(len(sources), model.config.vocab_size)]
    new = take_rows(model, sources, pad_token_id=larger.pad_token_id if enlarged.moves_special else None)
    if enlarged.moves_special:
        set_token_ids(new.config, larger)
    most = model.config.max_position_embeddings
    # Both models read the same excerpt: the new tokenizer needs fewer tokens, and would else reach further.
    excerpts = [text[: beginning_of(tokenizer, text, min(_EXCERPT, most))[1]] for text in texts]
    old_documents, new_documents = (
        [beginning_of(reader, text, most)[0] for text in excerpts] for reader in (tokenizer, larger)
    )
    before, count = masked_loss(model, old_documents, None)
    after, _ = masked_loss(new, new_documents, None)
    return WarmStart(new, perplexity(before / count), perplexity(after / count), larger)


def check_new_tokens(tokenizer: Any, new_tokens: Sequence[str]) -> Enlarged:
    """`enlarge`, for tokens that can all be added.

    Raises:
        UserError: some cannot.
    """
    enlarged = enlarge(tokenizer, new_tokens)
    if enlarged.left_out:
        reasons = "; ".join(f"{token!r} {why}" for token, why in enlarged.left_out.items())
        raise UserError(f"new_tokens cannot be added: {reasons}; leave them out")
    return enlarged


def enlarge(tokenizer: Any, new_tokens: Sequence[str]) -> Enlarged:
    """Add tokens to a copy of the tokenizer, as far as they can be; see `add_tokens`."""
    wanted, left_out = _wanted(tokenizer, new_tokens)
    vocabulary = add_words(tokenizer, [token for token in wanted if not _is_unspaced(token)])
    larger: Any = copy.deepcopy(vocabulary.tokenizer)
    after_space = dict(zip(wanted, _ids_after_a_word(larger, list(wanted)), strict=True))
    entries = [
        token
        for token, ids in after_space.items()
        if len(ids) == 1 and _without_unknown(larger, ids) and not _is_unspaced(token)
    ]
    is_entry, vocab = set(entries), larger.get_vocab()
    beside = [token for token in wanted if token not in is_entry]
    # What is an entry as it stands is one for the middle of words. It keeps its row.
    left_out |= dict.fromkeys(
        (token for token in beside if token in vocab), "is in the tokenizer already, for the middle of words"
    )
    beside = [token for token in beside if token not in left_out]
    tried = _with_tokens(larger, beside)
    left_out |= _unusable(tried, beside)
    if beside and not left_out.keys().isdisjoint(beside):
        beside = [token for token in beside if token not in left_out]
        tried = _with_tokens(larger, beside)
    sources = [*vocabulary.sources, *([] for _ in range(len(tried) - len(vocabulary.sources)))]
    for token in beside:
        sources[tried.convert_tokens_to_ids(token)] = wanted[token]
    return Enlarged(tried, sources, entries, beside, left_out, moves_special=bool(vocabulary.merges))


def _wanted(tokenizer: Any, new_tokens: Sequence[str]) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The tokens that the tokenizer lacks, each with the ids of its known pieces; and the others, with the reason."""
    tokens = list(dict.fromkeys(new_tokens))
    has_spaces = has_spaces_in_entries(tokenizer)
    as_they_stand = tokenizer.get_added_vocab() if has_spaces else tokenizer.get_vocab()
    alone = tokenizer(tokens, add_special_tokens=False)["input_ids"] if tokens else []
    wanted: dict[str, list[int]] = {}
    left_out: dict[str, str] = {}
    first_of: dict[str, str] = {}
    ordinary = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    for token, ids, ids_after in zip(tokens, alone, _ids_after_a_word(tokenizer, tokens), strict=True):
        single = ids if _is_unspaced(token) else ids_after
        entry = tokenizer.convert_ids_to_tokens(single[0]) if len(single) == 1 else None
        known = token if token in as_they_stand else entry if single != [tokenizer.unk_token_id] else None
        # To WordPiece, one strange letter hides a whole word. If all are strange, the token begins as the mean entry.
        pieces = _without_unknown(tokenizer, ids) or (ids and (_letters(tokenizer, token) or ordinary))
        same = first_of.setdefault(_normalized(tokenizer, token), token)
        if known is not None:
            left_out[token] = "is in the tokenizer already" + (f", as {known!r}" if known != token else "")
        elif not pieces:
            left_out[token] = "has no part that the tokenizer knows"
        elif same != token:
            left_out[token] = f"is the same as {same!r} to the tokenizer"
        else:
            wanted[token] = pieces
    return wanted, left_out


def _without_unknown(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    return [number for number in ids if number != tokenizer.unk_token_id]


def _letters(tokenizer: Any, token: str) -> list[int]:
    """The ids of those letters of a token that the tokenizer knows."""
    each = tokenizer(list(token), add_special_tokens=False)["input_ids"]
    return _without_unknown(tokenizer, [number for ids in each for number in ids])


def _ids_after_a_word(tokenizer: Any, tokens: Sequence[str]) -> list[list[int]]:
    """The ids of each token within a text, after another word and a space."""
    if not tokens:
        return []
    before = len(tokenizer(WORD_BEFORE, add_special_tokens=False)["input_ids"])
    texts = [f"{WORD_BEFORE} {token}" for token in tokens]
    return [ids[before:] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def _with_tokens(tokenizer: Any, tokens: Sequence[str]) -> Any:
    """A copy with these tokens beside the vocabulary."""
    larger = copy.deepcopy(tokenizer)
    # BERT's normalizer would put spaces around each Chinese letter of a token.
    added = [AddedToken(one, single_word=_is_word(one), normalized=not _is_unspaced(one)) for one in tokens]
    larger.add_tokens(added)
    return larger


def _unusable(tokenizer: Any, tokens: Sequence[str]) -> dict[str, str]:
    """Those of the tokens beside the vocabulary that no text would be split into, or that are not decoded rightly."""
    found = {}
    for token, ids in zip(tokens, _ids_after_a_word(tokenizer, tokens), strict=True):
        number = tokenizer.convert_tokens_to_ids(token)
        if number not in ids:
            found[token] = "would not be found in a text by this tokenizer"
        elif _normalized(tokenizer, tokenizer.decode([number])).strip() != _normalized(tokenizer, token).strip():
            found[token] = "would be decoded wrongly by this tokenizer"
    return found


def _normalized(tokenizer: Any, token: str) -> str:
    """The token as the tokenizer reads it: without capitals, say."""
    normalizer = tokenizer.backend_tokenizer.normalizer if getattr(tokenizer, "is_fast", False) else None
    return token if normalizer is None else normalizer.normalize_str(token)


def _is_unspaced(token: str) -> bool:
    """Whether a token is of a script without spaces, so that it stands among other letters."""
    return any(UNSPACED_SCRIPTS.match(end) for end in (token[:1], token[-1:]))


def _is_word(token: str) -> bool:
    """Whether it begins and ends with a letter, a digit or a mark on one, and so is not found inside other words."""
    ends = (token[0], token[-1])
    return not _is_unspaced(token) and all(end.isalnum() or unicodedata.category(end)[0] == "M" for end in ends)
