"""The limits of a container, as `docker run --memory 4g --cpus 1.5` sets them."""

import os
from pathlib import Path

import pytest
import torch

from clozebert.utils import limits
from clozebert.utils.device import memory_of
from clozebert.utils.limits import available_cpus

GIB = 1 << 30
# What stands in /proc/self/cgroup, the files below /sys/fs/cgroup, and the limits: bytes and processors.
CASES = {
    "version 2": ("0::/", {"memory.max": "1073741824", "cpu.max": "150000 100000"}, GIB, 2),
    "a job within a slice": (
        "0::/slice/job",
        {
            "slice/job/memory.max": "max", "slice/memory.max": "1073741824",
            "slice/job/cpu.max": "max 100000", "slice/cpu.max": "50000 100000",
        },
        GIB,
        1,
    ),
    "version 1, whose path is the host's": (
        "5:cpu,cpuacct:/docker/0a\n4:memory:/docker/0a\n0::/docker/0a",
        {
            "memory/memory.limit_in_bytes": "1073741824",
            "cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000",
        },
        GIB,
        3,
    ),
    "no limit": (
        "5:cpu:/\n4:memory:/a\n0::/",
        {
            "memory/a/memory.limit_in_bytes": "9223372036854771712",
            "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000",
        },
        9223372036854771712,
        None,
    ),
    "another system": ("", {}, float("inf"), None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_limits_of_a_container_are_those_of_the_programs(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, files, memory, processors = CASES[case]
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    monkeypatch.setattr(limits, "_OWN", tmp_path / "own")
    monkeypatch.setattr(limits, "_GROUPS", tmp_path / "groups")
    assert (limits.memory_limit(), limits.processor_limit()) == (memory, processors)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 64 * GIB // 4096, "SC_PAGE_SIZE": 4096}[name])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(16), raising=False)
    assert memory_of(torch.device("cpu")) == min(64 * GIB, memory)
    assert available_cpus() == (processors or 16)
