"""Lists the files in a folder or that match a glob pattern: each once, sorted by name."""

import fnmatch
import glob
import os
import re
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
    matches = re.compile(_expression(parts[place:])).fullmatch
    bases = [Path(base) for base in (glob.glob(start) if glob.has_magic(start) else [start])]
    return _once(
        base / name
        for base in bases
        if base.is_dir()
        for name in _walk(base)
        if matches(name) and (base / name).is_file()
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


def _expression(parts: Iterable[str]) -> str:
    """A regular expression for relative paths from the parts of a pattern; hidden names need a dot in the pattern."""
    expression = ""
    parts = list(parts)
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**":
            expression += r"(?:[^./][^/]*/)*" + (r"[^./][^/]*" if is_last else "")
        else:
            hidden = "" if part.startswith(".") else r"(?!\.)"
            # In fnmatch "." and character classes may match a slash, which no file name contains.
            expression += hidden + fnmatch.translate(part).replace(".*", "[^/]*").removesuffix(r"\Z")
            expression += "" if is_last else "/"
    return expression


def _once(paths: Iterable[Path]) -> list[Path]:
    """Sorted paths with each file once: under a name that is not a symbolic link if there is one, else its first."""
    names: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (path.is_symlink(), path)):
        names.setdefault(os.path.realpath(path), path)
    return sorted(names.values())


def _refuse(error: OSError) -> None:
    raise UserFileError(f"{error.filename} cannot be read: {error.strerror}")
