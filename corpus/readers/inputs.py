"""Reads documents from inputs: files, folders, globs, the installed Python packages, datasets of the Hub.

Errors that can be detected before reading are raised before reading.
"""

import copy
import glob
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ...utils.errors import MissingFileError, UserError, as_user_errors, check_choice
from ...utils.files import sha256_of_file
from .columnar import files_of_saved_dataset, open_dataset
from .compression import bare_suffix
from .formats import BadTextRule, ReadCell, Separator, texts_of_file, texts_of_table
from .input_files import files_below, files_matching
from .table_file import BadText, TableFile
from .tables import TABLE_SUFFIXES

INSTALLED_PYTHON = "installed-python"
_DATASET_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_FILE_SUFFIX = re.compile(r"\.[A-Za-z]\w*$")


@dataclass(frozen=True, slots=True)
class Document:
    """A text, the index of its source, and whether the source holds it out for validation (None: it does not say)."""

    text: str
    source: int
    held_out: bool | None = None


@dataclass
class Source:
    """One file, one installed package or one dataset, and what was read from it.

    Attributes:
        path: relative to the input that named it, so that the manifest is the same on every machine.
        bytes: the size of the file or, for other inputs, of the texts.
        sha256: the hash of the same bytes.
        documents: how many were read, bad ones included.
        bad_text: how many were left out because they are not valid text.
    """

    path: str
    bytes: int = 0
    sha256: str = ""
    documents: int = 0
    bad_text: int = 0


