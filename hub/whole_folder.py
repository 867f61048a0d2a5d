"""Folders that are written whole or not at all, and disks that take no more in one line."""

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def whole_folder(directory: str | os.PathLike, *, name: str = "output_dir", overwrite: bool = False) -> Iterator[Path]:
    """A folder to write into, whose content is moved into `directory` at the end; after an error, nothing of it stays.

    Args:
        directory: made where it is not there. name: what the person called it, for messages.
        overwrite: `directory` may hold files; those of the same names are replaced, at the end.

    Raises:
        ValueError: it is a file, or holds something, or the disk does not take what is written.
    """
    folder = Path(directory)
    check_is_free(folder, name=name, overwrite=overwrite)
    is_new = not folder.exists()
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # Inside, so that moving is renaming, whatever is mounted where.
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as temporary:
                yield Path(temporary)
                _move(Path(temporary), folder)
        except BaseException:
            if is_new:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise


def check_is_free(directory: str | os.PathLike, *, name: str, overwrite: bool = False) -> None:
    """Refuse a folder that something lies in.

    Raises:
        ValueError: it is a file, or holds something and `overwrite` is not set.
    """
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{name}={directory} is a file: give a folder")
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{name}={directory} is not empty: give a folder that is empty or not there")


def _move(source: Path, target: Path) -> None:
    for path in source.iterdir():
        if path.is_dir() and (target / path.name).is_dir():
            _move(path, target / path.name)
        else:
            path.replace(target / path.name)


@contextlib.contextmanager
def disk_errors(place: Path, *, way_out: str = "give another folder") -> Iterator[None]:
    """A disk that is full and a folder that cannot be written to as a line.

    Raises:
        ValueError: one of them, whichever library met it.
    """
    try:
        yield
    except Exception as error:
        # Libraries in Rust tell of the number in words.
        in_words = re.search(r"\(os error (\d+)\)", str(error))
        number = getattr(error, "errno", None) or (int(in_words.group(1)) if in_words else None)
        if number in _FULL:
            raise ValueError(f"{place} cannot take what is to be written ({os.strerror(number)}): {way_out}") from None
        if number in _CLOSED:
            where = getattr(error, "filename", None) or place
            raise ValueError(f"{where} cannot be read or written ({os.strerror(number)}): {way_out}") from None
        raise


__all__ = ["check_is_free", "disk_errors", "whole_folder"]
