"""Reads rows of tables whose columns have types: Parquet, Arrow, and datasets, from the Hub (streamed) or a folder."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ...utils.errors import MissingFileError, MissingPackageError, UserError, first_line
from ...utils.untrusted import file_beside, read_json_object
from .compression import bare_suffix, open_decompressed
from .table_file import BadText, Row, TableFile, refuse_repeated

_ROWS_AT_ONCE = 64  # a row may be a whole book
# The first bytes of an Arrow file, and the last ones of an Arrow stream.
_ARROW_FILE, _END_OF_STREAM = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"


class _Opened(NamedTuple):
    """An open file.

    Attributes:
        handle: closes it.
        schema: the Arrow schema.
        batches: from the wanted columns to batches of rows, each with the number of bytes read by its end.
    """

    handle: Any
    schema: Any
    batches: Callable[[list[str]], Iterator[tuple[Any, int]]]


class ColumnarFile(TableFile):
    """A Parquet or Arrow file; `Row.line` is the number of the row."""

    unit = "row"

    @cached_property
    def columns(self) -> list[str]:
        with self._opened() as file:
            names = list(file.schema.names)
        refuse_repeated(names, self.source)
        return names

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[Row | BadText]:
        wanted = self.columns if columns is None else list(columns)
        number = 0
        with self._opened() as file:
            classes = _classes_of_features(_features_in(file.schema.metadata))
            batches = file.batches(wanted)
            while True:
                try:
                    batch, position = next(batches, (None, 0))
                    rows = [] if batch is None else batch.to_pylist()
                except UserError:
                    raise
                except Exception as error:
                    of_arrow = type(error).__module__.startswith("pyarrow")
                    is_damaged = of_arrow or isinstance(error, (OSError, UnicodeDecodeError))
                    # Else a value that Python does not have, such as a date in the year 10,000.
                    what = "is damaged" if is_damaged else "holds a value that cannot be read"
                    raise UserError(f"{self.source} {what} in or after row {number + 1}: {first_line(error)}") from None
                if batch is None:
                    break
                self.bytes_read = position
                for values in rows:
                    number += 1
                    values |= {name: _named(values[name], classes[name]) for name in classes if name in values}
                    yield Row(number, values)

    @contextmanager
    def _opened(self) -> Iterator[_Opened]:
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingPackageError(f"reading {self.source} needs pyarrow: pip install pyarrow") from None
        with open_decompressed(self.source):  # for its readable error messages
            pass
        kind, open_file = ("a Parquet", _open_parquet) if _is_parquet(self.source) else ("an Arrow", _open_arrow)
        try:
            file = open_file(self.source)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(f"{self.source} is not {kind} file: {error}") from None
        with file.handle:
            yield file


def _is_parquet(path: str) -> bool:
    return bare_suffix(path) == ".parquet"


def _open_parquet(path: str) -> _Opened:
    from pyarrow import parquet

    file, size = parquet.ParquetFile(path, page_checksum_verification=True), os.path.getsize(path)
    num_rows = file.metadata.num_rows

    def batches(wanted: list[str]) -> Iterator[tuple[Any, int]]:
        number = 0
        for batch in file.iter_batches(columns=wanted, batch_size=_ROWS_AT_ONCE):
            number += batch.num_rows
            yield batch, size * number // max(num_rows, 1)
        if number != num_rows:
            raise UserError(f"{path} is damaged: {number} rows instead of {num_rows}")

    return _Opened(file, file.schema_arrow, batches)


def _open_arrow(path: str) -> _Opened:
    """An Arrow stream, as `save_to_disk` of `datasets` writes it, or an Arrow file, as Feather does."""
    import pyarrow as pa

    memory = pa.memory_map(path)
    if memory.read(len(_ARROW_FILE)) == _ARROW_FILE:
        file = pa.ipc.open_file(memory)
        schema, parts = file.schema, map(file.get_batch, range(file.num_record_batches))
    else:
        memory.seek(max(0, memory.size() - len(_END_OF_STREAM)))
        if memory.read() != _END_OF_STREAM:
            raise ValueError("its end is missing")
        memory.seek(0)
        stream = pa.ipc.open_stream(memory)
        schema, parts = stream.schema, iter(stream)

    def batches(wanted: list[str]) -> Iterator[tuple[Any, int]]:
        there = [name for name in wanted if name in schema.names]
        for part in parts:
            for first in range(0, part.num_rows, _ROWS_AT_ONCE):
                yield part.select(there).slice(first, _ROWS_AT_ONCE), memory.tell()

    return _Opened(memory, schema, batches)


def files_of_saved_dataset(folder: Path) -> list[Path] | None:
    """The files of a folder that `save_to_disk` of `datasets` wrote, in order; None if it is no such folder.

    Of several splits, those of the train split, as of a dataset on the Hub.
    """
    if not _is_saved_dataset(folder):
        return None
    if (folder / "dataset_dict.json").is_file():
        folder /= "train"
        if not _is_saved_dataset(folder):
            raise UserError(f"{folder.parent} is a saved dataset without a train split: name the folder of one split")
    state = folder / "state.json"
    entries = read_json_object(state).get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries or []]
    return [file_beside(folder, name, where=state) for name in names]


def _is_saved_dataset(folder: Path) -> bool:
    both = ("state.json", "dataset_info.json")
    return (folder / "dataset_dict.json").is_file() or all((folder / name).is_file() for name in both)


def _features_in(metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    """What `datasets` recorded about the columns of a file, parsed from JSON; empty if it recorded nothing."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


