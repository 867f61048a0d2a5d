"""Puts a model into evaluation mode within a block, and each of its modules back into its own mode afterwards."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from torch import nn

_lock = threading.Lock()
# For each model within such a block: how many threads are in one, and the modules that the first of them switched.
_users: "WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]]" = WeakKeyDictionary()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """No dropout within the block. Parts that were in evaluation mode before stay in it, also after an error.

    Several threads may use one model: the first switches it, and the last one switches it back.
    """
    with _lock:
        count, training = _users.get(model, (0, []))
        if count == 0:
            training = [module for module in model.modules() if module.training]
            model.eval()
        _users[model] = count + 1, training
    try:
        yield
    finally:
        with _lock:
            count = _users[model][0] - 1
            _users[model] = count, training
            if count == 0:
                del _users[model]
                for module in training:
                    module.training = True


__all__ = ["evaluation_mode"]
