"""The architectures of transformers that can be converted: one table of parameter names for each family."""

from ...utils.errors import UserError
from .architecture import FULL, PER_TOKEN, POOLED, SLIDING, Architecture, Head, Rename, Values, rope_by_layer_type
from .bert import BERT
from .distilbert import DISTILBERT
from .electra import ELECTRA
from .eurobert import EUROBERT
from .modernbert import MODERNBERT
from .nomic_bert import NOMIC_BERT
from .roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from .vit import VIT

# By `model_type`. If a configuration equals several, the first is written.
NATIVE: dict[str, Architecture] = {
    architecture.model_type: architecture
    for architecture in (
        BERT,
        ROBERTA,
        XLM_ROBERTA,
        CAMEMBERT,
        MODERNBERT,
        VIT,
        DISTILBERT,
        ELECTRA,
        NOMIC_BERT,
        EUROBERT,
    )
}


def architecture_of(model_type: str | None, *, where: str = "") -> Architecture:
    """The table of a `model_type`.

    Args:
        where: where it was read, for the message.

    Raises:
        UserError: there is no table for it.
    """
    if model_type not in NATIVE:
        raise UserError(f"model_type={model_type!r}{where} cannot be converted; these can: {', '.join(NATIVE)}")
    return NATIVE[model_type]


__all__ = [
    "FULL", "NATIVE", "PER_TOKEN", "POOLED", "SLIDING", "Architecture", "Head", "Rename", "Values", "architecture_of",
    "rope_by_layer_type",
]  # fmt: skip
