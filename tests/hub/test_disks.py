"""Disks that are full or closed, for real: one line, and nothing half-done."""

import contextlib
import errno
import os
import shutil
import subprocess

import pytest
from natives import make_native
from saved_models import save

from clozebert.hub import publishing
from clozebert.hub.convert import convert_folder
from clozebert.hub.publishing import publish
from clozebert.hub.space import write_space
from clozebert.hub.verification import Verification


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Folders to read from, on a disk that has room."""
    home = tmp_path_factory.mktemp("sources")
    make_native("bert", "BertForMaskedLM").save_pretrained(home / "native")
    return {"run": save(home / "run"), "native": home / "native"}


@pytest.fixture
def calls(sources, monkeypatch):
    """Everything here that writes a folder, as a function of that folder."""
    monkeypatch.setattr(publishing, "verify_folder", lambda folder: Verification(["AutoModel"], {}, []))
    return {
        "publish": lambda folder: publish(sources["run"], "org/name", dry_run=True, output_dir=folder),
        "convert": lambda folder: convert_folder(sources["native"], folder, to="clozebert"),
        "space": lambda folder: write_space(folder, "org/name"),
    }


@contextlib.contextmanager
def mounted(folder, options):
    """A small file system of its own, where we may mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        done = False
    if not done:
        pytest.skip("mounting a file system needs rights that are not here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def closed(tmp_path):
    """A folder that cannot be written to: by its mode, which does not bind root, or by how it is mounted."""
    if os.geteuid() == 0:
        with mounted(tmp_path / "closed", "ro") as folder:
            yield folder
        return
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    yield folder
    folder.chmod(0o755)


def message_of(call):
    with pytest.raises(ValueError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


posix = pytest.mark.skipif(os.name != "posix", reason="limits, modes and mounts are POSIX")


@posix
@pytest.mark.parametrize("name", ["publish", "convert", "space"])
def test_full_disk(name, calls, tmp_path):
    with mounted(tmp_path / "small", "size=8k") as disk:
        assert "cannot be written (No space left" in message_of(lambda: calls[name](disk / "new"))
        assert list(disk.iterdir()) == []
        # A folder that was there before stays, empty as it was.
        (disk / "old").mkdir()
        message_of(lambda: calls[name](disk / "old"))
        assert [path.name for path in disk.rglob("*")] == ["old"]


@posix
@pytest.mark.parametrize("name", ["publish", "convert"])
def test_file_that_may_not_grow(name, calls, tmp_path):
    """By a limit on this process, which needs no rights; met in the middle of the weights."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        assert "cannot be written (File too large" in message_of(lambda: calls[name](tmp_path / "new"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "new").exists()
    calls[name](tmp_path / "new")  # and with room it works


@posix
@pytest.mark.parametrize("name", ["publish", "convert", "space"])
def test_closed_folder(name, calls, closed):
    shown = message_of(lambda: calls[name](closed / "new"))
    assert "is not a folder to which you may write" in shown
    assert str(closed / "new") in shown
    assert list(closed.iterdir()) == []


@posix
def test_closed_folder_can_be_published_and_converted(calls, sources, closed, tmp_path, monkeypatch):
    if os.geteuid() == 0:
        subprocess.run(["mount", "-o", "remount,rw", str(closed)], check=True)
    else:
        closed.chmod(0o755)
    for name in ("run", "native"):
        shutil.copytree(sources[name], closed / name)
        monkeypatch.setitem(sources, name, closed / name)
    if os.geteuid() == 0:
        subprocess.run(["mount", "-o", "remount,ro", str(closed)], check=True)
    else:
        for path in (closed / "run", closed / "native", closed):
            path.chmod(0o555)
    for name in ("publish", "convert"):
        calls[name](tmp_path / name)
        assert (tmp_path / name / "model.safetensors").is_file()
    if os.geteuid() != 0:
        for path in (closed / "run", closed / "native", closed):
            path.chmod(0o755)


def test_no_room_for_the_temporary_copy(sources, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "as the system says", "place")

    monkeypatch.setattr(publishing, "write_fingerprint", fail)
    assert "TMPDIR or --output_dir" in message_of(lambda: publish(sources["run"], "org/name", dry_run=True))


def test_overwriting_replaces_the_model_and_nothing_else(calls, sources, tmp_path):
    """Weights in shards would otherwise stay beside the new ones, and a reader takes one of the two."""
    folder = tmp_path / "folder"
    folder.mkdir()
    of_model = ("model-00001-of-00002.safetensors", "model.safetensors.index.json")
    for name in (*of_model, "finetuning_settings.json", "fingerprint.json", "notes.txt", "model.txt"):
        (folder / name).write_text("old")
    with pytest.raises(ValueError, match=r"output_dir=.* is not empty"):
        calls["convert"](folder)
    convert_folder(sources["native"], folder, to="clozebert", overwrite=True)
    names = {path.name for path in folder.iterdir()}
    assert {"notes.txt", "model.txt", "model.safetensors", "config.json"} <= names
    assert not {name for name in names if "-of-" in name or "index" in name or "fine" in name or "finger" in name}
    assert (folder / "notes.txt").read_text() == "old"
