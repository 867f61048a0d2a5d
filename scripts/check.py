#!/usr/bin/env python
"""Read and hash every file of a corpus, a checkpoint or a run's checkpoints, and name those that are damaged.

    clozebert check CORPUS
    clozebert check RUN

The program prints what it compared. If files are damaged, it names each of them and exits with status 2.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozebert.scripts._program import parse, run
from clozebert.utils.command_line import flag
from clozebert.utils.errors import MissingFileError, UserError, as_user_errors
from clozebert.utils.wording import counted


@dataclasses.dataclass
class CheckArguments:
    directory: str = flag("the folder to check; can come first, without the flag", ...)


def main(argv: Sequence[str] | None = None) -> None:
    """Check a folder, whatever it holds."""
    given = parse(CheckArguments, argv, doc=__doc__, verb="check", first="directory")
    folder = Path(given.directory)
    if not folder.is_dir():
        raise MissingFileError(f"there is no folder {folder}")

    from clozebert.corpus.integrity import find_damaged_files, holds_corpus

    if (folder / "manifest.json").is_file() and (folder / "documents.bin").is_file():
        raise UserError(f"{folder} is one split of a corpus: give the folder that it lies in")
    if holds_corpus(folder):
        problems, count = find_damaged_files(folder)
        kind, found = "corpus", _matching(count)
    else:
        kind, problems, found = _check_model(folder)
    if problems:
        raise UserError(f"{folder}, a {kind}, is damaged: {'; '.join(problems)}")
    print(f"{folder}: a {kind}, undamaged: {found}")


def _check_model(folder: Path) -> tuple[str, list[str], str]:
    """Check checkpoints by their manifests, and a model, with or without checkpoints, by reading its files.

    Returns:
        what the folder is, what is wrong with it, and the message if nothing is wrong.
    """
    from clozebert.training.checkpoints.folders import list_checkpoints
    from clozebert.training.checkpoints.training_state import STATE_FOLDER

    checkpoints = [folder] if (folder / STATE_FOLDER).is_dir() else list_checkpoints(folder)
    # The checkpoints of fine-tuning are written by transformers and have no manifest.
    is_tuned = (folder / "finetuning_settings.json").is_file()
    checkpoints = [one for one in checkpoints if not is_tuned and not (one / "trainer_state.json").exists()]
    problems, count = _check_checkpoints(checkpoints)
    if checkpoints == [folder]:
        return "checkpoint", problems, _matching(count)
    has_model = (folder / "config.json").exists() or any(folder.glob("*.safetensors"))
    if is_tuned and not has_model:
        raise UserError(f"{folder} is a fine-tuning run that has not ended: it holds no model yet")
    if not checkpoints and not has_model:
        raise UserError(f"{folder} is no corpus, run or model: give the folder of one of these")
    found = [_matching(count)] if checkpoints else []
    if has_model:
        damaged, files = _read_model(folder)
        problems += damaged
        found.append(f"{counted(files, 'file')} of the model can be read (it has no hashes)")
    kind = f"run of {counted(len(checkpoints), 'checkpoint')}" if checkpoints else "model"
    return kind, problems, "; ".join(found)


def _check_checkpoints(checkpoints: Sequence[Path]) -> tuple[list[str], int]:
    """What is wrong with some checkpoints; if nothing is, how many files were compared with what was written."""
    from clozebert.training.checkpoints.damage import MANIFEST, find_damage
    from clozebert.training.checkpoints.training_state import read_json

    damages = ((checkpoint, find_damage(checkpoint)) for checkpoint in checkpoints)
    problems = [f"{checkpoint}: {damage}" for checkpoint, damage in damages if damage]
    return problems, 0 if problems else sum(len(read_json(one / MANIFEST)["files"]) for one in checkpoints)


def _matching(count: int) -> str:
    return f"{counted(count, 'file')} {'matches its hash' if count == 1 else 'match their hashes'}"


def _read_model(folder: Path) -> tuple[list[str], int]:
    """What is wrong with a model's files, and how many were read."""
    from clozebert.hub.loading import read_config, weight_files

    if not any(folder.glob("*.safetensors")):
        weight_files(folder)  # raises: there are no weights, or only a pickle, which is not read
    try:
        rows = read_config(folder).get("vocab_size")
        weights = weight_files(folder)
        for path in weights:
            _read_weights(path)
        return [], 1 + len(weights) + _read_tokenizer(folder / "tokenizer.json", rows)
    except UserError as error:
        return [str(error)], 0


def _read_weights(path: Path) -> None:
    """Read the tensors of a safetensors file one by one."""
    from safetensors import SafetensorError, safe_open

    from clozebert.training.checkpoints.damage import is_finite

    with as_user_errors(SafetensorError, OSError, about=str(path)), safe_open(path, "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            if not is_finite(tensors.get_tensor(name)):
                raise UserError(f"{path}: {name} holds numbers that are not finite")


def _read_tokenizer(path: Path, rows: Any) -> int:
    """How many files were read: none or one. `rows`: those of the model's embeddings."""
    from tokenizers import Tokenizer

    if not path.is_file():
        return 0
    with as_user_errors(Exception, about=f"{path} is no tokenizer"):  # the library has no type of its own
        size = Tokenizer.from_file(str(path)).get_vocab_size()
    if isinstance(rows, int) and size > rows:
        raise UserError(f"{path} has {size} tokens, and the model {rows} rows: they do not belong together")
    return 1


if __name__ == "__main__":
    run(main)
