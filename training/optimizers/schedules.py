"""Learning-rate schedules: pure functions from a step to a factor, so that resuming needs no schedule state.

Steps are counted from 0; `factor(step)` scales the learning rate of the update made in that step. Warm-up is linear,
(step + 1) / (warmup_steps + 1), so the first factor is above 0, and the factor is 1 at step = warmup_steps.
With t in [0, 1) the elapsed share of the decay:

    linear      1 - t                       from the end of warm-up to max_steps
    cosine      (1 + cos(pi t)) / 2         from the end of warm-up to max_steps (Loshchilov & Hutter 2017)
    wsd         1, then 1 - sqrt(t)         over the last decay_steps (warm-up, stable, decay; Hägele et al. 2024)

Muon's rate may also fall as 1 / sqrt(step), a factor on top of the schedule (`inverse_sqrt_factor`).
"""

import math

from ...utils.errors import UserError

SCHEDULES = ("linear", "cosine", "wsd")


def learning_rate_factor(
    step: int, *, schedule: str, max_steps: int, warmup_steps: int = 0, decay_steps: int = 0
) -> float:
    """The factor in [0, 1] of the update made in `step`; 0 from `max_steps` on."""
    if step >= max_steps:
        return 0.0
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    start = max(warmup_steps, max_steps - decay_steps) if schedule == "wsd" else warmup_steps
    share = max(0, step - start) / max(1, max_steps - start)
    if schedule == "linear":
        return 1.0 - share
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * share))
    if schedule == "wsd":
        return 1.0 - math.sqrt(share)
    raise UserError(f"lr_scheduler_type={schedule!r} must be one of {', '.join(SCHEDULES)}")


def inverse_sqrt_factor(step: int, constant_steps: int | None) -> float:
    """sqrt(constant_steps / (step + 1)), at most 1; None: always 1.

    With weight decay λ, Muon's weights are a mean over about the last 1 / (η λ) updates. At a constant rate η that is a
    smaller and smaller share of a long run, which then forgets what it learned first.
    """
    return 1.0 if constant_steps is None else min(1.0, math.sqrt(constant_steps / (step + 1)))
