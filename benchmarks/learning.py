#!/usr/bin/env python
"""Loss after equal processor time: our recipes compared with transformers' own models in their own training loop.

    python benchmarks/learning.py time   --corpus CORPUS --tokenizer_name TOKENIZER   # seconds of a step, all sides
    python benchmarks/learning.py floors --corpus CORPUS --tokenizer_name TOKENIZER   # unigram entropy, trigram model
    python benchmarks/learning.py run    --corpus CORPUS --tokenizer_name TOKENIZER [--only 'nano*'] [--seeds 1 2]
    python benchmarks/learning.py render --seconds 300 900 --into docs/learning_results.md [--claim nano@300 modernbert]

`--results FILE` keeps the results of another kind of machine; the document shows its table under the file's name.

Every run has one thread and `--seconds` of processor time (default 180). Its steps are that budget (for ours minus the
time to count the text) divided by the side's seconds per step, which `time` measures in turns. So other load on the
machine does not matter, and all runs of a side have the same number of steps. Runs in the results file are not
repeated: a list of runs may take hours, and can be stopped between runs.

The baselines have the layers, width and heads of `nano` or `tiny`, as many weights in them, and the same precision:
transformers' BertForMaskedLM and ModernBertForMaskedLM, trained as in `run_mlm_no_trainer.py`: documents joined and cut
into rows of 128, masks of 15 % drawn for each batch, AdamW, linear decay, 1/20 of the steps as warm-up. They run with
several learning rates and two batch sizes; the best counts. All are scored on the same tokens of unseen books, with the
same fixed masks.

`render` rejects a claim unless the gain is more than twice the standard error of the difference of the means.
"""

import argparse
import contextlib
import io
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runs import Job, add_run, is_wanted, read_results, run_apart, use_one_thread, write_results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "learning.json"
ROW = 128
# 32 batches of 32 rows: 131,000 tokens of held-out books, 15 % of them predicted.
EVALUATION = {"max_seq_length": ROW, "batch_size": 32, "max_batches": 32, "seed": 42}

