"""Hears the signals that ask a run to stop. The loop (loop.py) then saves a checkpoint and ends."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...modeling.blocks import EncoderLayer
from ...utils.interrupts import end_after_patience, hearing_signals, say_now

# SIGHUP comes when a terminal is closed; Windows has none.
STOP_SIGNALS = tuple(number for name in ("SIGTERM", "SIGINT", "SIGHUP") if (number := getattr(signal, name, None)))


class StopRequest:
    """Whether a signal came. A second SIGINT, two seconds or more later, interrupts at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._since = self._noted = 0.0
        self._is_answered = False

    def __bool__(self) -> bool:
        return self.signal_number is not None

    @property
    def status(self) -> int:
        """The exit status of a process that stops for this, as a shell reports a signal."""
        return 128 + (self.signal_number or signal.SIGTERM)

    def request(self, number: int = signal.SIGTERM) -> None:
        """Ask for a stop, as a signal does."""
        if self.signal_number is None:
            self._since, self.signal_number = time.monotonic(), number  # in this order, for other threads

    def seconds_since(self) -> float | None:
        """How long ago the stop was asked for; None: it was not."""
        return time.monotonic() - self._since if self else None

    def _note(self, number: int, frame: Any) -> None:
        # A launcher passes the terminal's SIGINT on once more, hence the two seconds.
        now = time.monotonic()
        if number == signal.SIGINT and self._noted and now - self._noted > 2:
            raise KeyboardInterrupt
        self._noted = self._noted or now
        self.request(number)

    def _hear(self, number: int) -> None:
        """Print at once what will happen, while a step is still running; a second SIGINT ends the process."""
        if number not in STOP_SIGNALS:
            return
        begun = self.seconds_since()  # not None where the main thread has noted this very signal already
        if not self._is_answered and os.environ.get("RANK", "0") == "0":
            say_now("stopping: a checkpoint is saved first; Ctrl-C once more, after two seconds, ends the run")
        self._is_answered = True
        if begun is not None and begun > 2 and number == signal.SIGINT:
            end_after_patience()
        self.request(number)

    @contextlib.contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Handle the signals within the block. In a thread other than the main one, where Python cannot, do nothing.

        A signal that is ignored, such as SIGHUP under nohup, stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        taken = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in taken}
        try:
            with hearing_signals(self._hear):
                yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class LeftEarlyError(Exception):
    """A stop was requested within a forward or a backward pass."""


@contextlib.contextmanager
def leaving_early(model: torch.nn.Module, should_stop: Callable[[], bool], device: torch.device) -> Iterator[None]:
    """On a CPU, check twice in each layer whether to stop, as one pass through a large model takes many seconds.

    On other devices this does nothing: the host runs ahead of the device, and a pass is short.

    Raises:
        LeftEarlyError: out of the model's forward pass, or out of `backward`; gradients are incomplete then.
    """

    def ask(_: Any, inputs: tuple[Any, ...] = ()) -> None:
        """A hook before a part and, without inputs, where the backward pass has reached its input."""
        if should_stop():
            raise LeftEarlyError
        if inputs and inputs[0].requires_grad:
            inputs[0].register_hook(ask)

    parts: list[torch.nn.Module] = []
    for layer in model.modules() if device.type == "cpu" else ():
        if isinstance(layer, EncoderLayer):
            is_compiled = "forward" in vars(layer)  # by `machine.compile_model`: hooks within would break its graph
            parts += [layer] if is_compiled else [layer.attention, layer.mlp]
    hooks = [part.register_forward_pre_hook(ask) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
