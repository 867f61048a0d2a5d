#!/usr/bin/env python
"""How well a plan predicts a run: predicted and measured time and memory of three runs of different shapes.

    python benchmarks/planner.py --output results.json

Each shape is planned, with formulas only and calibrated (before and after the run), and trained for some steps, all in
separate processes, over one corpus of random tokens whose documents are as long as web pages (log-normal, median 300).
Time is that of a step, without evaluations and checkpoints. Memory is the peak resident size of the training process,
minus that of a process that trains a tiny model: Python, torch and the corpus. For the comparison, the C library
returns freed memory at once, so that only tensors count; the peak of the unchanged program, which keeps freed memory
for its next tensors, is reported, too. A ratio is predicted / measured.
"""

import argparse
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

import numpy as np

VOCAB_SIZE = 16_384
COMMON = {"vocab_size": VOCAB_SIZE, "eval_steps": 0, "save_steps": 0, "logging_steps": 1}
# A gated pre-norm encoder with Muon; a BERT with gradient accumulation; a wide and shallow model in bf16 with long rows
# and activation checkpointing. The first two are in float32: in bf16 on a CPU, oneDNN caches a kernel for each shape,
# so memory grows with the steps.
SHAPES: dict[str, dict[str, Any]] = {
    "modern, Muon": {
        "architecture": "tiny", "max_seq_length": 128, "global_batch_size": 32, "per_device_train_batch_size": 32,
        "optimizer": "muon", "mixed_precision": "no",
    },
    "BERT, two micro-batches": {
        "architecture": "small", "max_seq_length": 256, "global_batch_size": 16, "per_device_train_batch_size": 8,
        "mixed_precision": "no", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
    "wide, recomputed": {
        "architecture": "tiny", "num_hidden_layers": 3, "layer_types": "null", "rope_parameters": "null",
        "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1024, "max_seq_length": 512,
        "max_position_embeddings": 512, "global_batch_size": 8, "per_device_train_batch_size": 8,
        "gradient_checkpointing": "true",
    },
}  # fmt: skip
WITHOUT_KEEPING = "import clozebert.scripts.pretrain_mlm as program; program.main()"
ALMOST_NOTHING = {
    "num_hidden_layers": 1, "layer_types": "null", "rope_parameters": "null", "hidden_size": 8,
    "num_attention_heads": 1, "intermediate_size": 8, "global_batch_size": 1, "per_device_train_batch_size": 1,
    "max_seq_length": 8,
}  # fmt: skip


def write_corpus(folder: Path, *, tokens: int) -> None:
    """Write documents of random tokens to FOLDER/corpus, and a tokenizer for them to FOLDER/tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from clozebert.corpus import ShardWriter
    from clozebert.corpus.tokenizer import tokenizer_facts

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = {token: index for index, token in enumerate([*special, *map(str, range(VOCAB_SIZE - len(special)))])}
    model = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, **dict(zip(names, special, strict=True)))
    tokenizer.save_pretrained(folder / "tokenizer")
    draws = np.random.default_rng(0)
    writer = ShardWriter(folder / "corpus" / "train", vocab_size=VOCAB_SIZE)
    while writer.num_tokens < tokens:
        length = max(5, int(draws.lognormal(np.log(300), 1.0)))
        writer.append(draws.integers(len(special), VOCAB_SIZE, size=length), np.ones(length, dtype=bool))
    writer.close({"tokenizer": tokenizer_facts(tokenizer)})


def call(verb: str, values: dict[str, Any], *, gives_back: bool = False) -> float:
    """Run one command of `clozebert`; returns its peak memory in bytes.

    Args:
        gives_back: make the C library return freed memory at once; the programs keep it otherwise.
    """
    flags = [part for key, value in values.items() for part in (f"--{key}", str(value))]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *(["-c", WITHOUT_KEEPING] if gives_back else ["-m", "clozebert", verb]), *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **({"MALLOC_MMAP_THRESHOLD_": "262144"} if gives_back else {})},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(output.read().decode())
    # Kilobytes, but bytes on macOS.
    return float(usage.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def train(folder: Path, values: dict[str, Any], *, steps: int, gives_back: bool = False) -> dict[str, float]:
    """A real run: seconds per step (the median without the first steps), and its peak memory."""
    output_dir = folder / f"run-{time.monotonic_ns()}"
    paths = {"corpus": folder / "corpus", "tokenizer_name": folder / "tokenizer", "output_dir": output_dir}
    peak = call("pretrain", {**COMMON, **paths, **values, "max_steps": steps}, gives_back=gives_back)
    entries = [json.loads(line) for line in (output_dir / "training_log.jsonl").read_text().splitlines()]
    entries = [entry for entry in entries if "loss" in entry]
    tokens = np.diff([0, *(entry["tokens_seen"] for entry in entries)])
    seconds = [count / entry["tokens_per_second"] for count, entry in zip(tokens, entries, strict=True)]
    return {"seconds": statistics.median(seconds[2:]), "bytes": peak}


def plan(folder: Path, values: dict[str, Any], *, steps: int, calibrate: bool) -> dict[str, Any]:
    """The plan of the same run."""
    output = folder / "plan.json"
    paths = {"corpus": folder / "corpus", "output_file": output}
    measured = {"calibrate": "true"} if calibrate else {}
    call("plan", {**COMMON, **paths, **values, **measured, "max_steps": steps})
    return json.loads(output.read_text())


def compare(name: str, folder: Path, nothing: float, *, steps: int) -> dict[str, Any]:
    """The predicted and measured figures of one shape."""
    values = SHAPES[name]
    formulas = plan(folder, values, steps=steps, calibrate=False)
    before = plan(folder, values, steps=steps, calibrate=True)
    run = train(folder, values, steps=steps)
    after = plan(folder, values, steps=steps, calibrate=True)
    calibrated = (before["seconds"] + after["seconds"]) / 2 / steps
    memory = train(folder, values, steps=6, gives_back=True)["bytes"] - nothing
    return {
        "parameters": formulas["parameters"],
        "seconds_of_a_step": {
            "measured": run["seconds"], "calibrated": calibrated, "formulas": formulas["seconds"] / steps,
        },
        "time_ratio": {
            "calibrated": calibrated / run["seconds"], "formulas": formulas["seconds"] / steps / run["seconds"],
        },
        "megabytes": {
            "measured": memory / 1e6, "of_the_program": (run["bytes"] - nothing) / 1e6,
            "formulas": formulas["peak_memory"] / 1e6,
            "by_part": {part: size / 1e6 for part, size in formulas["memory"].items()},
        },
        "memory_ratio": formulas["peak_memory"] / memory,
    }  # fmt: skip


def main() -> None:
    """Compare all shapes, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--output", help="a JSON file for the results")
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "machine": {"processor": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version(),
                    "threads": os.environ.get("OMP_NUM_THREADS")},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_corpus(folder, tokens=2_000_000)
        nothing = train(folder, ALMOST_NOTHING, steps=3, gives_back=True)["bytes"]
        for name in arguments.shapes:
            results[name] = compare(name, folder, nothing, steps=arguments.steps)
            print(name, json.dumps(results[name], indent=1), flush=True)
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
