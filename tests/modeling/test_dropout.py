"""Dropout: its statistics, its gradient, and that nothing falls together."""

import pytest
import torch
from scipy import stats

from clozebert.modeling.fast_paths import Dropout, dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_share_that_is_dropped_and_the_mean_are_right(p, dtype):
    torch.manual_seed(0)
    count = 4_000_001
    out = dropout(torch.ones(count, dtype=dtype), p)
    dropped = int((out == 0).sum())
    assert stats.binomtest(dropped, count, p).pvalue > 1e-3
    kept = out[out != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)), rtol=2**-16 / (1 - p) + 2**-8, atol=0)
    # Of the mean the rounded probability and its rounded factor cancel.
    if dtype == torch.float32:
        assert out.double().mean().item() == pytest.approx(1.0, abs=4 * (p / (1 - p) / count) ** 0.5)


def test_neighbours_fall_independently():
    """Four decisions come out of one random number: each pair of them, and of neighbours, is tested by chi squared."""
    torch.manual_seed(1)
    fallen = (dropout(torch.ones(400_000), 0.3) == 0).view(-1, 4)
    for first in range(4):
        for second in [*range(first + 1, 4), *range(4, 8)]:
            x, y = fallen[:-1, first], fallen[1:, second - 4] if second >= 4 else fallen[:-1, second]
            table = torch.stack([(x & y).sum(), (x & ~y).sum(), (~x & y).sum(), (~x & ~y).sum()]).view(2, 2)
            assert stats.chi2_contingency(table.numpy()).pvalue > 1e-4


def test_the_gradient_falls_where_the_output_fell():
    torch.manual_seed(2)
    x = torch.randn(7, 5, 3, dtype=torch.float64, requires_grad=True)
    out = dropout(x, 0.4)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(out, x * gradient)
    assert set(gradient.unique().tolist()) == {0.0, 2**16 / (2**16 - 26214)}


def test_a_seed_repeats_it_and_another_does_not():
    x, module = torch.randn(50, 7), Dropout(0.5).train()
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        runs.append(module(x))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_the_ends_of_the_range(p):
    x = torch.randn(40, requires_grad=True)
    assert torch.equal(dropout(x, p), torch.zeros_like(x) if p == 1.0 else x)
    assert dropout(torch.empty(0), 0.5).shape == (0,)


def test_nothing_falls_in_evaluation():
    x = torch.randn(40)
    assert Dropout(0.5).eval()(x) is x
