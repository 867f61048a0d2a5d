"""Peak memory of a pooled head over a packed row: one document of 2,000 tokens and 1,000 documents of 4.

python benchmarks/pooling_memory.py        # each model in a process of its own; no output file

Prints for each depth and pooling the largest resident size above that before the step (one forward and backward pass,
D = 64), and its ratio to `cls`: as it is, and of one layer by the plain formulas. There the last layer works for all
tokens under `cls` too; otherwise it works for the first token of each document alone, which no other pooling allows.
"""

import os
import resource
import subprocess
import sys

POOLINGS = ("cls", "mean", "max", "attention")


def peak_of(pooling: str, layers: int) -> float:
    """MB above the start, of this process."""
    import torch

    import clozebert

    config = clozebert.ClozeBertConfig(
        vocab_size=60, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=40,
        classifier_pooling=pooling,
    )  # fmt: skip
    model = clozebert.ClozeBertForSequenceClassification(config)
    bounds = torch.tensor([0, 2000] + [4] * 1000).cumsum(0)
    ids_BN = torch.randint(2, 50, (1, int(bounds[-1])))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model(ids_BN, cu_seq_lens_q=bounds, labels=torch.zeros(1001, dtype=torch.long)).loss.backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    for title, plain, layers in (("as it is", "0", 1), ("as it is", "0", 4), ("as it is", "0", 12), ("plain", "1", 1)):
        variables, found = {**os.environ, "CLOZEBERT_PLAIN": plain}, {}
        for pooling in POOLINGS:
            command = [sys.executable, __file__, pooling, str(layers)]
            runs = [
                subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout
                for _ in range(3)
            ]
            found[pooling] = sorted(map(float, runs))[1]
            ratio = found[pooling] / found["cls"]
            print(f"{title:9} {layers:2} layers  {pooling:9} {found[pooling]:7.0f} MB   {ratio:.2f} of cls", flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(peak_of(sys.argv[1], int(sys.argv[2])))
    else:
        main()
