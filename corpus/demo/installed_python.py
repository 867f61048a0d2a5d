"""The demonstration's corpus: docstrings of the standard library and of the installed Python packages.

The name of its own package is removed from each docstring: otherwise it would give the label of the classification
task away, and tell which package a held-out text is from.
"""

import ast
import gc
import hashlib
import importlib.metadata
import inspect
import json
import re
import sys
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...utils.files import cache_folder, whole_file
from ...utils.limits import available_cpus
from ..preparation.parallel import ordered_map

# Replaces the name of its own package in a docstring.
NEUTRAL_NAME = "package"
_SHORTEST_WORDS = 4
_FILES_PER_TASK = 100
_INLINE_FILES = 2 * _FILES_PER_TASK
# Tests are repetitive, vendored folders repeat other packages, and our own text changes with our code.
_SKIPPED_FOLDERS = {"test", "tests", "testing", "_vendor", "vendor", "vendored", "site-packages", "dist-packages"}
_SKIPPED_FOLDERS |= {"__pycache__", "lib2to3"}
_SKIPPED_PACKAGES = {"clozebert", "pip", "setuptools", "pkg_resources"}
_OTHER_NAMES = {
    "jax": ("JAX",),
    "matplotlib": ("mpl", "plt", "pyplot"),
    "numpy": ("np",),
    "pandas": ("pd",),
    "tensorflow": ("tf",),
    "torch": ("pytorch",),
}


@dataclass(frozen=True, slots=True)
class Docstring:
    """One docstring: the package it documents (`torch`), the qualified name (`torch.nn.Linear`), and the text."""

    package: str
    name: str
    text: str


def read_installed_python() -> list[Docstring]:
    """All docstrings of at least four words, without repeated texts, in the order of packages and files.

    The result is cached until a source file changes.
    """
    files = sorted(set(_source_files()))
    cached = cache_folder() / f"docstrings-{_state(files)}.jsonl"
    if cached.is_file():
        with open(cached, encoding="utf-8") as lines:
            return [Docstring(*json.loads(line)) for line in lines]
    tasks = [files[first : first + _FILES_PER_TASK] for first in range(0, len(files), _FILES_PER_TASK)]
    processes = 1 if len(files) < _INLINE_FILES else available_cpus()
    found: dict[str, Docstring] = {}
    for docstrings in ordered_map(
        _docstrings_of_files,
        tasks,
        num_processes=processes,
        initializer=_prepare_process,
        initargs=(dict(importlib.metadata.packages_distributions()),),  # sklearn belongs to scikit-learn
    ):
        for docstring in docstrings:
            found.setdefault(docstring.text, docstring)
    with suppress(OSError), whole_file(cached) as file:
        for d in found.values():
            file.write(json.dumps([d.package, d.name, d.text]).encode() + b"\n")
    return list(found.values())


def _state(files: list[tuple[str, str, Path]]) -> str:
    """A hash of this code and of the files' names, sizes and times."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for _, _, path in files:
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def held_out_packages(docstrings: Iterable[Docstring], *, fraction: float) -> set[str]:
    """Whole packages that hold about `fraction` of the text, chosen by a hash of their names.

    A package that would raise the share above 1.5 times `fraction` is skipped.
    """
    sizes: dict[str, int] = defaultdict(int)
    for docstring in docstrings:
        sizes[docstring.package] += len(docstring.text)
    target = fraction * sum(sizes.values())
    held_out: set[str] = set()
    held = 0
    for package in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if held >= target:
            break
        if held + sizes[package] <= 1.5 * target:
            held_out.add(package)
            held += sizes[package]
    return held_out


def _source_files() -> Iterator[tuple[str, str, Path]]:
    """(package, module, file) of every Python source file of the standard library and of the installed packages."""
    paths = sysconfig.get_paths()
    roots = {Path(paths[name]).resolve() for name in ("stdlib", "purelib", "platlib")}
    roots |= {Path(entry).resolve() for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")}
    for root in roots:
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            wanted = parts[0] not in _SKIPPED_PACKAGES and _SKIPPED_FOLDERS.isdisjoint(parts[:-1])
            if wanted and path.is_file():  # no folder of that name, and no link to nowhere
                yield parts[0], ".".join(parts).removesuffix(".__init__"), path


_names: dict[str, list[str]] = {}  # the distributions of each package, in this process


def _prepare_process(names: dict[str, list[str]]) -> None:
    _names.update(names)


def _docstrings_of_files(files: list[tuple[str, str, Path]]) -> list[Docstring]:
    """The docstrings of some files. Those that cannot be read or parsed are skipped: templates, other Pythons."""
    collects = gc.isenabled()
    gc.disable()  # a syntax tree has no cycles, and searching for them takes a third of the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's sources
            return [docstring for file in files for docstring in _docstrings_of_file(*file)]
    finally:
        if collects:
            gc.enable()


def _docstrings_of_file(package: str, module: str, path: Path) -> list[Docstring]:
    try:
        source = path.read_bytes()
    except OSError:
        return []
    if b'"""' not in source and b"'''" not in source:
        return []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    pattern = _name_pattern(package)
    return [Docstring(package, name, pattern.sub(NEUTRAL_NAME, text)) for name, text in _docstrings(tree, module)]


def _docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) of a module, class or function, and of what a module or class defines."""
    text = ast.get_docstring(node, clean=False)
    if text is not None:
        # A literal may contain lone surrogates, which are not valid text.
        text = inspect.cleandoc(text).encode("utf-8", "ignore").decode("utf-8").strip()
        if len(text.split()) >= _SHORTEST_WORDS:
            yield name, text
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for child in node.body:
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _docstrings(child, f"{name}.{child.name}")


@cache
def _name_pattern(package: str) -> re.Pattern[str]:
    names = {package, *_names.get(package, ()), *_OTHER_NAMES.get(package, ())}
    spelled = "|".join(re.escape(name).replace(r"\-", "[-_ ]?") for name in sorted(names, key=lambda n: (-len(n), n)))
    return re.compile(rf"(?<![^\W\d_])(?:{spelled})(?![^\W\d_])", re.IGNORECASE)
