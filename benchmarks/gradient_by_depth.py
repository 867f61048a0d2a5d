"""Gradient norms by depth at initialisation, post-norm and pre-norm: the plot of docs/architecture.md.

    python benchmarks/gradient_by_depth.py docs/images/gradient_by_depth.png

Twelve layers of width 128, weights of variance 1/d, masked-LM loss on random tokens, the mean of ten draws. Xiong et
al. 2020 show that the gradient of the last feed-forward layer is of order sqrt(d ln d) with post-norm, whatever the
depth, and smaller by sqrt(L) with pre-norm. So a full learning rate in the first steps is too high for post-norm, but
fine for pre-norm.
"""

import sys
from collections.abc import Sequence

LAYERS, WIDTH, VOCABULARY, DRAWS = 12, 128, 997, 10


def gradient_norms(norm_position: str, *, layers: int = LAYERS, draws: int = DRAWS) -> list[float]:
    """The mean norm of the gradient of W_down, layer by layer from the first."""
    import torch

    from clozebert import ClozeBertConfig, ClozeBertForMaskedLM

    config = ClozeBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        hidden_act="relu",
        mlp_type="mlp",
        norm_position=norm_position,
        initializer_range=WIDTH**-0.5,
    )
    total = [0.0] * layers
    for draw in range(draws):
        torch.manual_seed(draw)
        model = ClozeBertForMaskedLM(config)
        ids, labels = torch.randint(1, VOCABULARY, (2, 8, 32))
        model(ids, labels=labels).loss.backward()
        for index, layer in enumerate(model.model.layers):
            total[index] += float(layer.mlp.down_proj.weight.grad.norm()) / draws
    return total


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and draw."""
    from matplotlib.figure import Figure

    (output_file,) = sys.argv[1:] if argv is None else argv
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axis = figure.subplots()
    for norm_position, marker in (("post", "o"), ("pre", "s")):
        norms = gradient_norms(norm_position)
        print(f"{norm_position}-norm", *(f"{norm:.4f}" for norm in norms))
        axis.plot(range(1, LAYERS + 1), norms, marker=marker, label=f"{norm_position}-norm")
    axis.set_xlabel("layer")
    axis.set_ylabel("gradient norm of W_down")
    axis.set_xticks(range(1, LAYERS + 1))
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(output_file, dpi=100)


if __name__ == "__main__":
    main()
