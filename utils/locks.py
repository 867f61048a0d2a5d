"""A lock file: one program at a time in a folder."""

import os
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import ExistingFileError, UserError
from .files import LOCK_NAME, disk_errors

# A program that was killed may leave children, which hold its lock until they notice.
_SECONDS = 8.0


def lock_folder(folder: Path, *, name: str = "output_dir", seconds: float = _SECONDS) -> FileLock:
    """Take a folder for this process, until it releases the lock or ends in any way; the folder is made.

    Args:
        name: of the flag that names the folder.
        seconds: to wait for another program.

    Raises:
        UserError: another program has it.
    """
    if folder.exists() and not folder.is_dir():
        raise ExistingFileError(f"{name}={folder} is a file: give a folder")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_NAME)
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            raise UserError(
                f"{name}={folder} is in use by another program{_owner(folder)}: wait for it, stop it, or give another "
                f"{name}"
            ) from None
        (folder / LOCK_NAME).write_text(f"{os.getpid()}\n", encoding="utf-8")
    return lock


def _owner(folder: Path) -> str:
    try:
        number = (folder / LOCK_NAME).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):  # on Windows a locked file cannot be read
        return ""
    return f" (process {number})" if number.isdigit() else ""
