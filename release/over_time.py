#!/usr/bin/env python
r"""Score checkpoints of the released model's run, and draw held-out loss and BLiMP accuracy over the training time.

    python release/over_time.py --run runs/release/clozebert-books --corpus runs/release/corpus --blimp BLIMP \
        --results release/over_time.json --image docs/images/over_time.png

The program scores a checkpoint with `clozebert evaluate`, without fine-tuning. It scores the checkpoints whose step is
a multiple of `--every`, and the last one. It does not repeat scores that the results file holds already. The run needs
a `--save_total_limit` that keeps these checkpoints. The minutes are minutes of training, without evaluations.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def score(checkpoint: Path, corpus: str, blimp: str) -> dict[str, Any]:
    """Minutes of training, held-out loss and BLiMP accuracy of one checkpoint."""
    state = json.loads((checkpoint / "training_state" / "state.json").read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "clozebert", "evaluate", checkpoint, "--corpus", corpus, "--blimp", blimp]
    command += ["--max_seq_length", "128", "--pseudo_perplexity_documents", "0", "--mixed_precision", "no"]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "scores.json")
        subprocess.run([*map(str, command), "--output_file", str(output)], check=True, stdout=subprocess.DEVNULL)
        figures = json.loads(output.read_text(encoding="utf-8"))
    return {
        "step": state["step"],
        "minutes": round(state["seconds"] / 60, 1),
        "loss": round(figures["eval_loss"], 4),
        "blimp": round(figures["blimp_accuracy"], 4),
        "pairs": figures["blimp_pairs"],
    }


def draw(points: list[dict[str, Any]], image: Path) -> None:
    """Plot loss and accuracy over the minutes of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    losses = figure.subplots()
    minutes = [point["minutes"] for point in points]
    (left,) = losses.plot(minutes, [point["loss"] for point in points], "o-", label="held-out loss", color="#3b6ea5")
    accuracies = losses.twinx()
    (right,) = accuracies.plot(
        minutes, [100 * point["blimp"] for point in points], "s--", label="BLiMP", color="#b5522b"
    )
    losses.set(xlabel="minutes of training", ylabel="nats per predicted token")
    accuracies.set_ylabel("right pairs, %")
    losses.grid(alpha=0.3)
    losses.legend(handles=[left, right], loc="center right")
    figure.savefig(image, dpi=110)


def main() -> None:
    """Score the missing checkpoints, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--blimp", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1000, help="steps between two checkpoints that are scored")
    arguments = parser.parse_args()
    points = json.loads(arguments.results.read_text(encoding="utf-8")) if arguments.results.exists() else []
    done = {point["step"] for point in points}
    folders = {int(folder.name.rpartition("-")[2]): folder for folder in arguments.run.glob("checkpoint-*")}
    for step, folder in sorted(folders.items()):
        if step not in done and (step % arguments.every == 0 or step == max(folders)):
            points.append(score(folder, arguments.corpus, arguments.blimp))
            print(points[-1], flush=True)
            points.sort(key=lambda point: point["step"])
            arguments.results.write_text(json.dumps(points, indent=1) + "\n", encoding="utf-8")
    draw(points, arguments.image)


if __name__ == "__main__":
    main()
