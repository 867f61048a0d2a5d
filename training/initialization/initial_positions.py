"""Initial learned positions, and initial heads that look at near tokens.

Random positions do not say which tokens are near. A model has to find that out for each position apart, and until then
it guesses tokens by their frequency. Sines and cosines (Vaswani et al. 2017) say it from the start: the product of two
positions depends on their distance alone.

    P(t, 2i) = a sin(w_i t)    P(t, 2i+1) = a cos(w_i t)    w_i = 10000^(-2i/D)    P(t) · P(s) = a² Σ cos(w_i (t - s))

In the first layers each head begins with a distance d, as in a convolution (for images: Trockman and Kolter 2023, Zheng
et al. 2024). Its keys read K/2 of the waves, and its queries read the same waves d positions further on. What tokens
add is left out here:

    q(t) · k(s) / √K = (g a)² Σ cos(w_i (t + d - s)) / √K, which is largest at s = t + d

This is added to the random weights of queries and keys. Training changes all of it from the first step on.

Shapes: P positions, D hidden size, H heads, K head size, W waves of a head.
"""

import math
from typing import Any

import torch

from ...modeling import ClozeBertForMaskedLM
from ...modeling.embeddings import sinusoidal_positions

_LAYERS = 2  # how many begin so
_DISTANCES = (-1, 1, 0)  # of a layer's heads, in turns
_SLOWEST = 0.05  # radians a position; slower waves hardly tell neighbours apart
_PEAK = 3.0  # the largest logit of such a head, where token and position are of one size


@torch.no_grad()
def begin_sinusoidal(model: ClozeBertForMaskedLM) -> None:
    """Replace the learned positions of a new model by sines and cosines, of the size of its token embeddings."""
    positions: Any = model.model.embeddings.positions
    tokens: Any = model.get_input_embeddings()
    table_PD = positions.table.weight[positions.offset :]
    waves_PD = sinusoidal_positions(torch.arange(len(table_PD)), table_PD.shape[1])
    table_PD.copy_(waves_PD * (math.sqrt(2) * tokens.weight.std()))
    for layer in model.model.layers[:_LAYERS]:
        _look_near(layer.attention)


def _look_near(attention: Any) -> None:
    """Add the waves to the weights of a layer's queries and keys."""
    size, width = attention.head_dim, attention.q_proj.in_features
    num_fast = 1 + int(width / 2 * math.log(1 / _SLOWEST) / math.log(10_000))  # i from 0 on with w_i >= _SLOWEST
    row_W = torch.arange(0, size - 1, 2)
    wave_W = torch.arange(len(row_W)) * num_fast // max(1, len(row_W))
    sine_W, cosine_W = 2 * wave_W, 2 * wave_W + 1  # channels
    gain = math.sqrt(2 * _PEAK / math.sqrt(size))

    keys_HKD = attention.k_proj.weight.view(-1, size, width)
    keys_HKD[:, row_W, sine_W] += gain
    keys_HKD[:, row_W + 1, cosine_W] += gain

    queries_HKD = attention.q_proj.weight.view(-1, size, width)
    distance_H = torch.tensor([_DISTANCES[head % len(_DISTANCES)] for head in range(len(queries_HKD))])
    turn_HD = (gain * sinusoidal_positions(distance_H, width)).float()
    sine_HW, cosine_HW = turn_HD[:, sine_W], turn_HD[:, cosine_W]
    # sin(w t + w d) and cos(w t + w d), from the sine and cosine of w t.
    queries_HKD[:, row_W, sine_W] += cosine_HW
    queries_HKD[:, row_W, cosine_W] += sine_HW
    queries_HKD[:, row_W + 1, sine_W] -= sine_HW
    queries_HKD[:, row_W + 1, cosine_W] += cosine_HW
