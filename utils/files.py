"""Writes files atomically, and hashes them.

A file or folder is written beside its final path, under a name that begins with `INCOMPLETE`. It is renamed when it is
complete and flushed to disk, so nothing half-written ever has the final name, even after a kill. While it is written it
is locked. What a killed program leaves has no lock, and the next program that writes there removes it.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from .errors import ExistingFileError, UserError, UserFileError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

INCOMPLETE = ".incomplete-"
_OLD = ".old"
LOCK_NAME = ".lock"
# The files of a saved model, and those that hold the weights of any: regular expressions of their names.
MODEL_FILES = (r"config\.json", r"model(-\d+-of-\d+)?\.safetensors", r"model\.safetensors\.index\.json")
WEIGHTS = "|".join((*MODEL_FILES[1:], r"pytorch_model.*\.bin"))
# transformers 4 wrote it beside a tokenizer. transformers 5 does not, but where it is, it takes the special tokens from
# it, and not from the tokenizer.
OLD_SPECIAL_TOKENS = r"special_tokens_map\.json"
# Writes a folder's README.md from what is known about the run.
WriteCard = Callable[[str | os.PathLike, dict[str, Any]], None]
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def cache_folder() -> Path:
    """The user's cache folder of this package; it may not exist yet.

    Raises:
        UserError: the user has no home folder, as in some containers.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clozebert"
    except RuntimeError:
        raise UserError("this user has no home folder for a cache: set XDG_CACHE_HOME to a folder") from None


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def hash_model(folder: Path) -> dict[str, str]:
    """The SHA-256 of a model's config.json and of each file of its weights, by name."""
    files = [folder / "config.json", *written_in(folder, [WEIGHTS])]
    return {file.name: sha256_of_file(file) for file in sorted(files)}


