"""A corpus at a URL: fetched once, checked against its manifest, and the same batches as from a folder."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from clozebert.corpus import BatchStream, Corpus, Masking, Mixture
from clozebert.corpus.shards import open_split
from clozebert.utils.errors import UserError
from clozebert.utils.files import sha256_of_file

from .conftest import Written, write_corpus

URL = "memory://bucket/corpus"


@pytest.fixture
def uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """A corpus of both splits, in a folder and at URL; the user's cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    written = write_corpus(tmp_path / "corpus", [70, 5, 200, 31] * 20, shard_tokens=997)
    held_out = write_corpus(tmp_path / "held_out", [50], seed=1)
    (held_out.directory / "train").rename(written.directory / "validation")
    for path in written.directory.rglob("*.*"):
        name = path.relative_to(written.directory).as_posix()
        fsspec.filesystem("memory").pipe_file(f"/bucket/corpus/{name}", path.read_bytes())
    yield written
    MemoryFileSystem.store.clear()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are fetched."""
    names: list[str] = []
    before = MemoryFileSystem.open

    def counting(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        names.append(path.rsplit("/", 1)[-1])
        return before(self, path, *args, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "open", counting)
    return names


def test_a_cache_that_cannot_be_is_named(uploaded: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=rf"^{URL} is copied to .*file/clozebert/corpora/.* \(set XDG_CACHE_HOME"):
        Corpus(URL)


def test_the_batches_are_those_of_the_folder(uploaded: Written, opened: list[str]) -> None:
    options: dict[str, Any] = {"max_seq_length": 80, "global_batch_size": 6, "masking": Masking(), "seed": 3}
    remote, local = Corpus(URL), uploaded.corpus
    assert remote.fingerprint == local.fingerprint
    one, other = (BatchStream(corpus, **options).batch(7) for corpus in (remote, local))
    np.testing.assert_array_equal(one.input_ids, other.input_ids)
    np.testing.assert_array_equal(one.masked_positions, other.masked_positions)
    fetched = [name for name in opened if name.endswith(".bin")]
    assert len(fetched) == len(set(fetched)) + 3 > 10, "both splits have documents.bin and a first shard"
    opened.clear()
    mixture = Mixture([URL, str(uploaded.directory)])
    assert mixture.shares == [0.5, 0.5]
    assert mixture.names == ["corpus-1", "corpus-2"]
    assert mixture.validation["corpus-1"].num_tokens == 50
    assert not [name for name in opened if name.endswith(".bin")], "nothing is fetched twice"
    assert open_split(URL, "test") is None
    folder = remote.directory
    assert sorted(path.name for path in (folder / "train").iterdir() if path.is_file()) == sorted(
        path.name for path in (uploaded.directory / "train").iterdir() if path.is_file()
    )


def test_the_manifest_has_the_hash_of_every_file(uploaded: Written) -> None:
    manifest = uploaded.corpus.manifest
    digests = dict(manifest["files"])
    for shard in manifest["shards"]:
        digests |= shard["files"]
    folder = uploaded.directory / "train"
    assert digests == {path.name: sha256_of_file(path) for path in folder.glob("*.bin")}


@pytest.mark.parametrize("name", ["tokens-00001.bin", "documents.bin"])
def test_a_file_that_was_changed_is_refused_and_the_rest_kept(uploaded: Written, name: str, opened: list[str]) -> None:
    system = fsspec.filesystem("memory")
    path = f"/bucket/corpus/train/{name}"
    right = system.cat_file(path)
    system.pipe_file(path, right[:-1] + bytes([right[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{name} is not the file that the manifest names"):
        Corpus(URL)
    system.pipe_file(path, right)
    before = opened.count("documents.bin")
    assert Corpus(URL).num_tokens == uploaded.corpus.num_tokens
    again = opened.count("documents.bin") - before
    assert again == (2 if name == "documents.bin" else 1), "what had come is not fetched again; validation comes now"


def test_a_copy_that_was_damaged_since_is_to_be_deleted(uploaded: Written) -> None:
    """Preparing the corpus again gives the same bytes, and so the same damaged copy."""
    folder = Corpus(URL).directory
    (folder / "train" / "documents.bin").write_bytes(b"")
    with pytest.raises(UserError, match="if this is the cached copy of a URL, delete the copy"):
        Corpus(URL)
    shutil.rmtree(folder)
    assert Corpus(URL).num_tokens == uploaded.corpus.num_tokens


def test_a_url_of_this_machine_is_mapped_in_place(uploaded: Written) -> None:
    assert Corpus(f"file://{uploaded.directory}").folder == uploaded.directory / "train"


def test_what_is_wrong_with_a_url_is_said(uploaded: Written) -> None:
    with pytest.raises(FileNotFoundError, match="memory://bucket/none holds no prepared corpus"):
        Corpus("memory://bucket/none")
    with pytest.raises(ValueError, match="the corpus nonsense://x: Protocol not known"):
        Corpus("nonsense://x")
    with pytest.raises(ValueError, match=r"split='test' is not in the corpus.*it has train, validation"):
        Corpus(URL, "test")


def test_the_row_index_of_a_fetched_corpus_stays_with_it(uploaded: Written) -> None:
    remote = Corpus(URL)
    BatchStream(remote, max_seq_length=80, global_batch_size=2, masking=Masking(), seed=0).batch(0)
    assert list((remote.folder).glob("rows-80-*"))
    shutil.rmtree(remote.directory)
    assert Corpus(URL).num_documents == remote.num_documents
