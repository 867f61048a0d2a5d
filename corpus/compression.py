"""Opens files, also compressed ones (.gz, .bz2, .xz, .zst), as bytes with `\n` or `\r\n` at the ends of lines.

A file that is cut short, damaged, in UTF-16, or no text at all (PDF, images, archives) is refused: none of it is read
as if it were whole.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ..utils.errors import MissingFileError, MissingPackageError, UserError, UserFileError, as_user_errors
from .binary_files import what_it_is

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_BLOCK = 1 << 16
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def bare_suffix(path: str | Path) -> str:
    """The suffix before that of a compression, in lower case: `.csv` of `a.CSV.gz`."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextmanager
def open_decompressed(path: str | Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """The content of a file, and a function that says how many bytes of the file itself have been read.

    Where no line ends in `\\n`, as old Macs wrote them, each `\\r` is one.

    Raises:
        MissingFileError: there is no such file.
        MissingPackageError: what reads this compression is not installed.
        UserError: it is a folder or a pipe, or damaged, or in UTF-16, or holds no plain text, such as a PDF.
    """
    path = Path(path)
    if path.is_dir():
        raise UserFileError(f"{path} is a folder; name a file in it")
    if not path.exists():
        raise MissingFileError(f"no such file: {path}")
    if not path.is_file():
        raise UserFileError(f"{path} is a pipe or a device, and texts are read more than once: write them into a file")
    with as_user_errors(OSError):
        raw = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below
    with raw:
        read = _reader(path, raw)
        first = _fill(read)
        if first.startswith(_UTF_16):
            raise UserError(f"{path} is in UTF-16: convert it to UTF-8")
        if path.suffix.lower() != ".parquet" and (found := what_it_is(first)):
            raise UserError(f"{path} is {found[0]}: {found[1]}")
        is_old = b"\r" in first and b"\n" not in first
        yield io.BufferedReader(_Content(first, read, is_old), _BLOCK), raw.tell


def read_text(path: str | Path) -> str:
    """The whole text of a file in UTF-8; a byte-order mark is dropped.

    Raises:
        UserError: as `open_decompressed`, and bytes that are not UTF-8, with their line.
    """
    with open_decompressed(path) as (file, _):
        data = file.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); convert the file") from None


class _Content(io.RawIOBase):
    """What was read first, and what `read` gives after it; with `\n` for every `\r`, if so wanted."""

    def __init__(self, first: bytes, read: Callable[[int], bytes], replaces_returns: bool) -> None:
        self._first, self._read, self._replaces_returns = first, read, replaces_returns

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = len(buffer)
        block, self._first = self._first[:size] or self._read(size), self._first[size:]
        buffer[: len(block)] = block.replace(b"\r", b"\n") if self._replaces_returns else block
        return len(block)


def _fill(read: Callable[[int], bytes]) -> bytes:
    """The first `_BLOCK` bytes, or all where there are fewer."""
    blocks, size = [], 0
    while size < _BLOCK and (block := read(_BLOCK - size)):
        blocks.append(block)
        size += len(block)
    return b"".join(blocks)


def _reader(path: Path, raw: BinaryIO) -> Callable[[int], bytes]:
    """Reads the content of a file; where it is damaged or cut short, that is a `UserError` that names it."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        read: Callable[[int], bytes] = gzip.GzipFile(fileobj=raw).read
    elif suffix == ".bz2":
        read = bz2.BZ2File(raw).read
    elif suffix == ".xz":
        read = lzma.LZMAFile(raw).read  # noqa: SIM115 - of a file that is closed by whoever opened it
    elif suffix in COMPRESSIONS:
        read = _zstd_reader(path, raw)
    else:
        return raw.read

    def checked(size: int) -> bytes:
        try:
            return read(size)
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise UserError(f"{path} is not a whole {suffix} file: {error}") from None

    return checked


def _zstd_reader(path: Path, raw: BinaryIO) -> Callable[[int], bytes]:
    """By Arrow, which reads frame after frame and, unlike `zstandard`, refuses a file that is cut short."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingPackageError(f"reading {path.name} needs pyarrow: pip install pyarrow") from None
    return pa.CompressedInputStream(raw, "zstd").read
