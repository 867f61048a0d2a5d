# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Dropout (Srivastava et al. 2014), from a quarter of the random numbers that PyTorch draws for it on a CPU."""

import torch
from torch import nn
from torch.nn import functional as F

from .products import is_recorded


def dropout(x: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """x with each number set to zero with probability p, and the others divided by 1 - p.

    On a CPU the generator runs on one core, and PyTorch draws a number for each element; 64 random bits decide over
    four of them here. p is rounded to a multiple of 2^-16, and the division is by that.
    """
    if not training or p == 0.0:
        return x
    dropped = round(p * 2**16)
    if x.device.type != "cpu" or is_recorded() or not 0 < dropped < 2**16:
        return F.dropout(x, p)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.long).random_(-(2**63), None).view(torch.int16)
    keep = bits[: x.numel()].view(x.shape) >= dropped - 2**15
    return x * keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))


class Dropout(nn.Dropout):
    """`dropout` as a module."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Shape: any -> the same."""
        return dropout(input, self.p, self.training)


__all__ = ["Dropout", "dropout"]
