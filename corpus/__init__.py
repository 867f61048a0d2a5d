"""Text to batches: tokenizers, shards, packing, masking. Needs numpy only; no torch."""

from .batches import Batch, BatchStream, validation_batches
from .masking import Masking
from .packing import RowIndex
from .shards import Corpus, ShardWriter

__all__ = ["Batch", "BatchStream", "Corpus", "Masking", "RowIndex", "ShardWriter", "validation_batches"]