_WIDE = {
    "sliding_window": 256,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 160_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
# Muon's rate as in the recipes until 2026-11-25: rows with results of that time keep it, so that seeds do not mix.
CONSTANT_MUON = {"muon_constant_steps": None}
# The layers of `bert-base` in the size of `nano`: norms behind the blocks, learned positions, a plain feed-forward.
_BERT = {
    "architecture": "bert-base",
    "model": {
        "hidden_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "intermediate_size": 384,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "output_projection_init": "zero",
    },
    "position_init": "sinusoidal",
    "vocabulary_sample": 0,
    "mlm_probability": 0.3,
}
_ADAMW = {"optimizer": "adamw", "learning_rate": 1.0e-3}
# Ours: a recipe (`nano` unless another is named) and the changes to it (None: the key is removed).
# Also in the results: "rates of 0.7" and "of 2.9", half and twice of nano's former rates (0.006 and 0.02); "rates as
# frequent as tokens" and "one kind of context, wide windows", which only earlier versions of the code can run.
OURS: dict[str, dict[str, Any]] = {
    "nano": {},
    "nano, constant rate of Muon": CONSTANT_MUON,
    "nano, random embeddings": {"embedding_init": "random"},
    "nano, whole vocabulary": {"vocabulary_sample": 0},
    "nano, whole vocabulary, 30 % masks": {**CONSTANT_MUON, "vocabulary_sample": 0, "mlm_probability": 0.3},
    "nano, wide windows": {"model": _WIDE},
    "nano, AdamW": {"optimizer": "adamw", "learning_rate": 4.0e-3},
    "nano, rates of a half": {**CONSTANT_MUON, "learning_rate": 2.0e-3, "muon_learning_rate": 0.007},
    "nano, rates of 1.4": {**CONSTANT_MUON, "learning_rate": 6.0e-3, "muon_learning_rate": 0.02},
    "nano, rates of twice": {**CONSTANT_MUON, "learning_rate": 8.0e-3, "muon_learning_rate": 0.028},
    "nano as a BERT": _BERT,
    "nano as a BERT, random positions": {**_BERT, "position_init": "random"},
    "nano as a BERT, random tokens, AdamW": {**_BERT, **_ADAMW, "embedding_init": "random"},
    "nano as a BERT, random tokens and positions, AdamW": {
        **_BERT,
        **_ADAMW,
        "embedding_init": "random",
        "position_init": "random",
    },
    "tiny": {"recipe": "tiny"},
    "tiny, wide windows": {"recipe": "tiny", "model": _WIDE},
    "tiny, as it was": {
        **CONSTANT_MUON,
        "recipe": "tiny",
        "embedding_init": "random",
        "weight_decay": 0.01,
        "model": _WIDE,
    },
}
# A model of transformers, and the recipe whose size it has, if that is not `nano`. SINUSOIDAL begins with the positions
# of our recipe `bert-base`, BEGUN_BY_US with its token embeddings, too; both are theirs in all else.
SINUSOIDAL = "bert, sinusoidal positions"
BEGUN_BY_US = "bert begun by us"
BASELINES = ("bert", SINUSOIDAL, BEGUN_BY_US, "modernbert", "modernbert as tiny")
RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
BATCHES = (16, 32)
FLOORS = {"unigram": "frequencies of the tokens", "trigram": "trigram model, which sees the two tokens before"}


def all_jobs(seeds: list[int]) -> list[Job]:
    """All runs, the most wanted first."""
    ours = [{"name": name, "side": "ours", "seed": seed} for seed in seeds for name in OURS]
    theirs = [
        {"name": f"{side}, {rate:g}, {rows} rows", "side": side, "rows": rows, "learning_rate": rate, "seed": seed}
        for seed in seeds
        for rows in BATCHES
        for rate in RATES
        for side in BASELINES
    ]
    return ours + theirs


# The baselines -------------------------------------------------------------------------------------------------------


def size_of(side: str) -> str:
    """The recipe whose size a baseline has."""
    return side.partition(" as ")[2] or "nano"


def make_baseline(side: str, corpus: str, tokenizer: Any) -> Any:
    """A model of transformers with as many weights in its layers as ours of that size: 4 D² + 3 D F in each."""
    import transformers

    from clozebert import ClozeBertConfig

    ours = ClozeBertConfig.from_name(size_of(side))
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    shape, width = {name: getattr(ours, name) for name in same}, ours.intermediate_size
    # A multiple of 64 entries, as for ours.
    entries = {"vocab_size": -(-len(tokenizer) // 64) * 64, "pad_token_id": tokenizer.pad_token_id}
    if side.startswith("bert"):  # its feed-forward has two matrices, not three
        model = transformers.BertForMaskedLM(
            transformers.BertConfig(**shape, **entries, intermediate_size=width * 3 // 2)
        )
        return model if side == "bert" else begun_by_us(model, corpus if side == BEGUN_BY_US else None)
    ids = {
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config = transformers.ModernBertConfig(**shape, **entries, **ids, intermediate_size=width, sparse_prediction=True)
    return transformers.ModernBertForMaskedLM(config)


def begun_by_us(model: Any, corpus: str | None) -> Any:
    """A BERT of transformers with the initial positions and heads of our `bert-base`; and tokens, if given a corpus."""
    from clozebert.corpus import Mixture
    from clozebert.hub import from_native, to_native
    from clozebert.training.initialization.initial_embeddings import embed_by_text
    from clozebert.training.initialization.initial_positions import begin_sinusoidal

    ours: Any = from_native(model)
    if corpus is not None:
        embed_by_text(ours, Mixture([corpus]), max_seq_length=ROW, seed=0)
    begin_sinusoidal(ours)
    return to_native(ours)


def baseline_steps(job: Job, corpus: str, tokenizer: Any, *, steps: int) -> Iterator[Any]:
    """Train as in `run_mlm_no_trainer.py`, in the precision of our recipe, yielding the model after each step."""
    import torch
    from training_steps import script_steps

    from clozebert.configuration.recipes import load_recipe
    from clozebert.training.runtime.machine import choose_precision

    torch.manual_seed(job["seed"])
    model = make_baseline(job["side"], corpus, tokenizer)
    wanted = load_recipe(size_of(job["side"])).get("mixed_precision", "auto")
    bf16 = choose_precision(wanted, torch.device("cpu")) == "bf16"
    rate, rows = job["learning_rate"], job["rows"]
    for _ in script_steps(model, corpus, tokenizer, steps=steps, learning_rate=rate, rows=rows, bf16=bf16):
        yield model


# Ours ----------------------------------------------------------------------------------------------------------------


def recipe_file(job: Job, folder: str) -> str:
    """The recipe of a job as a YAML file."""
    import yaml

    from clozebert.configuration.recipes import load_recipe

    changes = {name: value for name, value in OURS[job["name"]].items() if name != "recipe"}
    values = {**load_recipe(recipe_of(job)), **changes}
    path = Path(folder, f"{job['name']}.yaml")
    path.write_text(yaml.safe_dump({name: value for name, value in values.items() if value is not None}))
    return str(path)


def train_ours(job: Job, corpus: str, tokenizer_name: str, *, steps: int, folder: str) -> Any:
    """Run the program itself, `clozebert pretrain`; returns the model that it saved."""
    import torch

    from clozebert.scripts import pretrain_mlm
    from clozebert.training.scoring import load_masked_lm

    output = str(Path(folder, "model"))
    flags = {
        "config": recipe_file(job, folder),
        "corpus": corpus,
        "tokenizer_name": tokenizer_name,
        "output_dir": output,
        "max_steps": steps,
        "seed": job["seed"],
        "eval_steps": 0,
        "max_eval_batches": 1,
        "save_steps": 0,
        "logging_steps": 50,
    }
    argv = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    with contextlib.redirect_stdout(io.StringIO()):
        pretrain_mlm.main([*argv, "--disable_tqdm"])
    return load_masked_lm(output, device=torch.device("cpu"))


# Time and runs -------------------------------------------------------------------------------------------------------


def kind_of(job: Job) -> str:
    """The kind of a run; steps of runs of the same kind take equally long."""
    return job["name"] if job["side"] == "ours" else f"{job['side']}, {job['rows']} rows"


def measure_time(
    corpus: str, tokenizer_name: str, only: list[str], *, rounds: int = 12, block: int = 4
) -> dict[str, float]:
    """Processor seconds per step for every kind: medians over blocks of steps, in turns."""
    from training_steps import our_steps

    from clozebert.corpus.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_name)
    kinds = {kind_of(job): job for job in reversed(all_jobs([0])) if is_wanted(job["name"], only)}
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Iterator[Any]] = {
            kind: our_steps(
                recipe_file(job, folder), corpus, tokenizer_name, str(Path(folder, job["name"])), max_steps=10_000
            )
            if job["side"] == "ours"
            else baseline_steps(job, corpus, tokenizer, steps=10_000)
            for kind, job in kinds.items()
        }
        for steps in sides.values():  # warm-up: memory is allocated and kernels are chosen once
            next(steps), next(steps)
        taken: dict[str, list[float]] = {kind: [] for kind in sides}
        for _ in range(rounds):
            for kind, steps in sides.items():
                begun = time.process_time()
                for _ in range(block):
                    next(steps)
                taken[kind].append((time.process_time() - begun) / block)
    return {kind: round(statistics.median(values), 5) for kind, values in taken.items()}


def measure_beginning(corpus: str, tokenizer_name: str, architecture: str) -> float:
    """Processor seconds for counting the text, which text-based initial embeddings and vocabulary samples need."""
    from clozebert import ClozeBertConfig, ClozeBertForMaskedLM
    from clozebert.corpus import Mixture
    from clozebert.corpus.text_sample import count_tokens
    from clozebert.corpus.tokenizer import load_tokenizer
    from clozebert.training.initialization.initial_embeddings import embed_by_text

    config = ClozeBertConfig.from_name(architecture, vocab_size=len(load_tokenizer(tokenizer_name)))
    model, corpora = ClozeBertForMaskedLM(config), Mixture([corpus])
    begun = time.process_time()
    embed_by_text(model, corpora, max_seq_length=ROW, seed=0)
    count_tokens(corpora, max_seq_length=ROW, vocab_size=config.vocab_size)
    return round(time.process_time() - begun, 2)


def recipe_of(job: Job) -> str:
    """The recipe of a run of ours, or the one whose size a baseline has."""
    return OURS[job["name"]].get("recipe", "nano") if job["side"] == "ours" else size_of(job["side"])


def begins_from_text(job: Job) -> bool:
    if job["side"] == "ours":
        return OURS[job["name"]].get("embedding_init") != "random"
    return job["side"] == BEGUN_BY_US


def run_job(job: Job, corpus: str, tokenizer_name: str, *, steps: int, save_to: Path | None) -> dict[str, Any]:
    """Train and score in this process; with `save_to`, save the model in a folder named after the job and its seed."""
    from clozebert.corpus import Corpus
    from clozebert.corpus.tokenizer import load_tokenizer
    from clozebert.training.scoring import score_frozen_masks

    tokenizer = load_tokenizer(tokenizer_name)
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if job["side"] == "ours":
            model = train_ours(job, corpus, tokenizer_name, steps=steps, folder=folder)
        else:
            *_, model = baseline_steps(job, corpus, tokenizer, steps=steps)
    taken = time.process_time() - begun
    if save_to is not None:
        for part in (model, tokenizer):
            part.save_pretrained(save_to / f"{job['name']}-{job['seed']}")
    embedding = model.get_input_embeddings().weight.numel()
    scores = score_frozen_masks(model.eval(), Corpus(corpus, "validation"), **EVALUATION)
    return {
        **job,
        "steps": steps,
        "loss": round(scores["eval_loss"], 4),
        "accuracy": round(scores["eval_accuracy"], 4),
        "processor_seconds": round(taken, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "beside_embeddings": sum(p.numel() for p in model.parameters()) - embedding,
    }


def run_all(arguments: argparse.Namespace) -> None:
    """Run the jobs that are missing in the results, each in a separate process with one thread."""
    results, budget = read_results(arguments.results), arguments.seconds[0]
    if "seconds_of_a_step" not in results:
        sys.exit("take the time of a step first: learning.py time")
    for job in all_jobs(arguments.seeds):
        if not is_wanted(job["name"], arguments.only) or any(same_run(job, done, budget) for done in results["runs"]):
            continue
        seconds = budget - (results["seconds_to_begin"][recipe_of(job)] if begins_from_text(job) else 0)
        steps = int(seconds / results["seconds_of_a_step"][kind_of(job)])
        more = ["--steps", str(steps), *(["--save_to", str(arguments.save_to)] if arguments.save_to else [])]
        found = run_apart(__file__, job, arguments, *more)
        if found is None:
            print(f"{job['name']}, seed {job['seed']}: failed", flush=True)
            continue
        add_run({**found, "seconds": budget}, arguments.results)
        print(f"{job['name']}, seed {job['seed']}: {steps} steps, loss {found['loss']}", flush=True)


def same_run(job: Job, done: dict[str, Any], seconds: float) -> bool:
    return all(job[name] == done[name] for name in ("name", "seed")) and done["seconds"] == seconds


# The table -----------------------------------------------------------------------------------------------------------


def summaries(runs: list[dict[str, Any]], seconds: float) -> dict[str, dict[str, Any]]:
    """n, mean and standard deviation of the losses of each name."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run["seconds"] == seconds:
            entry = found.setdefault(run["name"], {"side": run["side"], "steps": run["steps"], "losses": {}})
            entry["losses"][run["seed"]] = run["loss"]
    for entry in found.values():
        losses = list(entry["losses"].values())
        entry["mean"], entry["n"] = statistics.mean(losses), len(losses)
        entry["sigma"] = statistics.stdev(losses) if len(losses) > 1 else None
    return found


def check_claim(better: dict[str, Any], worse: dict[str, Any]) -> tuple[float, float]:
    """The gain of `better` over `worse`, and the standard error of the difference of the means.

    Raises:
        ValueError: a side has fewer than two runs, or the gain is at most twice that error.
    """
    if better["n"] < 2 or worse["n"] < 2:
        raise ValueError(f"a claim needs two runs or more on both sides, and has {better['n']} and {worse['n']}")
    gain = worse["mean"] - better["mean"]
    error = math.sqrt(better["sigma"] ** 2 / better["n"] + worse["sigma"] ** 2 / worse["n"])
    if gain <= 2 * error:
        raise ValueError(f"a gain of {gain:.4f} is not more than twice its error of {error:.4f}")
    return gain, error


def best_of(found: dict[str, dict[str, Any]], name: str) -> tuple[str, dict[str, Any]]:
    """The entry called `name`, or the best entry of the baseline `name`."""
    if name in found:
        return name, found[name]
    return min(
        ((key, entry) for key, entry in found.items() if entry["side"] == name), key=lambda pair: pair[1]["mean"]
    )


def table(results: dict[str, Any], budgets: list[float], claims: list[list[str]], only: list[str]) -> str:
    """Markdown: the losses of all names for every budget, the floors, the claims.

    Args:
        claims: pairs of names, the better one first; a name means the last budget, or another one: `nano@300`.
        only: patterns of the names to show.
    """
    of_budget = {seconds: summaries(results["runs"], seconds) for seconds in budgets}
    lines = ["| processor seconds | side | steps | n | held-out loss | sd |", "| --- | --- | --- | --- | --- | --- |"]
    for seconds, found in of_budget.items():
        for name, entry in sorted(found.items(), key=lambda pair: pair[1]["mean"]):
            if is_wanted(name, only):
                sigma = "" if entry["sigma"] is None else f"{entry['sigma']:.3f}"
                facts = f"{entry['steps']:,} | {entry['n']} | {entry['mean']:.3f} | {sigma}"
                lines.append(f"| {seconds:,.0f} | {name} | {facts} |")
    for name, loss in results.get("floors", {}).items():
        lines.append(f"| | {FLOORS[name]} | | | {loss:.3f} | |")
    lines.append("")
    for pair in claims:
        sides = []
        for text in pair:
            name, _, at = text.partition("@")
            seconds = float(at or budgets[-1])
            name, entry = best_of(of_budget[seconds], name)
            sides.append((f"{name}, after {seconds:,.0f} seconds", entry))
        (better, a), (worse, b) = sides
        gain, error = check_claim(a, b)
        lines.append(f"- {better} against {worse}: {gain:.3f} ± {error:.3f} nats lower.")
    return "\n".join(lines)


def main() -> None:
    """One of the steps above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "floors", "run", "render", "one"))
    parser.add_argument("--corpus")
    parser.add_argument("--tokenizer_name")
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[180.0], help="processor time of a run; several to render"
    )
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--results", type=Path, default=RESULTS, help="one file for each kind of machine")
    parser.add_argument("--save_to", type=Path, help="a folder that keeps the models of `run`")
    parser.add_argument("--into", type=Path)
    parser.add_argument("--claim", nargs=2, action="append", default=[], metavar=("BETTER", "WORSE"))
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "render":
        from speed_table import put

        text = table(read_results(arguments.results), arguments.seconds, arguments.claim, arguments.only)
        print(text)
        if arguments.into:
            put(text, arguments.into, marker=arguments.results.stem)
        return
    if not (arguments.corpus and arguments.tokenizer_name):
        parser.error(f"{arguments.what} needs --corpus and --tokenizer_name")
    if arguments.what == "run":
        run_all(arguments)
        return
    use_one_thread()
    if arguments.what == "one":
        found = run_job(
            arguments.job, arguments.corpus, arguments.tokenizer_name, steps=arguments.steps, save_to=arguments.save_to
        )
        print(json.dumps(found))
        return
    results = read_results(arguments.results)
    if arguments.what == "time":
        taken = measure_time(arguments.corpus, arguments.tokenizer_name, arguments.only)
        beginning = {
            name: measure_beginning(arguments.corpus, arguments.tokenizer_name, name)
            for name in sorted({recipe_of(job) for job in all_jobs([0]) if job["side"] == "ours"})
        }
        write_results({**results, "seconds_of_a_step": taken, "seconds_to_begin": beginning}, arguments.results)
        print(json.dumps(taken, indent=1), f"to begin from the text: {beginning}", sep="\n")
    else:
        from ngrams import floors

        found = floors(arguments.corpus)
        write_results({**results, "floors": found}, arguments.results)
        print(json.dumps(found))


if __name__ == "__main__":
    main()
