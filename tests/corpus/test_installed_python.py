"""Docstrings: all of them, under their names, without the name of their package."""

import json
import sys
import sysconfig
from pathlib import Path

import pytest

from clozebert.corpus.demo import installed_python
from clozebert.corpus.demo.installed_python import Docstring, held_out_packages, read_installed_python
from clozebert.corpus.readers.inputs import Reader

SOURCE = '''
"""Module of mylib, with a good many words."""

class Thing(Base):
    """A thing of MyLib or my-lib: it does what mylibrary and amylib do not.

        Indented more.
    """

    def method(self):
        """Too short."""

    async def other(self):
        r"""Another text of \\w four words and more."""

def function():
    """Module of mylib, with a good many words."""
    def inner():
        """Not seen, for it is inside of a function."""
'''


def sources(folder: Path) -> list[tuple[str, str, Path]]:
    (folder / "mylib.py").write_text(SOURCE)
    (folder / "broken.py").write_text('def f(:\n  """Some words that nobody can parse."""')
    (folder / "plain.py").write_text("x = 1")
    return [(name, f"{name}.sub", folder / f"{name}.py") for name in ("broken", "mylib", "plain")]


def test_docstrings_are_found_and_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = sources(tmp_path)
    monkeypatch.setattr(installed_python, "_source_files", lambda: iter(files))
    found = read_installed_python()
    thing = "A thing of package or my-lib: it does what mylibrary and amylib do not.\n\nIndented more."
    assert found == [
        Docstring("mylib", "mylib.sub", "Module of package, with a good many words."),
        Docstring("mylib", "mylib.sub.Thing", thing),
        Docstring("mylib", "mylib.sub.Thing.other", "Another text of \\w four words and more."),
    ]
    cached = list((tmp_path / "cache" / "clozebert").glob("docstrings-*.jsonl"))
    assert len(cached) == 1
    assert read_installed_python() == found
    cached[0].write_text(json.dumps(["a", "b", "c"]))
    assert read_installed_python() == [Docstring("a", "b", "c")]
    (tmp_path / "plain.py").write_text('"""Now it has a text."""')
    assert len(read_installed_python()) == 4


def test_links_to_nowhere_and_folders_are_no_source_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").touch()
    (tmp_path / ".#a.py").symlink_to("nowhere")
    (tmp_path / "folder.py").mkdir()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: dict.fromkeys(("stdlib", "purelib", "platlib"), str(tmp_path)))
    monkeypatch.setattr(sys, "path", [])
    assert [path.name for _, _, path in installed_python._source_files()] == ["a.py"]


def test_files_that_cannot_be_read_or_parsed_are_left_out(tmp_path: Path) -> None:
    text = "Adds all numbers of a list up and gives their sum."
    (tmp_path / "deep.py").write_text(f'"""{text}"""\nx = {"+".join("a" * 50_000)}\n')
    (tmp_path / "good.py").write_text(f'"""{text}"""\n')
    files = [("p", f"p.{name}", tmp_path / f"{name}.py") for name in ("deep", "gone", "good")]
    assert [found.text for found in installed_python._docstrings_of_files(files)] == [text]


def test_other_names_of_a_package_are_taken_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_python, "_names", {"sklearn": ["scikit-learn"]})
    installed_python._name_pattern.cache_clear()
    text = "The Scikit-Learn, scikit learn and sklearn.base; sklearns; np.array"
    assert installed_python._name_pattern("sklearn").sub("package", text) == (
        "The package, package and package.base; sklearns; np.array"
    )
    assert (
        installed_python._name_pattern("numpy").sub("package", "np.array of NumPy, np2")
        == "package.array of package, package2"
    )
    installed_python._name_pattern.cache_clear()


def test_whole_packages_are_held_out() -> None:
    docstrings = [Docstring(f"p{n}", f"p{n}.f", "x" * (n + 1)) for n in range(100) for _ in range(10)]
    docstrings += [Docstring("giant", "giant.f", "x" * 30_000)]
    total = sum(len(docstring.text) for docstring in docstrings)
    for fraction in (0.01, 0.05, 0.2):
        held_out = held_out_packages(docstrings, fraction=fraction)
        held = sum(len(docstring.text) for docstring in docstrings if docstring.package in held_out)
        assert fraction * 0.99 <= held / total <= fraction * 1.5
        assert "giant" not in held_out
        assert held_out == held_out_packages(reversed(docstrings), fraction=fraction)
    assert held_out_packages(docstrings, fraction=0.0) == set()


def test_the_standard_library_is_english(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = Path(sysconfig.get_paths()["stdlib"])
    everything = set(installed_python._source_files())
    assert not any("test" in path.parts[:-1] for _, _, path in everything)
    chosen = [entry for entry in everything if entry[0] in ("json", "email", "logging") and folder in entry[2].parents]
    monkeypatch.setattr(installed_python, "_source_files", lambda: iter(chosen))
    docstrings = read_installed_python()
    assert {docstring.package for docstring in docstrings} == {"json", "email", "logging"}
    assert "logging.handlers.RotatingFileHandler" in {docstring.name for docstring in docstrings}
    assert len(docstrings) == len({docstring.text for docstring in docstrings}) > 150
    assert not any(" json " in docstring.text.lower() for docstring in docstrings if docstring.package == "json")
    reader = Reader(["installed-python"], held_out_fraction=0.3)
    documents = list(reader)
    assert [document.text for document in documents] == [docstring.text for docstring in docstrings]
    by_package = {
        source.path: {document.held_out for document in documents if document.source == number}
        for number, source in enumerate(reader.sources)
    }
    assert sorted(by_package) == ["installed-python:email", "installed-python:json", "installed-python:logging"]
    assert all(len(sides) == 1 for sides in by_package.values())
    assert sum(source.documents for source in reader.sources) == len(docstrings)
