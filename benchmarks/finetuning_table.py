#!/usr/bin/env python
"""The table of docs/finetuning_results.md: our encoder, a BERT and a ModernBERT of its size, three seeds each.

    python benchmarks/finetuning_table.py data --source ../shared/data   # files, in the splits of their README
    python benchmarks/finetuning_table.py encoders --corpus CORPUS --tokenizer_name TOKENIZER
    python benchmarks/finetuning_table.py cells                          # what is missing; several may run at once
    python benchmarks/finetuning_table.py render                         # results/finetuning.json and the table

The encoders are those of learning.py, each trained for the processor time that `MODELS` says; the steps follow from
the seconds per step in `--times`, a results file of learning.py. A cell is one run of a fine-tuning program with a
model, data, an output folder and a seed, and no other flags. Seed 2 fine-tunes the encoder that was pretrained with
seed 2, so the deviations hold the noise of both. Everything is kept in `--work` (default runs/finetuning_table): what
is done is not repeated, so each step can be interrupted.
"""

import argparse
import contextlib
import csv
import io
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from speed_table import put

ROOT = Path(__file__).parents[1]
SEEDS = (1, 2, 3)
DOMAINS = ("ai", "literature", "music", "politics", "science")


@dataclass(frozen=True)
class Dataset:
    """One row of the table: the program, the score shown, and the function that writes its files."""

    title: str
    kind: str
    metric: str
    suffix: str
    write: Callable[[Path, Path], None]


@dataclass(frozen=True)
class Encoder:
    """One column of the table: its name in learning.py, processor seconds of pretraining, and seeds of pretraining."""

    title: str
    name: str
    seconds: float = 1200.0
    seeds: tuple[int, ...] = SEEDS

    def folder(self, work: Path, seed: int) -> Path:
        """Where the encoder is that fine-tuning with this seed begins from."""
        return work / "encoders" / f"{self.name}-{seed if seed in self.seeds else self.seeds[0]}"


# Each baseline with its best learning rate and batch size in runs of 300 seconds.
MODELS = {
    "ours": Encoder("ours", "nano"),
    "modernbert": Encoder("ModernBERT", "modernbert, 0.002, 16 rows"),
    "bert": Encoder("BERT", "bert, 0.001, 16 rows", seconds=3600.0, seeds=(1,)),
}


# Data ----------------------------------------------------------------------------------------------------------------


def copy_splits(source: Path, folder: Path, names: dict[str, str], suffix: str) -> None:
    """Copy files that are already split."""
    for split, name in names.items():
        shutil.copy(source / name, folder / f"{split}.{suffix}")


def write_csv(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write a CSV with the columns `text,label`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def write_two_classes(source: Path, folder: Path, names: dict[str, str]) -> None:
    """Data with a file of sentences for each class, split as its README suggests: line mod 10, 9 test, 8 validation."""
    split_of = ["train"] * 8 + ["validation", "test"]
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "validation": [], "test": []}
    for label, name in names.items():
        lines = (source / name).read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(line for line in lines if line.strip()):
            rows[split_of[number % 10]].append((line.strip(), label))
    for split, of_split in rows.items():
        write_csv(folder / f"{split}.csv", of_split)


def write_movie_reviews(source: Path, folder: Path) -> None:
    """Fold 9 is the test data, fold 8 the validation data."""
    split_of = ["train"] * 8 + ["validation", "test"]
    lines = (source / "cls_movie_reviews/movie_reviews.jsonl").read_text(encoding="utf-8").split("\n")
    for split in ("train", "validation", "test"):
        kept = [line for line in lines if line.strip() and split_of[json.loads(line)["fold"]] == split]
        (folder / f"{split}.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")


