"""Tokenized text on disk: writes shards, and reads them memory-mapped.

A corpus folder holds one sub-folder per split. A split is

    manifest.json            counts, sources, the tokenizer's hash and special ids, the shards; hashes of all files
    documents.bin            int64 [documents + 1]: where each document begins among all tokens, then the end
    tokens-00000.bin …       uint16 (uint32 from a vocabulary of 65,537 on): the tokens, without special tokens
    word_starts-00000.bin …  one bit per token, lowest bit first: whether a word begins there

A document is never split over two shards. All numbers are little-endian.
"""

import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.errors import MissingFileError, UserError, UserFileError, as_user_errors
from ..utils.files import sha256_of_file
from ..utils.untrusted import LARGEST_JSON, file_beside
from .manifest import FileFacts, files_of, format_manifest, parse_manifest, shard_names, token_dtype
from .randomness import ragged_arange
from .remote import local_folder

# The files of a corpus folder, including the row indices that `packing` puts beside the shards; see `files.written_in`.
CORPUS_FILES = tuple(
    rf"(train|validation)/{name}"
    for name in (r"manifest\.json", r"documents\.bin", r"(tokens|word_starts)-\d+\.bin", r"rows-\d+-v\d+-[0-9a-f]+")
)
SHARD_TOKENS = 1 << 28
# The buffer is written at this many tokens or documents: an array takes some 400 bytes per document, however short.
_FLUSH_TOKENS, _FLUSH_DOCUMENTS = 1 << 22, 1 << 16
# A split of at most this many bytes is hashed when it is opened, which takes about a tenth of a second.
HASHED_AT_ONCE = 1 << 26
_WAY_OUT = "the corpus is damaged; prepare it again or, if this is the cached copy of a URL, delete the copy"
_hashed: set[tuple[str, str, int, int]] = set()  # files that this process has hashed and found correct


