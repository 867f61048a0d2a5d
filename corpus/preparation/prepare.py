"""Prepares a corpus: reads texts, holds out validation, deduplicates, tokenizes on all cores, writes shards.

One process reads and writes, the others tokenize. The output does not depend on their number or speed. For several
machines, reading and tokenizing is split into parts; merging the parts writes the same bytes.
"""

import contextlib
import hashlib
import multiprocessing
import os
import shutil
import tempfile
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...utils.errors import MissingFileError, UserError, check_choice
from ...utils.files import temporary_disk_errors, whole_files
from ...utils.limits import available_cpus
from ...utils.output_folders import check_output_dir
from ...utils.tokenizer_files import save_tokenizer
from ..encoding import Encoder, split_encoded
from ..manifest import CORPUS_SPLITS
from ..readers.inputs import Reader, Source, files_in_both
from ..shards import CORPUS_FILES, SHARD_TOKENS, ShardWriter
from ..tokenizer import tokenizer_facts
from .duplicates import NearDuplicates, signature
from .parallel import ordered_map
from .parts import Encoded, check_num_parts, cut, job, part_folder, read_about, read_part, write_part

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ReportProgress = Callable[[int, int, int | None], None]

DEDUPLICATION = ("none", "exact", "near")
_CHUNK_BYTES = 1 << 19
_CHUNK_DOCUMENTS = 1 << 12
_INLINE_BYTES = 1 << 22  # below this, starting processes takes longer than tokenizing


def prepare(
    reader: Reader,
    *,
    tokenizer: "PreTrainedTokenizerFast",
    output_dir: str | Path,
    validation_reader: Reader | None = None,
    validation_fraction: float = 0.01,
    deduplicate: str = "none",
    num_processes: int | None = None,
    num_parts: int | None = None,
    overwrite: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    report: ReportProgress | None = None,
    with_tokenizer: bool = False,
) -> dict[str, dict[str, Any]]:
    """Write `output_dir`/train and `output_dir`/validation, completely or not at all.

    Validation documents are those of `validation_reader`. Without one, they are the documents that their source holds
    out; if the source does not say, each document is held out with probability `validation_fraction`, by a hash of its
    text. If that selects none or all of several documents, the one with the smallest hash is held out instead; a single
    text never is. Repeated texts have the same hash, so they are never in both splits.

    Args:
        deduplicate: `none`, `exact` (each text once) or `near` (see `duplicates`). The first of several is kept.
            Documents of `validation_reader` are read first, so that no copy of them is trained on.
        num_processes: None: one for each processor.
        num_parts: merge this many parts, made by `Preparation.run_part`, with the same bytes as a result; the parts are
            not deleted.
        overwrite: the folder need not be empty; a corpus in it is replaced.
        shard_tokens: a shard with at least this many tokens is full.
        report: called now and then with (tokens written, bytes read, bytes to read if known).
        with_tokenizer: also save the tokenizer, in `output_dir`/tokenizer.

    Returns:
        the manifests by split.

    Raises:
        UserError: a value is out of range; the text is bad, or there is none; `output_dir` is not empty; or a part is
            missing, or was made from other inputs, with another tokenizer or other flags.
    """
    readers = readers_in_order(reader, validation_reader, deduplicate)
    fraction = validation_fraction if validation_reader is None else 0.0
    if not 0 <= fraction < 1:
        raise UserError(f"validation_fraction={fraction} must lie in [0, 1)")
    folder = Path(output_dir)
    options: dict[str, Any] = {
        "tokenizer": tokenizer, "deduplicate": deduplicate, "shard_tokens": shard_tokens, "report": report,
    }  # fmt: skip
    if num_parts is None:
        run: Run = Run(readers, num_processes=num_processes, **options)
    else:
        check_num_parts(num_parts)
        run = _MergeOfParts(
            readers, folders=[part_folder(folder, part, num_parts) for part in range(num_parts)], **options
        )
    check_output_dir(folder, overwrite=overwrite, written=CORPUS_FILES, holds_model=False)
    with whole_files(folder, replacing=CORPUS_FILES) as building:
        # Documents are held out if their digest is below this string: a share `fraction` of all possible digests.
        manifests = run.write(building, int(fraction * 2**64).to_bytes(8, "big") if fraction else b"")
        train, held_out = (manifests[split]["documents"] for split in CORPUS_SPLITS)
        if fraction and (train == 0 or (held_out == 0 and train > 1)):
            after_smallest = run.smallest_digest + b"\0"  # the next string after it
            for limit in [after_smallest, b""] if train + held_out > 1 else [b""]:
                for split in CORPUS_SPLITS:
                    shutil.rmtree(building / split)
                manifests = run.write(building, limit)
                if manifests["train"]["documents"]:  # not if all are copies of one text
                    break
        if with_tokenizer:
            save_tokenizer(tokenizer, building / "tokenizer")
    return manifests


