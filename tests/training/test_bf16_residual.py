"""`bf16_residual`: the residual stream in bf16 instead of float32. tests/modeling/test_rounding.py has its rounding."""

from pathlib import Path

import pytest
from pretraining_helpers import losses_of, run_here


def test_a_residual_stream_in_bf16_trains_alike(prepared: Path, tmp_path: Path) -> None:
    """Measured on an AMD EPYC with AVX512-BF16: losses of twelve steps at most 0.0002 apart, and not the same."""
    for name, in_bf16 in (("float32", False), ("bf16", True)):
        changes = {"mixed_precision": "bf16", "bf16_residual": in_bf16, "max_steps": 12, "save_steps": 0}
        run_here(prepared, tmp_path / name, norm_position="pre", **changes)
    usual, found = losses_of(tmp_path / "float32"), losses_of(tmp_path / "bf16")
    assert found != usual
    assert found == pytest.approx(usual, abs=0.001)