class Reader:
    """All documents of some inputs, in an order that depends only on the inputs' names. Can be iterated repeatedly.

    Args:
        inputs: files, folders (all their files except hidden ones, sorted; of one that `save_to_disk` of `datasets`
            wrote, its train split), glob patterns, `installed-python`, or `owner/name` of a dataset on the Hub (its
            train split).
        text_column: the text column of JSON Lines, CSV, TSV, Parquet and datasets; None: see `columns.text_column_of`.
        document_separator: what ends a document in text files: `blank_line`, `line` or `file`.
        on_bad_text: `error`, or `skip` to leave out documents that are not valid text and count them.
        dataset_config_name: the configuration of a dataset of the Hub.
        held_out_fraction: the share of `installed-python` to mark as held out, in whole packages.
        read_cell: turns a table's cell into text if cells hold something else; see `formats.id_reader`.

    Attributes:
        sources: what has been read so far.
        total_bytes: the size of all files; None if an input is not made of files.
        bytes_read: how many of these bytes have been read so far.

    Raises:
        FileNotFoundError: an input does not exist.
        UserError: no input, a file named by two inputs, only empty files, no text column, or an unknown choice.
    """

    def __init__(
        self,
        inputs: str | Path | Iterable[str | Path],
        *,
        text_column: str | None = None,
        document_separator: str = "blank_line",
        on_bad_text: str = "error",
        dataset_config_name: str | None = None,
        held_out_fraction: float = 0.0,
        read_cell: ReadCell | None = None,
    ) -> None:
        check_choice("document_separator", document_separator, get_args(Separator))
        check_choice("on_bad_text", on_bad_text, get_args(BadTextRule))
        inputs = [inputs] if isinstance(inputs, str | Path) else list(inputs)
        if not inputs:
            raise UserError("input is empty; name at least one file, folder or glob pattern")
        self.text_column, self.read_cell = text_column, read_cell
        self.document_separator = document_separator
        self.on_bad_text = on_bad_text
        self.held_out_fraction = held_out_fraction
        self.sources: list[Source] = []
        self.bytes_read = 0
        self._inputs: list[str | list[tuple[str, Path]] | TableFile] = []
        for entry in inputs:
            with as_user_errors(OSError, about=f"{entry} cannot be read"):  # e.g. no permission for a parent folder
                self._inputs.append(_resolve(str(entry), dataset_config_name))
        # Datasets of the Hub and the like, which are no files.
        self.other_inputs = [
            str(entry) for entry, found in zip(inputs, self._inputs, strict=True) if not isinstance(found, list)
        ]
        self._named = [entry for files in self._inputs if isinstance(files, list) for entry in files]
        self.files = [path for _, path in self._named]
        _refuse_twice(self.files)
        for path in self.files:  # raises now if a file is not what its suffix says, or has no text column
            next(texts_of_file(path, separator="line", text_column=text_column, read_cell=read_cell), None)
        self.total_bytes = None if self.other_inputs else sum(path.stat().st_size for path in self.files)
        if self.total_bytes == 0:
            raise UserError(f"the corpus is empty: no text in {', '.join(map(str, inputs))}")

    def __iter__(self) -> Iterator[Document]:
        self.sources, self.bytes_read = [], 0
        for entry in self._inputs:
            if isinstance(entry, list):
                for name, path in entry:
                    yield from self._file(name, path)
            elif isinstance(entry, TableFile):
                yield from self._dataset(entry)
            else:
                yield from self._installed_python()

    @property
    def bad_texts(self) -> int:
        """How many documents `on_bad_text="skip"` has left out so far."""
        return sum(source.bad_text for source in self.sources)

    @property
    def reads_dataset(self) -> bool:
        """Whether an input is a dataset of the Hub."""
        return any(isinstance(entry, TableFile) for entry in self._inputs)

    @property
    def reads_table(self) -> bool:
        """Whether an input has columns."""
        return self.reads_dataset or any(bare_suffix(path) in TABLE_SUFFIXES for path in self.files)

    def of_files(self, numbers: Sequence[int]) -> "Reader":
        """A reader of only some of the files, by their indices in `files`; all inputs must be made of files."""
        part = copy.copy(self)
        part.sources, part.bytes_read = [], 0
        part._named = [self._named[number] for number in numbers]
        part._inputs = [part._named]
        part.files = [path for _, path in part._named]
        part.total_bytes = sum(path.stat().st_size for path in part.files)
        return part

    def facts(self) -> dict[str, Any]:
        """The files with their sizes, and how they are read."""
        return {
            "files": [[name, path.stat().st_size] for name, path in self._named],
            "text_column": self.text_column,
            "document_separator": self.document_separator,
            "on_bad_text": self.on_bad_text,
        }

    def texts(self) -> Iterator[str]:
        return (document.text for document in self)

    def _file(self, name: str, path: Path) -> Iterator[Document]:
        with as_user_errors(OSError, about=f"{path} cannot be read"):
            state = path.stat()
            source = Source(name, bytes=state.st_size, sha256=sha256_of_file(path))
        before = self.bytes_read
        texts = texts_of_file(
            path, separator=self.document_separator, text_column=self.text_column, read_cell=self.read_cell
        )
        for text, position in self._of_source(source, texts, path):
            self.bytes_read = before + position
            yield text
        with as_user_errors(OSError, about=f"{path} cannot be read"):
            now = path.stat()
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (state.st_size, state.st_mtime_ns, state.st_ino):
            raise UserError(f"{path} was changed while it was read: run this again when nobody writes to it")
        self.bytes_read = before + source.bytes

    def _dataset(self, dataset: TableFile) -> Iterator[Document]:
        source, digest = Source(f"hub:{dataset.source}"), hashlib.sha256()
        texts = ((text, 0) for text in texts_of_table(dataset, self.text_column, read_cell=self.read_cell))
        for document, _ in self._of_source(source, texts, dataset.source):
            _hash_text(source, digest, document.text)
            yield document

    def _of_source(
        self, source: Source, texts: Iterable[tuple[str | BadText, int]], where: object
    ) -> Iterator[tuple[Document, int]]:
        """The documents of a source, counted; bad text raises an error or is left out."""
        self.sources.append(source)
        number = len(self.sources) - 1
        for text, position in texts:
            source.documents += 1
            if isinstance(text, str):
                yield Document(text, number), position
            elif self.on_bad_text == "skip":
                source.bad_text += 1
            else:
                raise UserError(
                    f"{where}, {text.unit} {text.line}: {text.reason}; fix it, or leave such documents out with "
                    "--on_bad_text skip"
                )

    def _installed_python(self) -> Iterator[Document]:
        from ..demo.installed_python import held_out_packages, read_installed_python

        docstrings = read_installed_python()
        held_out = held_out_packages(docstrings, fraction=self.held_out_fraction)
        digest, package = hashlib.sha256(), None
        for docstring in docstrings:
            if docstring.package != package:
                package, digest = docstring.package, hashlib.sha256()
                self.sources.append(Source(f"{INSTALLED_PYTHON}:{package}"))
            self.sources[-1].documents += 1
            _hash_text(self.sources[-1], digest, docstring.text)
            yield Document(docstring.text, len(self.sources) - 1, held_out=package in held_out)