def readers_in_order(reader: Reader, validation_reader: Reader | None, deduplicate: str) -> list[Reader]:
    """The readers in the order in which they are read.

    Raises:
        UserError: a file is in both readers, so its texts would be in both splits.
    """
    if validation_reader is None:
        return [reader]
    shared = files_in_both(reader, validation_reader)
    if shared and deduplicate == "none":
        raise UserError(
            f"{shared[0]} is in input and in validation_input, and would be trained on: leave it out of input, or give "
            f"--deduplicate exact, which keeps each text in the validation split alone"
        )
    return [validation_reader, reader]


# How many documents of each source were written, empty or duplicate, ….
Outcomes = defaultdict[tuple[int, int], Counter[str]]


class Run:
    """One preparation of a corpus or a part; `write` can be called again with another limit."""

    def __init__(
        self,
        readers: list[Reader],
        *,
        tokenizer: "PreTrainedTokenizerFast",
        deduplicate: str,
        num_processes: int | None = None,
        shard_tokens: int = SHARD_TOKENS,
        report: ReportProgress | None = None,
    ) -> None:
        check_choice("deduplicate", deduplicate, DEDUPLICATION)
        if num_processes is not None and num_processes < 1:
            raise UserError(f"num_processes={num_processes} must be at least 1")
        self.readers = readers
        self.facts = tokenizer_facts(tokenizer)
        self.tokenizer_json = tokenizer.backend_tokenizer.to_str()
        self.deduplicate = deduplicate
        self.shard_tokens = shard_tokens
        self.report = report
        sizes = [reader.total_bytes for reader in readers]
        self.total_bytes = None if None in sizes else sum(size or 0 for size in sizes)
        small = self.total_bytes is not None and self.total_bytes < _INLINE_BYTES
        self.num_processes = num_processes or (1 if small else available_cpus())
        self.smallest_digest = b""

    def job_facts(self) -> dict[str, Any]:
        """What a document's tokens depend on besides its text."""
        tokenizer = hashlib.sha256(self.tokenizer_json.encode("utf-8")).hexdigest()
        return {"tokenizer": tokenizer, "signatures": self.deduplicate == "near"}

    def sources(self) -> list[list[Source]]:
        """The sources that were read, by reader."""
        return [reader.sources for reader in self.readers]

    def accounts(self, outcomes: Outcomes, kinds: Sequence[str]) -> list[list[dict[str, Any]]]:
        """The facts of each source, by reader, with the number of its documents for each of the outcomes `kinds`."""
        return [
            [
                {**asdict(source), **{kind: outcomes[number, index][kind] for kind in kinds}}
                for index, source in enumerate(sources)
            ]
            for number, sources in enumerate(self.sources())
        ]

    def write(self, folder: Path, limit: bytes) -> dict[str, dict[str, Any]]:
        """Write both splits below `folder`; documents whose digest is below `limit` are held out."""
        outcomes: Outcomes = defaultdict(Counter)
        writers = {
            split: ShardWriter(folder / split, vocab_size=self.facts["vocab_size"], shard_tokens=self.shard_tokens)
            for split in CORPUS_SPLITS
        }
        sizes = {split: Counter(text_bytes=0, unknown_tokens=0) for split in CORPUS_SPLITS}
        near = NearDuplicates()
        self.smallest_digest = b"\xff" * 17
        held_out: set[bytes] = set()  # digests of the validation reader's texts; that reader comes first
        num_shared = 0
        for document in self.encoded(outcomes):
            outcome = "validation" if self._is_held_out(document, limit) else "train"
            if len(self.readers) > 1 and outcome == "validation":
                held_out.add(document.digest)
            elif document.digest in held_out and document.tokens:
                num_shared += 1
            if not document.tokens:
                outcome = "empty"
            elif document.signature and near.seen(document.signature):
                outcome = "near_duplicate"
            else:
                ids, starts = split_encoded(document.tokens)
                writers[outcome].append(ids, starts)
                unknown = int(np.count_nonzero(ids == self.facts["unk_token_id"]))
                sizes[outcome].update(text_bytes=document.num_bytes, unknown_tokens=unknown)
                if document.unknown_bytes:
                    sizes[outcome]["unknown_bytes"] += document.unknown_bytes
                self.smallest_digest = min(self.smallest_digest, document.digest)
            outcomes[document.source][outcome] += 1
        if not any(writer.num_documents for writer in writers.values()):
            met = list(chain.from_iterable(self.sources()))
            bad = sum(source.bad_text for source in met)
            left_out = f", {bad} of them left out by --on_bad_text skip" if bad else ""
            read = sum(source.documents for source in met)
            raise UserError(f"the corpus is empty: {read} documents were read{left_out}, and none holds a token")
        kinds = ["train", "validation", "empty"]
        kinds += {"none": [], "exact": ["duplicate"], "near": ["duplicate", "near_duplicate"]}[self.deduplicate]
        sources = list(chain.from_iterable(self.accounts(outcomes, kinds)))
        for source in sources:
            known = sum(source[kind] for kind in kinds) + source["bad_text"]
            assert known == source["documents"], "every document is accounted for"
        facts = {"tokenizer": self.facts, "deduplicate": self.deduplicate, "sources": sources}
        if num_shared:
            sizes["train"]["also_in_validation"] = num_shared
        return {split: writers[split].close({"split": split, **sizes[split], **facts}) for split in CORPUS_SPLITS}

    def tokenize_part(self, folder: Path, job: str) -> None:
        """Write all documents as one part of a corpus; repeated texts are found when the parts are merged."""
        outcomes: Outcomes = defaultdict(Counter)
        write_part(
            folder,
            self.encoded(outcomes, drop_repeated=False),
            about=lambda: {"job": job, "sources": self.accounts(outcomes, ["empty"])},
        )

    def _is_held_out(self, document: Encoded, limit: bytes) -> bool:
        if len(self.readers) > 1:
            return document.source[0] == 0  # the validation reader's
        return document.digest < limit if document.held_out is None else document.held_out

    def encoded(self, outcomes: Outcomes, *, drop_repeated: bool = True) -> Iterator[Encoded]:
        """Every non-empty document, in order, tokenized; `drop_repeated` leaves out exact duplicates."""
        waiting: deque[list[Encoded]] = deque()  # not tokenized yet
        written = 0

        def texts_of_chunks() -> Iterator[list[str]]:
            for chunk in _chunks(self._items(outcomes, drop_repeated=drop_repeated)):
                waiting.append([document for _, document in chunk])
                yield [text for text, _ in chunk]

        # In a file: a process that is started gets its arguments through a pipe, and one that dies at once leaves
        # whoever writes more into it than it holds waiting for ever.
        with contextlib.ExitStack() as temporary:
            with temporary_disk_errors():
                folder = temporary.enter_context(tempfile.TemporaryDirectory())
                tokenizer_file = Path(folder, "tokenizer.json")
                tokenizer_file.write_text(self.tokenizer_json, encoding="utf-8")
            encoded_chunks = ordered_map(
                _encode_chunk,
                texts_of_chunks(),
                num_processes=self.num_processes,
                initializer=_start_worker,
                initargs=(tokenizer_file, self.facts["unk_token_id"], self.deduplicate == "near"),
            )
            for chunk in encoded_chunks:
                for document, (tokens, unknown, signed) in zip(waiting.popleft(), chunk, strict=True):
                    written += len(tokens) // 4
                    yield replace(document, tokens=tokens, unknown_bytes=unknown, signature=signed)
                if self.report:
                    self.report(written, sum(reader.bytes_read for reader in self.readers), self.total_bytes)

    def _items(self, outcomes: Outcomes, *, drop_repeated: bool) -> Iterator[tuple[str, Encoded]]:
        """The text and the facts of every document to tokenize."""
        seen: set[bytes] = set()
        for number, reader in enumerate(self.readers):
            for document in reader:
                source = (number, document.source)
                content = document.text.encode("utf-8")
                digest = hashlib.blake2b(content, digest_size=16).digest()
                counts = outcomes[source]
                if not content or document.text.isspace():
                    counts["empty"] += 1
                elif not (drop_repeated and self._is_repeated(digest, seen, counts)):
                    yield document.text, Encoded(source, document.held_out, digest, len(content))

    def _is_repeated(self, digest: bytes, seen: set[bytes], counts: Counter[str]) -> bool:
        """Whether a text is a duplicate to drop; if so, it is counted as one."""
        if self.deduplicate == "none":
            return False
        if digest in seen:
            counts["duplicate"] += 1
            return True
        seen.add(digest)
        return False


