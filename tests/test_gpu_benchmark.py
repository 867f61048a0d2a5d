"""What benchmarks/gpu.py reads from the programs that it runs."""

import json
import os
import runpy
import subprocess
import sys
import types
from collections import Counter
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
        "milliseconds": 142.0, "tokens_per_second": 346_140.8, "loss": 10.99710, "first_step_seconds": 47.0,
        "peak_gib": 20.5, "parts": {"norms": 10.0, "matmuls": 60.0},
    }  # fmt: skip
    said = f"[W1] before\n{json.dumps(step)}\n[rank0]: {{}} destroy_process_group was not called\n"
    assert gpu["figures_in"](said) == step

    def page(said: str) -> str:
        default = {"status": 0, "seconds": 60.0, **gpu["figures_in"](said)}
        machine = {"gpu": "a GPU", "torch": "2.11", "transformers": "5.17"}
        return "\n".join(gpu["tables"]({"machine": machine, "blocks": {"profile: default": {"default": default}}}))

    assert "| profile: default | 0 | 60.0 | 346,141 | 10.997 |" in page(said)
    assert "| default | 142.0 | 346,141 | 10.99710 | 47 | 20.50 | matmuls 60.0, norms 10.0 |" in page(said)
    assert "profile: default, default: `no figures in what it printed`" in page("nothing\n")


def test_the_end_of_what_failed_is_kept(gpu: dict[str, Any]) -> None:
    said = "print('step 2, loss 9.5, tokens_per_second 100', flush=True); "
    commands = [gpu["Command"]("good", ["-c", said]), gpu["Command"]("bad", ["-c", f"{said}raise SystemExit('why')"])]
    found = gpu["run_block"]("loop", gpu["Block"](commands, measures=True), dict(os.environ))
    assert {**found["good"], "seconds": 0} == {"status": 0, "seconds": 0, "loss": 9.5, "tokens_per_second": 100}
    assert found["bad"]["status"] == 1
    assert found["bad"]["said"].endswith("why\n")
    check = gpu["run_block"]("flags", gpu["Block"](commands[:1]), dict(os.environ))
    assert set(check["good"]) == {"status", "seconds"}


def test_the_page_holds_the_kept_results(gpu: dict[str, Any]) -> None:
    results = json.loads(gpu["RESULTS"].read_text(encoding="utf-8"))
    page = gpu["PAGE"].read_text(encoding="utf-8")
    assert "\n".join(gpu["tables"](results)) in page


def test_what_measures_runs_alone_after_the_corpus_and_all_checks(gpu: dict[str, Any]) -> None:
    # The output of what failed is kept.
    say_when = "import time; print(time.time()); time.sleep(0.2); print(time.time()); raise SystemExit(1)"
    commands = [gpu["Command"]("when", ["-c", say_when])]
    names = {"loop": True, "flags: eager": False, "corpus": False, "kernels": False, "plan": True}
    blocks = {name: gpu["Block"](commands, measures=measures) for name, measures in names.items()}
    found = dict(gpu["run_blocks"](blocks, dict(os.environ)))
    begins, ends = ({name: float(facts["when"]["said"].split()[at]) for name, facts in found.items()} for at in (0, 1))
    assert set(found) == set(names)
    assert ends["corpus"] <= min(begins["kernels"], begins["flags: eager"])
    assert max(ends["kernels"], ends["flags: eager"]) <= begins["loop"]
    assert ends["loop"] <= begins["plan"]


def test_one_word_asks_for_all_blocks_of_a_kind(gpu: dict[str, Any], tmp_path: Path) -> None:
    known = gpu["blocks"](tmp_path)
    asked = [name for name in known if gpu["is_asked"](name, ["flags", "plan"])]
    assert {"flags: eager", "flags: qk_norm", "plan"} <= set(asked)
    assert all(name == "plan" or name.startswith("flags: ") for name in asked)


def test_what_needs_flash_attn_4_is_left_out_without_it(gpu: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "__init__.py").touch()
    (tmp_path / "flash_attn" / "cute" / "__init__.py").touch()
    wanted = {
        f"{kind}: FlashAttention 4{more}"
        for kind in ("flags", "profile", "loop")
        for more in ("", ", residual in float32")
    }
    listed = [sys.executable, str(PATH), "--list"]
    for path, expected in ((tmp_path, wanted), (tmp_path / "none", set())):
        said = subprocess.run(
            listed, env={**os.environ, "PYTHONPATH": str(path)}, capture_output=True, text=True, check=True
        )
        assert wanted & set(said.stdout.splitlines()) == expected


def test_the_lines_to_classify_have_three_labels(gpu: dict[str, Any], tmp_path: Path) -> None:
    gpu["write_lines"](tmp_path / "lines.jsonl", each=20)
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert Counter(line["label"] for line in lines) == {"import": 20, "def": 20, "return": 20}
    assert all(line["text"].strip() for line in lines)
