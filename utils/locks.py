"""A lock file: one program at a time in a folder."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import UserError, UserFileError, as_user_errors
from .files import LOCK_NAME, disk_errors
from .processes import process_rank

# A killed program may leave children, which hold its lock until they exit.
_SECONDS = 8.0


def lock_folder(folder: Path) -> FileLock:
    """Create and lock an output folder for this process, until it releases the lock or ends.

    Raises:
        UserError: another program holds the lock, or the folder cannot be created or locked.
    """
    with disk_errors(folder):
        with as_user_errors(FileNotFoundError, about=f"output_dir={folder} cannot be made"):  # for example in /proc
            folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_NAME)
        try:
            lock.acquire(timeout=_SECONDS)
        except Timeout:
            raise UserError(
                f"output_dir={folder} is in use by another program{_owner(folder)}: wait for it, stop it, or give "
                f"another output_dir"
            ) from None
        except PermissionError as error:
            raise UserFileError(
                f"output_dir={folder}: {LOCK_NAME} in it belongs to another user: delete it, if no run of that user is "
                f"going on there, or give another folder"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            raise UserFileError(
                f"output_dir={folder} cannot be locked ({os.strerror(error.errno)}): give a folder on a file system "
                f"with locks"
            ) from error
        # On Windows a locked file cannot be written, nor read. Without flock, filelock has written who holds the lock.
        if os.name != "nt" and not (folder / LOCK_NAME).read_bytes().startswith(b"%d\n" % os.getpid()):
            (folder / LOCK_NAME).write_text(f"{os.getpid()}\n", encoding="utf-8")
    return lock


@contextmanager
def owned_folder(folder: Path) -> Iterator[bool]:
    """`lock_folder` around a run. With several processes, only the main one takes the lock.

    Yields:
        Whether this is the main process.
    """
    if process_rank() != 0:
        yield False
        return
    lock = lock_folder(folder)
    try:
        yield True
    finally:
        lock.release()


def _owner(folder: Path) -> str:
    try:
        number, *place = (folder / LOCK_NAME).read_text(encoding="utf-8").split()
    except (OSError, ValueError):  # on Windows a locked file cannot be read
        return ""
    if not number.isdigit():
        return ""
    if not place:
        return f" (process {number})"
    # A file alone, without a lock: where this machine cannot tell whether that process lives, it stays.
    return f" (process {number} on {place[0]}; if that has ended, delete {folder / LOCK_NAME})"
