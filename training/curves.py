"""Draws the loss curve of a run."""

import json
from pathlib import Path
from typing import Any

from ..utils.errors import MissingPackageError, UserError

CURVE_NAME = "loss_curve.png"


def draw_loss_curve(log: Path, image: Path) -> None:
    """Draw training and validation loss over steps, from `training_log.jsonl`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError("drawing the loss curve needs matplotlib: pip install matplotlib") from None

    entries = read_log(log)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for key, label, style in (("loss", "training", "-"), ("eval_loss", "validation", "o-")):
        points = [(entry["step"], entry[key]) for entry in entries if key in entry]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, linewidth=1.2, markersize=3)
    axes.set_xlabel("step")
    axes.set_ylabel("masked-LM loss (nats per predicted token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(image, dpi=120)


def read_log(log: Path) -> list[dict[str, Any]]:
    """The entries of a log, without a last line that a killed run left unfinished."""
    if not log.is_file():
        return []
    entries = []
    lines = log.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        try:
            entries.append(json.loads(line))
        except ValueError:
            if number + 1 < len(lines):
                raise UserError(f"{log}, line {number + 1}, is not JSON") from None
    return entries
