#!/usr/bin/env python
"""Packed compared with padded fine-tuning steps: the same model, windows and batches, in turn, on this CPU.

    python benchmarks/finetuning_packed.py --model_name_or_path ENCODER --task_type token --train_file wnut17train.conll
    python benchmarks/finetuning_packed.py --model_name_or_path ENCODER --task_type sequence --train_file train.csv

A step is what the program does for each batch: collate, forward, loss, backward, clip, AdamW. For each batch, the
packed and the padded step run one after the other, so both meet the same disturbances. The figure is the median over
batches of padded seconds / packed seconds, for the whole step and for forward and backward alone, in wall-clock time
and in CPU time (which leaves out waiting for other programs).
"""

import argparse
import copy
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any


def measure(
    model_name_or_path: str, task_type: str, train_file: str, *, batch_size: int, batches: int, precision: str
) -> dict[str, Any]:
    """Seconds of packed and padded steps over random batches of one file."""
    import torch

    import clozebert  # noqa: F401  (lets AutoModel know our models)
    from clozebert.finetuning.arguments import SequenceArguments, TokenArguments
    from clozebert.finetuning.batches import PackedCollator, PaddedCollator
    from clozebert.finetuning.data import read_data
    from clozebert.finetuning.models import check_max_seq_length, load_auto_tokenizer, load_classifier, load_config
    from clozebert.finetuning.optimizer import make_adamw, parameter_groups
    from clozebert.finetuning.windows import WindowMaker
    from clozebert.utils.memory import keep_freed_memory

    keep_freed_memory()  # for both sides, as the programs do
    given = {"model_name_or_path": model_name_or_path, "output_dir": "", "train_file": train_file}
    arguments_class = {"token": TokenArguments, "sequence": SequenceArguments}[task_type]
    splits, task, *_ = read_data(arguments_class(**given), None)
    tokenizer = load_auto_tokenizer(model_name_or_path, load_config(model_name_or_path))
    torch.manual_seed(0)
    packed = load_classifier(model_name_or_path, task=task)
    models = {"packed": packed, "padded": copy.deepcopy(packed)}
    maker = WindowMaker(tokenizer, max_seq_length=check_max_seq_length(None, packed, tokenizer))
    windows = task.windows(splits["train"], maker)
    random.Random(0).shuffle(windows)
    collators: dict[str, Any] = {
        "packed": PackedCollator(task.per_token),
        "padded": PaddedCollator(tokenizer.pad_token_id, task.per_token),
    }
    optimizers = {
        name: make_adamw(parameter_groups(model, learning_rate=1e-4, weight_decay=0.01), learning_rate=1e-4)
        for name, model in models.items()
    }

    def step(name: str, batch: list[Any]) -> dict[str, float]:
        begun, processor = time.perf_counter(), time.process_time()
        inputs = collators[name](batch)
        labels = inputs.pop("labels")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            output = models[name](**inputs)
        task.loss(output, labels).backward()
        middle, middle_processor = time.perf_counter(), time.process_time()
        torch.nn.utils.clip_grad_norm_(models[name].parameters(), 1.0)
        optimizers[name].step()
        optimizers[name].zero_grad()
        return {
            "forward_backward": middle - begun,
            "step": time.perf_counter() - begun,
            "forward_backward_processor": middle_processor - processor,
            "step_processor": time.process_time() - processor,
        }

    for model in models.values():
        model.train()
    taken: dict[str, list[dict[str, float]]] = {"packed": [], "padded": []}
    filled = []
    for number in range(batches + 3):  # the first steps allocate memory
        first = number * batch_size % (len(windows) - batch_size)
        batch = windows[first : first + batch_size]
        order = ("packed", "padded") if number % 2 else ("padded", "packed")
        for name in order:
            seconds = step(name, batch)
            if number >= 3:
                taken[name].append(seconds)
        lengths = [len(window.input_ids) for window in batch]
        filled.append(max(lengths) * len(lengths) / sum(lengths))
    keys = list(taken["packed"][0])
    return {
        "file": Path(train_file).name,
        "precision": precision,
        "batch_size": batch_size,
        "batches": batches,
        "threads": torch.get_num_threads(),
        "padded_positions_per_token": round(statistics.mean(filled), 2),
        "padded_over_packed": {
            key: round(
                statistics.median(b[key] / a[key] for a, b in zip(taken["packed"], taken["padded"], strict=True)), 2
            )
            for key in keys
        },
        "milliseconds": {
            name: {key: round(1000 * statistics.median(row[key] for row in rows), 1) for key in keys}
            for name, rows in taken.items()
        },
    }


def main() -> None:
    """Measure in each precision and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--task_type", choices=("sequence", "token"), required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--precision", nargs="+", choices=("no", "bf16"), default=["no", "bf16"])
    parser.add_argument("--output", help="a JSON file for the results")
    arguments = parser.parse_args()
    results = [
        measure(
            arguments.model_name_or_path,
            arguments.task_type,
            arguments.train_file,
            batch_size=arguments.batch_size,
            batches=arguments.batches,
            precision=precision,
        )
        for precision in arguments.precision
    ]
    print(json.dumps(results, indent=1))
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
