#!/usr/bin/env python
"""What a training step with Muon costs beside the same step with AdamW.

    python benchmarks/muon_step.py                       # recipes nano and tiny, as this machine computes
    python benchmarks/muon_step.py --float32             # as CPUs without bf16 hardware compute

Both sides train the same model on the same random rows, 30 % of the tokens masked, and take turns step by step. Given
are the medians of both and of the ratio of each pair. Times are CPU seconds of the process: what runs beside it on a
shared machine changes them little.
"""

import argparse
import json
import os
import statistics
import time

# A CPU with wider instructions works as one that has no more than AVX2. Read when torch is imported.
AVX2_ONLY = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def measure(recipe: str, *, pairs: int, threads: int, precision: str) -> dict[str, float]:
    """Seconds of a step under both optimizers, and the median ratio of Muon's to AdamW's."""
    import torch

    from clozebert import ClozeBertForMaskedLM
    from clozebert.modeling.packed import Packed
    from clozebert.training.arguments import PretrainingArguments
    from clozebert.training.machine import choose_muon_dtype
    from clozebert.training.optimizers import make_optimizer
    from clozebert.training.run_settings import make_config, split_settings

    torch.set_num_threads(threads)
    flags = {"corpus": ["-"], "tokenizer_name": "-", "output_dir": "-"}
    steps = []
    for optimizer in ("adamw", "muon"):
        settings, model_settings = split_settings(recipe, {**flags, "optimizer": optimizer})
        arguments = PretrainingArguments(**settings)
        torch.manual_seed(0)
        model = ClozeBertForMaskedLM(make_config(model_settings)).train()
        update = make_optimizer(model, arguments, muon_dtype=choose_muon_dtype(precision, torch.device("cpu")))
        steps.append((model, update))
    rows, length = arguments.per_device_train_batch_size, arguments.max_seq_length
    predicted = int(arguments.mlm_probability * rows * length)

    def step(side: int) -> float:
        model, update = steps[side]
        ids = torch.randint(5, model.config.vocab_size, (1, rows * length))
        batch = {
            "input_ids": ids,
            "packed": Packed.from_lengths([length] * rows),
            "masked_positions": torch.randperm(rows * length)[:predicted].sort().values,
            "labels": torch.randint(5, model.config.vocab_size, (predicted,)),
        }
        begun = time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        update.zero_grad()
        return time.process_time() - begun

    times: list[list[float]] = [[], []]
    for pair in range(pairs + 3):
        for side in ((0, 1), (1, 0))[pair % 2]:
            taken = step(side)
            if pair >= 3:
                times[side].append(taken)
    ratios = [muon / adamw for adamw, muon in zip(*times, strict=True)]
    return {
        "adamw": statistics.median(times[0]),
        "muon": statistics.median(times[1]),
        "ratio": statistics.median(ratios),
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

    precision = "bf16" if not arguments.float32 and has_fast_bf16(torch.device("cpu")) else "no"
    for recipe in arguments.recipes:
        found = measure(recipe, pairs=arguments.pairs, threads=arguments.threads, precision=precision)
        print(json.dumps({"recipe": recipe, "precision": precision, "threads": arguments.threads, **found}), flush=True)


if __name__ == "__main__":
    main()