# Whole or not at all -------------------------------------------------------------------------------------------------


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that is renamed to `path` when it is complete, replacing an older file."""
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
                _flush(file.fileno())
                if fcntl is not None:
                    os.replace(temporary, path)
            if fcntl is None:  # Windows cannot rename an open file
                os.replace(temporary, path)
        except BaseException:
            for left in (_unseen(temporary), temporary):
                left.unlink(missing_ok=True)
            raise
        _flush_entries(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: str | os.PathLike, value: Any, *, allow_nan: bool = False) -> None:
    """Write indented JSON, atomically. A NaN raises an error here, rather than in whatever reads the file.

    Args:
        allow_nan: write it all the same, as Python reads it: the loss of a broken model is one.
    """
    write_text(Path(path), json.dumps(value, indent=2, ensure_ascii=False, allow_nan=allow_nan) + "\n")


@contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder to fill, renamed to `path` when it is complete; after an error it is deleted.

    Args:
        replace: then delete an existing folder of that name.

    Raises:
        UserFileError: the disk is full or cannot be written to.
        ExistingFileError: a folder of that name exists and is not empty, and `replace` is not set.
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
    """A temporary folder to fill; its content moves into `directory` when it is complete. After an error it is deleted.

    Args:
        replacing: patterns as in `written_in`. Whatever matches them is deleted at the end. Everything else stays,
            except files with the same names as new ones.
    """
    if not directory.exists():
        with whole_folder(directory) as folder:
            yield folder
        return
    # Inside `directory`, so that moving is a rename on one file system.
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
                    remove_empty(path.parent, within=directory)
                _merge(temporary, directory)
                if outdated.is_dir():  # from here on, no later program brings the old files back
                    outdated.rename(temporary / outdated.name)
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
    """Flush every file and folder below `directory` to disk, with the permissions that the umask gives."""
    for path in directory.rglob("*"):
        if path.is_file():
            _give_usual_permissions(path)
            with path.open("r+b") as file:  # Windows flushes only what may be written
                _flush(file.fileno())
        else:
            _flush_entries(path)
    _flush_entries(directory)


def _give_usual_permissions(path: Path) -> None:
    """Give a file the permissions that the umask gives: safetensors creates files that only their owner can read."""
    umask = os.umask(0)
    os.umask(umask)
    with contextlib.suppress(OSError):  # some file systems, such as a drive of Windows in WSL, have no permissions
        path.chmod(0o666 & ~umask)


def _incomplete(path: Path, kind: str = "") -> Path:
    return path.with_name(f"{INCOMPLETE}{path.name}{kind}-{secrets.token_hex(4)}")


def half_written(path: Path, kind: str = "") -> list[Path]:
    """Paths named by `_incomplete(path, kind)`."""
    name = re.compile(re.escape(f"{INCOMPLETE}{path.name}{kind}-") + "[0-9a-f]{8}")
    return [one for one in path.parent.glob(f"{INCOMPLETE}*") if name.fullmatch(one.name)]


def _left_over(path: Path, kind: str = "") -> list[Path]:
    """Paths named by `_incomplete(path, kind)` that no program is writing."""
    return [one for one in sorted(half_written(path, kind)) if is_locked(one) is False]


def _unseen(path: Path) -> Path:
    """The name of a file or folder before it is locked, on systems with locks; `_left_over` does not match it.

    Otherwise another program that writes to the same path could take it for a leftover and remove it.
    """
    return path if fcntl is None else path.with_name(f"{path.name}-new")


def _show(path: Path) -> None:
    if fcntl is not None:
        _unseen(path).rename(path)


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Make a folder and lock it, on systems with locks. The lock ends with the process at the latest."""
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
    """Lock a new file or folder. This may wait a moment for a program that is checking the lock."""
    # Some network file systems have no locks; leftovers stay there.
    with contextlib.suppress(OSError):
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def is_locked(path: Path) -> bool | None:
    """Whether a program holds the lock of a file or folder; None if that cannot be determined."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # just renamed, or owned by another user
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # some network file systems have no locks
        return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    finally:
        os.close(descriptor)
    return False


def _merge(source: Path, target: Path) -> None:
    """Move the content of `source` into `target`, folder by folder."""
    for path in sorted(source.iterdir()):
        if path.is_dir() and (target / path.name).is_dir():
            _merge(path, target / path.name)
        else:
            os.replace(path, target / path.name)


def _flush_entries(directory: Path) -> None:
    """Flush a folder's entries to disk, so that renames in it are durable."""
    # Windows cannot open a directory to flush it.
    with contextlib.suppress(PermissionError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            _flush(descriptor)
        finally:
            os.close(descriptor)


def _flush(descriptor: int) -> None:
    """Flush a file or a folder to disk, where its file system can do that: some of FUSE and SMB cannot."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise


# What lies in a folder ----------------------------------------------------------------------------------------------


def written_in(directory: Path, patterns: Iterable[str]) -> list[Path]:
    """What a program wrote into its output folder, by the patterns that it declares.

    Args:
        patterns: regular expressions for whole paths below `directory`, with `/` between the parts. `checkpoint-\\d+`
            matches such a folder with its content, but not `checkpoint-notes`.
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


def remove_empty(folder: Path, *, within: Path) -> None:
    """Delete a folder if it is empty, and then its parents, up to `within`."""
    with contextlib.suppress(OSError):
        while folder != within:
            folder.rmdir()
            folder = folder.parent


# Errors of the disk --------------------------------------------------------------------------------------------------


@contextmanager
def disk_errors(place: Path, *, way_out: str | None = None) -> Iterator[None]:
    """Report a full disk or a folder that cannot be written to as an error of the user.

    Args:
        way_out: what the user can do; None: free some space, or give another folder. It also replaces that general
            way out in an error that another `disk_errors` within the block has raised.

    Raises:
        UserFileError: either of them, whichever library raised it.
    """
    try:
        yield
    except UserFileError as error:
        if way_out is None or error.finding is None:
            raise
        raise UserFileError(f"{error.finding}: {way_out}") from error
    except Exception as error:
        # Libraries written in Rust give the error number in the message only.
        in_words = re.search(r"\(os error (\d+)\)", str(error))
        number = getattr(error, "errno", None) or (int(in_words.group(1)) if in_words else None)
        if number in _FULL:
            finding, general = f"{place} cannot be written", "free some space, or give another folder"
        elif number in _CLOSED:
            where = getattr(error, "filename", None) or place
            # The user knows the final path, not the temporary name.
            where = place if Path(os.fsdecode(where)).name.startswith(INCOMPLETE) else where
            finding, general = f"{where} cannot be read or written", "give another folder"
        else:
            raise
        finding += f" ({os.strerror(number)})"
        found = UserFileError(f"{finding}: {way_out or general}")
        found.finding = None if way_out else finding
        raise found from error


def temporary_disk_errors() -> contextlib.AbstractContextManager[None]:
    """`disk_errors` for temporary files, of which the user knows neither name nor folder."""
    return disk_errors(Path(tempfile.gettempdir()), way_out="free some space there, or set TMPDIR to another folder")
