#!/usr/bin/env python
"""The cost of a training step with Muon compared with the same step with AdamW.

    python benchmarks/muon_step.py                       # recipes nano and tiny, as this machine computes
    python benchmarks/muon_step.py --float32             # as CPUs without bf16 hardware compute

Both sides train the same model on the same random rows, with 30 % of the tokens masked, and take turns step by step.
The results are the medians of both sides and of the ratio of each pair. Times are CPU seconds of the process: other
load on a shared machine changes them little.
"""

import argparse
import json
import os
import statistics
import time

from sides import AVX2_ONLY

WARM_UP = 3


def measure(recipe: str, *, pairs: int, threads: int, precision: str) -> dict[str, float]:
    """CPU seconds of a step under both optimizers, and the median ratio of Muon's to AdamW's."""
    import torch

    from clozebert.training.arguments import PretrainingArguments
    from clozebert.training.phase_setup import set_up_model
    from clozebert.training.planning.calibration import micro_batches
    from clozebert.training.run_settings import make_config, split_settings
    from clozebert.training.runtime.machine import make_accelerator
    from clozebert.training.step import timed_step

    torch.set_num_threads(threads)
    accelerator = make_accelerator(mixed_precision=precision, use_cpu=True)
    flags = {"corpus": ["-"], "tokenizer_name": "-", "output_dir": "-"}
    sides = []
    for optimizer in ("adamw", "muon"):
        settings, of_model = split_settings(recipe, {**flags, "optimizer": optimizer})
        arguments = PretrainingArguments(**settings)
        config = make_config(of_model)
        _, model, update = set_up_model(arguments, config, accelerator=accelerator)
        sides.append((model, update))
    batch = next(micro_batches(arguments, config, None, rows=arguments.per_device_train_batch_size))

    def step(side: int) -> float:
        model, update = sides[side]
        begun = time.process_time()
        timed_step(model, update, batch, max_grad_norm=arguments.max_grad_norm, accelerator=accelerator)
        return time.process_time() - begun

    times: list[list[float]] = [[], []]
    for pair in range(WARM_UP + pairs):
        for side in ((0, 1), (1, 0))[pair % 2]:
            times[side].append(step(side))
    adamw, muon = (of_side[WARM_UP:] for of_side in times)
    return {
        "adamw": statistics.median(adamw),
        "muon": statistics.median(muon),
        "ratio": statistics.median(theirs / ours for ours, theirs in zip(adamw, muon, strict=True)),
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["nano", "tiny"])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--float32", action="store_true", help="float32; AVX2 only, on a CPU that has more")
    arguments = parser.parse_args()
    if arguments.float32:
        os.environ.update(AVX2_ONLY)
    import torch

    from clozebert.utils.device import has_fast_bf16
    from clozebert.utils.memory import keep_freed_memory

    keep_freed_memory()  # as the programs do
    precision = "bf16" if not arguments.float32 and has_fast_bf16(torch.device("cpu")) else "no"
    for recipe in arguments.recipes:
        found = measure(recipe, pairs=arguments.pairs, threads=arguments.threads, precision=precision)
        print(json.dumps({"recipe": recipe, "precision": precision, "threads": arguments.threads, **found}), flush=True)


if __name__ == "__main__":
    main()
