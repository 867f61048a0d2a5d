"""Packs documents into rows of at most `max_seq_length` tokens (best-fit decreasing).

A document of n tokens becomes ceil(n / capacity) segments `[CLS] tokens [SEP]`, capacity = max_seq_length - 2: all but
the last are full, nothing is dropped. Best-fit decreasing (Johnson, 1974) puts the segments into rows: in decreasing
order of length, each goes to the row with the least free space that still fits it. Segments of equal length are
interchangeable, so whole groups are placed at once (as Krell et al., 2021, pack histograms): packing takes about as
long as sorting. The result, an index of a few bytes per segment, is cached beside the corpus, with its hashes. A
damaged index is rebuilt.
"""

import bisect
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from ..utils.errors import UserError
from ..utils.files import cache_folder, disk_errors, sha256_of_file, whole_folder
from ..utils.untrusted import file_beside, read_json_object
from .manifest import FileFacts
from .randomness import fold, ragged_arange
from .shards import HASHED_AT_ONCE, Corpus, check_hash, check_sizes, map_array

logger = logging.getLogger(__name__)

NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP] around each segment
_BLOCK_SEGMENTS = 1 << 21
_VERSION = 2
_INDEX_FILES = ("segments.bin", "ends.bin")
# Where new indices go instead of beside their corpus; see `discarding_indices`.
_scratch: Path | None = None


@contextmanager
def discarding_indices() -> Iterator[None]:
    """Build the indices that are missing in a temporary folder, so that nothing of them stays."""
    global _scratch
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps mapped files
        _scratch = Path(folder)
        try:
            yield
        finally:
            _scratch = None


def pack_lengths(lengths: np.ndarray, *, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pack items into rows by best-fit decreasing.

    Args:
        lengths: int64 [S], each in 1…row_length.
        row_length: the capacity of a row.

    Returns:
        the indices of the items in row order, int64 [S], and where each row ends in that list, int64 [rows].
    """
    order = np.argsort(-lengths, kind="stable")
    counts = np.bincount(lengths, minlength=row_length + 1)
    row_of_item = np.empty(len(lengths), dtype=np.int64)
    open_rows: dict[int, list[np.ndarray]] = {}  # free space -> rows with that much left
    rooms: list[int] = []  # the keys of open_rows, ascending
    num_rows = 0

    def leave_open(rows: np.ndarray, room: int) -> None:
        if len(rows) and room:
            if room not in open_rows:
                bisect.insort(rooms, room)
                open_rows[room] = []
            open_rows[room].append(rows)

    done = 0
    for length in range(row_length, 0, -1):
        end = done + int(counts[length])
        while done < end:
            place = bisect.bisect_left(rooms, length)
            room = rooms[place] if place < len(rooms) else row_length
            fitting = room // length  # best fit fills one row with items of this length before it turns to the next
            needed = -(-(end - done) // fitting)
            if place < len(rooms):
                rows = np.concatenate(open_rows.pop(rooms.pop(place)))
                leave_open(rows[needed:], room)
                rows = rows[:needed]
            else:
                rows = np.arange(num_rows, num_rows + needed)
                num_rows += needed
            items = order[done : min(end, done + len(rows) * fitting)]
            row_of_item[items] = rows[np.arange(len(items)) // fitting]
            last_holds = len(items) - (len(rows) - 1) * fitting
            leave_open(rows[:-1], room - fitting * length)
            leave_open(rows[-1:], room - last_holds * length)
            done += len(items)
    items = np.argsort(row_of_item, kind="stable")
    return items, np.cumsum(np.bincount(row_of_item, minlength=num_rows))


class RowIndex:
    """The segments of each row of a packed corpus; memory-mapped, built on first use.

    Args:
        folder: of the index, if it is known.

    Attributes:
        num_rows: rows in one epoch.
        segments: uint32 [S, 2], (document, first token within the document), row by row.
        ends: int64 [num_rows], where each row ends in `segments`.
    """

    def __init__(self, corpus: Corpus, *, max_seq_length: int, folder: Path | None = None) -> None:
        if max_seq_length <= NUM_SPECIAL_TOKENS:
            raise UserError(f"max_seq_length={max_seq_length} must exceed {NUM_SPECIAL_TOKENS}: [CLS], a token, [SEP]")
        self.max_seq_length = max_seq_length
        self.corpus = corpus
        self.folder = folder or _cached_index(corpus, max_seq_length=max_seq_length)
        sizes = [(self.folder / name).stat().st_size for name in _INDEX_FILES]
        self.segments = map_array(self.folder / "segments.bin", "<u4", (sizes[0] // 8, 2))
        self.ends = map_array(self.folder / "ends.bin", "<i8", (sizes[1] // 8,))
        self.num_rows = len(self.ends)

    def __reduce__(self) -> tuple[object, tuple[Corpus]]:
        return partial(RowIndex, max_seq_length=self.max_seq_length, folder=self.folder), (self.corpus,)

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The segments of some rows, in order.

        Returns:
            documents int64 [S], first tokens within them int64 [S], lengths without special tokens int64 [S], and the
            number of segments of each row int64 [rows].
        """
        begins = np.where(rows > 0, self.ends[rows - 1], 0)
        counts = self.ends[rows] - begins
        places = ragged_arange(begins, counts)
        documents, firsts = self.segments[places].astype(np.int64).T
        remaining = self.corpus.offsets[documents + 1] - self.corpus.offsets[documents] - firsts
        lengths = np.minimum(remaining, self.max_seq_length - NUM_SPECIAL_TOKENS)
        return documents, firsts, lengths, counts


def _cached_index(corpus: Corpus, *, max_seq_length: int) -> Path:
    """The folder of the index, built if needed: beside the corpus or, if that is not writable, in the user's cache."""
    name = f"rows-{max_seq_length}-v{_VERSION}-{corpus.fingerprint[:16]}"
    for parent in _parents_of_index(corpus):
        if _is_whole(parent / name):
            return parent / name
    way_out = None
    if parent != corpus.folder:
        way_out = f"the rows of {corpus.folder} are listed there, as it is closed: set XDG_CACHE_HOME to another folder"
    try:
        with (
            disk_errors(parent, way_out=way_out),
            whole_folder(parent / name, replace=(parent / name).is_dir()) as building,
        ):
            _build(corpus, building, max_seq_length=max_seq_length)
            _write_hashes(building)
    except OSError:  # another process finished the same index first
        if not _is_whole(parent / name):
            raise
    return parent / name


def _parents_of_index(corpus: Corpus) -> Iterator[Path]:
    """The folders in which an index may lie; in the last one it may be built."""
    yield corpus.folder
    if not os.access(corpus.folder, os.W_OK):
        yield cache_folder()  # asked for only where it is needed, as some users have none
    if _scratch:
        yield _scratch


def _is_whole(folder: Path) -> bool:
    """Whether an index exists and is undamaged; damage is logged."""
    if not os.path.isdir(folder):  # unlike `Path.is_dir`, this is no error within a folder that cannot be entered
        return False
    try:
        check_index(folder)
    except UserError as error:
        logger.warning("the row index is built anew: %s", error)
        return False
    return True


def check_index(folder: Path, *, all_hashes: bool = False) -> dict[str, FileFacts]:
    """Check the files of a row index against their recorded sizes, and small ones against their hashes; return them.

    Args:
        all_hashes: check every hash, also of large files and of files that this process has checked before.

    Raises:
        UserError: names the file that is damaged.
    """
    path = file_beside(folder, "manifest.json", where=folder)
    values = read_json_object(path)
    try:
        files = {name: FileFacts(int(values[name]["size"]), str(values[name]["sha256"])) for name in _INDEX_FILES}
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{path} must hold the size and SHA-256 of {', '.join(_INDEX_FILES)}: delete {folder}, and it is built anew"
        ) from None
    way_out = f"delete {folder}, and it is built anew"
    check_sizes(folder, files, way_out=way_out)
    if all_hashes or sum(facts.size for facts in files.values()) <= HASHED_AT_ONCE:
        for name, facts in files.items():
            check_hash(folder / name, facts, anew=all_hashes, way_out=way_out)
    return files


