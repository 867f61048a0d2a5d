"""Peak memory of a pooled head over a packed row: one document of 2,000 tokens and 1,000 documents of 4.

python benchmarks/pooling_memory.py        # each pooling in a process of its own; no output file

Prints for each pooling the largest resident size above that before the step (one forward and backward pass, D = 64, one
layer), and its ratio to `cls`.
"""

import resource
import subprocess
import sys

POOLINGS = ("cls", "mean", "max", "attention")


def peak_of(pooling: str) -> float:
    """MB above the start, of this process."""
    import torch

    import clozebert

    config = clozebert.ClozeBertConfig(
        vocab_size=60, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=40,
        classifier_pooling=pooling,
    )  # fmt: skip
    model = clozebert.ClozeBertForSequenceClassification(config)
    bounds = torch.tensor([0, 2000] + [4] * 1000).cumsum(0)
    ids_BN = torch.randint(2, 50, (1, int(bounds[-1])))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model(ids_BN, cu_seq_lens_q=bounds, labels=torch.zeros(1001, dtype=torch.long)).loss.backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    found = {}
    for pooling in POOLINGS:
        command = [sys.executable, __file__, pooling]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)]
        found[pooling] = sorted(map(float, runs))[1]
        print(f"{pooling:10} {found[pooling]:7.0f} MB   {found[pooling] / found['cls']:.2f} of cls", flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(peak_of(sys.argv[1]))
    else:
        main()
