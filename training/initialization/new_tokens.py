"""Adds tokens to a trained model and its tokenizer."""

import copy
import unicodedata
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken

from ...corpus.vocabulary.changes import add_words, has_spaces_in_entries
from ...modeling.modeling_clozebert import ClozeBertForMaskedLM
from ...utils.errors import UserError
from ...utils.input_length import beginning_of
from ..evaluation import perplexity
from .initial_model import set_token_ids
from .pseudo_perplexity import WarmStart, check_masked_lm, masked_loss, pseudo_perplexity
from .rebuilding import take_rows

# Tokens of a text on which all tokens are masked one at a time: that work grows with the square of the length.
_EXCERPT = 64


def extend_vocabulary(
    model: ClozeBertForMaskedLM, tokenizer: Any, new_tokens: Sequence[str], *, texts: Sequence[str]
) -> WarmStart:
    """Add tokens. The rows of each are initialised to the mean of the rows of its pieces in the old tokenizer.

    In BPE and Unigram a word becomes an entry with the space before it, as their other words are. In BPE, so do the
    steps by which it is merged. All else is added beside the vocabulary, and is not found inside other words: `ring`
    does not change how "during" is split.

    Args:
        tokenizer: the model's; it is left as it is.
        new_tokens: words or other strings that the tokenizer does not have.
        texts: pseudo-perplexity is measured on their first 64 tokens, per token of the old tokenizer.

    Raises:
        UserError: a token is known already, or is split into unknown tokens only.
    """
    check_masked_lm(model)
    pieces = check_new_tokens(tokenizer, new_tokens)
    vocabulary = add_words(tokenizer, list(pieces))
    larger: Any = copy.deepcopy(vocabulary.tokenizer)
    sources = list(vocabulary.sources)
    beside = [token for token in pieces if _entry_of(larger, token) is None]
    larger.add_tokens([AddedToken(token, single_word=_is_word(token)) for token in beside])
    # A model may have more rows than its tokenizer has tokens; these rows are used first.
    sources += [[row] for row in range(len(sources), model.config.vocab_size)]
    sources += [[] for _ in range(len(larger) - len(sources))]
    for token, row in zip(beside, larger.convert_tokens_to_ids(beside), strict=True):
        sources[row] = pieces[token]
    new = take_rows(model, sources, pad_token_id=larger.pad_token_id if vocabulary.merges else None)
    if vocabulary.merges:  # special tokens may have other ids
        set_token_ids(new.config, larger)
    most = model.config.max_position_embeddings
    # Both models must read the same text: the new tokenizer needs fewer tokens and would reach further.
    excerpts = [text[: beginning_of(tokenizer, text, min(_EXCERPT, most))[1]] for text in texts]
    old_documents, new_documents = (
        [cut(text, truncation=True, max_length=most)["input_ids"] for text in excerpts] for cut in (tokenizer, larger)
    )
    loss, count = masked_loss(model, old_documents, None)
    after = pseudo_perplexity(new, new_documents, num_tokens=count)
    return WarmStart(new, perplexity(loss / count), after, larger)


def _is_word(token: str) -> bool:
    """Whether it begins and ends with a letter, a digit or a mark on one, and so is not found inside other words."""
    return all(end.isalnum() or unicodedata.category(end).startswith("M") for end in (token[0], token[-1]))


def known_tokens(tokenizer: Any, tokens: Sequence[str]) -> dict[str, str]:
    """Those of the tokens that the tokenizer has already, each with its entry: `river` may stand there as `Ġriver`."""
    return {token: entry for token in tokens if (entry := _entry_of(tokenizer, token)) is not None}


def _entry_of(tokenizer: Any, token: str) -> str | None:
    """The entry that a token is within a text, after a space; None if it is none, or several."""
    if token in (tokenizer.get_added_vocab() if has_spaces_in_entries(tokenizer) else tokenizer.get_vocab()):
        return token
    ids = tokenizer(f" {token}", add_special_tokens=False)["input_ids"]
    return tokenizer.convert_ids_to_tokens(ids[0]) if len(ids) == 1 and ids[0] != tokenizer.unk_token_id else None


def check_new_tokens(tokenizer: Any, new_tokens: Sequence[str]) -> dict[str, list[int]]:
    """The ids into which the old tokenizer splits each new token.

    Raises:
        UserError: a token is known already, or is split into unknown tokens only.
    """
    if known := known_tokens(tokenizer, new_tokens):
        names = ", ".join(repr(token) + f" (as {entry!r})" * (token != entry) for token, entry in known.items())
        raise UserError(f"new_tokens holds {names}, which the tokenizer has already: leave them out")
    cut = {token: tokenizer(token, add_special_tokens=False)["input_ids"] for token in new_tokens}
    pieces = {token: [i for i in ids if i != tokenizer.unk_token_id] for token, ids in cut.items()}
    if empty := ", ".join(repr(token) for token, ids in pieces.items() if not ids):
        raise UserError(f"the tokenizer knows no part of {empty} of new_tokens: leave it out")
    return pieces
