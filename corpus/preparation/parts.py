"""A corpus prepared in parts on several machines: the files of one tokenized part, before parts are merged.

    OUTPUT_DIR.parts/00003-of-00016/documents.bin    one record for each document, see RECORD
    OUTPUT_DIR.parts/00003-of-00016/tokens.bin       uint32, `id << 1 | starts_a_word`, all documents concatenated
    OUTPUT_DIR.parts/00003-of-00016/signatures.bin   256 bytes per document, if near duplicates are searched for
    OUTPUT_DIR.parts/00003-of-00016/part.json        what the part was made from, and the hashes of the other files

A part covers whole input files, consecutive in order. Its folder gets its name only when it is complete.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...utils.errors import UserError
from ...utils.files import sha256_of_file, whole_folder
from ...utils.untrusted import read_json_object
from ..readers.inputs import Reader

# reader, source: where it was read; held_out: 1, 0, or -1 if the source does not say; sizes; BLAKE2b of the text.
RECORD = np.dtype([
    ("reader", "u1"), ("source", "<u4"), ("held_out", "i1"), ("bytes", "<u8"), ("tokens", "<u8"), ("unknown", "<u8"),
    ("digest", "V16"),
])  # fmt: skip
_VERSION = 3
_FILES = ("documents.bin", "tokens.bin", "signatures.bin")
_SIGNATURE_BYTES = 256


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tokenized document: uint32 [tokens] in bytes, how many bytes of its text unknown tokens stand for, and its
    MinHash signature if near duplicates are searched for."""

    source: tuple[int, int]  # which reader, and which of its sources
    held_out: bool | None
    digest: bytes
    num_bytes: int
    tokens: bytes = b""
    unknown_bytes: int = 0
    signature: bytes | None = None


def part_folder(output_dir: Path, part: int, num_parts: int) -> Path:
    """The folder of a part, beside `output_dir`."""
    if output_dir.name in ("", ".."):  # the path ends in no name of a folder, as `.` does
        output_dir = Path(os.path.abspath(output_dir))
    return output_dir.with_name(f"{output_dir.name}.parts") / f"{part:05d}-of-{num_parts:05d}"


def check_num_parts(num_parts: int) -> None:
    """Raise a `UserError` if there can be no such number of parts."""
    if num_parts < 1:
        raise UserError(f"num_parts={num_parts} must be at least 1")


def cut(readers: Sequence[Reader], *, part: int, num_parts: int) -> list[Reader]:
    """Readers of one part of the files. Parts are whole files, about equal in size, and the same on every machine.

    Raises:
        ValueError: the part does not exist, or an input is not made of files.
    """
    check_num_parts(num_parts)
    if not 0 <= part < num_parts:
        raise UserError(f"part={part} must lie between 0 and num_parts - 1 = {num_parts - 1}")
    if any(reader.total_bytes is None for reader in readers):
        raise UserError(
            f"num_parts={num_parts} splits by files: installed-python and datasets of the Hub cannot be split"
        )
    sizes = np.array([path.stat().st_size for reader in readers for path in reader.files], dtype=np.int64)
    middles = np.cumsum(sizes) - sizes // 2
    parts = np.minimum(middles * num_parts // max(int(sizes.sum()), 1), num_parts - 1)
    chosen, first = [], 0
    for reader in readers:
        here = np.flatnonzero(parts[first : first + len(reader.files)] == part)
        chosen.append(reader.of_files(here.tolist()))
        first += len(reader.files)
    return chosen


def job(readers: Sequence[Reader], facts: dict[str, Any], *, num_parts: int) -> str:
    """An identifier of a preparation: a hash of the files, how they are read, and `facts`."""
    inputs = [reader.facts() for reader in readers]
    text = json.dumps([_VERSION, num_parts, inputs, facts], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write_part(folder: Path, documents: Iterator[Encoded], *, about: Callable[[], dict[str, Any]]) -> None:
    """Write one part, completely or not at all. `about` is called when all documents are written."""
    with whole_folder(folder, replace=True) as building:
        with ExitStack() as opened:
            records, tokens, signatures = (opened.enter_context(open(building / name, "wb")) for name in _FILES)
            for document in documents:
                held_out = -1 if document.held_out is None else int(document.held_out)
                sizes = (document.num_bytes, len(document.tokens) // 4, document.unknown_bytes)
                records.write(np.array((*document.source, held_out, *sizes, document.digest), dtype=RECORD).tobytes())
                tokens.write(document.tokens)
                signatures.write(document.signature or b"")
        hashes = {name: sha256_of_file(building / name) for name in _FILES}
        content = {**about(), "files": hashes, "part": folder.name}
        text = json.dumps({**content, "sha256": _hash_of(content)})
        (building / "part.json").write_text(text, encoding="utf-8")


def read_about(folder: Path, readers: Sequence[Reader], *, job: str) -> dict[str, Any] | None:
    """What `write_part` recorded about a part; None if the part does not exist.

    Args:
        readers: the readers of this part's files, from `cut`.

    Raises:
        UserError: the part belongs to another preparation, is damaged, or one of its inputs has changed since.
    """
    path = folder / "part.json"
    if not path.is_file():
        return None
    again = f"prepare that part again (--part {int(folder.name[:5])} --overwrite_output_dir)"
    try:
        about = read_json_object(path)
    except UserError as error:
        raise UserError(f"{path} is damaged: {again}") from error
    if about.get("job") != job:
        raise UserError(
            f"{folder} was made from other inputs, by another tokenizer, other flags or another version of ClozeBERT: "
            f"give all parts and the merge the same ones, or delete {folder.parent}"
        )
    hashed = about.pop("sha256", None)
    if hashed != _hash_of(about):
        raise UserError(f"{path} is damaged: {again}")
    if about["part"] != folder.name:
        raise UserError(f"{folder} holds another part, {about['part']}: {again}")
    for name, sha256 in about["files"].items():
        if not (folder / name).is_file() or sha256_of_file(folder / name) != sha256:
            raise UserError(f"{folder / name} is damaged or missing: {again}")
    for reader, sources in zip(readers, about["sources"], strict=True):
        for path, source in zip(reader.files, sources, strict=True):
            if sha256_of_file(path) != source["sha256"]:
                raise UserError(f"{path} was changed after {folder} was made from it: {again}")
    return about


def _hash_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_part(folder: Path, *, first_sources: Sequence[int]) -> Iterator[Encoded]:
    """The documents of a part, in order.

    Args:
        first_sources: for each reader, the number of its sources in the parts before this one.
    """
    records = np.fromfile(folder / "documents.bin", dtype=RECORD)
    with open(folder / "tokens.bin", "rb") as tokens, open(folder / "signatures.bin", "rb") as signatures:
        for record in records:
            reader, held_out = int(record["reader"]), int(record["held_out"])
            yield Encoded(
                source=(reader, first_sources[reader] + int(record["source"])),
                held_out=None if held_out < 0 else bool(held_out),
                digest=record["digest"].tobytes(),
                num_bytes=int(record["bytes"]),
                tokens=tokens.read(4 * int(record["tokens"])),
                unknown_bytes=int(record["unknown"]),
                signature=signatures.read(_SIGNATURE_BYTES) or None,
            )
