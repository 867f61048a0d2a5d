r"""Opens plain and compressed files (.gz, .bz2, .xz, .zst) as bytes whose lines end in `\n` or `\r\n`.

A file that is truncated, damaged, in UTF-16 or UTF-32, or not text (PDF, images, archives) raises an error and is not
read in part.
"""

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ...utils.errors import MissingFileError, MissingPackageError, UserError, UserFileError, as_user_errors
from .binary_files import what_it_is

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst", ".zstd")
# Tables that a library reads, whose bytes are no text.
COLUMNAR_SUFFIXES = (".parquet", ".arrow", ".feather")
_BLOCK = 1 << 16
_NUMBERED = re.compile(r"(\.\d[\d_-]*|-[^.]*)$")
# Byte order marks. The longer ones come first: that of UTF-32 (little-endian) begins with that of UTF-16.
_OTHER_UNICODE = (
    (codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16"),
)  # fmt: skip


def bare_suffix(path: str | Path) -> str:
    """The suffix in lower case, without that of a compression, a number or what follows a hyphen.

    It is `.csv` for `a.CSV.gz`, and for the names of rotated logs and of parts: `a.csv.1`, `a.csv.2026-01-01`,
    `a.csv-20260101`.
    """
    name = Path(path).name.lower()
    if Path(name).suffix in COMPRESSIONS:
        name = Path(name).stem
    return Path(_NUMBERED.sub("", name)).suffix


@contextmanager
def open_decompressed(path: str | Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """The content of a file, and a function that returns how many bytes of the file on disk have been read.

    If no line of the first 64 KiB ends in `\\n`, each `\\r` before the first `\\n` becomes one (files of old Macs).

    Raises:
        MissingFileError: there is no such file.
        MissingPackageError: the package that reads this compression is not installed.
        UserError: it is a folder or a pipe, is damaged, in UTF-16 or UTF-32, or is not plain text, such as a PDF.
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
        if encoding := next((name for mark, name in _OTHER_UNICODE if first.startswith(mark)), None):
            raise UserError(f"{path} is in {encoding}: convert it to UTF-8")
        is_columnar = bare_suffix(path) in COLUMNAR_SUFFIXES
        if (not is_columnar or path.suffix.lower() in COMPRESSIONS) and (found := what_it_is(first)):
            way_out = "unpack it first" if is_columnar else found[1]
            raise UserError(f"{path} is {found[0]}: {way_out}")
        is_old = b"\r" in first and b"\n" not in first
        yield io.BufferedReader(_Content(first, read, is_old), _BLOCK), raw.tell


def read_text(path: str | Path) -> str:
    """The whole text of a file in UTF-8; a byte-order mark is dropped.

    Raises:
        UserError: as `open_decompressed`; or bytes that are not UTF-8 (the message names the line).
    """
    with open_decompressed(path) as (file, _):
        data = file.read().removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); convert the file") from None


class _Content(io.RawIOBase):
    r"""A stream of the bytes that were read first and of what `read` gives after them.

    If `is_old`, each `\r` before the first `\n` becomes `\n`.
    """

    def __init__(self, first: bytes, read: Callable[[int], bytes], is_old: bool) -> None:
        self._first, self._read, self._is_old = first, read, is_old

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = len(buffer) - self._is_old  # with room for the `\n` of a `\r\n`
        block, self._first = self._first[:size] or self._read(size), self._first[size:]
        if self._is_old:
            if block.endswith(b"\r"):
                block, self._first = block + (self._first[:1] or self._read(1)), self._first[1:]
            old, newline, rest = block.partition(b"\n")
            self._is_old = not newline
            block = (old.removesuffix(b"\r") if newline else old).replace(b"\r", b"\n") + newline + rest
        buffer[: len(block)] = block
        return len(block)


def _fill(read: Callable[[int], bytes]) -> bytes:
    """The first `_BLOCK` bytes, or all if there are fewer."""
    blocks, size = [], 0
    while size < _BLOCK and (block := read(_BLOCK - size)):
        blocks.append(block)
        size += len(block)
    return b"".join(blocks)


def _reader(path: Path, raw: BinaryIO) -> Callable[[int], bytes]:
    """A function that reads the content of a file; it raises a `UserError` that names a file that cannot be read."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSIONS and not path.stat().st_size:  # gzip and Arrow would find an empty text in it
        raise UserError(f"{path} is not a whole {suffix} file: it is empty")
    if suffix == ".gz":
        read: Callable[[int], bytes] = gzip.GzipFile(fileobj=raw).read
    elif suffix == ".bz2":
        read = _reader_of_streams(raw, bz2.BZ2Decompressor)
    elif suffix == ".xz":
        read = _reader_of_streams(raw, lzma.LZMADecompressor)
    elif suffix in COMPRESSIONS:
        read = _zstd_reader(path, raw)
    else:
        read = raw.read

    def checked(size: int) -> bytes:
        try:
            return read(size)
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno:  # the disk's; those of gzip and bz2 have no number
                raise UserFileError(f"{path} cannot be read: {error.strerror}") from None
            raise UserError(f"{path} is not a whole {suffix} file: {error}") from None

    return checked


def _reader_of_streams(raw: BinaryIO, begin: Callable[[], Any]) -> Callable[[int], bytes]:
    """Read one compressed stream after another, with zeros between them.

    `BZ2File` and `LZMAFile` leave out a damaged stream and all behind it, without an error.
    """
    stream = begin()

    def read(size: int) -> bytes:
        nonlocal stream
        while True:
            block = b""
            if stream.eof:
                block = stream.unused_data.lstrip(b"\0")
                while not block and (more := raw.read(_BLOCK)):
                    block = more.lstrip(b"\0")
                if not block:
                    return b""
                stream = begin()
            elif stream.needs_input and not (block := raw.read(_BLOCK)):
                raise EOFError("it ends before its data do")
            if found := stream.decompress(block, size):
                return found

    return read


def _zstd_reader(path: Path, raw: BinaryIO) -> Callable[[int], bytes]:
    """Read by Arrow, which reads all frames and, unlike `zstandard`, raises an error for a truncated file."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingPackageError(f"reading {path.name} needs pyarrow: pip install pyarrow") from None
    return pa.CompressedInputStream(raw, "zstd").read