class ShardWriter:
    """Appends documents to one split of a corpus, in order and in bounded memory; `close` writes the manifest."""

    def __init__(self, directory: str | Path, *, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self.directory = directory = Path(directory)
        self.vocab_size = vocab_size
        self.dtype = token_dtype(vocab_size)
        self.shard_tokens = shard_tokens
        self.num_documents = 0
        self.num_tokens = 0
        self.num_words = 0
        self.shards: list[dict[str, Any]] = []
        directory.mkdir(parents=True)
        self._offsets = open(directory / "documents.bin", "wb")  # noqa: SIM115 - closed in close()
        self._offsets_digest = hashlib.sha256()
        self._ends = [0]
        self._buffered = 0  # tokens
        self._open_shard: _ShardFiles | None = None

    def append(self, ids: np.ndarray, starts: np.ndarray) -> None:
        """Append one document.

        Args:
            ids: token ids [tokens], without special tokens, at least one.
            starts: bool [tokens], whether a word begins at the token.

        Raises:
            ValueError: an id is not in the vocabulary.
        """
        assert len(ids) == len(starts) > 0, "a document has tokens, each with its word-start bit"
        least, largest = int(np.min(ids)), int(np.max(ids))
        if least < 0 or largest >= self.vocab_size:
            raise ValueError(f"token id {least if least < 0 else largest} is not between 0 and {self.vocab_size - 1}")
        if self._open_shard is not None and self._open_shard.tokens >= self.shard_tokens:
            self._close_shard()
        if self._open_shard is None:
            self._open_shard = _ShardFiles(self.directory, len(self.shards))
        self._open_shard.append(np.asarray(ids).astype(self.dtype), np.asarray(starts, dtype=bool))
        self.num_documents += 1
        self.num_tokens += len(ids)
        self.num_words += int(np.count_nonzero(starts))
        self._ends.append(self.num_tokens)
        self._buffered += len(ids)
        if self._buffered >= _FLUSH_TOKENS or len(self._ends) >= _FLUSH_DOCUMENTS:
            self._flush()

    def close(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Finish the files; write and return the manifest, made of the writer's counts and `facts`.

        Args:
            facts: what is known of the split. `tokenizer` is needed: what `clozebert.corpus.tokenizer.tokenizer_facts`
                returns.

        Raises:
            ValueError: `facts` has no `tokenizer`.
        """
        if "tokenizer" not in facts:
            raise ValueError("facts has no 'tokenizer', without which no corpus can be opened: see tokenizer_facts")
        self._flush()
        self._close_shard()
        self._offsets.close()
        facts_of_files = {
            "documents": self.num_documents,
            "tokens": self.num_tokens,
            "words": self.num_words,
            "dtype": self.dtype,
            "shards": self.shards,
            "files": {"documents.bin": self._offsets_digest.hexdigest()},
        }
        manifest, content = format_manifest({**facts_of_files, **facts})
        (self.directory / "manifest.json").write_bytes(content)
        return manifest

    def _flush(self) -> None:
        ends = np.array(self._ends, dtype="<i8").tobytes()
        self._offsets.write(ends)
        self._offsets_digest.update(ends)
        self._ends, self._buffered = [], 0
        if self._open_shard is not None:
            self._open_shard.write()

    def _close_shard(self) -> None:
        if self._open_shard is not None:
            self.shards.append(self._open_shard.close())
            self._open_shard = None


class _ShardFiles:
    """The two files of one shard; they are hashed as they are written."""

    def __init__(self, directory: Path, number: int) -> None:
        self.names = list(shard_names(number))
        self.files = [open(directory / name, "wb") for name in self.names]  # noqa: SIM115 - closed in close()
        self.hashes = [hashlib.sha256() for _ in self.names]
        self.tokens = 0
        self._pieces: list[np.ndarray] = []
        self._bits: list[np.ndarray] = []

    def append(self, tokens: np.ndarray, starts: np.ndarray) -> None:
        self._pieces.append(tokens)
        self._bits.append(starts)
        self.tokens += len(tokens)

    def write(self, *, last: bool = False) -> None:
        """Write what was appended; up to seven bits wait until their byte is full, unless this is the `last` write."""
        if self._pieces:
            self._write(0, np.concatenate(self._pieces).tobytes())
        self._pieces = []
        bits = np.concatenate([*self._bits, np.zeros(0, dtype=bool)])
        whole = len(bits) if last else len(bits) // 8 * 8
        self._write(1, np.packbits(bits[:whole], bitorder="little").tobytes())
        self._bits = [bits[whole:]]

    def close(self) -> dict[str, Any]:
        self.write(last=True)
        for file in self.files:
            file.close()
        return {
            "tokens": self.tokens,
            "files": {name: digest.hexdigest() for name, digest in zip(self.names, self.hashes, strict=True)},
        }

    def _write(self, which: int, content: bytes) -> None:
        self.files[which].write(content)
        self.hashes[which].update(content)


class Corpus:
    """One split of a prepared corpus, memory-mapped.

    Opening it reads the manifest and checks the sizes of all files. A split of at most 64 MiB is also hashed, once per
    process; `integrity.find_damaged_files` hashes splits of any size.

    Args:
        directory: the folder that `prepare_corpus --output_dir` wrote, or a URL, see `remote`.
        split: `train` or `validation`.

    Attributes:
        files: size and SHA-256 of each file except the manifest, by name.

    Raises:
        FileNotFoundError: there is no prepared corpus there.
        ValueError: the split does not exist, or a file does not match the manifest.
    """

    def __init__(self, directory: str | Path, split: str = "train") -> None:
        self.directory = local_folder(directory)
        self.split = split
        self.folder = self.directory / split
        path = self.folder / "manifest.json"
        if not path.is_file():
            if (self.directory / "manifest.json").is_file():
                raise UserError(f"{directory} is one split of a corpus: give the folder that it lies in")
            splits = sorted(p.parent.name for p in self.directory.glob("*/manifest.json"))
            if splits:
                raise UserError(f"split={split!r} is not in the corpus {directory}; it has {', '.join(splits)}")
            why = "" if self.directory.is_dir() else ", as there is no such folder"
            raise MissingFileError(
                f"{directory} holds no prepared corpus{why}; write one with clozebert prepare-corpus"
            )
        self.manifest, self.fingerprint = read_manifest(path)
        self.num_documents: int = self.manifest["documents"]
        self.num_tokens: int = self.manifest["tokens"]
        tokenizer = self.manifest["tokenizer"]
        self.vocab_size: int = tokenizer["vocab_size"]
        self.cls_token_id: int = tokenizer["cls_token_id"]
        self.sep_token_id: int = tokenizer["sep_token_id"]
        self.pad_token_id: int = tokenizer["pad_token_id"]
        self.mask_token_id: int = tokenizer["mask_token_id"]
        self.special_token_ids: list[int] = tokenizer["special_token_ids"]
        self.files = files_of(self.manifest)
        check_sizes(self.folder, self.files)
        if sum(facts.size for facts in self.files.values()) <= HASHED_AT_ONCE:
            for name, facts in self.files.items():
                check_hash(self.folder / name, facts)
        self.offsets = self._map("documents.bin", "<i8", self.num_documents + 1)
        if (int(self.offsets[0]), int(self.offsets[-1])) != (0, self.num_tokens):
            raise UserError(f"{self.folder / 'documents.bin'} does not end at {self.num_tokens} tokens: {_WAY_OUT}")
        self._shard_ends = np.cumsum([shard["tokens"] for shard in self.manifest["shards"]], dtype=np.int64)
        self._mapped: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __reduce__(self) -> tuple[type["Corpus"], tuple[Path, str]]:
        # A worker process maps the files again: pickling a memory map would copy its whole content.
        return Corpus, (self.directory, self.split)

    def __len__(self) -> int:
        return self.num_documents

    def facts(self) -> dict[str, Any]:
        """The facts about it for a model card."""
        return {"documents": self.num_documents, "tokens": self.num_tokens, "fingerprint": self.fingerprint}

    @cached_property
    def ordinary_token_ids(self) -> np.ndarray:
        """Every non-special token id of the vocabulary; int64, ascending."""
        return np.setdiff1d(np.arange(self.vocab_size), self.special_token_ids)

    def document(self, index: int) -> np.ndarray:
        """The token ids of a document, without special tokens; int64 [tokens]."""
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of {self.num_documents}")
        begin, end = self.offsets[index : index + 2]
        return self.gather(np.array([begin]), np.array([end - begin]))[0]

    def gather(self, begins: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read S ranges of tokens, each within one document.

        Args:
            begins: int64 [S], positions among all tokens of the split.
            lengths: int64 [S].

        Returns:
            ids int64 [sum(lengths)] and word starts bool [sum(lengths)], the ranges concatenated.
        """
        positions = ragged_arange(begins, lengths)
        ids, starts = np.empty(len(positions), dtype=np.int64), np.empty(len(positions), dtype=bool)
        shard_of_run = np.searchsorted(self._shard_ends, begins, side="right")
        for number in np.unique(shard_of_run).tolist():
            tokens, bits, first = self._shard(number)
            here = np.repeat(shard_of_run == number, lengths)
            places = positions[here] - first
            ids[here] = tokens[places]
            starts[here] = (bits[places >> 3] >> (places & 7).astype(np.uint8)) & 1
        return ids, starts

    def _shard(self, number: int) -> tuple[np.ndarray, np.ndarray, int]:
        tokens = self.manifest["shards"][number]["tokens"]
        if number not in self._mapped:
            names = shard_names(number)
            self._mapped[number] = (
                self._map(names[0], self.manifest["dtype"], tokens),
                self._map(names[1], "u1", (tokens + 7) // 8),
            )
        return *self._mapped[number], int(self._shard_ends[number]) - tokens

    def _map(self, name: str, dtype: str, length: int) -> np.ndarray:
        return map_array(self.folder / name, dtype, (length,))


def open_split(directory: str | Path, split: str) -> Corpus | None:
    """A split of a prepared corpus, or None if the corpus has no such split."""
    folder = local_folder(directory)
    return Corpus(folder, split) if (folder / split / "manifest.json").is_file() else None


def check_sizes(folder: Path, files: dict[str, FileFacts], *, way_out: str = _WAY_OUT) -> None:
    """Raise a `UserError` for the first file that is missing, has another size, or is a link out of its folder.

    Args:
        way_out: what can be done about it, for the message.
    """
    for name, facts in files.items():
        path = file_beside(folder, name, where=folder / "manifest.json")
        _check_size(path, facts.size, way_out)


def check_hash(path: Path, facts: FileFacts, *, anew: bool = False, way_out: str = _WAY_OUT) -> None:
    """Raise a `UserError` if a file's hash is not the one in the manifest.

    Args:
        anew: hash it even if this process has checked it before.
        way_out: what can be done about it, for the message.
    """
    try:
        state = os.stat(path)
        known = (str(path), facts.sha256, state.st_mtime_ns, state.st_ino)
        if not anew and known in _hashed:
            return
        found = sha256_of_file(path)
    except OSError as error:
        raise UserFileError(f"{path} cannot be read: {error.strerror}") from None
    if found != facts.sha256:
        raise UserError(f"{path} is not what the manifest says (SHA-256 {found[:12]}…): {way_out}")
    _hashed.add(known)


def map_array(path: Path, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Memory-map a file of raw numbers.

    Raises:
        ValueError: its size does not match `shape`.
    """
    expected = int(np.prod(shape)) * np.dtype(dtype).itemsize
    _check_size(path, expected)
    if expected == 0:  # an empty file cannot be mapped
        return np.zeros(tuple(shape), dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", shape=tuple(shape))


def _check_size(path: Path, expected: int, way_out: str = _WAY_OUT) -> None:
    found = path.stat().st_size if path.is_file() else -1
    if found != expected:
        state = "is missing" if found < 0 else f"has {found} bytes instead of {expected}"
        raise UserError(f"{path} {state}: {way_out}")


def read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    """A split's manifest, checked, and the SHA-256 of the file, which identifies the corpus.

    Raises:
        UserError: it cannot be read, is damaged, or is a link out of its folder.
    """
    with as_user_errors(OSError, about=f"{path} cannot be read"):
        if path.stat().st_size > LARGEST_JSON:
            raise UserError(f"{path} has more than {LARGEST_JSON >> 20} MiB: {_WAY_OUT}")
        content = file_beside(path.parent, path.name, where=path).read_bytes()
    manifest = parse_manifest(content, where=path)
    if manifest.get("split", path.parent.name) != path.parent.name:
        raise UserError(f"{path} is the manifest of another split, {manifest['split']!r}: {_WAY_OUT}")
    return manifest, hashlib.sha256(content).hexdigest()
