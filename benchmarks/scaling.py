#!/usr/bin/env python
"""Loss against compute for four sizes, a law fitted to it, and what the law says of a larger model.

    python benchmarks/scaling.py run    --corpus CORPUS --tokenizer_name TOKENIZER [--sizes 0.4M 2.6M]
    python benchmarks/scaling.py render [--into docs/learning_results.md] [--image docs/images/scaling.png]

All runs have the recipe `tiny` with the size named, each with a schedule of its own length, one thread, and seed 1. A
step has 16 rows in place of 32, and so 0.7 of the learning rates (docs/learning_results.md, "Rates and rows"); the
results also have runs at the full rates. All are scored on the same fixed masks of unseen books. The smallest size runs
in float32, the others in the precision that the recipe has on this machine. Runs in the results file are not repeated;
the cheapest come first.

The law is that of Hoffmann et al. 2022 (https://arxiv.org/abs/2203.15556): L = E + A / N^a + B / T^b for N weights
beside the embeddings and T tokens, fitted to the logarithm of the loss by least squares: of the better rates for each
size and length.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import learning
import numpy as np
from runs import add_run, read_results, run_apart, use_one_thread

RESULTS = learning.ROOT / "benchmarks" / "results" / "scaling.json"
ROWS = 16
RATES = 0.7  # of `tiny`'s
_TINY = {
    "architecture": "tiny", "recipe": "tiny", "global_batch_size": ROWS, "per_device_train_batch_size": ROWS,
    "learning_rate": RATES * 3e-3, "muon_learning_rate": RATES * 0.02, **learning.CONSTANT_MUON,
}  # fmt: skip


def _shape(layers: int, width: int, heads: int, feed_forward: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": feed_forward,
    }


# By weights beside the embeddings: the model, and the millions of tokens of its runs.
SIZES: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "0.4M": ({**_TINY, "mixed_precision": "no", "model": _shape(4, 96, 3, 256)}, (0.5, 1, 2, 4, 8)),
    "2.6M": ({**_TINY, "model": _shape(4, 256, 4, 512)}, (0.5, 1, 2, 4)),
    "5.1M": ({**_TINY, "model": _shape(6, 256, 4, 768)}, (0.5, 1, 2)),
    "31M": ({**_TINY, "model": _shape(10, 512, 8, 1344)}, (0.25, 0.5)),
}
# Longer runs on the same text (docs/learning_results.md), to which the law is fitted too: `nano` with a sample of the
# vocabulary and 40 % masks, and a released model.
LONGER: tuple[dict[str, Any], ...] = (
    {"name": "`nano`", "beside_embeddings": 464_832, "tokens": 6_225 * 2_048, "loss": 3.618},
    {"name": "`nano`", "beside_embeddings": 464_832, "tokens": 18_757 * 2_048, "loss": 3.451},
    {"name": "the release of 2026-11-24", "beside_embeddings": 2_701_824, "tokens": 7_330 * 4_096, "loss": 3.072},
)
# What the law is asked for: weights beside the embeddings, tokens. `modernbert-base` has 22 layers of 768 and 1,152.
BASE = {"name": "modernbert-base", "weights": 22 * (4 * 768**2 + 3 * 768 * 1152), "tokens": 1e9}


# Runs ----------------------------------------------------------------------------------------------------------------


def all_runs(sizes: list[str]) -> list[dict[str, Any]]:
    """The runs, the cheapest first."""
    runs = [{"size": size, "tokens": millions * 1e6, "rates": RATES} for size in sizes for millions in SIZES[size][1]]
    return sorted(runs, key=lambda run: float(run["size"].rstrip("M")) * run["tokens"])


def run_one(run: dict[str, Any], corpus: str, tokenizer_name: str) -> dict[str, Any]:
    """Train and score in this process."""
    learning.OURS[run["size"]] = SIZES[run["size"]][0]
    steps = round(run["tokens"] / (ROWS * learning.ROW))
    job = {"name": run["size"], "side": "ours", "seed": 1}
    found = learning.run_job(job, corpus, tokenizer_name, steps=steps, save_to=None)
    kept = ("steps", "loss", "processor_seconds", "parameters", "beside_embeddings")
    return {**run, **{key: found[key] for key in kept}}


def run_all(arguments: argparse.Namespace) -> None:
    """Run what is missing in the results, each run in a separate process with one thread."""
    for wanted in all_runs(arguments.sizes):
        if any(wanted.items() <= run.items() for run in read_results(arguments.results)["runs"]):
            continue
        run = run_apart(__file__, wanted, arguments)
        if run is None:
            sys.exit(f"{wanted['size']}, {wanted['tokens']:,.0f} tokens: failed")
        add_run(run, arguments.results)
        print(f"{run['size']}, {run['tokens']:,.0f} tokens: {run['loss']}, {run['processor_seconds']} s", flush=True)


# The law -------------------------------------------------------------------------------------------------------------


def fit(runs: list[dict[str, Any]]) -> dict[str, float]:
    """E, A, a, B, b of the law, by a grid over E, a and b; A and B are then linear least squares, not below zero."""
    weights, tokens, losses = (
        np.array([run[key] for run in runs], float) for key in ("beside_embeddings", "tokens", "loss")
    )
    best: dict[str, float] = {"error": np.inf}
    exponents = np.arange(0.04, 1.5, 0.04)
    for floor, a, b in itertools.product(np.arange(0.0, losses.min(), 0.2), exponents, exponents):
        terms = np.stack([(weights / 1e6) ** -a, (tokens / 1e6) ** -b], axis=1)
        # Weighted by 1 / loss: differences of logarithms, to first order.
        factors = np.linalg.lstsq(terms / losses[:, None], (losses - floor) / losses, rcond=None)[0].clip(min=0)
        error = float(np.square(np.log(floor + terms @ factors) - np.log(losses)).mean() ** 0.5)
        if error < best["error"]:
            best = {"error": error, "E": floor, "A": factors[0], "a": a, "B": factors[1], "b": b}
    return best


def better_rates(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each size and length, the run with the lowest loss."""
    by_loss = sorted(runs, key=lambda run: -run["loss"])
    return list({(run["size"], run["tokens"]): run for run in by_loss}.values())


