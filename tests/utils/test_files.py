"""Files appear whole or not at all, and overwriting deletes what a program wrote and nothing else."""

import contextlib
import errno
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from clozebert.corpus.tokenizer import load_tokenizer
from clozebert.finetuning.resume import read_settings
from clozebert.utils.errors import ExistingFileError, UserError, UserFileError
from clozebert.utils.files import (
    INCOMPLETE,
    disk_errors,
    whole_file,
    whole_files,
    whole_folder,
    write_text,
    written_in,
)
from clozebert.utils.hub_names import refuse_unreachable
from clozebert.utils.output_folders import check_output_dir, folder_stays, remove_written
from clozebert.utils.untrusted import check_model_folder

PATTERNS = (r"checkpoint-\d+", r"(train|validation)/tokens-\d+\.bin", "latest")
WRITTEN = ("checkpoint-5/model/weights", "train/tokens-00000.bin", "latest")
MINE = ("checkpoint-notes/a", "checkpoint-5x", "train/notes.txt", "tokens-00000.bin", "my/train/tokens-1.bin")


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_only_what_a_program_wrote_is_found_and_deleted(tmp_path: Path) -> None:
    make(tmp_path, *WRITTEN, *MINE)
    found = {path.relative_to(tmp_path).as_posix() for path in written_in(tmp_path, PATTERNS)}
    assert found == {"checkpoint-5", "train/tokens-00000.bin", "latest"}
    remove_written(tmp_path, PATTERNS)
    assert files_of(tmp_path) == set(MINE)
    (tmp_path / "train" / "notes.txt").unlink()
    make(tmp_path, *WRITTEN)
    remove_written(tmp_path, PATTERNS)
    assert not (tmp_path / "train").exists()


def test_a_link_is_deleted_and_not_what_it_leads_to(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", "precious")
    (tmp_path / "out" / "train").mkdir(parents=True)
    (tmp_path / "out" / "checkpoint-3").symlink_to(tmp_path / "elsewhere")
    remove_written(tmp_path / "out", PATTERNS)
    assert not (tmp_path / "out" / "checkpoint-3").is_symlink()
    assert files_of(tmp_path / "elsewhere") == {"precious"}


def test_the_rule_for_output_folders(tmp_path: Path) -> None:
    out = tmp_path / "out"
    check_output_dir(out, written=PATTERNS)
    out.mkdir()
    check_output_dir(out, written=PATTERNS)
    make(out, "mine")
    with pytest.raises(ExistingFileError, match=r"output_dir=.*out is not empty; give --overwrite_output_dir"):
        check_output_dir(out, written=PATTERNS)
    check_output_dir(out, overwrite=True, written=PATTERNS)
    with pytest.raises(FileExistsError, match="is a file"):
        check_output_dir(out / "mine", overwrite=True)
    for url in ("s3://bucket/corpus", Path("s3://bucket/corpus")):
        with pytest.raises(UserError, match=f"output_dir={url} is a URL: give a folder of this machine"):
            check_output_dir(url)
    with pytest.raises(UserError, match="output_dir is empty: give a folder"):
        check_output_dir("", overwrite=True)


def test_an_output_folder_that_cannot_be_written_to_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir()
    check_output_dir(tmp_path / "closed" / "new" / "run")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "closed")  # as for another user
    for name, way in (("file/run", "file"), ("closed", "closed"), ("closed/new/run", "closed")):
        with pytest.raises(UserError, match=f"output_dir=.*{name}: .*{way} is not a folder to which you may write"):
            check_output_dir(tmp_path / name)
    check_output_dir(tmp_path / "open" / "run")