class DatasetTable(TableFile):
    """A split of a dataset; class numbers become class names."""

    unit = "row"

    def __init__(self, source: str, records: Any) -> None:
        super().__init__(source)
        self._records = records
        self._features = getattr(records, "features", None) or {}

    @cached_property
    def columns(self) -> list[str]:
        return list(self._features) or list(next(iter(self._records), {}))

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[Row | BadText]:
        wanted = self.columns if columns is None else columns
        classes = _classes_of_features(self._features)
        for number, record in enumerate(self._records, start=1):
            yield Row(number, {name: _named(record.get(name), classes.get(name)) for name in wanted})


def _classes_of_features(features: Any) -> dict[str, list[str]]:
    """The class names of each column of class numbers, or of lists of them (`ner_tags`)."""
    found = {name: _classes_of(feature) for name, feature in features.items()}
    return {name: classes for name, classes in found.items() if classes}


def _classes_of(feature: Any) -> list[str] | None:
    """The class names of one column; `feature` comes from `datasets`, as an object or parsed from JSON."""
    if isinstance(feature, list):  # the older notation for a list
        return _classes_of(feature[0]) if feature else None
    kind, names, inner = (
        feature.get(name) if isinstance(feature, dict) else getattr(feature, name, None)
        for name in ("_type", "names", "feature")
    )
    if kind == "ClassLabel":
        return names
    return None if inner is None else _classes_of(inner)


def _named(value: Any, classes: list[str] | None) -> Any:
    """Class numbers as names, also inside lists."""
    if classes is None:
        return value
    if isinstance(value, list):
        return [_named(item, classes) for item in value]
    if not isinstance(value, int):
        return value
    if value >= len(classes):
        raise UserError(f"class number {value}, but the data name {len(classes)} classes: {', '.join(classes[:9])}")
    return classes[value] if value >= 0 else None  # -1 marks the hidden labels of a test split


def open_dataset(name: str, configuration: str | None, *, split: str | None = None) -> dict[str, TableFile]:
    """The splits of a dataset on the Hub, or one of them, which is streamed if the machine is online.

    Args:
        name: on the Hub, or a folder that `load_dataset` or `load_from_disk` of `datasets` reads.

    Raises:
        MissingPackageError: `datasets` is not installed.
        MissingFileError: the dataset does not exist or cannot be loaded.
    """
    try:
        import datasets
    except ImportError:
        raise MissingPackageError("a dataset of the Hub needs datasets: pip install datasets") from None
    from huggingface_hub import HfApi, constants

    is_local = Path(name).exists()
    try:
        if _is_saved_dataset(Path(name)):
            if configuration is not None:
                raise ValueError(f"a saved dataset has no configuration {configuration!r}; leave it out")
            saved = datasets.load_from_disk(name)
            splits = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
            splits = splits if split is None else {split: splits[split]}
            return {part: DatasetTable(f"{name} ({part})", records) for part, records in splits.items()}
        if not constants.HF_HUB_OFFLINE and not is_local:
            HfApi().dataset_info(name, timeout=10)  # without this, an unknown name is retried for half a minute
        # Offline nothing can be streamed, but the cache may hold the dataset.
        is_streamed = split is not None and not constants.HF_HUB_OFFLINE
        loaded = datasets.load_dataset(name, configuration, split=split, streaming=is_streamed)
        if split is not None:
            return {split: DatasetTable(name, loaded)}
        return {part: DatasetTable(f"{name} ({part})", records) for part, records in loaded.items()}
    except Exception as error:  # connection, repository and format errors have no common type
        raise MissingFileError(f"the dataset {name} cannot be loaded: {first_line(error)}") from error
