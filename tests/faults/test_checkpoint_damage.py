"""No damaged checkpoint is gone on from: the one before it is taken, and it is said."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_damage import MANIFEST, Damage, mend_manifest, mended_damages, plain_damages
from pretraining_helpers import run_here

from clozebert.training.checkpoints.damage import find_damage
from clozebert.training.checkpoints.folders import clear_way, newest_valid


@pytest.fixture(scope="module")
def output_dir(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 3 and 6; Muon, which has two kinds of state."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    run_here(prepared, folder, max_steps=6, save_steps=3, optimizer="muon")
    return folder


def apply(damage: Damage, output_dir: Path, *, mended: bool) -> None:
    damage(output_dir / "checkpoint-6", output_dir / "checkpoint-3")
    if mended:
        mend_manifest(output_dir / "checkpoint-6")


def silent(damages: list[tuple[str, Damage]], output_dir: Path, work: Path, *, mended: bool) -> list[str]:
    """The damages after which the damaged checkpoint, or none, would be gone on from."""
    found = []
    for name, damage in damages:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(output_dir, work)
        mend = mended and not name.startswith(MANIFEST) and name != "a deep manifest"
        apply(damage, work, mended=mend)
        if newest_valid(work) != work / "checkpoint-3":
            found.append(name)
    return found


def test_some_damages_of_each_kind(output_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = output_dir / "checkpoint-6"
    assert find_damage(checkpoint) is None
    plain = plain_damages(checkpoint, flips=1)[::5]
    mended = mended_damages(checkpoint, flips=1, every=4)[::8]
    assert len(plain) + len(mended) > 60
    assert silent(plain, output_dir, tmp_path / "run", mended=False) == []
    assert silent(mended, output_dir, tmp_path / "run", mended=True) == []
    assert caplog.text.count("skipping") == len(plain) + len(mended)


@pytest.mark.faults
def test_a_thousand_damages(output_dir: Path, tmp_path: Path, figure: Callable[[str, Any], None]) -> None:
    checkpoint = output_dir / "checkpoint-6"
    plain = plain_damages(checkpoint, flips=25)
    mended = mended_damages(checkpoint, flips=15, every=1)
    assert len(plain) + len(mended) >= 1000
    assert silent(plain, output_dir, tmp_path / "run", mended=False) == []
    assert silent(mended, output_dir, tmp_path / "run", mended=True) == []
    figure("checkpoints", f"{len(plain):,} damages, 0 silent loads, 0 tracebacks")
    figure("checkpoints, mended", f"{len(mended):,} damages, 0 silent loads, 0 tracebacks")


def test_a_damaged_checkpoint_is_set_aside(output_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(output_dir, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-6" / "config.json").write_text("null")
    clear_way(tmp_path / "run", step=3)
    assert (tmp_path / "run" / "damaged-checkpoint-6").is_dir()
