"""Which of many like cases `make test` runs."""

from collections.abc import Iterable
from typing import Any

import pytest


def often(cases: Iterable[Any], number: int = 1) -> list[Any]:
    """Parameters of a test: the first ones are run with `make test`, too, the others with `make test-slow` only."""
    cases = list(cases)
    several = [case if isinstance(case, tuple) else (case,) for case in cases[number:]]
    return cases[:number] + [pytest.param(*case, marks=pytest.mark.slow) for case in several]
