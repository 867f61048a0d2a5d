"""The sides of a comparison: processes of contender.py that take turns; used by speed.py."""

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTENDER = Path(__file__).with_name("contender.py")
WARM_UP = 1
NEEDED = ("ours", "matmul")  # the other sides are peers
LAST_WORDS = 3000  # characters
# Restricts a CPU with wider instructions to AVX2.
AVX2_ONLY = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings that all rows of a run share."""

    threads: int
    repeats: int
    float32: bool = False
    emulated: bool = False

    @property
    def precision(self) -> str:
        return "no" if self.float32 else "bf16"


class SideFailedError(RuntimeError):
    """A contender's process ended; the message holds the end of its output."""


class Side:
    """A contender's process. `facts` are set when it is built."""

    def __init__(self, specification: dict[str, Any], setting: Setting) -> None:
        environment = {
            **os.environ, "OMP_NUM_THREADS": str(setting.threads), "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false", **(AVX2_ONLY if setting.emulated else {}),
        }  # fmt: skip
        self.specification = specification
        self.compiles = specification["device"] == "cuda" and specification.get("compile", False)
        self.said = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(CONTENDER), json.dumps(specification)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True, env=environment,
        )  # fmt: skip
        self.turns: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}

    def build(self) -> None:
        self.facts = self._read()

    def begin(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and `_read` says so
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def end(self) -> None:
        self.turns.append(self._read())

    def turn(self) -> None:
        self.begin()
        self.end()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.said.seek(0)
            raise SideFailedError(f"{self.specification} ended with status {status}\n{self.said.read()[-LAST_WORDS:]}")
        return json.loads(line)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.said.close()

    def summary(self) -> dict[str, Any]:
        turns = self.turns[WARM_UP:]
        seconds = [turn["seconds"] for turn in turns]
        if "tokens" not in self.facts:
            flops = [turn["result"] for turn in turns]
            return {"flops_per_second": statistics.median(flops), "all_flops_per_second": [round(x) for x in flops]}
        return {
            "seconds": statistics.median(seconds),
            "all_seconds": [round(value, 4) for value in seconds],
            "tokens_per_second": self.facts["tokens"] / statistics.median(seconds),
            "memory": self.turns[-1]["memory"],
            "first_result": self.turns[0]["result"],
            **self.facts,
        }


def take_turns(
    specifications: dict[str, Any], setting: Setting, failed: dict[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Run all sides in turns; returns each side's summary. A peer that ends is put into `failed` with its last line.

    Raises:
        SideFailedError: our side ended, or all peers, or, without `failed`, any side.
    """
    sides = {name: Side(specification, setting) for name, specification in specifications.items()}
    try:
        attempt(sides, Side.build, failed=failed)
        # Sides compile at the same time: it takes a minute, mostly on one core. The GPU has room for two.
        together = {name: side for name, side in sides.items() if side.compiles}
        for side in together.values():
            side.begin()
        attempt(sides, Side.end, names=list(together), failed=failed)
        attempt(sides, Side.turn, names=[name for name in sides if name not in together], failed=failed)
        for _ in range(setting.repeats):
            attempt(sides, Side.turn, failed=failed)
        return {name: side.summary() for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()


def attempt(
    sides: dict[str, Side],
    action: Callable[[Side], None],
    *,
    names: list[str] | None = None,
    failed: dict[str, str] | None,
) -> None:
    """Run an action on some or all sides, one after another; see `take_turns` for those that fail."""
    for name in list(sides) if names is None else names:
        try:
            action(sides[name])
        except SideFailedError as error:
            peers = [one for one in sides if one not in NEEDED]
            if failed is None or name in NEEDED or len(peers) == 1:
                raise
            failed[name] = str(error).strip().splitlines()[-1]
            print(f"{name} is left out: {error}", file=sys.stderr)
            sides.pop(name).close()
