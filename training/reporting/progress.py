"""Logging of a run: a progress bar, a JSON line for each entry, trackers."""

import json
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...utils.files import write_text
from ...utils.progress_bar import progress_bar
from .curves import read_log

LOG_NAME = "training_log.jsonl"
EVALUATION_FAILED = "the evaluation failed"
_STARVED, _STARVED_SECONDS = 0.05, 5.0


class RunLog:
    """Records what happens in a run, in a file, on the terminal and in trackers.

    Args:
        path: the log file, None for no file. Entries after `step`, from a run that was killed, are removed.
        step, max_steps: where the run begins and ends.
        evaluates_again: the run evaluates at `step` before it goes on, so an evaluation logged there is removed, too.
        visible: show the progress bar or, with `bar=False`, a line for each entry.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        accelerator: Any,
        step: int,
        max_steps: int,
        visible: bool,
        bar: bool = True,
        evaluates_again: bool = False,
    ):
        self.path, self.accelerator, self.visible = path, accelerator, visible
        self._warned = False
        if path is not None:
            kept = [
                entry
                for entry in read_log(path)
                if entry["step"] < step or (entry["step"] == step and not (evaluates_again and _is_evaluation(entry)))
            ]
            write_text(path, "".join(json.dumps(entry) + "\n" for entry in kept))
        self.bar = progress_bar(
            description="pretraining",
            total=max_steps,
            initial=step,
            disable=not (visible and bar),
            unit=" steps",
            smoothing=0.05,
        )

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.visible:
            tqdm.write(text)

    def advance(self) -> None:
        self.bar.update(1)

    def change_length(self, max_steps: int) -> None:
        """Set another number of steps for the bar."""
        self.bar.total = max_steps
        self.bar.refresh()

    def record(self, step: int, values: dict[str, Any]) -> None:
        """Write one entry."""
        entry = {"step": step, **values}
        self._write(entry)
        self.accelerator.log({key: value for key, value in values.items() if not isinstance(value, str)}, step=step)
        if self.bar.disable:
            self.say(_one_line(entry))
        elif "loss" in values:
            self.bar.set_postfix_str(f"loss {values['loss']:.4f}, {values['tokens_per_second']:,.0f} tokens/s")
        else:
            self.say(_one_line(entry))

    def note(self, step: int, event: str) -> None:
        """Write an event to the file, which has been shown already."""
        self._write({"step": step, "event": event})

    def _write(self, entry: dict[str, Any]) -> None:
        if self.path is None:
            return
        if not (folder := self.path.parent).is_dir():
            self.say(f"warning: {folder} was deleted or moved; it is made anew for what is still to come")
            folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def warn_of_starvation(self, watch: "Stopwatch") -> None:
        """Warn once if batches come too slowly, and only after this has cost some seconds."""
        share = watch.total_waited / max(watch.total_seconds, 1e-9)
        if share > _STARVED and watch.total_waited > _STARVED_SECONDS and not self._warned:
            self._warned = True
            way_out = "more processes would make them (--dataloader_num_workers of pretrain)"
            self.say(f"waiting for batches takes {share:.0%} of the time: {way_out}")

    def close(self) -> None:
        self.bar.close()


class Stopwatch:
    """Tokens, seconds and time spent waiting for batches since the last reading."""

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds = self.waited = self.total_seconds = self.total_waited = 0.0
        self._begun = 0.0

    def begin(self) -> None:
        """The loop begins to wait for a batch."""
        self._begun = time.perf_counter()

    def got_batch(self) -> None:
        self.waited += time.perf_counter() - self._begun

    def end(self, tokens: int) -> float:
        """The step is done; returns its seconds."""
        seconds = time.perf_counter() - self._begun
        self.seconds += seconds
        self.tokens += tokens
        return seconds

    def read(self) -> dict[str, float]:
        """Return tokens_per_second and data_wait (the share of the time spent waiting), and reset them."""
        seconds = max(self.seconds, 1e-9)
        reading = {"tokens_per_second": self.tokens / seconds, "data_wait": self.waited / seconds}
        self.total_seconds += self.seconds
        self.total_waited += self.waited
        self.tokens, self.seconds, self.waited = 0, 0.0, 0.0
        return reading


def _is_evaluation(entry: dict[str, Any]) -> bool:
    return "eval_loss" in entry or str(entry.get("event")).startswith(EVALUATION_FAILED)


def _one_line(entry: dict[str, Any]) -> str:
    shown = []
    for key, value in entry.items():
        shown.append(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}")
    return ", ".join(shown)
