"""Training batches as a pure function of (corpora, seed, step), and validation batches with fixed masks.

An epoch is a permutation of the packed rows, keyed by (seed, epoch). The row at any position of the stream is found in
O(1), so resuming needs only the step number. The global batch of a step is a range of consecutive rows of that stream,
cut into chunks for micro-batches and ranks. How it is cut does not change the content of any row.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import numpy as np

from ..utils.errors import UserError
from .batch_size import BatchSize
from .masking import Masking, corrupt, select
from .packing import NUM_SPECIAL_TOKENS, RowIndex
from .randomness import derive, fold, permute, ragged_arange
from .shards import Corpus
from .vocabulary_sample import VocabularySample, VocabularySampler

# The purpose of a hash: shuffling, masking, fixed validation masks, mixing corpora.
_SHUFFLE, _MASK, _VALIDATION, _MIX = 1, 2, 3, 4
# Every block of this many rows holds the exact shares of a mixture.
MIX_BLOCK = 1024


@dataclass(frozen=True)
class Batch:
    """Packed rows: N tokens in D segments, each `[CLS] tokens [SEP]`. M of the tokens are predicted.

    Attributes:
        input_ids: int64 [1, N], corrupted.
        position_ids: int64 [1, N], restarting at 0 with each segment.
        cu_seq_lens: int32 [D + 1], the start of each segment, then N.
        max_length: the length of the longest segment.
        masked_positions: int64 [M], positions among the N tokens, ascending.
        labels: int64 [M], the original ids there.
        sample_ids: int64 [rows], the numbers of the rows.
        vocabulary: the tokens that predictions are compared with; None: all of them.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    cu_seq_lens: np.ndarray
    max_length: int
    masked_positions: np.ndarray
    labels: np.ndarray
    sample_ids: np.ndarray
    vocabulary: VocabularySample | None = None


