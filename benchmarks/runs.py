"""Runs of learning that take hours: each in a process with one thread, each result written to a file when it ends."""

import argparse
import fnmatch
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from filelock import FileLock

Job = dict[str, Any]


def is_wanted(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def run_apart(script: str, job: Job, arguments: argparse.Namespace, *more: str) -> dict[str, Any] | None:
    """What `script one` finds in a separate process with one thread; None if it fails."""
    where = ("--corpus", arguments.corpus, "--tokenizer_name", arguments.tokenizer_name)
    command = [sys.executable, script, "one", *where, "--job", json.dumps(job), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=one_thread())
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def add_run(run: dict[str, Any], path: Path) -> None:
    with FileLock(f"{path}.lock"):  # another process may write, too
        results = read_results(path)
        results["runs"].append(run)
        write_results(results, path)


def use_one_thread() -> None:
    """One thread, and freed memory is kept, for all sides, as our programs do."""
    import torch

    from clozebert.utils.memory import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def read_results(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {"runs": []}


def write_results(results: dict[str, Any], path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    temporary.replace(path)
