"""The output folder: what overwriting must not delete, one program at a time, and a disk that takes no more."""

import errno
import fcntl
import json
import multiprocessing
import os
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_helpers import log_of, model_config, run_forked, run_here, settings
from safetensors.torch import save

from clozebert.scripts import check
from clozebert.training import PretrainingArguments, loop, pretrain
from clozebert.training.checkpoints import folders
from clozebert.training.checkpoints.damage import find_damage
from clozebert.training.step import update_weights
from clozebert.utils import locks
from clozebert.utils.errors import UserError
from clozebert.utils.locks import lock_folder

RUN = {"max_steps": 8, "save_steps": 4, "eval_steps": 0}


@pytest.fixture(scope="module")
def finished(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run_here(prepared, folder, **RUN)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    names = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in names}


def test_the_model_beside_the_checkpoints_is_checked_too(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    check.main([str(run)])
    assert "a run of 2 checkpoints, undamaged: " in (shown := capsys.readouterr().out)
    manifests = [json.loads(path.read_text()) for path in run.glob("checkpoint-*/training_state/manifest.json")]
    assert f" {sum(len(manifest['files']) for manifest in manifests)} files match their hashes" in shown
    assert "hashes; 3 files of the model can be read" in shown
    (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:-10])
    with pytest.raises(UserError, match=r"a run of 2 checkpoints, is damaged: \S*run/model\.safetensors"):
        check.main([str(run)])


@pytest.mark.parametrize(
    "flag", ["resume_from_checkpoint=checkpoint-4", "model_name_or_path=", "model_name_or_path=checkpoint-8"]
)
def test_overwriting_never_deletes_what_the_run_begins_from(
    prepared: Path, finished: Path, tmp_path: Path, flag: str
) -> None:
    output_dir = tmp_path / "run"
    shutil.copytree(finished, output_dir)
    name, _, inside = flag.partition("=")
    before = content(output_dir)
    given = settings(prepared, output_dir=str(output_dir), **{name: str(output_dir / inside)}, **RUN)
    arguments = PretrainingArguments(**given, overwrite_output_dir=True)
    with pytest.raises(UserError, match=f"overwrite_output_dir deletes .*, but {name}="):
        pretrain(arguments, model_config())
    assert content(output_dir) == before


def test_overwriting_never_deletes_the_corpus_it_reads(prepared: Path, finished: Path, tmp_path: Path) -> None:
    output_dir = tmp_path / "run"
    shutil.copytree(finished, output_dir)
    shutil.copytree(prepared / "corpus", output_dir / "checkpoint-9" / "corpus")
    before = content(output_dir)
    with pytest.raises(UserError, match=r"overwrite_output_dir deletes .*checkpoint-9, but corpus="):
        run_here(prepared, output_dir, overwrite_output_dir=True, corpus=output_dir / "checkpoint-9" / "corpus", **RUN)
    assert content(output_dir) == before


@pytest.mark.parametrize("mistake", ["teacher without weights", "too long a warm-up"])
def test_a_run_that_cannot_begin_overwrites_nothing(
    prepared: Path, finished: Path, tmp_path: Path, mistake: str
) -> None:
    """Both mistakes are found late: when the weights are read, and when steps were timed."""
    output_dir, teacher = tmp_path / "run", tmp_path / "teacher"
    shutil.copytree(finished, output_dir)
    shutil.copytree(finished, teacher, ignore=shutil.ignore_patterns("checkpoint-*", "*.safetensors"))
    before = content(output_dir)
    wrong: dict[str, Any] = {"teacher_name_or_path": str(teacher)}
    if mistake == "too long a warm-up":
        wrong = {"max_steps": None, "num_train_epochs": 1000, "max_minutes": 0.02, "warmup_steps": 4000}
    given = settings(prepared, output_dir=str(output_dir), overwrite_output_dir=True, **{**RUN, **wrong})
    with pytest.raises(UserError, match=r"no file named model\.safetensors|is enough for \d+ steps?"):
        pretrain(PretrainingArguments(**given), model_config())
    assert content(output_dir) == before


def test_overwriting_leaves_a_persons_files(prepared: Path, finished: Path, tmp_path: Path) -> None:
    output_dir = tmp_path / "run"
    shutil.copytree(finished, output_dir)
    mine = {
        "checkpoint-notes/a.txt": b"notes",
        "other.safetensors": save({"mine": torch.ones(3)}),
        "README.md.bak": b"card",
    }
    for name, text in mine.items():
        (output_dir / name).parent.mkdir(exist_ok=True)
        (output_dir / name).write_bytes(text)
    run_here(prepared, output_dir, overwrite_output_dir=True, **{**RUN, "max_steps": 4})
    assert not (output_dir / "checkpoint-8").exists()
    assert mine.items() <= content(output_dir).items()


def hold(folder: Path, ready: Any) -> None:
    with lock_folder(folder):
        ready.set()
        time.sleep(60)


