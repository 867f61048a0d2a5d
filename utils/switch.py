"""Settings of the whole process that are changed within a block, also by several threads at once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Switch:
    """Changes a setting while blocks run. Blocks may overlap: the first makes the change, the last takes it back.

    Args:
        change: makes the change, and returns what was before.
        restore: puts back what was before.
    """

    def __init__(self, change: Callable[[], Any], restore: Callable[[Any], Any]) -> None:
        self._change, self._restore = change, restore
        self._lock, self._blocks, self._before = threading.Lock(), 0, None

    @contextmanager
    def changed(self) -> Iterator[None]:
        with self._lock:
            if self._blocks == 0:
                self._before = self._change()
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if self._blocks == 0:
                    self._restore(self._before)
