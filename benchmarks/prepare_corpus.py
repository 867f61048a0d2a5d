#!/usr/bin/env python
"""How fast text becomes training rows: `prepare_corpus` and `datasets.map` with the reference script's grouping.

    python benchmarks/prepare_corpus.py --input TEXT_FOLDER --output results.json

Both sides have the same text files and the same WordPiece tokenizer, and end with rows on disk. Ours is timed from the
files to shards, manifest and row index. The other is timed only for its two `map` calls, after its texts are loaded:
tokenize in batches of 1,000 lines, then join and cut into rows, dropping each batch's remainder, as in transformers'
example. Each run is a fresh process bound to `--cores` processors with as many worker processes; runs alternate, and
medians are compared. Tokens are those of the texts, without special tokens, the same for both.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROW = 512
SIDES = ("ours", "reference")


def ours(files: list[str], tokenizer_name: str, cores: int, folder: Path) -> dict[str, float]:
    """Prepare with this package."""
    from clozebert.corpus import Corpus, RowIndex
    from clozebert.corpus.preparation.prepare import prepare
    from clozebert.corpus.readers.inputs import Reader
    from clozebert.corpus.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_name)
    begun = time.perf_counter()
    reader = Reader(files)
    prepare(reader, tokenizer=tokenizer, output_dir=folder / "out", validation_fraction=0.0, num_processes=cores)
    corpus = Corpus(folder / "out")
    index = RowIndex(corpus, max_seq_length=ROW)
    seconds = time.perf_counter() - begun
    held = corpus.num_tokens + 2 * len(index.segments)
    return {"seconds": seconds, "tokens": corpus.num_tokens, "rows_filled": held / (index.num_rows * ROW)}


def reference(files: list[str], tokenizer_name: str, cores: int, folder: Path) -> dict[str, float]:
    """Prepare with `datasets`."""
    import datasets
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_name)
    texts = datasets.load_dataset("text", data_files=files, cache_dir=str(folder))["train"]
    options: dict[str, Any] = {
        "batched": True,
        "num_proc": cores if cores > 1 else None,
        "load_from_cache_file": False,
    }
    begun = time.perf_counter()
    tokenized = texts.map(
        lambda batch: tokenizer(batch["text"], return_special_tokens_mask=True, verbose=False),
        remove_columns=["text"],
        **options,
    )
    rows = tokenized.map(join_and_cut, **options)
    return {"seconds": time.perf_counter() - begun, "rows": len(rows)}


def join_and_cut(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Join a batch's texts and cut them into rows of `ROW` tokens; the remainder is dropped."""
    joined = {name: [value for values in lists for value in values] for name, lists in batch.items()}
    whole = len(joined["input_ids"]) // ROW * ROW
    return {name: [values[first : first + ROW] for first in range(0, whole, ROW)] for name, values in joined.items()}


def one_run(side: str, files: list[str], tokenizer_name: str, cores: int) -> dict[str, float]:
    """Run one side in a separate process."""
    command = [sys.executable, __file__, "--side", side, "--tokenizer_name", tokenizer_name, "--cores", str(cores)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [*command, "--input", *files], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def compare(files: list[str], *, cores: int, repeats: int, vocab_size: int) -> dict[str, Any]:
    """Train a tokenizer, run both sides in turn, and summarise."""
    from clozebert.corpus.readers.inputs import Reader
    from clozebert.corpus.tokenizer import train_tokenizer

    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as tokenizer_name:
        train_tokenizer(Reader(files).texts(), vocab_size=vocab_size).save_pretrained(tokenizer_name)
        for _ in range(repeats):
            for side in SIDES:
                runs[side].append(one_run(side, files, tokenizer_name, cores))
    tokens = runs["ours"][0]["tokens"]
    medians = {side: statistics.median(run["seconds"] for run in runs[side]) for side in SIDES}
    packages = ("clozebert", "datasets", "tokenizers", "transformers", "numpy", "pyarrow")
    return {
        "tokens": tokens,
        "cores": cores,
        "tokens_per_second_and_core": {side: round(tokens / medians[side] / cores) for side in SIDES},
        "speed_ratio": round(medians["reference"] / medians["ours"], 2),
        "rows_filled": round(runs["ours"][0]["rows_filled"], 4),
        "seconds": {side: [round(run["seconds"], 2) for run in runs[side]] for side in SIDES},
        "machine": {"processor": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def main() -> None:
    """Compare the sides, or run as one of the compared processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", nargs="+", required=True, help="text files or folders of them")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocab_size", type=int, default=30_522)
    parser.add_argument("--output", help="a JSON file for the results")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer_name", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: arguments.cores]))
        side = {"ours": ours, "reference": reference}[arguments.side]
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(side(arguments.input, arguments.tokenizer_name, arguments.cores, Path(folder))))
        return
    paths = map(Path, arguments.input)
    files = [str(file) for path in paths for file in (sorted(path.glob("*.txt")) if path.is_dir() else [path])]
    results = compare(files, cores=arguments.cores, repeats=arguments.repeats, vocab_size=arguments.vocab_size)
    text = json.dumps(results, indent=1)
    print(text)
    if arguments.output:
        Path(arguments.output).write_text(text + "\n")


if __name__ == "__main__":
    main()
