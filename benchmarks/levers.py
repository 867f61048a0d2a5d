#!/usr/bin/env python
"""What each lever of a recipe is worth: held-out loss after the recipe's usual number of steps, one change at a time.

    python benchmarks/levers.py run    --corpus CORPUS --tokenizer_name TOKENIZER [--recipes nano tiny] [--seeds 1 2]
    python benchmarks/levers.py render [--into docs/learning_results.md]

A run has as many steps as in docs/learning_results.md (`nano` 898, `tiny` 204), one thread, and the precision that the
recipe has on this machine. All runs are scored on the same fixed masks of unseen books. Runs in the results file are
not repeated.

The recipe that all levers are compared with has Muon on whole matrices and at a constant rate; the recipes of today
have it on each head and at a rate that falls. A lever that the package does not have replaces functions of it for the
length of a run (lever_patches.py). `render` shows the difference to the recipe and the standard error of that
difference, from the deviation between seeds. A lever counts as better or worse if the difference is more than twice its
error.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import learning
import lever_patches as patch
from runs import add_run, is_wanted, read_results, run_apart, use_one_thread

RESULTS = learning.ROOT / "benchmarks" / "results" / "levers.json"
STEPS = {"nano": 898, "tiny": 204}
# Of the loss between seeds: five seeds of each recipe in float32, on an AMD EPYC without bf16
# (docs/learning_results.md).
DEVIATION = {"nano": 0.011, "tiny": 0.016}
AS_IT_IS = "as it is"

JORDAN = ((3.4445, -4.7750, 2.0315),) * 5
# Other ways than `as_before` to take matrices; the third is the recipes' own.
MUON: dict[str, Callable[[], None]] = {
    "Muon, each head by itself": patch.four_polynomials,
    "that, and blocks of neurons": patch.four_polynomials_and_blocks,
    "each head by itself, three Newton-Schulz steps": lambda: None,
    "each head by itself, three Newton-Schulz steps, blocks of neurons": patch.blocks_of_neurons,
}
PATCHES: dict[str, Callable[[], None]] = {
    "Muon with five of Jordan's polynomials": lambda: patch.use_polynomials(JORDAN),
    "NorMuon's row scaling": patch.scale_rows,
    "cautious decay": patch.decay_with_update,
    "mean of the last weights (EMA)": patch.average_weights,
    "a cap of 30 on the logits (`nano`: and the whole vocabulary)": patch.cap_logits,
    "embeddings in the values of the first and last layer": patch.add_value_embeddings,
    "a gate for each head": patch.gate_heads,
    "embeddings mixed into each layer's input": patch.mix_with_embeddings,
    "document after document": patch.read_by_document,
    "the first half causal": patch.causal_first,
}
# Changes of a recipe's settings, by lever.
_SAME: dict[str, dict[str, Any]] = {
    AS_IT_IS: {},
    "AdamW, 0.002": {"optimizer": "adamw", "learning_rate": 2.0e-3},
    "AdamW, 0.004": {"optimizer": "adamw", "learning_rate": 4.0e-3},
    "random embeddings": {"embedding_init": "random"},
    "wide windows": {"model": learning._WIDE},
    "15 % masks": {"mlm_probability": 0.15},
    "masks that fall to 15 %": {"final_mlm_probability": 0.15},
    "decay over the last fifth": {"decay_steps": 0.2},
    "linear decay": {"lr_scheduler_type": "linear", "decay_steps": None},
    "weight decay of 0.01": {"weight_decay": 0.01},
    "batches that grow from a quarter": {},
    "norms on queries and keys": {"model": {"qk_norm": True}},
}
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "nano": {
        **_SAME,
        "30 % masks": {"mlm_probability": 0.3},
        "whole vocabulary": {"vocabulary_sample": 0},
        "batches that grow from a quarter": {"initial_global_batch_size": 4, "batch_warmup_steps": 0.3},
    },
    "tiny": {
        **_SAME,
        "40 % masks": {"mlm_probability": 0.4},
        "sample of 2,048 of the vocabulary": {"vocabulary_sample": 2048},
        "batches that grow from a quarter": {"initial_global_batch_size": 8, "batch_warmup_steps": 0.3},
    },
}


def levers_of(recipe: str) -> list[str]:
    return list(dict.fromkeys([AS_IT_IS, *MUON, *PATCHES, *CHANGES[recipe]]))


# Runs ----------------------------------------------------------------------------------------------------------------


def run_one(recipe: str, lever: str, seed: int, corpus: str, tokenizer_name: str) -> dict[str, Any]:
    """Train and score in this process."""
    MUON.get(lever, patch.as_before)()
    if lever in PATCHES:
        PATCHES[lever]()
    learning.OURS[lever] = {"recipe": recipe, **learning.CONSTANT_MUON, **CHANGES[recipe].get(lever, {})}
    job = {"name": lever, "side": "ours", "seed": seed}
    found = learning.run_job(job, corpus, tokenizer_name, steps=STEPS[recipe], save_to=None)
    return {
        "recipe": recipe,
        "lever": lever,
        **{key: found[key] for key in ("seed", "steps", "loss", "processor_seconds")},
    }


def run_all(arguments: argparse.Namespace) -> None:
    """Run what is missing in the results, each run in a separate process with one thread, seed after seed."""
    for seed in arguments.seeds:
        for recipe in arguments.recipes:
            for lever in levers_of(recipe):
                wanted = {"recipe": recipe, "lever": lever, "seed": seed}
                done = read_results(arguments.results)["runs"]
                if not is_wanted(lever, arguments.only) or any(wanted.items() <= run.items() for run in done):
                    continue
                run = run_apart(__file__, wanted, arguments)
                if run is None:
                    print(f"{recipe}, {lever}, seed {seed}: failed", flush=True)
                    continue
                add_run(run, arguments.results)
                print(f"{recipe}, {lever}, seed {seed}: {run['loss']}", flush=True)


# The table -----------------------------------------------------------------------------------------------------------


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: a row for each lever; for each recipe the difference to the recipe and its standard error."""
    recipes = [recipe for recipe in STEPS if any(run["recipe"] == recipe for run in runs)]
    losses: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        losses[run["recipe"], run["lever"]].append(run["loss"])
    rows: dict[str, dict[str, str]] = defaultdict(dict)
    heads = []
    for recipe in recipes:
        base = losses[recipe, AS_IT_IS]
        deviation = DEVIATION[recipe]
        heads.append(f"`{recipe}`, {STEPS[recipe]} steps: {statistics.mean(base):.3f} ({len(base)})")
        for lever in levers_of(recipe)[1:]:
            found = losses[recipe, lever]
            if found:
                difference = statistics.mean(found) - statistics.mean(base)
                error = deviation * math.sqrt(1 / len(found) + 1 / len(base))
                mark = "**" if abs(difference) > 2 * error else ""
                rows[lever][recipe] = f"{mark}{difference:+.3f}{mark} ± {error:.3f} ({len(found)})"
    lines = [f"| | {' | '.join(heads)} |", "| --- |" + " --- |" * len(recipes)]
    lines += [
        f"| {lever} | {' | '.join(cells.get(recipe, '') for recipe in recipes)} |" for lever, cells in rows.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """One of the steps above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "render", "one"))
    parser.add_argument("--corpus")
    parser.add_argument("--tokenizer_name")
    parser.add_argument("--recipes", nargs="+", choices=tuple(STEPS), default=list(STEPS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of levers")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "render":
        from speed_table import put

        text = table(read_results(arguments.results)["runs"])
        print(text)
        if arguments.into:
            put(text, arguments.into, marker="levers")
        return
    if not (arguments.corpus and arguments.tokenizer_name):
        parser.error(f"{arguments.what} needs --corpus and --tokenizer_name")
    if arguments.what == "run":
        run_all(arguments)
        return
    use_one_thread()
    job = arguments.job
    print(json.dumps(run_one(job["recipe"], job["lever"], job["seed"], arguments.corpus, arguments.tokenizer_name)))


if __name__ == "__main__":
    main()