def test_an_output_folder_on_a_drive_that_is_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    monkeypatch.setattr(os.path, "isdir", lambda path: False)
    with pytest.raises(UserError, match=r"output_dir=.*run: .* is not a folder to which you may write"):
        check_output_dir(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("r\udcfcn", "utf-8"),
        ("r\u00c3\u00bcn", "latin-1"),  # rün, in a locale that reads its bytes otherwise
    ],
)
def test_an_output_folder_whose_name_libraries_cannot_write_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    """The first checkpoint ended the run: safetensors and tokenizers take a path as UTF-8."""
    monkeypatch.setattr(os, "fsencode", lambda path: str(path).encode(code, "surrogateescape"))
    with pytest.raises(UserError, match=r"output_dir='.* is no name in UTF-8: give another folder"):
        check_output_dir(tmp_path / name)
    check_output_dir(tmp_path / "run")


@pytest.mark.parametrize(
    ("given", "is_lost"),
    [
        ("checkpoint-5", True),
        ("checkpoint-5/model", True),
        ("train", True),
        ("", True),
        ("notes", False),
        ("..", False),
    ],
)
def test_an_input_is_never_deleted(tmp_path: Path, given: str, is_lost: bool) -> None:
    make(tmp_path, *WRITTEN, "notes/a")
    inputs = [("other", None), ("model", tmp_path / given)]
    if is_lost:
        with pytest.raises(UserError, match=r"overwrite_output_dir deletes .*, but model="):
            check_output_dir(tmp_path, overwrite=True, written=PATTERNS, inputs=inputs)
    else:
        check_output_dir(tmp_path, overwrite=True, written=PATTERNS, inputs=inputs)


def test_a_file_is_replaced_at_the_end_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.txt"
    write_text(path, "old\n")
    with contextlib.suppress(KeyError), whole_file(path) as file:
        file.write(b"half")
        file.flush()
        assert path.read_text() == "old\n"
        raise KeyError
    assert path.read_text() == "old\n"
    write_text(path, "nëw\r\n")
    assert path.read_bytes() == "nëw\r\n".encode()
    assert files_of(tmp_path) == {"sub/a.txt"}
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with contextlib.suppress(KeyError), whole_folder(folder) as building:
        make(building, "half")
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with whole_folder(folder) as building:
        make(building, "x", "y/z")
        assert building.name.startswith(INCOMPLETE)
        assert not folder.exists()
    assert files_of(folder) == {"x", "y/z"}
    refused = pytest.raises(ExistingFileError, match="was written by another program meanwhile")
    with refused, whole_folder(folder) as building:
        make(building, "other")
    assert files_of(folder) == {"x", "y/z"}
    with whole_folder(folder, replace=True) as building:
        make(building, "new")
    assert files_of(tmp_path) == {"a/new"}


def test_files_move_in_together_and_what_is_replaced_goes(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), whole_files(tmp_path / "none") as building:
        make(building, "half")
        raise KeyError
    assert not (tmp_path / "none").exists()
    make(tmp_path, *WRITTEN, *MINE)
    with contextlib.suppress(KeyError), whole_files(tmp_path, replacing=PATTERNS) as building:
        make(building, "half")
        raise KeyError
    assert files_of(tmp_path) == {*WRITTEN, *MINE}
    with whole_files(tmp_path, replacing=PATTERNS) as building:
        make(building, "train/tokens-00001.bin", "fresh")
    assert files_of(tmp_path) == {*MINE, "train/tokens-00001.bin", "fresh"}


def test_a_kill_while_old_files_are_deleted_brings_none_of_them_back(tmp_path: Path) -> None:
    make(tmp_path, "model.safetensors")
    write_text(tmp_path / "config.json", "old")
    child = os.fork()
    if not child:
        shutil.rmtree = lambda *_, **__: os._exit(9)
        with whole_files(tmp_path, replacing=["config.json", "model.safetensors"]) as building:
            make(building, "config.json")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with whole_files(tmp_path) as building:
        make(building, "other")
    assert files_of(tmp_path) == {"config.json", "other"}
    assert (tmp_path / "config.json").read_text() == "config.json"