def _write_hashes(folder: Path) -> None:
    paths = [folder / name for name in _INDEX_FILES]
    facts = {path.name: {"size": path.stat().st_size, "sha256": sha256_of_file(path)} for path in paths}
    (folder / "manifest.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _build(corpus: Corpus, folder: Path, *, max_seq_length: int) -> None:
    """Pack the documents block by block, so that memory stays bounded however large the corpus is."""
    if corpus.num_documents > 1 << 32:
        raise UserError(f"the corpus has {corpus.num_documents} documents; a row index holds at most 2^32")
    capacity = max_seq_length - NUM_SPECIAL_TOKENS
    written = 0
    with open(folder / "segments.bin", "wb") as segments_file, open(folder / "ends.bin", "wb") as ends_file:
        first = 0
        while first < corpus.num_documents:
            last = _end_of_block(corpus.offsets, first, capacity)
            offsets = corpus.offsets[first : last + 1]
            lengths = np.diff(offsets)
            pieces = -(-lengths // capacity)
            documents = np.repeat(np.arange(first, last), pieces)
            begins = ragged_arange(np.zeros(len(pieces), dtype=np.int64), pieces) * capacity
            sizes = np.minimum(np.repeat(lengths, pieces) - begins, capacity) + NUM_SPECIAL_TOKENS
            # Shuffled, so that neighbouring documents of equal length do not end up in the same row.
            shuffled = np.argsort(fold(first, np.arange(len(sizes))), kind="stable")
            items, ends = pack_lengths(sizes[shuffled], row_length=max_seq_length)
            items = shuffled[items]
            segments_file.write(np.stack([documents[items], begins[items]], axis=1).astype("<u4").tobytes())
            ends_file.write((ends + written).astype("<i8").tobytes())
            written += len(items)
            first = last


def _end_of_block(offsets: np.ndarray, first: int, capacity: int) -> int:
    """The end of the block of documents that starts at `first` and has at most about `_BLOCK_SEGMENTS` segments."""

    def segments_before(document: int) -> int:
        return document + int(offsets[document]) // capacity

    limit = segments_before(first) + _BLOCK_SEGMENTS
    return max(first + 1, bisect.bisect_left(range(len(offsets) - 1), limit, lo=first, key=segments_before))