def files_in_both(reader: Reader, other: Reader) -> list[Path]:
    """The files of `reader` that `other` reads, too, under whatever name."""
    theirs = {os.path.realpath(path) for path in other.files}
    return [path for path in reader.files if os.path.realpath(path) in theirs]


def refuse_unused(
    readers: Sequence[Reader], *, text_column: str | None, dataset_config_name: str | None = None
) -> None:
    """Refuse flags that have no effect on any of the inputs of a program.

    Raises:
        UserError: a text column is given and no input is a table, or a configuration and no input is a dataset.
    """
    if text_column is not None and not any(reader.reads_table for reader in readers):
        raise UserError(
            f"--text_column {text_column}: no input has columns ({', '.join(TABLE_SUFFIXES)}, a dataset); leave it out"
        )
    if dataset_config_name is not None and not any(reader.reads_dataset for reader in readers):
        raise UserError(f"--dataset_config_name {dataset_config_name}: no input is a dataset of the Hub; leave it out")


def _hash_text(source: Source, digest: Any, text: str) -> None:
    content = text.encode("utf-8")
    digest.update(content + b"\0")
    source.sha256 = digest.hexdigest()
    source.bytes += len(content)


def _resolve(entry: str, dataset_config_name: str | None) -> str | list[tuple[str, Path]] | TableFile:
    """What an input names: files as (name in the manifest, path), a dataset, or `installed-python`."""
    if entry == INSTALLED_PYTHON:
        return entry
    if not entry:  # as a path, it is the folder in which the program was started
        raise UserError("an input is empty: name files or folders; '.' is the folder that you are in")
    path = Path(entry)
    if path.is_dir():
        of_dataset = files_of_saved_dataset(path)
        files = files_below(path) if of_dataset is None else of_dataset
        if not files:
            raise UserError(f"the corpus is empty: the folder {entry} holds no file")
        return [(_printable(file.relative_to(path).as_posix()), file) for file in files]
    if path.exists():
        return [(_printable(path.name), path)]
    if glob.has_magic(entry):
        files = files_matching(entry)
        if not files:
            raise MissingFileError(f"no file matches {entry}")
        return [(_printable(file.name), file) for file in files]
    if _DATASET_NAME.fullmatch(entry) and not _FILE_SUFFIX.search(entry) and not path.parent.is_dir():
        try:
            return open_dataset(entry, dataset_config_name, split="train")["train"]
        except UserError as error:
            raise MissingFileError(f"{entry} is neither a file or folder here nor a dataset: {error}") from None
    raise MissingFileError(f"{entry} does not exist")


def _refuse_twice(files: Iterable[Path]) -> None:
    """Raise if a file is named twice, also under two names."""
    names: dict[str, Path] = {}
    for path in files:
        known = names.setdefault(os.path.realpath(path), path)
        if known is not path:
            also = "" if str(path) == str(known) else f", as {known} too"
            raise UserError(f"input names the file {path} twice{also}: it would be read twice; name it once")


def _printable(name: str) -> str:
    """A file's name for the manifest: bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
