"""Names that lead out of a folder, in manifests, indexes, links, configurations: nothing is read or written there."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import load_file, save_file

from clozebert.corpus import Corpus
from clozebert.corpus.manifest import hash_of
from clozebert.corpus.tokenizer import load_tokenizer
from clozebert.finetuning.models import load_auto_tokenizer, load_config
from clozebert.hub.demo_page import load_subject
from clozebert.hub.loading import find_folder, load_clozebert
from clozebert.hub.publishing import publish
from clozebert.training.initialization.initial_model import load_configuration
from clozebert.training.scoring import load_masked_lm
from clozebert.utils.errors import UserError, as_user_errors
from clozebert.utils.untrusted import is_plain_name, is_within

URL = "memory://bucket/corpus"
HOSTILE = [
    "../evil.pth", "../../evil.pth", "/evil.pth", "sub/evil.pth", "..\\evil.pth", "C:\\evil.pth", "C:evil.pth",
    "c:/evil", "\\\\host\\share\\evil", "tokens-00000.bin\0", "..", ".", "", "evil\n.pth", "~/evil",
    "./tokens-00000.bin", "tokens-00000.bin/../../evil", "\u202etokens", "\ud800evil",
    "a" * 300, None, 7, ["x"], {"a": 1},
]  # fmt: skip


def test_plain_names() -> None:
    assert all(
        is_plain_name(name) for name in ("tokens-00000.bin", "model-00001-of-00002.safetensors", "größe.txt", "~")
    )
    assert not [name for name in HOSTILE if is_plain_name(name)]


def put_name(manifest: dict[str, Any], place: str, name: Any) -> None:
    """Rename a file in the manifest, its hash and all else left right."""
    files = manifest["files"] if place == "files" else manifest["shards"][0]["files"]
    first = next(iter(files))
    files[name if isinstance(name, str) else json.dumps(name)] = files.pop(first)


def hashed(manifest: dict[str, Any]) -> bytes:
    """The manifest as its writer would write it: a stranger's own hash fits."""
    return json.dumps({**manifest, "manifest_sha256": hash_of(manifest)}).encode("ascii")


def upload(corpus: Path, manifest: dict[str, Any]) -> list[str]:
    """Put a corpus at URL; the list is of the files that are opened there from then on."""
    system = fsspec.filesystem("memory")
    for path in corpus.rglob("*.*"):
        system.pipe_file(f"/bucket/corpus/{path.relative_to(corpus).as_posix()}", path.read_bytes())
    system.pipe_file("/bucket/corpus/train/manifest.json", hashed(manifest))
    system.pipe_file("/bucket/evil.pth", b"evil")
    system.pipe_file("/bucket/corpus/train/evil.pth", b"evil")
    return []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The paths that are opened at URL. The user's cache lies at tmp_path/home/cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    names: list[str] = []
    before = MemoryFileSystem.open

    def counting(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        names.append(path)
        return before(self, path, *args, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "open", counting)
    yield names
    MemoryFileSystem.store.clear()


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("place", ["files", "shards"])
@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_in_a_manifest_is_refused_before_a_byte_is_fetched(
    corpus: Path, tmp_path: Path, opened: list[str], place: str, name: Any
) -> None:
    path = corpus / "train" / "manifest.json"
    manifest = json.loads(path.read_text())
    put_name(manifest, place, name)
    upload(corpus, manifest)
    before = files_below(tmp_path)
    opened.clear()
    with pytest.raises(UserError, match=r"which is not a file of its folder|must be those of"):
        Corpus(URL)
    assert [one for one in opened if not one.endswith("manifest.json")] == []
    assert files_below(tmp_path) == before, "nothing was written, not even an empty folder"
    path.write_bytes(hashed(manifest))
    with pytest.raises(UserError, match=r"which is not a file of its folder|must be those of"):
        Corpus(corpus)


@pytest.mark.parametrize("digest", [None, "", "0" * 63, "Z" * 64, 5, ["a"], "0" * 64])
@pytest.mark.parametrize("place", ["files", "shards"])
def test_a_null_or_other_hash_never_skips_the_check(
    corpus: Path, tmp_path: Path, opened: list[str], place: str, digest: Any
) -> None:
    path = corpus / "train" / "manifest.json"
    manifest = json.loads(path.read_text())
    files = manifest["files"] if place == "files" else manifest["shards"][0]["files"]
    files[next(iter(files))] = digest
    upload(corpus, manifest)
    path.write_bytes(hashed(manifest))
    for source in (URL, corpus):
        with pytest.raises(UserError, match=r"SHA-256"):
            Corpus(source)


@pytest.mark.parametrize("key", ["files", "shards", "hash"])
def test_a_missing_hash_never_skips_the_check(corpus: Path, opened: list[str], key: str) -> None:
    path = corpus / "train" / "manifest.json"
    manifest = json.loads(path.read_text())
    if key == "files":
        del manifest["files"]
    elif key == "shards":
        del manifest["shards"][1]["files"]
    else:
        manifest["shards"][1]["files"].popitem()
    upload(corpus, manifest)
    path.write_bytes(hashed(manifest))
    for source in (URL, corpus):
        with pytest.raises(UserError, match="files"):
            Corpus(source)


def test_a_server_that_sends_more_than_the_manifest_says_is_cut_off(
    corpus: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    upload(corpus, json.loads((corpus / "train" / "manifest.json").read_text()))
    fsspec.filesystem("memory").pipe_file("/bucket/corpus/train/tokens-00000.bin", bytes(1 << 26))
    monkeypatch.setattr("clozebert.corpus.remote._BLOCK", 1 << 16)
    written = []
    replace = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (written.append(os.fstat(number).st_size), replace(number)))
    with pytest.raises(UserError, match="is not the file that the manifest names"):
        Corpus(URL)
    assert max(written) < 1 << 17


@pytest.mark.parametrize("name", ["tokens-00001.bin", "documents.bin", "manifest.json"])
def test_a_link_out_of_a_corpus_is_not_followed(corpus: Path, tmp_path: Path, name: str) -> None:
    path = corpus / "train" / name
    shutil.move(path, tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="is a link that leaves its folder"):
        Corpus(corpus)
    # Within the folder a link is followed.
    path.unlink()
    shutil.move(tmp_path / "outside", corpus / "train" / "inside")
    path.symlink_to("inside")
    assert Corpus(corpus).num_documents == 60


def test_a_snapshot_of_the_hubs_cache_is_within_its_repository(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "abc"
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (repository / "blobs" / "123").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/123")
    (snapshot / "evil").symlink_to("../../../other")
    (tmp_path / "other").write_text("x")
    assert is_within(snapshot / "config.json", snapshot)
    assert not is_within(snapshot / "evil", snapshot)


# Models --------------------------------------------------------------------------------------------------------------

OPENERS: dict[str, Callable[[Path], Any]] = {
    "find_folder (convert, grow, demo-app)": find_folder,
    "publish": lambda folder: publish(folder, "org/name", dry_run=True),
    "load_clozebert": load_clozebert,
    "demo-app": as_user_errors(Exception)(lambda folder: load_subject(str(find_folder(folder)))),
    "evaluate": lambda folder: load_masked_lm(str(folder), device="cpu"),
    "pretrain --model_name_or_path": lambda folder: load_configuration(str(folder)),
    "fine-tune": lambda folder: load_config(str(folder)),
    "predict": lambda folder: load_auto_tokenizer(str(folder), None),
    "prepare-corpus --tokenizer_name": lambda folder: load_tokenizer(str(folder)),
}


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_an_index_that_names_files_elsewhere_is_refused(model: Path, tmp_path: Path, opener: Callable) -> None:
    outside = tmp_path / "outside.safetensors"
    shutil.move(model / "model.safetensors", outside)
    tensors = load_file(outside)
    for name in ("../outside.safetensors", str(outside), "sub/../../outside.safetensors", "a\0", None, 7):
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(UserError, match="which is not a file of its folder"):
            opener(model)
    for content in ("[]", "{}", '{"weight_map": 5}', '{"weight_map": {}}', "{", "\xff", "[" * 100_000):
        (model / "model.safetensors.index.json").write_text(content, encoding="latin-1")
        with pytest.raises(UserError, match=r"index\.json"):
            opener(model)


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "README.md"])
def test_a_link_out_of_a_model_is_not_followed(model: Path, tmp_path: Path, opener: Callable, name: str) -> None:
    if not (model / name).exists():
        (model / name).write_text("# A model\n")
    shutil.move(model / name, tmp_path / "outside")
    (model / name).symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="is a link that leaves its folder"):
        opener(model)