def predict(law: dict[str, float], weights: float, tokens: float) -> float:
    """The loss by the law."""
    return float(law["E"] + law["A"] * (weights / 1e6) ** -law["a"] + law["B"] * (tokens / 1e6) ** -law["b"])


def predictions_without_one(runs: list[dict[str, Any]], weights: float, tokens: float) -> list[float]:
    """What the law says if one run is left out of the fit, for each run."""
    return [predict(fit(runs[:i] + runs[i + 1 :]), weights, tokens) for i in range(len(runs))]


def flops_of(run: dict[str, Any]) -> float:
    """FLOPs of the matmuls of a run, by the formula of `clozebert plan`."""
    from clozebert import ClozeBertConfig
    from clozebert.configuration.recipes import load_recipe
    from clozebert.training.planning.memory_and_time import forward_flops, last_layer_reads

    recipe = load_recipe("tiny")
    vocabulary = (run["parameters"] - run["beside_embeddings"]) // SIZES[run["size"]][0]["model"]["hidden_size"]
    config = ClozeBertConfig.from_name("tiny", vocab_size=vocabulary, **SIZES[run["size"]][0]["model"])
    predicted = recipe["mlm_probability"]
    reads = last_layer_reads(config, on_cpu=True, half=False)
    forward = forward_flops(config, tokens=1_000_000, length=learning.ROW, predicted=predicted, reads=reads)
    return 3 * forward / 1_000_000 * run["tokens"]


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: the runs, the law, what it says of `BASE`."""
    fitted = [*better_rates(runs), *LONGER]
    law = fit(fitted)
    lines = [
        "| weights beside the embeddings | tokens | steps | FLOPs | rates | seconds | held-out loss | by the law |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in sorted(runs, key=lambda run: (run["beside_embeddings"], run["tokens"], run["rates"])):
        lines.append(
            f"| {run['beside_embeddings'] / 1e6:.1f} M | {run['tokens'] / 1e6:g} M | {run['steps']:,} "
            f"| {flops_of(run):.1e} | {run['rates']:g} | {run['processor_seconds']:.0f} | {run['loss']:.3f} "
            f"| {predict(law, run['beside_embeddings'], run['tokens']):.3f} |"
        )
    base = predict(law, BASE["weights"], BASE["tokens"])
    others = predictions_without_one(fitted, BASE["weights"], BASE["tokens"])
    formula = f"L = {law['E']:.1f} + {law['A']:.2f} / N^{law['a']:.2f} + {law['B']:.2f} / T^{law['b']:.2f}"
    lines += [
        "",
        f"The law, with N and T in millions: {formula}. It misses the losses by {100 * law['error']:.1f} % (root mean",
        f"square). For `{BASE['name']}` ({BASE['weights'] / 1e6:.0f} M) and {BASE['tokens'] / 1e9:g} billion tokens it "
        f"says {base:.2f}; if one run is left out of the fit, {min(others):.2f} to {max(others):.2f}.",
        "",
        "The law is fitted to longer runs, too:",
        "",
    ]
    for run in LONGER:
        by_law = predict(law, run["beside_embeddings"], run["tokens"])
        lines.append(
            f"- {run['name']} after {run['tokens'] / 1e6:.0f} M tokens: {run['loss']:.2f}, by the law {by_law:.2f}"
        )
    return "\n".join(lines)


def draw(runs: list[dict[str, Any]], image: Path) -> None:
    """Plot loss over FLOPs, one line a size."""
    from matplotlib.figure import Figure

    runs = better_rates(runs)
    law, figure = fit([*runs, *LONGER]), Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for size in SIZES:
        of_size = sorted((run for run in runs if run["size"] == size), key=lambda run: run["tokens"])
        if of_size:
            flops = [flops_of(run) for run in of_size]
            (line,) = axes.plot(flops, [run["loss"] for run in of_size], "o", label=size)
            fitted = [predict(law, run["beside_embeddings"], run["tokens"]) for run in of_size]
            axes.plot(flops, fitted, "--", color=line.get_color(), linewidth=1)
    axes.set(xscale="log", xlabel="FLOPs of training", ylabel="held-out loss, nats per predicted token")
    axes.grid(alpha=0.3)
    axes.legend(title="weights beside the embeddings; dashed: the law")
    figure.savefig(image, dpi=110)


def main() -> None:
    """One of the steps above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "render", "one"))
    parser.add_argument("--corpus")
    parser.add_argument("--tokenizer_name")
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--image", type=Path)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "render":
        from speed_table import put

        runs = read_results(arguments.results)["runs"]
        text = table(runs)
        print(text)
        if arguments.into:
            put(text, arguments.into, marker="scaling")
        if arguments.image:
            draw(runs, arguments.image)
        return
    if not (arguments.corpus and arguments.tokenizer_name):
        parser.error(f"{arguments.what} needs --corpus and --tokenizer_name")
    if arguments.what == "run":
        run_all(arguments)
        return
    use_one_thread()
    print(json.dumps(run_one(arguments.job, arguments.corpus, arguments.tokenizer_name)))


if __name__ == "__main__":
    main()
