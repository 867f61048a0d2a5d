#!/usr/bin/env python
"""Whether a corpus, a checkpoint, a run's folder or a model is as it was written: every file is read and hashed.

    check.py CORPUS
    check.py RUN_OR_CHECKPOINT

Prints what was compared. Where something is damaged, every damaged file is named and the status is 2.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from clozebert.scripts._program import parse, run
from clozebert.utils.command_line import flag
from clozebert.utils.errors import MissingFileError, UserError

DESCRIPTION = "Read and hash every file of a corpus, a checkpoint or a run, and name those that are damaged."


@dataclasses.dataclass
class CheckArguments:
    """What to check."""

    directory: str = flag("a folder; may stand first, without the flag", ...)


def main(argv: Sequence[str] | None = None) -> None:
    """Check a folder by what it holds."""
    given = parse(
        CheckArguments, argv, verb="check", description=DESCRIPTION, examples=("CORPUS", "RUN"), first="directory"
    )
    folder = Path(given.directory)
    if not folder.is_dir():
        raise MissingFileError(f"there is no folder {folder}")

    from clozebert.corpus.integrity import find_damaged_files, holds_corpus

    if holds_corpus(folder):
        problems, count = find_damaged_files(folder)
        kind = "corpus"
    else:
        kind, problems, count = _check_model(folder)
    if problems:
        raise UserError(f"{folder}, a {kind}, is damaged: {'; '.join(problems)}")
    found = "can be read; a model keeps no hashes of them" if kind == "model" else "are as they were written"
    print(f"{folder}: a {kind}, whole: {count} files {found}")


def _check_model(folder: Path) -> tuple[str, list[str], int]:
    """Checkpoints by their own manifests; beside them, or alone, a model by what can be read of it."""
    from clozebert.hub.loading import read_config, tensor_types_in, weight_files
    from clozebert.training.checkpoints import list_checkpoints
    from clozebert.training.damage import find_damage
    from clozebert.training.training_state import STATE_FOLDER

    checkpoints = [folder] if (folder / STATE_FOLDER).is_dir() else list_checkpoints(folder)
    # Those of fine-tuning are transformers' own, and have no manifest.
    checkpoints = [one for one in checkpoints if not (one / "trainer_state.json").exists()]
    problems, count = [], 0
    for checkpoint in checkpoints:
        damage = find_damage(checkpoint)
        problems += [f"{checkpoint}: {damage}"] if damage else []
        count += sum(path.is_file() for path in checkpoint.rglob("*"))
    if checkpoints:
        kind = "checkpoint" if checkpoints == [folder] else f"run of {len(checkpoints)} checkpoints"
        return kind, problems, count
    if not (folder / "config.json").exists() and not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder} holds no corpus, no run and no model: name the folder of one")
    if not any(folder.glob("*.safetensors")):
        weight_files(folder)  # says what is there instead: nothing, or a pickle, which is not read
    try:
        read_config(folder)
        tensor_types_in(folder)
        return "model", [], 1 + len(weight_files(folder))
    except UserError as error:
        return "model", [str(error)], 0


if __name__ == "__main__":
    run(main)