def without_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As on some network file systems."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("has_locks", [True, False])
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_second_program_is_refused_until_the_first_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_locks: bool
) -> None:
    """The lock is the system's: after a kill -9 nothing of it is left.

    Without locks, filelock writes who holds it. That was overwritten, and a second program took the folder.
    """
    if not has_locks:
        without_locks(monkeypatch, errno.ENOSYS)
    monkeypatch.setattr(locks, "_SECONDS", 0.2 if has_locks else 5.0)
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    first = context.Process(target=hold, args=(tmp_path / "run", ready))
    first.start()
    try:
        assert ready.wait(20)
        with pytest.raises(UserError, match=rf"output_dir=.* is in use by another program \(process {first.pid}\b"):
            lock_folder(tmp_path / "run")
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.join()
    lock_folder(tmp_path / "run").release()


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_without_locks_a_program_on_another_machine_is_named_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch, errno.ENOSYS)
    monkeypatch.setattr(locks, "_SECONDS", 0.2)
    (tmp_path / ".lock").write_text("77\nnode-5\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"\(process 77 on node-5; if that has ended, delete .*\.lock\): wait for it"):
        lock_folder(tmp_path)


def test_a_folder_that_cannot_be_locked_is_a_persons_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch, errno.ENOLCK)
    with pytest.raises(UserError, match=r"output_dir=.* cannot be locked \(.*\): give a folder on a file system with"):
        lock_folder(tmp_path / "run")


def test_a_lock_of_another_user_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*places: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ".lock"))

    monkeypatch.setattr(locks.FileLock, "acquire", refuse)
    with pytest.raises(
        UserError, match=r"output_dir=.*: \.lock in it belongs to another user: delete it, if no run of"
    ):
        lock_folder(tmp_path)


def test_a_folder_that_cannot_be_made_is_a_persons_error() -> None:
    with pytest.raises(UserError, match="output_dir=/proc/none/run cannot be made"):
        lock_folder(Path("/proc/none/run"))


def test_a_link_to_nothing_is_refused(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "unmounted")
    with pytest.raises(UserError, match="is a link to a path that does not exist"):
        pretrain(PretrainingArguments(**settings(prepared, output_dir=str(tmp_path / "run"), **RUN)), model_config())


def test_a_second_run_changes_nothing(prepared: Path, finished: Path, tmp_path: Path, monkeypatch: Any) -> None:
    output_dir = tmp_path / "run"
    shutil.copytree(finished, output_dir)
    monkeypatch.setattr(locks, "_SECONDS", 0.1)
    before = content(output_dir)
    with lock_folder(output_dir):
        for how in ({"overwrite_output_dir": True}, {"resume_from_checkpoint": "latest"}):
            with pytest.raises(UserError, match="is in use by another program"):
                run_here(prepared, output_dir, **how, **RUN)
    assert content(output_dir) == before


@pytest.mark.parametrize("processes", [1, 2])
def test_a_file_that_grows_too_large_is_one_line(
    prepared: Path, tmp_path: Path, processes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """From step 4 on the system lets no file grow beyond 64 kB: the checkpoint of step 8 does not fit."""

    def prelude(rank: int) -> None:
        commit = folders.prune_checkpoints

        def limited(*args: Any, **options: Any) -> None:
            commit(*args, **options)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

        folders.prune_checkpoints = limited

    begun = time.monotonic()
    statuses = run_forked(prepared, tmp_path / "run", processes=processes, prelude=prelude, **RUN)
    assert time.monotonic() - begun < 60
    assert statuses == [2] * processes
    shown = capfd.readouterr().err
    assert "Traceback" not in shown
    lines = [line for line in shown.splitlines() if line.startswith("error: ")]
    assert len(lines) == processes
    message = "cannot be written (File too large): free some space, then --resume_from_checkpoint latest, or"
    assert [message in line for line in lines] == [True] * processes, shown
    assert find_damage(tmp_path / "run" / "checkpoint-4") is None
    assert not list((tmp_path / "run").glob("checkpoint-8"))
    assert not list((tmp_path / "run").glob(".incomplete-*"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("place", ["os.fsync", "pathlib.Path.open", "safetensors", "os.replace"])
def test_a_disk_fault_in_a_save_is_one_line(
    prepared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], number: int, place: str
) -> None:
    """Everywhere in the saving of step 8."""

    def prelude(rank: int) -> None:
        def fault(*args: Any, **options: Any) -> Any:
            if (tmp_path / "run" / "checkpoint-4" / "README.md").is_file():
                raise OSError(number, os.strerror(number))
            return real(*args, **options)

        real: Any
        if place == "os.fsync":
            real, os.fsync = os.fsync, fault
        elif place == "os.replace":
            real, os.replace = os.replace, fault
        elif place == "safetensors":
            real, folders.save_file = folders.save_file, fault
        else:
            real, Path.open = Path.open, fault  # type: ignore[method-assign,assignment]

    assert run_forked(prepared, tmp_path / "run", prelude=prelude, **RUN) == [2]
    shown = capfd.readouterr().err
    assert "Traceback" not in shown
    assert shown.count("error: ") == 1
    assert os.strerror(number) in shown
    assert find_damage(tmp_path / "run" / "checkpoint-4") is None


def test_a_folder_that_is_deleted_between_two_checkpoints_is_made_anew(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def update(*given: Any, **options: Any) -> None:
        update_weights(*given, **options)
        steps.append(len(steps) + 1)
        if steps[-1] == 5:
            shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(loop, "update_weights", update)
    run_here(prepared, tmp_path / "run", **RUN)
    assert [entry["step"] for entry in log_of(tmp_path / "run")] == [5, 6, 7, 8, 8]
    assert check.main([str(tmp_path / "run")]) is None


def test_a_folder_that_is_moved_away_while_a_checkpoint_is_written_is_said_so(prepared: Path, tmp_path: Path) -> None:
    def write_and_move(folder: Any, facts: dict[str, Any]) -> None:
        (tmp_path / "run").rename(tmp_path / "moved")

    run = settings(prepared, output_dir=str(tmp_path / "run"), **RUN)
    with pytest.raises(UserError, match="run was deleted or moved while it was written: put it back, then --resume"):
        pretrain(PretrainingArguments(**run), model_config(), write_card=write_and_move)
