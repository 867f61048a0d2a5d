"""How many tokens a model takes."""

from typing import Any

from torch import nn

NO_LIMIT = 1 << 30


def longest_input(model: nn.Module, tokenizer: Any) -> int:
    """The most tokens of one sequence, special ones included, by the model's positions and its tokenizer.

    A model with relative or rotary positions has the length that its configuration states. `NO_LIMIT` where neither
    model nor tokenizer states one.
    """
    limits = [NO_LIMIT, int(tokenizer.model_max_length)]  # a tokenizer without a limit says 1e30
    config: Any = model.config
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        limits.append(positions)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa and MPNet count from padding_idx + 1: the rows up to there belong to no token.
            skipped = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - skipped)
    return min(limits)
