"""Sets a model to evaluation for a while, and each of its modules back to the mode that it was in."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """No dropout within the block. A frozen part that was in evaluation stays in it, also after an error."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


__all__ = ["evaluation_mode"]
