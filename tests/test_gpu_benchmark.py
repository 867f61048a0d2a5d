"""What benchmarks/gpu.py reads from the programs that it runs."""

import json
import runpy
import types
from pathlib import Path
from typing import Any

import pytest

from clozebert.training.reporting.progress import RunLog

PATH = Path(__file__).resolve().parent.parent / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def gpu() -> dict[str, Any]:
    return runpy.run_path(str(PATH))


def test_figures_are_the_last_loss_and_the_median_interval(
    gpu: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    accelerator = types.SimpleNamespace(log=lambda values, step: None)
    log = RunLog(None, accelerator=accelerator, step=0, max_steps=60, visible=True, bar=False)
    # The first interval compiles.
    for step, speed in ((20, 36_214.3), (40, 346_200.0), (60, 344_800.0)):
        log.record(step, {"loss": 200 / step, "grad_norm": 1.5, "tokens_per_second": speed, "data_wait": 0.01})
    log.record(60, {"eval_loss": 9.75, "eval_accuracy": 0.5})
    figures = gpu["figures_in"](f"a warning\n{capsys.readouterr().out}")
    assert figures == {"loss": 3.333, "tokens_per_second": pytest.approx(344_800, rel=1e-3)}
    assert gpu["figures_in"]("parameters   1,234\ntokens/s            345,678\n") == {"tokens_per_second": 345_678}
    assert gpu["figures_in"]("no figures") == {}


def test_a_profile_is_read_among_warnings(gpu: dict[str, Any]) -> None:
    step = {
        "milliseconds": 142.0, "tokens_per_second": 346_140.8, "first_step_seconds": 47.0, "peak_gib": 20.5,
        "parts": {"matmuls": 60.0},
    }  # fmt: skip
    said = f"[W1] before\n{json.dumps({'compiled': step})}\n[rank0]: {{}} destroy_process_group was not called\n"
    assert gpu["json_in"](said) == {"compiled": step}

    def page(said: str) -> str:
        profile = {"status": 0, "seconds": 60.0, "said": said}
        machine = {"gpu": "a GPU", "torch": "2.11", "transformers": "5.17"}
        return "\n".join(gpu["tables"]({"machine": machine, "blocks": {"profile": {"profile": profile}}}))

    assert "| compiled | 142.0 | 346,141 | 47 | 20.50 | matmuls 60.0 |" in page(said)
    assert "profile, profile: `no figures in what it printed`" in page("nothing\n")
