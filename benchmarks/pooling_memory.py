"""Peak memory of a pooled head over a packed row: one document of 2,000 tokens and 1,000 documents of 4.

python benchmarks/pooling_memory.py        # each model in a process of its own; no output file

For each depth and pooling: the peak memory in tensors, and the peak resident size, of one forward and backward pass
with D = 64, above the memory before it; each with its ratio to `cls`. The resident size includes loaded code and freed
memory that the C library keeps. With the plain formulas, the last layer computes all tokens even for `cls`; otherwise,
for `cls` only, it computes just the first token of each document.
"""

import os
import subprocess
import sys
from typing import Any

import torch

import clozebert
from clozebert.utils.memory import peak_memory

POOLINGS = ("cls", "mean", "max", "attention")


def make_step(pooling: str, layers: int) -> Any:
    """A function that runs the forward and the backward pass."""
    config = clozebert.ClozeBertConfig(
        vocab_size=60, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=40,
        classifier_pooling=pooling,
    )  # fmt: skip
    model = clozebert.ClozeBertForSequenceClassification(config)
    bounds = torch.tensor([0, 2000] + [4] * 1000).cumsum(0)
    ids_BN = torch.randint(2, 50, (1, int(bounds[-1])))
    return lambda: model(ids_BN, cu_seq_lens_q=bounds, labels=torch.zeros(1001, dtype=torch.long)).loss.backward()


def peak_of_live_tensors(pooling: str, layers: int) -> float:
    """Peak MB in tensors, as counted by PyTorch's allocator."""
    step = make_step(pooling, layers)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 1e6


def peak_of_process(pooling: str, layers: int) -> float:
    """Peak MB of this process's resident size above the start."""
    step = make_step(pooling, layers)
    before = peak_memory() or 0
    step()
    return ((peak_memory() or 0) - before) / 1024**2


def main() -> None:
    measures = ("peak_of_live_tensors", "peak_of_process")
    for title, plain, layers in (("as it is", "0", 1), ("as it is", "0", 4), ("as it is", "0", 12), ("plain", "1", 1)):
        variables, of_cls = {**os.environ, "CLOZEBERT_PLAIN": plain}, {}
        for pooling in POOLINGS:
            said = [f"{title:9} {layers:2} layers  {pooling:9}"]
            for measure in measures:
                command = [sys.executable, __file__, measure, pooling, str(layers)]
                runs = [
                    subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout
                    for _ in range(3)
                ]
                found = sorted(map(float, runs))[1]
                ratio = found / of_cls.setdefault(measure, found)
                said.append(f"{measure} {found:6.1f} MB, {ratio:.2f} of cls")
            print("   ".join(said), flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(globals()[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
    else:
        main()
