"""Lists the files in a folder or that match a glob pattern: each once, sorted by name."""

import fnmatch
import glob
import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...utils.errors import UserFileError
from ...utils.untrusted import is_within


def files_below(folder: Path) -> list[Path]:
    """All files in a folder and its sub-folders except hidden ones.

    Raises:
        UserError: a sub-folder cannot be read, or a link is broken or leads out of the folder.
    """
    found: list[Path] = []
    for path in _matching(folder, ("**",)):
        if path.is_symlink() and not (path.exists() and is_within(path, folder)):
            raise UserFileError(
                f"{path} is a link that leads nowhere or out of {folder}: name what it leads to as an input of its "
                "own, or give a glob pattern, which follows links"
            )
        found.append(path)
    return _once(found)


def files_matching(pattern: str) -> list[Path]:
    """The files that match a glob pattern; `**` matches folders at any depth, and links to folders.

    Raises:
        UserError: a folder in which files may match cannot be read, or a link that matches is broken.
    """
    parts = Path(pattern).parts
    place = next((place for place, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    base = Path(*parts[:place])
    return _once(_matching(base, parts[place:])) if base.is_dir() else []


def _matching(base: Path, pattern: tuple[str, ...]) -> Iterator[Path]:
    """The files and folders below a folder that match; links to folders come last.

    A folder is entered under several names only if the names leave other parts of the pattern to match. So no circle of
    links is followed for ever, and no file is missed.
    """
    entered: set[tuple[str, frozenset[tuple[str, ...]]]] = set()
    start = (base, frozenset(_and_without_folders(pattern)))
    real, links = deque([start]), deque[tuple[Path, frozenset[tuple[str, ...]]]]()
    while real or links:
        here, patterns = (real or links).popleft()
        if (os.path.realpath(here), patterns) in entered:
            continue
        entered.add((os.path.realpath(here), patterns))
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            _refuse(error)
        for entry in entries:
            path, left = here / entry.name, _left(patterns, entry.name)
            if () in left:
                yield path
            if any(left) and path.is_dir():  # something is left to match within it
                (links if entry.is_symlink() else real).append((path, left))


def _left(patterns: Iterable[tuple[str, ...]], name: str) -> frozenset[tuple[str, ...]]:
    """What is left of each pattern behind a name that it begins with; () where nothing is, so that the name matches.

    A hidden name needs a dot in the pattern.
    """
    found: set[tuple[str, ...]] = set()
    for pattern in filter(None, patterns):
        if name.startswith(".") and not pattern[0].startswith("."):
            continue
        if pattern[0] == "**":
            found.update(_and_without_folders(pattern))
        elif fnmatch.fnmatch(name, pattern[0]):
            found.update(_and_without_folders(pattern[1:]))
    return frozenset(found)


def _and_without_folders(pattern: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """A pattern, and what is left of it if `**` at its beginning matches no folder."""
    yield pattern
    while pattern and pattern[0] == "**":
        pattern = pattern[1:]
        yield pattern


def _once(paths: Iterable[Path]) -> list[Path]:
    """Sorted files with each file once: under a name that is not a symbolic link if there is one, else its first."""
    names: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (path.is_symlink(), path)):
        if path.is_symlink() and not path.exists():
            raise UserFileError(f"{path} is a link that leads nowhere: delete it, or fetch what it leads to")
        if not path.is_file():
            continue
        names.setdefault(os.path.realpath(path), path)
    return sorted(names.values())


def _refuse(error: OSError) -> None:
    raise UserFileError(f"{error.filename} cannot be read: {error.strerror}")
