"""Learning-rate factors, against their formulas."""

import itertools
import math

import pytest

from clozebert.training.optimizers.schedules import SCHEDULES, inverse_sqrt_factor, learning_rate_factor


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warmup_rises_evenly_to_one_and_everything_ends_at_zero(schedule: str) -> None:
    factors = [
        learning_rate_factor(step, schedule=schedule, max_steps=50, warmup_steps=9, decay_steps=20)
        for step in range(52)
    ]
    assert factors[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert max(factors) == factors[9] == 1.0
    assert min(factors[:50]) > 0
    assert factors[50:] == [0.0, 0.0]
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors[9:]))


def test_shapes_half_way() -> None:
    def at(step: int, schedule: str) -> float:
        return learning_rate_factor(step, schedule=schedule, max_steps=110, warmup_steps=10, decay_steps=40)

    assert at(60, "linear") == pytest.approx(0.5)
    assert at(35, "linear") == pytest.approx(0.75)
    assert at(60, "cosine") == pytest.approx(0.5)
    assert at(35, "cosine") == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert [at(step, "wsd") for step in (10, 40, 70)] == [1.0, 1.0, 1.0]
    assert at(80, "wsd") == pytest.approx(1 - math.sqrt(0.25))
    assert at(90, "wsd") == pytest.approx(1 - math.sqrt(0.5))


def test_without_warmup_the_first_update_is_whole() -> None:
    assert learning_rate_factor(0, schedule="linear", max_steps=3) == 1.0


def test_an_unknown_schedule_is_named() -> None:
    with pytest.raises(ValueError, match="lr_scheduler_type='step' must be one of linear, cosine, wsd"):
        learning_rate_factor(3, schedule="step", max_steps=9)


def test_inverse_sqrt_stays_at_one_and_then_falls() -> None:
    assert [inverse_sqrt_factor(step, 100) for step in (0, 50, 99)] == [1.0, 1.0, 1.0]
    assert inverse_sqrt_factor(399, 100) == pytest.approx(0.5)
    assert inverse_sqrt_factor(9_999, 100) == pytest.approx(0.1)
    assert inverse_sqrt_factor(9_999, None) == 1.0
