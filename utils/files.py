"""Writes files whole or not at all, hashes them, and says what may be overwritten.

Whatever is being written has a name that begins with `INCOMPLETE`, beside its place, and is renamed when it is whole
and on the disk. So a reader, or a run that was killed, never meets half of a file or folder under its name. While it is
being written it is locked: what a killed program left has no lock, and the next one that writes there removes it.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from .errors import ExistingFileError, UserError, UserFileError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

INCOMPLETE = ".incomplete-"
_OLD = ".old"
LOCK_NAME = ".lock"
# Writes a folder's README.md from what is known about the run.
WriteCard = Callable[[str | os.PathLike, dict[str, Any]], None]
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def cache_folder() -> Path:
    """The user's cache folder of this package; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clozebert"


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# Whole or not at all -------------------------------------------------------------------------------------------------


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes its name, and the place of an older one, when it is whole."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_left_over(path)
        temporary = _incomplete(path)
        try:
            with open(_unseen(temporary), "xb") as file:
                _lock(file.fileno())
                _show(temporary)
                yield file
                file.flush()
                os.fsync(file.fileno())
                if fcntl is not None:
                    os.replace(temporary, path)
            if fcntl is None:  # Windows does not rename what is open, nor does it lock
                os.replace(temporary, path)
        except BaseException:
            for left in (_unseen(temporary), temporary):
                left.unlink(missing_ok=True)
            raise
        _flush_entries(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8: a reader sees the old or the new content."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


@contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder to fill, which takes the name `path` when it is whole; after an error nothing of it stays.

    Args:
        replace: the folder of that name, if there is one, is deleted then.

    Raises:
        UserFileError: the disk takes no more, or must not be written to.
        ExistingFileError: there is one that is not empty, and `replace` is not set.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_left_over(path)
        temporary, outdated = _incomplete(path), _incomplete(path, _OLD)
        try:
            with _locked_folder(temporary):
                yield temporary
                flush_folder(temporary)
                if replace and path.exists():
                    path.rename(outdated)
                try:
                    temporary.rename(path)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    raise ExistingFileError(
                        f"{path} was written by another program meanwhile: it is left as it is"
                    ) from None
        except BaseException:
            if outdated.exists():
                outdated.rename(path)
            raise
        finally:
            for folder in (_unseen(temporary), temporary, outdated):
                shutil.rmtree(folder, ignore_errors=True)
        _flush_entries(path.parent)


@contextmanager
def whole_files(directory: Path, *, replacing: Iterable[str] = ()) -> Iterator[Path]:
    """A folder to fill, whose content moves into `directory` when it is whole; after an error nothing of it stays.

    Args:
        replacing: patterns as of `written_in`: what matches them is deleted then, and everything else stays, but for
            files of the same names.
    """
    if not directory.exists():
        with whole_folder(directory) as folder:
            yield folder
        return
    # Inside, so that moving is renaming, whatever is mounted where.
    new, old = directory / "new", directory / "old"
    with disk_errors(directory):
        remove_left_over(new)
        for left in _left_over(old):  # a program was killed while it replaced these
            _merge(left, directory)
            shutil.rmtree(left, ignore_errors=True)
        temporary, outdated = _incomplete(new), _incomplete(old)
        try:
            with _locked_folder(temporary):
                yield temporary
                flush_folder(temporary)
                for path in set(written_in(directory, replacing)) - {temporary}:
                    aside = outdated / path.relative_to(directory)
                    aside.parent.mkdir(parents=True, exist_ok=True)
                    path.rename(aside)
                    _remove_empty(path.parent, within=directory)
                _merge(temporary, directory)
        except BaseException:
            if outdated.is_dir():
                _merge(outdated, directory)
            raise
        finally:
            for folder in (_unseen(temporary), temporary, outdated):
                shutil.rmtree(folder, ignore_errors=True)
        _flush_entries(directory)


def remove_left_over(path: Path) -> None:
    """Delete what a killed program left half-written for `path`, and bring back what it was replacing."""
    for left in _left_over(path, _OLD):
        if path.exists():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.rename(path)
    for left in _left_over(path):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def flush_folder(directory: Path) -> None:
    """Push every file and folder below `directory` to the disk, readable as the process' umask says."""
    umask = os.umask(0)
    os.umask(umask)
    for path in directory.rglob("*"):
        if path.is_file():
            # safetensors creates its files readable by their owner alone.
            path.chmod(0o666 & ~umask)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            _flush_entries(path)
    _flush_entries(directory)


def _incomplete(path: Path, kind: str = "") -> Path:
    return path.with_name(f"{INCOMPLETE}{path.name}{kind}-{secrets.token_hex(4)}")


def _half_written(path: Path, kind: str = "") -> list[Path]:
    """Paths named by `_incomplete(path, kind)`."""
    name = re.compile(re.escape(f"{INCOMPLETE}{path.name}{kind}-") + "[0-9a-f]{8}")
    return [one for one in path.parent.glob(f"{INCOMPLETE}*") if name.fullmatch(one.name)]


def _left_over(path: Path, kind: str = "") -> list[Path]:
    """Paths named by `_incomplete(path, kind)` that no program is writing."""
    return [one for one in sorted(_half_written(path, kind)) if not _is_locked(one)]


def _unseen(path: Path) -> Path:
    """The name of a file or folder until it is locked, where the system has locks: `_left_over` does not look for it.

    Otherwise another program that writes the same thing could take it for left over, and remove it.
    """
    return path if fcntl is None else path.with_name(f"{path.name}-new")


def _show(path: Path) -> None:
    if fcntl is not None:
        _unseen(path).rename(path)


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Make a folder and lock it, where the system can; the lock ends with the process at the latest."""
    _unseen(folder).mkdir()
    if fcntl is None:  # Windows
        yield
        return
    descriptor = os.open(_unseen(folder), os.O_RDONLY)
    try:
        _lock(descriptor)
        _show(folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Lock what is new; who looks whether it is locked holds it for a moment only."""
    # Not every network file system has locks; what is left over stays there then.
    with contextlib.suppress(OSError):
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_locked(path: Path) -> bool:
    """Whether somebody holds the lock of a file or folder, or it cannot be told."""
    if fcntl is None:
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # it has just got its name, or is somebody else's
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _merge(source: Path, target: Path) -> None:
    """Move what `source` holds into `target`, folder by folder."""
    for path in sorted(source.iterdir()):
        if path.is_dir() and (target / path.name).is_dir():
            _merge(path, target / path.name)
        else:
            os.replace(path, target / path.name)


def _flush_entries(directory: Path) -> None:
    """Push the names in a folder to the disk."""
    # Windows opens no directories; there, a rename is as durable as the file system makes it.
    with contextlib.suppress(PermissionError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Output folders ------------------------------------------------------------------------------------------------------


def written_in(directory: Path, patterns: Iterable[str]) -> list[Path]:
    """What a program wrote into its output folder, by the patterns that it declares.

    Args:
        patterns: regular expressions of whole paths below `directory`, with `/` between the parts: `checkpoint-\\d+`
            is such a folder with all that it holds, `checkpoint-notes` is none.
    """
    expressions = [re.compile(pattern) for pattern in patterns]
    depth = 1 + max((expression.pattern.count("/") for expression in expressions), default=-1)

    def search(folder: Path, level: int) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            name = path.relative_to(directory).as_posix()
            if any(expression.fullmatch(name) for expression in expressions):
                yield path
            elif level < depth and path.is_dir() and not path.is_symlink():
                yield from search(path, level + 1)

    return list(search(directory, 1)) if depth and directory.is_dir() else []


def remove_written(directory: Path, patterns: Iterable[str]) -> None:
    """Delete what a program wrote, and folders that this leaves empty; everything else stays."""
    for path in written_in(directory, patterns):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        _remove_empty(path.parent, within=directory)


def _remove_empty(folder: Path, *, within: Path) -> None:
    with contextlib.suppress(OSError):
        while folder != within:
            folder.rmdir()
            folder = folder.parent


def check_output_dir(
    directory: str | Path,
    *,
    overwrite: bool = False,
    written: Iterable[str] = (),
    inputs: Iterable[tuple[str, str | Path | None]] = (),
    name: str = "output_dir",
    way_out: str = "give --overwrite_output_dir or another folder",
) -> None:
    """The one rule for output folders: one that holds something is refused, unless `overwrite`.

    Overwriting deletes what the program wrote before, which is what `written` matches, and nothing else.

    Args:
        written: the patterns that the program declares, see `written_in`.
        inputs: the files and folders that the program is going to read, each after the flag that names it.
        name: of the flag that names the folder.
        way_out: what else a person can do, for the message.

    Raises:
        ExistingFileError: it is a file, or a folder that holds something.
        UserError: overwriting would delete an input.
    """
    folder = Path(directory)
    if folder.is_symlink() and not folder.exists():
        raise ExistingFileError(f"{name}={directory} is a link to a path that does not exist: give a folder")
    if folder.exists() and not folder.is_dir():
        raise ExistingFileError(f"{name}={directory} is a file: give a folder")
    # A killed program's half-written folders may go. Those that a running program has locked may not.
    half_written = [*folder.glob(f"{INCOMPLETE}*"), *_half_written(Path(os.path.abspath(folder)))]
    if fcntl is not None and any(path.is_dir() and _is_locked(path) for path in half_written):
        raise ExistingFileError(f"{name}={directory} is being written by another program: wait for it, or end it")
    if not folder.is_dir():
        return
    if overwrite:
        _check_inputs_stay(written_in(folder, written), inputs, name=name)
    elif any(path.name != LOCK_NAME and not path.name.startswith(INCOMPLETE) for path in folder.iterdir()):
        raise ExistingFileError(f"{name}={directory} is not empty; {way_out}")


def _check_inputs_stay(deleted: Iterable[Path], inputs: Iterable[tuple[str, str | Path | None]], *, name: str) -> None:
    """Refuse to delete what the program is going to read, or what lies in a folder that it is going to read."""
    paths = [path.resolve() for path in deleted]
    for flag, value in inputs:
        if value is None:
            continue
        place = Path(value).resolve()
        for path in paths:
            if place.is_relative_to(path) or path.parent == place:
                raise UserError(f"overwrite_output_dir deletes {path}, but {flag}={value}: give another {name}")


@contextmanager
def disk_errors(place: Path, *, way_out: str = "give another folder") -> Iterator[None]:
    """A disk that is full and a folder that cannot be written to as a person's error.

    Raises:
        UserFileError: one of them, whichever library met it.
    """
    try:
        yield
    except Exception as error:
        # Libraries in Rust tell of the number in words.
        in_words = re.search(r"\(os error (\d+)\)", str(error))
        number = getattr(error, "errno", None) or (int(in_words.group(1)) if in_words else None)
        if number in _FULL:
            raise UserFileError(f"{place} cannot be written ({os.strerror(number)}): {way_out}") from error
        if number in _CLOSED:
            where = getattr(error, "filename", None) or place
            # A person knows the place, not the name under which it is being written.
            where = place if Path(os.fsdecode(where)).name.startswith(INCOMPLETE) else where
            raise UserFileError(f"{where} cannot be read or written ({os.strerror(number)}): {way_out}") from error
        raise
