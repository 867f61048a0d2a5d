"""Measures a masked-LM model before and after it grew: the perplexity of tokens that are masked one at a time."""

import dataclasses
from typing import Any

from ...configuration.configuration_clozebert import ClozeBertConfig
from ...modeling.modeling_clozebert import ClozeBertForMaskedLM
from ...utils.errors import UserError
from ...utils.progress_bar import StageBars
from ..evaluation import perplexity
from ..pseudo_likelihood import Documents, masked_log_likelihoods
from .initial_model import SPECIAL_TOKEN_IDS


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """A model made from another, and the pseudo-perplexities before and after.

    Both are per token of the old tokenizer, so that they can be compared even if the new one splits the text into
    fewer tokens. The model is in the mode and has the attention implementation of the other. All its parameters can be
    trained, also those that were frozen there.
    """

    model: ClozeBertForMaskedLM
    before: float
    after: float
    tokenizer: Any = None

    def __str__(self) -> str:
        return f"pseudo-perplexity {self.before:.4g} before, {self.after:.4g} after"


def pseudo_perplexity(
    model: ClozeBertForMaskedLM,
    documents: Documents,
    *,
    positions_per_document: int = 32,
) -> float:
    """exp(-(1/N) sum_t log p(x_t | x without x_t)) (Salazar et al. 2020): each token masked by itself in turn.

    Args:
        documents: token ids, special tokens included; those are never masked.
        positions_per_document: mask at most this many tokens of a document, evenly spaced.

    Raises:
        UserError: the model's configuration has no mask token, or there is nothing to mask.
    """
    loss, count = masked_loss(model, documents, positions_per_document)
    return perplexity(loss / count)


def masked_loss(
    model: ClozeBertForMaskedLM,
    documents: Documents,
    positions_per_document: int | None,
) -> tuple[float, int]:
    """The sum of -log p over the tokens that are masked one at a time, and their number."""
    documents, config = list(documents), model.config
    if any(isinstance(document, str) for document in documents):
        raise UserError("documents holds text: give token ids, as tokenizer(texts)['input_ids'] returns them")
    mask_token_id = mask_token_of(config)
    special = {getattr(config, name) for name in SPECIAL_TOKEN_IDS}
    scores = masked_log_likelihoods(
        model,
        documents,
        mask_token_id=mask_token_id,
        never_masked=special - {None},
        positions_per_document=positions_per_document,
        report=StageBars(unit=" tokens").begin("measuring"),
    )
    count = sum(map(len, scores))
    if count == 0:
        raise UserError("documents hold no token that could be masked: give some text")
    return -sum(float(score.sum()) for score in scores), count


def mask_token_of(config: ClozeBertConfig) -> int:
    if config.mask_token_id is None:
        raise UserError(
            "mask_token_id of the model's configuration is not set, and pseudo-perplexity masks tokens: "
            "set model.config.mask_token_id = tokenizer.mask_token_id"
        )
    return config.mask_token_id


def measure(old: ClozeBertForMaskedLM, new: ClozeBertForMaskedLM, documents: Documents) -> WarmStart:
    documents = list(documents)
    return WarmStart(new, pseudo_perplexity(old, documents), pseudo_perplexity(new, documents))


def check_several(**lists: Any) -> None:
    """Refuse one text in place of a list of texts: it would be read letter by letter."""
    for name, value in lists.items():
        if isinstance(value, str):
            raise UserError(f"{name}={value[:40]!r} is one text: give a list")


def check_masked_lm(model: Any) -> None:
    """Refuse any other model."""
    if isinstance(model, ClozeBertForMaskedLM):
        return
    name = type(model).__name__
    if name == ClozeBertForMaskedLM.__name__:
        raise UserError(
            "the model's code is the copy in its folder: import clozebert, and load it without trust_remote_code"
        )
    raise UserError(f"a {name} was given: only a ClozeBertForMaskedLM can grow")
