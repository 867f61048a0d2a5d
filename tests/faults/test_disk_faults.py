"""A disk that fails at any file operation of a run or a preparation: one line, and what was whole before stays so."""

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disturbances import Watch, break_disk
from often import often
from pretraining_helpers import assert_same_bits, in_forks, run_forked

from clozebert.corpus import Corpus
from clozebert.corpus.preparation.prepare import prepare
from clozebert.corpus.readers.inputs import Reader
from clozebert.corpus.tokenizer import load_tokenizer
from clozebert.training.checkpoints.folders import newest_valid
from clozebert.utils.errors import UserError

NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
STEPS = 6
RUN = {
    "max_steps": STEPS, "save_steps": 2, "eval_steps": 3, "save_total_limit": 2, "logging_steps": 1,
    "resume_from_checkpoint": "latest",
}  # fmt: skip


def run_on_broken_disk(folder: Path, output_dir: Path, watch: Watch, *, operation: int, number: int) -> list[int]:
    """The status of a run whose disk fails from a file operation on; 0: never."""
    return run_forked(
        folder,
        output_dir,
        prelude=lambda rank: break_disk(watch, output_dir, operation=operation, number=number),
        **RUN,
    )


def break_and_resume(
    folder: Path, tmp_path: Path, capfd: Any, *, faults: int, seed: int, keep: Callable[[Any], None] = print
) -> None:
    """Let runs meet disk faults, and go on from each with a good disk.

    Args:
        keep: told after each what came of all, so that a test that is cut short has said how far it came.
    """
    watch, draws = Watch(), np.random.default_rng(seed)
    assert run_on_broken_disk(folder, tmp_path / "whole", watch, operation=0, number=0) == [0]
    operations, found = watch.operations, {"faults": 0, "slowest": 0.0}
    capfd.readouterr()
    while found["faults"] < faults:
        output_dir = tmp_path / "run"
        operation, number = int(draws.integers(1, operations + 1)), int(draws.choice(NUMBERS))
        how = f"{os.strerror(number)} from operation {operation} of {operations} on"
        begun = time.monotonic()
        status = run_on_broken_disk(folder, output_dir, watch, operation=operation, number=number)
        shown = capfd.readouterr().err
        if status != [0]:  # else all was written before
            assert status == [2], (how, shown)
            assert "Traceback" not in shown, (how, shown)
            assert shown.count("error: ") == 1, (how, shown)
            assert os.strerror(number) in shown, (how, shown)
            found["faults"] += 1
            found["slowest"] = max(found["slowest"], time.monotonic() - begun)
        newest_valid(output_dir)  # raises where there are checkpoints and none is whole
        assert run_forked(folder, output_dir, **RUN) == [0], how
        assert_same_bits(tmp_path / "whole", output_dir, step=STEPS)
        shutil.rmtree(output_dir)
        keep(found)


def test_a_disk_that_fails_anywhere_in_a_run(prepared: Path, tmp_path: Path, capfd: Any) -> None:
    break_and_resume(prepared, tmp_path, capfd, faults=2, seed=5)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_eighty_disk_faults(prepared: Path, tmp_path: Path, capfd: Any, figure: Callable[[str, Any], None]) -> None:
    def keep(found: dict[str, float]) -> None:
        figure(
            "disk faults",
            f"{found['faults']} faults: one line and status 2 after {found['slowest']:.0f} s at most, and the same end "
            f"bits after resuming on a good disk",
        )

    break_and_resume(prepared, tmp_path, capfd, faults=80, seed=6, keep=keep)


@pytest.mark.parametrize("is_there", often([True, False], 0), ids=["overwritten", "new"])
def test_a_disk_that_fails_in_a_preparation(
    corpus_folder: Path, tmp_path: Path, is_there: bool, figure: Callable[[str, Any], None]
) -> None:
    """At every file operation, with each error in turn: one line; no half corpus, and the old one stays."""
    (tmp_path / "a.txt").write_text("\n\n".join(f"w{number % 50} w{number % 7} w3" for number in range(40)))
    tokenizer, watch, out = load_tokenizer(str(corpus_folder / "tokenizer")), Watch(), tmp_path / "out"
    old = prepare_here(tmp_path / "a.txt", tokenizer, tmp_path / "old")

    def work(operation: int, number: int) -> None:
        break_disk(watch, tmp_path, operation=operation, number=number)
        status = 0
        try:
            prepare_here(tmp_path / "a.txt", tokenizer, out, validation_fraction=0.2)
        except UserError as error:
            status = 2 if os.strerror(number) in str(error) else 3
        os._exit(status)

    assert in_forks(lambda rank: work(0, 0), [{}]) == [0]
    operations, refused, new = watch.operations, 0, len(Corpus(out))
    for operation in range(1, operations + 1):
        shutil.rmtree(out, ignore_errors=True)
        if is_there:
            shutil.copytree(tmp_path / "old", out)
        (status,) = in_forks(lambda rank, at=operation: work(at, NUMBERS[at % len(NUMBERS)]), [{}])
        assert status in (0, 2), operation
        refused += status == 2
        if status == 2 and (out / "train").exists():
            assert len(Corpus(out)) in (old, new), operation
    assert refused > operations // 2
    name = "overwritten" if is_there else "new"
    figure(f"disk faults in a preparation, {name}", f"{refused} of {operations} operations: one line, no half corpus")


def prepare_here(text: Path, tokenizer: Any, out: Path, *, validation_fraction: float = 0.0) -> int:
    """How many documents the training split got."""
    made = prepare(
        Reader([text]),
        tokenizer=tokenizer,
        output_dir=out,
        num_processes=1,
        validation_fraction=validation_fraction,
        overwrite=True,
    )
    return int(made["train"]["documents"])
