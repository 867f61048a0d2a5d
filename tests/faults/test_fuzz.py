"""Readers and settings on anything: what they raise is a person's error, or what their callers turn into one."""

import contextlib
import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clozebert.configuration import ClozeBertConfig, load_recipe
from clozebert.corpus.manifest import parse_manifest
from clozebert.corpus.readers.inputs import Reader
from clozebert.hub.card import read_card
from clozebert.training.run_settings import make_config, split_settings
from clozebert.utils.errors import UserError
from clozebert.utils.untrusted import check_model_folder

FAST, DEEP = 200, 10_000
SUFFIXES = (
    ".txt",
    ".jsonl",
    ".json",
    ".csv",
    ".tsv",
    ".parquet",
    ".txt.gz",
    ".jsonl.gz",
    ".txt.xz",
    ".txt.zst",
    ".txt.bz2",
)
# Pieces of the formats, so that more than the first byte is read.
PIECES = st.sampled_from([
    b"text", b"label", b'"', b'""', b",", b";", b"\t", b"\n", b"\r", b"\r\n", b"{", b"}", b"[", b"]", b":", b" ",
    b'{"text": "a b"}\n', b"null", b"true", b"1e999", b"-0", b"9" * 5000, b"\\u0000", b"\\ud800", b"\xff",
    b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"PAR1", b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08", b"\xfd7zXZ\0", b"BZh9",
    gzip.compress(b"text\na\n"), "漢字".encode(),
])  # fmt: skip
BYTES = st.one_of(st.binary(max_size=400), st.lists(PIECES, max_size=40).map(b"".join))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.just(10**30)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
CONFIG_KEYS = sorted(ClozeBertConfig.field_names())
RECIPE_KEYS = [
    "architecture",
    "model",
    "max_steps",
    "learning_rate",
    "corpus",
    "phases",
    "global_batch_size",
    "warmup_steps",
]


def deep_and_fast(*strategies: Any) -> Callable[[Callable[..., None]], Any]:
    """`given`, with some hundreds of examples, and under the marker `faults` with 10,000, new ones in each run."""
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]

    def decorate(function: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("number", [FAST, pytest.param(DEEP, marks=pytest.mark.faults)])
        def test(number: int, figure: Callable[[str, Any], None]) -> None:
            parent = settings.get_profile("random") if number == DEEP else None
            # `given` anew: a test takes settings only once.
            settings(parent, max_examples=number, suppress_health_check=quiet, database=None)(
                given(*strategies)(function)
            )()
            if number == DEEP:
                name = function.__name__.removeprefix("test_").replace("_", " ")
                figure(f"fuzzing, {name}", f"0 unexpected exceptions in {number:,} cases")

        return test

    return decorate


@deep_and_fast(st.sampled_from(SUFFIXES), BYTES, st.sampled_from(["blank_line", "line", "file"]), st.booleans())
def test_readers(suffix: str, content: bytes, separator: str, skips: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        path.write_bytes(content)
        options = {"document_separator": separator, "on_bad_text": "skip" if skips else "error"}
        try:
            reader = Reader([path], **options)
            found = list(reader.texts())
        except UserError:
            return
        assert all(isinstance(text, str) for text in found)
        assert reader.sources[0].documents == len(found) + reader.sources[0].bad_text


@deep_and_fast(st.one_of(st.binary(max_size=300), VALUES.map(lambda value: json.dumps(value).encode())))
def test_manifests(content: bytes) -> None:
    with pytest.raises(UserError):
        parse_manifest(content, where="manifest.json")


@deep_and_fast(st.dictionaries(st.sampled_from(CONFIG_KEYS), VALUES, min_size=1, max_size=4))
def test_configurations(values: dict[str, Any]) -> None:
    try:
        make_config({**values})
    except UserError:
        return


@deep_and_fast(
    st.one_of(st.text(max_size=200), st.dictionaries(st.sampled_from(RECIPE_KEYS), VALUES, max_size=4).map(json.dumps))
)
def test_recipes(content: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.yaml"
        path.write_text(content, encoding="utf-8", errors="surrogatepass")
        with contextlib.suppress(ValueError):  # which `split_settings` turns into a person's error
            load_recipe(str(path))
        try:
            split_settings(str(path), {})
        except UserError:
            return


@deep_and_fast(BYTES)
def test_cards(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "README.md").write_bytes(b"---\n" + content + b"\n---\n# A model\n")
        try:
            read_card(Path(folder))
        except UserError:
            return


@deep_and_fast(
    st.sampled_from(["config.json", "tokenizer_config.json", "model.safetensors.index.json"]), st.one_of(BYTES, VALUES)
)
def test_model_folders(name: str, content: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        (Path(folder) / name).write_bytes(content)
        try:
            check_model_folder(folder)
        except UserError:
            return