class BatchStream:
    """Training batches; `batch(step)` is a pure function of the step.

    Args:
        corpora: one corpus, or several to mix, all prepared with the same tokenizer.
        max_seq_length: tokens in a row, special tokens included.
        global_batch_size: rows in one optimizer step, or a schedule of them.
        masking: how tokens are selected and corrupted.
        seed: of the shuffling and the masks.
        weights: the share of the rows that each corpus gets; a corpus is repeated as often as its share requires.
            Shares hold exactly in every 1,024 rows, so they are rounded to multiples of 1/1,024, with none at 0.
        total_steps: the length of the run, needed where `masking.final_rate` is set.
        vocabulary: draws the tokens that a step's predictions are compared with; None: the whole vocabulary.

    Raises:
        ValueError: a value out of range, or corpora of different tokenizers.
    """

    def __init__(
        self,
        corpora: Corpus | Sequence[Corpus],
        *,
        max_seq_length: int,
        global_batch_size: SupportsIndex | BatchSize,
        masking: Masking,
        seed: int,
        weights: Sequence[float] | None = None,
        total_steps: int | None = None,
        vocabulary: VocabularySampler | None = None,
    ) -> None:
        self.corpora = [corpora] if isinstance(corpora, Corpus) else list(corpora)
        _check_corpora(self.corpora)
        if masking.final_rate is not None and not total_steps:
            raise UserError(f"masking.final_rate={masking.final_rate} needs total_steps, the length of the run")
        self.quotas = _quotas(len(self.corpora), weights)
        if not isinstance(global_batch_size, BatchSize):
            global_batch_size = BatchSize(operator.index(global_batch_size))
        self.batch_size: BatchSize = global_batch_size
        self.masking = masking
        self.seed = seed
        self.total_steps = total_steps
        self.vocabulary = vocabulary
        self.indices = [RowIndex(corpus, max_seq_length=max_seq_length) for corpus in self.corpora]
        self.rows_per_epoch = sum(index.num_rows for index in self.indices)

    def batch(
        self, step: int, *, rank: int = 0, world_size: int = 1, micro_batch: int = 0, micro_batches: int = 1
    ) -> Batch:
        """One chunk of the global batch of a step.

        The rows are cut, in order, into `world_size * micro_batches` chunks whose sizes differ by at most one row. This
        is chunk number `micro_batch * world_size + rank`.
        """
        if step < 0:
            raise ValueError(f"step={step} must count from 0")
        chunks = world_size * micro_batches
        if not (0 <= rank < world_size and 0 <= micro_batch < micro_batches):
            raise ValueError(
                f"rank={rank} of world_size={world_size} and micro_batch={micro_batch} of "
                f"micro_batches={micro_batches} must count from 0"
            )
        rows = self.batch_size.at(step)
        if chunks > rows:
            raise UserError(
                f"global_batch_size={rows} rows cannot be split into world_size={world_size} x "
                f"micro_batches={micro_batches} chunks; each needs a row"
            )
        chunk = micro_batch * world_size + rank
        begin, end = (edge * rows // chunks for edge in (chunk, chunk + 1))
        return self.rows(self.batch_size.before(step) + begin, end - begin, step=step)

    def rate(self, step: int) -> float:
        """The masking rate of a step."""
        return self.masking.rate_at(step / max(1, (self.total_steps or 1) - 1))

    def epochs(self, step: int) -> float:
        """How often the rows of all corpora were seen before `step`, on average."""
        return self.batch_size.before(step) / self.rows_per_epoch

    def rows(self, first: int, count: int, *, step: int) -> Batch:
        """`count` rows of the endless stream, starting at position `first`, masked as in `step`."""
        batch = _assemble(self.corpora, self._locate(first, count), self.masking, rate=self.rate(step))
        return batch if self.vocabulary is None else replace(batch, vocabulary=self.vocabulary.draw(step))

    def _locate(self, first: int, count: int) -> "_Segments":
        places = np.arange(first, first + count)
        sources, places = self._mix(places)
        parts = []
        for source, index in enumerate(self.indices):
            here = np.flatnonzero(sources == source)
            epochs, order = np.divmod(places[here], index.num_rows)
            rows = np.empty_like(order)
            for epoch in np.unique(epochs).tolist():
                now = epochs == epoch
                key = derive(self.seed, _SHUFFLE, source, epoch)
                rows[now] = permute(order[now], size=index.num_rows, key=key)
            mask_key = derive(self.seed, _MASK, source)
            parts.append(_Segments.of_rows(index, rows, row_places=here, source=source, keys=fold(mask_key, epochs)))
        segments = _Segments.merged(parts)
        segments.sample_ids += np.cumsum([0, *(index.num_rows for index in self.indices)])[sources]
        return segments

    def _mix(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The corpus of each position of the stream, and the position within that corpus's own stream.

        Every block of 1,024 positions holds each corpus exactly as often as its quota says, shuffled per block.
        """
        if len(self.quotas) == 1:
            return np.zeros(len(places), dtype=np.int64), places
        ends = np.cumsum(self.quotas)
        blocks, within = np.divmod(places, MIX_BLOCK)
        slots = np.empty_like(within)
        for block in np.unique(blocks).tolist():
            now = blocks == block
            slots[now] = permute(within[now], size=MIX_BLOCK, key=derive(self.seed, _MIX, block))
        sources = np.searchsorted(ends, slots, side="right")
        quotas = np.asarray(self.quotas)
        return sources, blocks * quotas[sources] + slots - (ends - quotas)[sources]


class ValidationBatches(Sequence["Batch"]):
    """Every document once, `batch_size` rows at a time, with fixed masks; each batch is built when it is asked for.

    Masks depend only on (seed, document, position), at `masking.rate`. Rows are shuffled, so the first few batches are
    a fair sample. An empty corpus gives no batches.
    """

    def __init__(self, corpus: Corpus, *, max_seq_length: int, batch_size: int, masking: Masking, seed: int):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1 row")
        self.corpus, self.batch_size, self.masking, self.seed = corpus, batch_size, masking, seed
        self.rows_of_corpus = RowIndex(corpus, max_seq_length=max_seq_length) if corpus.num_documents else None

    def __len__(self) -> int:
        return 0 if self.rows_of_corpus is None else -(-self.rows_of_corpus.num_rows // self.batch_size)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        place += len(self) if place < 0 else 0
        if self.rows_of_corpus is None or not 0 <= place < len(self):
            raise IndexError(place)
        first = place * self.batch_size
        places = np.arange(first, min(first + self.batch_size, self.rows_of_corpus.num_rows))
        rows = permute(places, size=self.rows_of_corpus.num_rows, key=derive(self.seed, _VALIDATION, _SHUFFLE))
        keys = np.full(len(rows), derive(self.seed, _VALIDATION, _MASK), dtype=np.uint64)
        segments = _Segments.of_rows(self.rows_of_corpus, rows, row_places=np.arange(len(rows)), source=0, keys=keys)
        return _assemble([self.corpus], segments, self.masking, rate=self.masking.rate)


@dataclass
class _Segments:
    """The segments of some rows, in order: S segments in R rows.

    Attributes:
        sources: int64 [S], the corpus of each segment.
        documents: int64 [S].
        firsts: int64 [S], the position of the first token within the document.
        lengths: int64 [S], without special tokens.
        keys: uint64 [S], hashes of (seed, epoch, document).
        places: int64 [S], which of the R rows each segment is in.
        sample_ids: int64 [R], the rows' numbers.
    """

    sources: np.ndarray
    documents: np.ndarray
    firsts: np.ndarray
    lengths: np.ndarray
    keys: np.ndarray
    places: np.ndarray
    sample_ids: np.ndarray

    @classmethod
    def of_rows(
        cls, index: RowIndex, rows: np.ndarray, *, row_places: np.ndarray, source: int, keys: np.ndarray
    ) -> "_Segments":
        """The segments of `rows`, at positions `row_places` of the batch, with the rows' hash keys, uint64 [rows]."""
        documents, firsts, lengths, counts = index.read(rows)
        return cls(
            sources=np.full(len(documents), source),
            documents=documents,
            firsts=firsts,
            lengths=lengths,
            keys=fold(np.repeat(keys, counts), documents),
            places=np.repeat(row_places, counts),
            sample_ids=rows,
        )

    @classmethod
    def merged(cls, parts: "list[_Segments]") -> "_Segments":
        """The segments of several corpora, put in the order of their rows."""
        if len(parts) == 1:
            return parts[0]
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.__annotations__}
        order = np.argsort(joined["places"], kind="stable")
        row_places = np.concatenate([np.unique(part.places) for part in parts])
        sample_ids = joined.pop("sample_ids")[np.argsort(row_places, kind="stable")]
        return cls(**{name: values[order] for name, values in joined.items()}, sample_ids=sample_ids)


def _selection(
    corpora: Sequence[Corpus], segments: _Segments, masking: Masking, *, rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of the segments, int64 [tokens], and which of them are predicted, bool [tokens]."""
    total = int(segments.lengths.sum())
    ids, starts = np.empty(total, dtype=np.int64), np.empty(total, dtype=bool)
    for source, corpus in enumerate(corpora):
        here = segments.sources == source
        begins = corpus.offsets[segments.documents[here]] + segments.firsts[here]
        tokens_here = np.repeat(here, segments.lengths)
        ids[tokens_here], starts[tokens_here] = corpus.gather(begins, segments.lengths[here])
    selected = select(
        masking,
        rate=rate,
        keys=segments.keys,
        firsts=segments.firsts,
        lengths=segments.lengths,
        starts=starts,
        predictable=~np.isin(ids, corpora[0].special_token_ids),
    )
    return ids, selected


def _assemble(corpora: Sequence[Corpus], segments: _Segments, masking: Masking, *, rate: float) -> Batch:
    """The batch of some segments: special tokens added, selected tokens corrupted, their originals as labels."""
    corpus, lengths = corpora[0], segments.lengths
    ids, selected = _selection(corpora, segments, masking, rate=rate)
    labels = ids[selected]
    ids[selected] = corrupt(
        masking,
        selected,
        labels,
        keys=segments.keys,
        firsts=segments.firsts,
        lengths=lengths,
        mask_token_id=corpus.mask_token_id,
        ordinary_token_ids=corpus.ordinary_token_ids,
    )
    sizes = lengths + NUM_SPECIAL_TOKENS
    ends = np.cumsum(sizes)
    # A token of segment s comes after the tokens before it, s pairs of special tokens, and its own [CLS].
    places = np.arange(len(ids)) + NUM_SPECIAL_TOKENS * np.repeat(np.arange(len(lengths)), lengths) + 1
    input_ids = np.empty(int(sizes.sum()), dtype=np.int64)
    input_ids[ends - sizes] = corpus.cls_token_id
    input_ids[ends - 1] = corpus.sep_token_id
    input_ids[places] = ids
    return Batch(
        input_ids=input_ids[None],
        position_ids=ragged_arange(np.zeros(len(sizes), dtype=np.int64), sizes)[None],
        cu_seq_lens=np.concatenate([[0], ends]).astype(np.int32),
        max_length=int(sizes.max()),
        masked_positions=places[selected],
        labels=labels,
        sample_ids=segments.sample_ids,
    )


def _check_corpora(corpora: Sequence[Corpus]) -> None:
    if not corpora:
        raise UserError("corpora is empty; give at least one corpus")
    for corpus in corpora:
        if corpus.num_documents == 0:
            raise UserError(f"the corpus {corpus.folder} is empty")
        if corpus.manifest["tokenizer"] != corpora[0].manifest["tokenizer"]:
            raise UserError(
                f"the corpora {corpora[0].folder} and {corpus.folder} were prepared with different tokenizers"
            )


def check_weights(weights: Sequence[float], corpora: int, *, name: str) -> None:
    """Refuse weights that are not one positive, finite number for each corpus; `name` is for the message."""
    if len(weights) != corpora or not all(0 < weight < math.inf for weight in weights):
        raise UserError(f"{name}={list(weights)} must be {corpora} positive numbers, one for each corpus")


def _quotas(corpora: int, weights: Sequence[float] | None) -> list[int]:
    """How many of each 1,024 rows come from each corpus: the weights by largest remainders."""
    if weights is None:
        if corpora > 1:
            raise UserError(f"weights is None, but there are {corpora} corpora: give the share of each")
        return [MIX_BLOCK]
    check_weights(weights, corpora, name="weights")
    if corpora > MIX_BLOCK:
        raise UserError(f"{corpora} corpora are more than the {MIX_BLOCK} that can be mixed: join some of them")
    return _round_shares(np.asarray(weights, dtype=np.float64), MIX_BLOCK).tolist()


def _round_shares(weights: np.ndarray, rows: int) -> np.ndarray:
    """Whole numbers in proportion to the weights that sum to `rows`, by largest remainders; each is at least 1."""
    exact = weights / weights.sum() * rows
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: rows - int(counts.sum())]] += 1
    least = counts == 0
    if least.any():
        counts[least] = 1
        counts[~least] = _round_shares(weights[~least], rows - int(least.sum()))
    return counts