class _MergeOfParts(Run):
    """A preparation whose documents were read and tokenized before, in parts."""

    def __init__(self, readers: list[Reader], *, folders: list[Path], **options: Any) -> None:
        super().__init__(readers, **options)
        self.folders = folders
        identity = job(readers, self.job_facts(), num_parts=len(folders))
        found = [
            read_about(folder, cut(readers, part=part, num_parts=len(folders)), job=identity)
            for part, folder in enumerate(folders)
        ]
        absent = [folder.name for folder, about in zip(folders, found, strict=True) if about is None]
        if absent:
            raise MissingFileError(
                f"{folders[0].parent} lacks {len(absent)} of {len(folders)} parts: {', '.join(absent[:5])}"
                f"{', …' if len(absent) > 5 else ''}; prepare them first"
            )
        self.parts: list[list[list[dict[str, Any]]]] = [about["sources"] for about in found if about is not None]

    def sources(self) -> list[list[Source]]:
        return [
            [
                Source(**{name: value for name, value in facts.items() if name != "empty"})
                for part in self.parts
                for facts in part[number]
            ]
            for number in range(len(self.readers))
        ]

    def encoded(self, outcomes: Outcomes, *, drop_repeated: bool = True) -> Iterator[Encoded]:
        firsts = [0] * len(self.readers)
        seen: set[bytes] = set()
        written = read = 0
        # The validation reader's files come first, as they do without parts.
        for folder, part in zip(self.folders, self.parts, strict=True):
            for number, sources in enumerate(part):
                for index, facts in enumerate(sources):
                    outcomes[number, firsts[number] + index] = Counter(empty=facts["empty"])
                    read += facts["bytes"]
            for document in read_part(folder, first_sources=firsts):
                if not self._is_repeated(document.digest, seen, outcomes[document.source]):
                    written += len(document.tokens) // 4
                    yield document
            firsts = [first + len(sources) for first, sources in zip(firsts, part, strict=True)]
            if self.report:
                self.report(written, read, self.total_bytes)


def _chunks(items: Iterator[tuple[str, Encoded]]) -> Iterator[list[tuple[str, Encoded]]]:
    """The documents in chunks of about equal size; a process tokenizes one chunk at a time."""
    chunk: list[tuple[str, Encoded]] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += item[1].num_bytes
        if size >= _CHUNK_BYTES or len(chunk) >= _CHUNK_DOCUMENTS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


# A worker's encoder, and whether to compute signatures. Without worker processes, the thread that prepares is one.
_worker = threading.local()


def _start_worker(tokenizer_file: Path, unk_token_id: int | None, wants_signatures: bool) -> None:
    if multiprocessing.parent_process() is not None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process has one core to itself
    _worker.state = Encoder(tokenizer_file.read_text(encoding="utf-8"), unk_token_id=unk_token_id), wants_signatures


def _encode_chunk(texts: list[str]) -> list[tuple[bytes, int, bytes | None]]:
    encoder, wants_signatures = _worker.state
    signatures = map(signature, texts) if wants_signatures else [None] * len(texts)
    encoded = encoder.encode_counting(texts)
    return [(*document, signed) for document, signed in zip(encoded, signatures, strict=True)]
