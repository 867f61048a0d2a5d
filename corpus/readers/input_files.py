"""Lists the files in a folder or that match a glob pattern: each once, sorted by name."""

import fnmatch
import glob
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ...utils.errors import UserFileError
from ...utils.untrusted import is_within


def files_below(folder: Path) -> list[Path]:
    """All files in a folder and its sub-folders except hidden ones.

    Raises:
        UserError: a sub-folder cannot be read, or a link is broken or leads out of the folder.
    """
    found: list[Path] = []
    for here, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(here) / name for name in (*folders, *names) if not name.startswith(".")]
        for path in paths:
            if path.is_symlink() and not (path.exists() and is_within(path, folder)):
                raise UserFileError(
                    f"{path} is a link that leads nowhere or out of {folder}: name what it leads to as an input of its "
                    "own, or give a glob pattern, which follows links"
                )
        found += [path for path in paths if path.is_file()]
    return _once(found)


def files_matching(pattern: str) -> list[Path]:
    """The files that match a glob pattern; `**` matches folders at any depth and follows each link to a folder once.

    Raises:
        UserError: a folder below `**` cannot be read.
    """
    parts = Path(pattern).parts
    if "**" not in parts:
        return _once(path for path in map(Path, glob.glob(pattern)) if path.is_file())
    place = parts.index("**")
    start = str(Path(*parts[:place])) if place else "."
    bases = [Path(base) for base in (glob.glob(start) if glob.has_magic(start) else [start])]
    return _once(
        base / name
        for base in bases
        if base.is_dir()
        for name in _walk(base)
        if _matches(name.split("/"), parts[place:]) and (base / name).is_file()
    )


def _walk(base: Path) -> Iterator[str]:
    """The relative paths of all files below a folder, with `/`; each folder is entered once, links last."""
    entered: set[str] = set()
    real, links = deque([""]), deque[str]()
    while real or links:
        prefix = (real or links).popleft()
        here = base / prefix
        if os.path.realpath(here) in entered:
            continue
        entered.add(os.path.realpath(here))
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            _refuse(error)
        for entry in entries:
            name = prefix + entry.name
            if not entry.is_dir():
                yield name
            elif entry.is_symlink():
                links.append(name + "/")
            else:
                real.append(name + "/")


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a relative path, by its names, matches the parts of a pattern; hidden names need a dot in the pattern."""
    if not parts or not names:
        return not parts and not names
    is_hidden = names[0].startswith(".") and not parts[0].startswith(".")
    if parts[0] != "**":
        return not is_hidden and fnmatch.fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])
    if len(parts) == 1 and len(names) == 1:
        return not is_hidden
    return _matches(names, parts[1:]) or (len(names) > 1 and not is_hidden and _matches(names[1:], parts))


def _once(paths: Iterable[Path]) -> list[Path]:
    """Sorted paths with each file once: under a name that is not a symbolic link if there is one, else its first."""
    names: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (path.is_symlink(), path)):
        names.setdefault(os.path.realpath(path), path)
    return sorted(names.values())


def _refuse(error: OSError) -> None:
    raise UserFileError(f"{error.filename} cannot be read: {error.strerror}")