def test_where_moving_fails_the_old_files_come_back(tmp_path: Path) -> None:
    make(tmp_path, *WRITTEN, "validation")  # a file where a folder is to come
    with pytest.raises(OSError), whole_files(tmp_path, replacing=PATTERNS) as building:
        make(building, "validation/tokens-00000.bin")
    assert files_of(tmp_path) == {*WRITTEN, "validation"}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "x"), "cannot be written"),
        (RuntimeError("write failed (os error 28)"), "cannot be written"),
        (PermissionError(errno.EACCES, "x", "there"), "there cannot be read or written"),
    ],
)
def test_a_disk_that_takes_no_more_is_a_persons_error(error: Exception, message: str) -> None:
    with pytest.raises(UserFileError, match=message), disk_errors(Path("here")):
        raise error
    with pytest.raises(KeyError), disk_errors(Path("here")):
        raise KeyError


def test_the_way_out_of_the_caller_replaces_a_general_one_and_no_other() -> None:
    for outer, inner, way_out in (
        ("go on", None, "go on"),
        ("go on", "ask", "ask"),
        (None, "ask", "ask"),
        (None, None, "free some space, or give another folder"),
    ):
        with (
            pytest.raises(UserFileError, match=f"^here cannot be written .*: {way_out}$"),
            disk_errors(Path("else"), way_out=outer),
            disk_errors(Path("here"), way_out=inner),
        ):
            raise OSError(errno.ENOSPC, "x")


def test_an_error_beside_a_folder_that_never_was_there_is_no_lost_folder(tmp_path: Path) -> None:
    """As on a second machine, where only the first one's main process writes."""
    with pytest.raises(KeyError), folder_stays(tmp_path / "run", way_out="start anew"):
        raise KeyError


@pytest.mark.parametrize(
    ("call", "number"), [("fsync", errno.EINVAL), ("fsync", errno.ENOTSUP), ("chmod", errno.EPERM)]
)
def test_a_file_system_that_cannot_flush_or_has_no_permissions_takes_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """As some of FUSE, SMB and WSL: a run ended at its first checkpoint."""

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    write_text(tmp_path / "a", "text")
    with whole_folder(tmp_path / "folder") as folder:
        make(folder, "train/a")
    assert files_of(tmp_path) == {"a", "folder/train/a"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_without_locks_what_a_killed_program_left_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for that of a running program, so a killed run could not be resumed."""
    import fcntl

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    make(tmp_path, f"{INCOMPLETE}checkpoint-2-01234567/model")
    check_output_dir(tmp_path)
    with whole_folder(tmp_path / "checkpoint-2"):
        pass
    assert (tmp_path / f"{INCOMPLETE}checkpoint-2-01234567").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="starts processes that are at the test's place")
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_programs_that_write_the_same_thing_leave_each_others_half_written_ones_alone(
    tmp_path: Path, kind: str
) -> None:
    """Each looks for left-overs whenever it begins. It was locked too late, and all failed."""

    def write_often() -> None:
        for number in range(200):
            if kind == "file":
                write_text(tmp_path / "target", str(number))
                continue
            with contextlib.suppress(KeyError), whole_folder(tmp_path / "target") as folder:
                (folder / "a").write_text("a")
                raise KeyError("so that nothing takes the name")

    context = multiprocessing.get_context("fork")
    programs = [context.Process(target=write_often) for _ in range(4)]
    for program in programs:
        program.start()
    for program in programs:
        program.join(60)
    assert [program.exitcode for program in programs] == [0] * 4
    assert {path.name for path in tmp_path.iterdir()} <= {"target"}


def test_a_name_that_nothing_can_resolve_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's library would ask six times for each file. Here nothing listens at its address."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refuse_unreachable("org/name")  # offline: the cache alone is asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    said = (
        r"^there is no folder org/name, and the Hub at http://127.0.0.1:9 cannot be reached \(ConnectError\): is there"
    )
    for load in (refuse_unreachable, check_model_folder, read_settings, load_tokenizer):
        with pytest.raises(UserError, match=said):
            load("org/name")
    assert not waits
    (tmp_path / "models--org--name").mkdir()
    refuse_unreachable("org/name")
