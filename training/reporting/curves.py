"""Draws the loss curve of a run."""

import json
import warnings
from pathlib import Path
from typing import Any

from ...utils.errors import MissingPackageError
from ...utils.files import whole_file

CURVE_NAME = "loss_curve.png"


def draw_loss_curve(log: Path, image: Path, *, distilled: bool = False) -> None:
    """Draw training and validation loss over steps, from `training_log.jsonl`.

    Args:
        distilled: the training loss is that of distillation, and not of masked-LM.

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
    training = "training (loss of distillation)" if distilled else "training"
    for key, label, style in (("loss", training, "-"), ("eval_loss", "validation", "o-")):
        points = [(entry["step"], entry[key]) for entry in entries if key in entry]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, linewidth=1.2, markersize=3)
    axes.set_xlabel("step")
    axes.set_ylabel("masked-LM loss (nats per predicted token)")
    axes.grid(alpha=0.3)
    axes.legend()
    with whole_file(image) as file:
        figure.savefig(file, dpi=120)


def read_log(log: Path) -> list[dict[str, Any]]:
    """The entries of a log. Damaged lines are skipped with a warning, an unfinished last line without one.

    Resuming needs only the checkpoints, so a damaged log must not prevent it.
    """
    if not log.is_file():
        return []
    entries, damaged = [], []
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
        else:
            damaged.append(number)
    if any(number < len(lines) for number in damaged):
        shown = ", ".join(map(str, damaged[:5])) + (", …" if len(damaged) > 5 else "")
        warnings.warn(f"{log}: damaged lines are left out: {shown}", stacklevel=2)
    return entries