def test_a_picture_that_is_a_link_is_not_published(model: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a key")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "secret.yaml").write_text("a key")
    for link, target in (("loss_curve.png", "secret"), ("LICENSE", "secret"), (".eval_results", "results")):
        (model / link).symlink_to(tmp_path / target)
        with pytest.raises(UserError, match="is a link that leaves its folder"):
            publish(model, "org/name", dry_run=True, output_dir=tmp_path / "out")
        assert not (tmp_path / "out").exists()
        (model / link).unlink()


AUTO_MAPS = ["evil.Evil", "../evil.Evil", "/tmp/evil.Evil", "other/repository--evil.Evil", ["evil.Evil", None], 7]


@pytest.mark.parametrize("reference", AUTO_MAPS, ids=ascii)
def test_code_that_an_auto_map_names_is_not_run(
    model: Path, tmp_path: Path, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the folder nor beside it, by any of our openers, whatever a person would answer to a question."""
    ran = tmp_path / "ran"
    for place in (model, tmp_path):
        (place / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Evil: pass\n")
    kinds = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoTokenizer")
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((model / name).read_text())
        values["auto_map"] = dict.fromkeys(kinds, reference)
        values["tokenizer_class"] = "Evil"
        (model / name).write_text(json.dumps(values))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    failed = {}
    for name, opener in OPENERS.items():
        try:
            opener(model)
        except UserError:
            pass
        except Exception as error:
            failed[name] = repr(error)
    assert not ran.exists()
    assert failed == {}


def test_a_published_copy_of_a_folder_holds_our_code_alone(model: Path, tmp_path: Path) -> None:
    """`publish` runs the copy's code in a process of its own; none of the folder's own files get there."""
    ran = tmp_path / "ran"
    for path in model.glob("*.py"):
        path.write_text(f"open({str(ran)!r}, 'w').close()\n")
    (model / "extra.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    publish(model, "org/name", form="bundle", dry_run=True, output_dir=tmp_path / "out")
    assert not ran.exists()
    assert not (tmp_path / "out" / "extra.py").exists()
    assert not [path for path in (tmp_path / "out").glob("*.py") if str(ran) in path.read_text()]


def test_weights_of_a_shard_that_two_names_share_load_once(model: Path) -> None:
    """The check of an index refuses nothing that is right."""
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    for number, names in enumerate((list(tensors)[::2], list(tensors)[1::2]), start=1):
        save_file(
            {name: tensors[name] for name in names},
            model / f"model-0000{number}-of-00002.safetensors",
            {"format": "pt"},
        )
    shards = {name: f"model-0000{1 + place % 2}-of-00002.safetensors" for place, name in enumerate(tensors)}
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    assert load_masked_lm(str(model), device="cpu").config.model_type == "clozebert"
