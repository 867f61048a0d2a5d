"""Output folders: what may be written there, and what is deleted when a program starts over."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import ExistingFileError, UserError, UserFileError
from .files import INCOMPLETE, LOCK_NAME, half_written, is_locked, remove_empty, written_in
from .untrusted import ADAPTER_NAME


def remove_written(directory: Path, patterns: Iterable[str]) -> None:
    """Delete what a program wrote, and the folders that this leaves empty. Everything else stays."""
    for path in written_in(directory, patterns):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        remove_empty(path.parent, within=directory)


def check_output_dir(
    directory: str | Path,
    *,
    overwrite: bool = False,
    written: Iterable[str] = (),
    inputs: Iterable[tuple[str, str | Path | None]] = (),
    name: str = "output_dir",
    way_out: str = "give --overwrite_output_dir or another folder",
    holds_model: bool = True,
) -> None:
    """Refuse an output folder that is not empty, unless `overwrite` is set.

    Overwriting deletes what the program wrote before, which is what `written` matches, and nothing else.

    Args:
        written: the patterns that the program declares, see `written_in`.
        inputs: the files and folders that the program is going to read, as pairs of flag and path.
        name: the flag that names the folder.
        way_out: what the user can do instead, for the message.
        holds_model: whether a model is written there; an adapter of PEFT may then not lie there.

    Raises:
        ExistingFileError: it is a file, a folder that is not empty or holds an adapter, or in use by another program.
        UserFileError: nothing can be written there.
        UserError: it is empty, a URL or not UTF-8, or overwriting would delete an input.
    """
    if directory == "":  # as a path, it is the folder in which the program was started
        raise UserError(f"{name} is empty: give a folder; '.' is the one that you are in")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(directory)):  # a Path of a URL has one slash; C:/ is a drive
        raise UserError(f"{name}={directory} is a URL: give a folder of this machine, and copy it there afterwards")
    if not _is_utf8(directory):
        way = "give another folder, or set PYTHONUTF8=1 if only the locale is not UTF-8"
        raise UserError(f"{name}={str(directory)!r} is no name in UTF-8: {way}")
    folder = Path(directory)
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise ExistingFileError(f"{name}={directory} is a file: give a folder")
    if closed := closed_place(folder):  # now, and not after hours of work
        raise UserFileError(f"{name}={directory}: {closed} is not a folder to which you may write; give another folder")
    _refuse_adapter(folder, name, holds_model=holds_model)
    if folder.is_symlink() and not folder.exists():
        raise ExistingFileError(f"{name}={directory} is a link to a path that does not exist: give a folder")
    # Half-written folders may be removed if their program was killed, but not if a running program has locked them.
    unfinished = [*folder.glob(f"{INCOMPLETE}*"), *half_written(Path(os.path.abspath(folder)))]
    if any(path.is_dir() and is_locked(path) for path in unfinished):
        raise ExistingFileError(f"{name}={directory} is being written by another program: wait for it, or end it")
    if not folder.is_dir():
        return
    if overwrite:
        _check_inputs_stay(written_in(folder, written), inputs, name=name)
    elif any(path.name != LOCK_NAME and not path.name.startswith(INCOMPLETE) for path in folder.iterdir()):
        raise ExistingFileError(f"{name}={directory} is not empty; {way_out}")


def _refuse_adapter(folder: Path, name: str, *, holds_model: bool) -> None:
    if holds_model and os.path.isfile(folder / ADAPTER_NAME):
        raise ExistingFileError(
            f"{name}={folder} holds {ADAPTER_NAME}, an adapter of PEFT, and transformers would apply it to a model "
            "that is saved there: give another folder"
        )


def _is_utf8(path: str | Path) -> bool:
    """Whether libraries in Rust, such as safetensors and tokenizers, can write to a path: they take it as UTF-8."""
    try:
        return str(path).encode("utf-8") == os.fsencode(path)
    except UnicodeEncodeError:
        return False


def closed_place(folder: Path) -> Path | None:
    """The folder, or its nearest parent that exists, if one may not write there; None if one may."""
    places = (folder.absolute(), *folder.absolute().parents)
    # `path.exists()` raises below a closed folder. A drive of Windows may be missing itself.
    there = next((path for path in places if os.path.exists(path)), places[-1])
    return None if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK) else there


def _check_inputs_stay(deleted: Iterable[Path], inputs: Iterable[tuple[str, str | Path | None]], *, name: str) -> None:
    """Refuse to delete an input of the program, or files directly in a folder that it is going to read."""
    paths = [path.resolve() for path in deleted]
    for flag, value in inputs:
        if value is None:
            continue
        place = Path(value).resolve()
        for path in paths:
            if place.is_relative_to(path) or path.parent == place:
                raise UserError(f"overwrite_output_dir deletes {path}, but {flag}={value}: give another {name}")


@contextmanager
def folder_stays(folder: Path, *, way_out: str) -> Iterator[None]:
    """Report errors because an output folder was deleted or moved away meanwhile as errors of the user.

    Args:
        way_out: what the user can do.

    Raises:
        UserFileError: an error came, and the folder is gone. A further machine of a run may never have had it.
    """
    was_there = folder.is_dir()
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not was_there or folder.is_dir():
            raise
        raise UserFileError(f"{folder} was deleted or moved while it was written: {way_out}") from error