def write_snips(source: Path, folder: Path) -> None:
    """The official validation set is the test data, as in the literature; every 20th training sentence validates."""
    lines = (source / "tok_slots_snips/train.jsonl").read_text(encoding="utf-8").split("\n")
    lines = [line for line in lines if line.strip()]
    for split, kept in (
        ("train", [line for number, line in enumerate(lines) if number % 20]),
        ("validation", lines[::20]),
    ):
        (folder / f"{split}.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
    shutil.copy(source / "tok_slots_snips/validate.jsonl", folder / "test.jsonl")


def write_intent_pairs(source: Path, folder: Path) -> None:
    """Two questions of banking77: do they have the same intent? Every tenth training question validates."""
    draw = random.Random(1)
    rows_of = {}
    for split in ("train", "test"):
        with (source / f"cls_banking77/{split}.csv").open(encoding="utf-8", newline="") as file:
            rows_of[split] = list(csv.DictReader(file))
    train, test = rows_of["train"], rows_of["test"]
    kept = [row for number, row in enumerate(train) if number % 10]
    splits = {"train": (kept, 8000), "validation": (train[::10], 1000), "test": (test, 2000)}
    for split, (rows, count) in splits.items():
        of_intent: dict[str, list[str]] = {}
        for row in rows:
            of_intent.setdefault(row["category"], []).append(row["text"])
        pairs = [("sentence1", "sentence2", "label")]
        for number in range(count):
            first, second = draw.sample(sorted(of_intent), 2)
            if number % 2:
                pairs.append((*draw.sample(of_intent[first], 2), "same"))
            else:
                pairs.append((draw.choice(of_intent[first]), draw.choice(of_intent[second]), "other"))
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(pairs)


def crossner(domain: str) -> Callable[[Path, Path], None]:
    """One domain of CrossNER, unchanged."""
    names = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
    return lambda source, folder: copy_splits(source / "tok_ner_crossner" / domain, folder, names, "conll")


def files(names: dict[str, str], suffix: str) -> Callable[[Path, Path], None]:
    """A function that copies files that are already split."""
    return lambda source, folder: copy_splits(source, folder, names, suffix)


def two_classes(folder_name: str, names: dict[str, str]) -> Callable[[Path, Path], None]:
    """A function that writes data with one file of sentences for each class."""
    return lambda source, folder: write_two_classes(source / folder_name, folder, names)


def of_prefix(prefix: str, **names: str) -> dict[str, str]:
    """The file names of the splits."""
    return {split: prefix + name for split, name in names.items()}


# Cheap ones first.
DATASETS: dict[str, Dataset] = {
    **{
        f"crossner_{domain}": Dataset(f"CrossNER, {domain}", "token", "f1", "conll", crossner(domain))
        for domain in DOMAINS
    },
    "stsb": Dataset(
        "STS-B, open subset: similarity of pairs",
        "sequence",
        "pearson",
        "tsv",
        files(
            of_prefix("sts_stsb_open_subset/", train="sts-train.tsv", validation="sts-dev.tsv", test="sts-test.tsv"),
            "tsv",
        ),
    ),
    "wnut17": Dataset(
        "WNUT-17: emerging entities",
        "token",
        "f1",
        "conll",
        files(
            of_prefix(
                "tok_ner_wnut17/",
                train="wnut17train.conll",
                validation="emerging.dev.conll",
                test="emerging.test.annotated",
            ),
            "conll",
        ),
    ),
    "banking77": Dataset(
        "banking77: intents",
        "sequence",
        "accuracy",
        "csv",
        files(of_prefix("cls_banking77/", train="train.csv", test="test.csv"), "csv"),
    ),
    "intent_pairs": Dataset(
        "banking77: do two questions have one intent?", "sequence", "accuracy", "csv", write_intent_pairs
    ),
    "snips": Dataset("SNIPS: slots", "token", "f1", "jsonl", write_snips),
    "mr": Dataset(
        "MR: polarity of sentences",
        "sequence",
        "accuracy",
        "csv",
        two_classes("cls_mr_sentence_polarity", {"pos": "rt-polarity.pos", "neg": "rt-polarity.neg"}),
    ),
    "subj": Dataset(
        "SUBJ: subjective or objective",
        "sequence",
        "accuracy",
        "csv",
        two_classes("cls_subj", {"subjective": "quote.tok.gt9.5000", "objective": "plot.tok.gt9.5000"}),
    ),
    "ewt_pos": Dataset(
        "EWT: parts of speech",
        "token",
        "accuracy",
        "conllu",
        files(
            of_prefix(
                "tok_ud_english_ewt/en_ewt-ud-", train="train.conllu", validation="dev.conllu", test="test.conllu"
            ),
            "conllu",
        ),
    ),
    "movie_reviews": Dataset(
        "movie reviews: polarity of long documents", "sequence", "accuracy", "jsonl", write_movie_reviews
    ),
}


def make_data(work: Path, source: Path, datasets: dict[str, Dataset] = DATASETS) -> None:
    """Write the splits of every dataset as files that the programs read."""
    for name, dataset in datasets.items():
        folder = work / "data" / name
        if not folder.is_dir():
            folder.mkdir(parents=True)
            dataset.write(source, folder)
        print(name, *(path.name for path in sorted(folder.iterdir())))


# Encoders ------------------------------------------------------------------------------------------------------------


def make_encoders(work: Path, models: list[str], *, times: Path, corpus: str, tokenizer: str) -> None:
    """Train the missing encoders."""
    results = work / "learning.json"
    if not results.is_file():
        known = read_json(times)
        taken = {name: known[name] for name in ("seconds_of_a_step", "seconds_to_begin")}
        results.write_text(json.dumps({**taken, "machine": known["machine"], "runs": []}), encoding="utf-8")
    for encoder in (MODELS[model] for model in models):
        command = [sys.executable, "benchmarks/learning.py", "run", "--corpus", corpus, "--tokenizer_name", tokenizer]
        command += ["--only", encoder.name, "--seeds", *map(str, encoder.seeds), "--seconds", str(encoder.seconds)]
        command += ["--results", str(results), "--save_to", str(work / "encoders")]
        subprocess.run(command, check=True, cwd=ROOT)


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


# Cells ---------------------------------------------------------------------------------------------------------------


def cells(names: Iterable[str], models: Iterable[str], seeds: Iterable[int]) -> Iterator[tuple[str, str, int]]:
    """All cells, a whole table before the next seed."""
    return ((name, model, seed) for seed in seeds for name in names for model in models)


def run_cells(
    work: Path,
    datasets: dict[str, Dataset],
    models: list[str],
    seeds: list[int],
    encoder_of: Callable[[str, int], Path],
) -> None:
    """Run the cells that no process has done or is doing, of the encoders that are there.

    Args:
        encoder_of: the folder of a model that was pretrained with a seed.
    """
    for name, model, seed in cells(datasets, models, seeds):
        result, encoder = work / "cells" / f"{name}-{model}-{seed}.json", encoder_of(model, seed)
        if result.is_file() or not encoder.is_dir():
            continue
        result.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(Timeout), FileLock(result.with_suffix(".lock"), timeout=0):
            if not result.is_file():
                run_cell(work, name, datasets[name], model, seed, encoder, result)


def run_cell(work: Path, name: str, dataset: Dataset, model: str, seed: int, encoder: Path, result: Path) -> None:
    """Fine-tune, and save the scores with the output and the time."""
    from clozebert.scripts import finetune_sequence_classification, finetune_token_classification

    program = {"sequence": finetune_sequence_classification, "token": finetune_token_classification}
    output = work / "runs" / f"{name}-{model}-{seed}"
    argv = ["--model_name_or_path", str(encoder), "--output_dir", str(output), "--seed", str(seed)]
    for split in ("train", "validation", "test"):
        path = work / "data" / name / f"{split}.{dataset.suffix}"
        argv += [f"--{split}_file", str(path)] if path.is_file() else []
    shutil.rmtree(output, ignore_errors=True)
    said = io.StringIO()
    begun, processor = time.perf_counter(), time.process_time()
    try:
        with contextlib.redirect_stdout(said):
            program[dataset.kind].main(argv)
    except Exception:
        print(f"{name} {model} {seed}: failed\n{said.getvalue()}\n{traceback.format_exc()}", flush=True)
        return
    seconds, processor = time.perf_counter() - begun, time.process_time() - processor
    scores = read_json(output / "all_results.json")
    record = {
        "dataset": name,
        "model": model,
        "seed": seed,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
        "plan": said.getvalue().splitlines()[:2],
        "results": scores,
    }
    temporary = result.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    temporary.replace(result)
    shutil.rmtree(output)
    print(
        f"{name} {model} {seed}: {dataset.metric} {scores[f'test_{dataset.metric}']:.4f} in {seconds:.0f} s "
        f"({processor:.0f} s of a processor); {' | '.join(record['plan'])}",
        flush=True,
    )
    (work / "logs").mkdir(exist_ok=True)
    (work / "logs" / f"{name}-{model}-{seed}.txt").write_text(said.getvalue(), encoding="utf-8")


# The table -----------------------------------------------------------------------------------------------------------


def collect(work: Path) -> dict[str, Any]:
    """All data of the table, in one object."""
    import torch
    import transformers

    found = [read_json(path) for path in sorted((work / "cells").glob("*.json"))]
    rows = {}
    for name, dataset in DATASETS.items():
        of_dataset = [cell for cell in found if cell["dataset"] == name]
        if not of_dataset:
            continue
        first = of_dataset[0]["results"]
        majority = first.get(f"test_majority_{dataset.metric}")
        rows[name] = {
            "title": dataset.title,
            "metric": dataset.metric,
            "examples": {
                split: first[f"{split}_samples"] for split in ("train", "eval", "test") if f"{split}_samples" in first
            },
            "majority": None if majority is None else round(majority, 4),
            **{model: summary(of_dataset, model, dataset.metric) for model in MODELS},
        }
    learned = read_json(work / "learning.json")
    return {
        "encoders": {
            model: sorted(
                (run for run in learned["runs"] if run["name"] == encoder.name), key=lambda run: int(run["seed"])
            )
            for model, encoder in MODELS.items()
        },
        "rows": rows,
        "machine": learned["machine"],
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def summary(found: list[dict[str, Any]], model: str, metric: str) -> dict[str, Any] | None:
    """Mean and standard deviation (n - 1) of a model's scores on the test data."""
    of_model = sorted((cell for cell in found if cell["model"] == model), key=lambda cell: cell["seed"])
    if not of_model:
        return None
    scores = [cell["results"][f"test_{metric}"] for cell in of_model]
    return {
        "mean": round(statistics.mean(scores), 4),
        "sd": round(statistics.stdev(scores), 4) if len(scores) > 1 else None,
        "seeds": [cell["seed"] for cell in of_model],
        "scores": [round(score, 4) for score in scores],
        "processor_seconds": round(statistics.median(cell["processor_seconds"] for cell in of_model)),
    }


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    names = {"f1": "entity F1", "accuracy": "accuracy", "pearson": "Pearson r"}
    sides = [model for model in reversed(MODELS) if any(row[model] for row in results["rows"].values())]
    columns = [MODELS[model].title for model in sides]
    head = ["dataset", "training examples", "score", "majority", *columns, "gain", f"seconds, {', '.join(columns)}"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for row in results["rows"].values():
        majority = "" if row["majority"] is None else f"{100 * row['majority']:.1f}"
        seconds = [str((row[model] or {}).get("processor_seconds") or "") for model in sides]
        facts = [row["title"], f"{row['examples']['train']:,}", names[row["metric"]], majority]
        facts += [*(shown(row[model]) for model in sides), gain(row), ", ".join(seconds)]
        lines.append(f"| {' | '.join(facts)} |")
    return "\n".join(lines)


def gain(row: dict[str, Any]) -> str:
    """Our score minus the better baseline's, with the standard error of the difference; bold if more than two of it."""
    others = [row[model] for model in MODELS if model != "ours" and row[model]]
    if not row["ours"] or not others:
        return ""
    best = max(others, key=lambda other: other["mean"])
    difference = 100 * (row["ours"]["mean"] - best["mean"])
    if row["ours"]["sd"] is None or best["sd"] is None:
        return f"{difference:+.1f}"
    error = 100 * math.sqrt(sum(side["sd"] ** 2 / len(side["seeds"]) for side in (row["ours"], best)))
    text = f"{difference:+.1f} ± {error:.1f}"
    return f"**{text}**" if difference > 2 * error else text


def shown(score: dict[str, Any] | None) -> str:
    """A score as `71.2 ± 0.4`, with the number of seeds if it is not three."""
    if score is None:
        return ""
    text = f"{100 * score['mean']:.1f}" + ("" if score["sd"] is None else f" ± {100 * score['sd']:.1f}")
    runs = len(score["seeds"])
    return text if runs == len(SEEDS) else f"{text} ({runs} seed{'s' if runs > 1 else ''})"


def render(work: Path) -> None:
    """Write benchmarks/results/finetuning.json, and the table into docs/finetuning_results.md."""
    results = collect(work)
    path = ROOT / "benchmarks" / "results" / "finetuning.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    put(table(results), ROOT / "docs" / "finetuning_results.md", marker="finetuning-table")
    print(table(results))


def main() -> None:
    """One of the four steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("data", "encoders", "cells", "render"))
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "finetuning_table")
    parser.add_argument("--source", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--datasets", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--corpus", help="encoders: what `prepare-corpus` wrote, with a validation split")
    parser.add_argument("--tokenizer_name", help="encoders: its tokenizer")
    parser.add_argument("--times", type=Path, default=ROOT / "benchmarks" / "results" / "learning-epyc.json")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    if arguments.step == "data":
        make_data(work, arguments.source)
    elif arguments.step == "encoders":
        if not (arguments.corpus and arguments.tokenizer_name):
            parser.error("encoders needs --corpus and --tokenizer_name")
        where = {"corpus": arguments.corpus, "tokenizer": arguments.tokenizer_name}
        make_encoders(work, arguments.models, times=arguments.times, **where)
    elif arguments.step == "cells":
        datasets = {name: DATASETS[name] for name in arguments.datasets}
        run_cells(work, datasets, arguments.models, arguments.seeds, lambda name, seed: MODELS[name].folder(work, seed))
    else:
        render(work)


if __name__ == "__main__":
    main()
