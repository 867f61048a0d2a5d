"""The limits of processors and memory that Linux sets a container or a job, by its control groups, versions 1 and 2."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_cpus() -> int:
    """The number of processors that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, processor_limit() or allowed)


def memory_limit() -> float:
    """The most bytes that this process and those of its container may hold; infinity without a limit."""
    found = (_number(folder / name) for folder, name in _files("memory", "memory.max", "memory.limit_in_bytes"))
    return min(found, default=math.inf)


def processor_limit() -> int | None:
    """The processors whose time this container may take, rounded up; None without a limit."""
    shares = []
    for folder, name in _files("cpu", "cpu.max", "cpu.cfs_quota_us"):
        if name == "cpu.max":
            quota, _, period = _text(folder / name).partition(" ")
        else:
            quota, period = _text(folder / name), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # "max" and -1: no limit
            shares.append(int(quota) / int(period))
    return max(1, math.ceil(min(shares))) if shares else None


def _files(controller: str, name: str, old_name: str) -> Iterator[tuple[Path, str]]:
    """The folders of this process's groups, each within the one after it, with the name of the file in them."""
    for line in _text(_OWN).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            place, name_here = _GROUPS, name
        elif controller in controllers.split(","):
            place, name_here = _GROUPS / controller, old_name
        else:
            continue
        # A container may see its own group as the whole, whatever path it is told: then only the last folder exists.
        own = place / path.lstrip("/")
        yield from ((folder, name_here) for folder in (own, *own.parents) if folder.is_relative_to(place))


def _number(file: Path) -> float:
    text = _text(file)
    return float(text) if text.isdigit() else math.inf


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
