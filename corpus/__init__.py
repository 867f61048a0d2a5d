"""Text to batches: tokenizers, shards, packing, masking. Needs numpy only; no torch."""

from .batch_size import BatchSize
from .batches import Batch, BatchStream, ValidationBatches
from .masking import Masking
from .mixtures import Mixture
from .packing import RowIndex
from .shards import Corpus, ShardWriter

__all__ = ["Batch", "BatchSize", "BatchStream", "Corpus", "Masking", "Mixture", "RowIndex", "ShardWriter",
           "ValidationBatches"]  # fmt: skip
