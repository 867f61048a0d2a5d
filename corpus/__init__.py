"""Text to batches: tokenizers, shards, packing, masking. Needs no torch.

What each file does, in the order in which text passes through them:

    readers/        inputs: files, folders, globs, datasets, installed packages (input_files)
                    formats: the documents of a file (compression, binary_files, xml_texts)
                    tables: CSV, TSV, JSON, Parquet, Arrow, datasets (table_file, delimited, json_records,
                    columnar, columns); reading_flags: the flags of all programs that read
    tokens          tokenizer: trains and loads; encoding: texts to ids and word starts
    vocabulary/     changes: extends and trims a tokenizer; merges: what to add
    preparation/    pipeline: the flags; prepare: the work (duplicates, parallel, parts)
    on disk         shards: writes and reads a corpus (manifest, integrity, remote)
    batches         batches: the rows of a step (batch_size, packing, masking, mixtures, vocabulary_sample,
                    randomness); text_sample: the rows that are counted before training
    demo/           the demonstration's corpus (installed_python) and its labelled data (tasks)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch_size import BatchSize
    from .batches import Batch, BatchStream, ValidationBatches
    from .masking import Masking
    from .mixtures import Mixture
    from .packing import RowIndex
    from .shards import Corpus, ShardWriter

_MODULE_OF_NAME = {
    "Batch": "batches",
    "BatchSize": "batch_size",
    "BatchStream": "batches",
    "Corpus": "shards",
    "Masking": "masking",
    "Mixture": "mixtures",
    "RowIndex": "packing",
    "ShardWriter": "shards",
    "ValidationBatches": "batches",
}

__all__ = ["Batch", "BatchSize", "BatchStream", "Corpus", "Masking", "Mixture", "RowIndex", "ShardWriter",
           "ValidationBatches"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
