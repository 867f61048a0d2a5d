"""A person's mistake is one line and status 2; a bug of ours keeps its traceback and has a status of its own."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clozebert.scripts import _program, check
from clozebert.scripts import plan as program
from clozebert.scripts._program import check_output_file, command
from clozebert.utils.command_line import Flag, Parser
from clozebert.utils.errors import UserError
from clozebert.utils.processes import LostProcessError

PROGRAM = """
import numpy as np
from clozebert.scripts._program import run
from clozebert.utils.errors import MissingFileError, MissingPackageError, UserError
def main():
    {body}
run(main)
"""


def run_program(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("PASSIVE", "4000")),
        ({"GOMP_SPINCOUNT": "7"}, ("PASSIVE", "7")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None)),
    ],
)
def test_how_threads_wait_is_set_unless_a_person_did(given: dict[str, str], expected: tuple[str, str | None]) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    done = subprocess.run(
        [sys.executable, "-c", f"import os, clozebert.scripts._program; print([os.environ.get(n) for n in {names}])"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**{name: value for name, value in os.environ.items() if name not in names}, **given},
    )
    assert done.stdout == f"{list(expected)}\n"


@pytest.mark.parametrize(
    ("quota", "given", "expected"),
    [("100000 100000", {}, "1"), ("100000 100000", {"OMP_NUM_THREADS": "3"}, "3"), ("max 100000", {}, None)],
)
def test_threads_are_as_many_as_the_processors_of_a_container(
    tmp_path: Path, quota: str, given: dict[str, str], expected: str | None
) -> None:
    (tmp_path / "own").write_text("0::/")
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    code = f"""
import os
from pathlib import Path
from clozebert.utils import limits
limits._OWN, limits._GROUPS = Path({str(tmp_path / "own")!r}), Path({str(tmp_path)!r})
import clozebert.scripts._program
print(os.environ.get("OMP_NUM_THREADS"))
"""
    others = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**others, **given}
    )
    assert done.stdout == f"{expected}\n", done.stderr


@pytest.mark.parametrize("kind", ["UserError", "MissingFileError", "MissingPackageError"])
def test_a_mistake_is_one_line(kind: str) -> None:
    done = run_program(f"raise {kind}('size=3:\\n  must be even')")
    assert (done.returncode, done.stderr) == (2, "error: size=3: must be even\n")


def test_a_mistake_shows_its_traceback_where_that_is_wanted() -> None:
    done = run_program("raise UserError('size=3')", CLOZEBERT_TRACEBACK="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("error: size=3\n")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("np.zeros(2) + np.zeros(3)", "ValueError: operands could not be broadcast"),
        ("int('x')", "ValueError: invalid literal for int"),
        ("open('/not/there')", "FileNotFoundError"),
        ("import not_there", "ModuleNotFoundError"),
        ("raise ValueError('ours')", "ValueError: ours"),
        ("raise BrokenPipeError('of another pipe')", "BrokenPipeError: of another pipe"),
    ],
)
def test_a_bug_keeps_its_traceback(body: str, message: str) -> None:
    done = run_program(body)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert message in done.stderr


def test_a_reader_that_goes_is_no_error() -> None:
    command = [sys.executable, "-c", PROGRAM.format(body="for number in range(10**6): print(number)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout
        assert program.stderr
        assert program.stdout.readline() == "0\n"
        program.stdout.close()
        said = program.stderr.read()
    assert (program.returncode, said) == (141, "")


def test_a_line_reaches_a_pipe_while_the_program_runs() -> None:
    command = [sys.executable, "-c", PROGRAM.format(body="import sys; print('step 1'); sys.stdin.readline()")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as program:
        assert program.stdout
        readable, _, _ = select.select([program.stdout], [], [], 60)
        said = program.stdout.readline() if readable else None
        program.communicate("\n", timeout=60)
    assert (program.returncode, said) == (0, "step 1\n")


def test_a_warning_of_ours_is_one_line_and_a_librarys_names_its_place() -> None:
    done = run_program(
        "import warnings; from pathlib import Path; import clozebert.hub.card as card; "
        "warnings.warn_explicit('ours', UserWarning, card.__file__, 1); "
        "warnings.warn_explicit('theirs', UserWarning, '/elsewhere/library.py', 1)"
    )
    assert done.stderr.startswith("warning: ours\n/elsewhere/library.py:1: UserWarning: theirs")


def test_what_runs_through_is_status_0() -> None:
    done = run_program("print('done')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_without_a_letter_ends_no_program(encoding: str) -> None:
    done = run_program(r"print('\u0e01 \udcff')", PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert done.stdout == ("ก" if encoding == "utf-8" else r"\u0e01") + " \\udcff\n"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("print('done')", 0),
        ("raise UserError('size=3')", 2),
        ("import sys; sys.exit(len(sys.stdin.read()))", 0),
        # Else what libraries print to the numbers 1 and 2 would go into a file of ours. Without SIGINT, as in the
        # background, the program opens no pipe of its own first.
        ("import os, sys; sys.exit(os.open(os.devnull, os.O_RDONLY) < 3)", 0),
    ],
)
def test_closed_streams_change_nothing(body: str, status: int) -> None:
    command = ["sh", "-c", 'trap "" INT; exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", PROGRAM.format(body=body)]
    assert subprocess.run(command, check=False, timeout=60).returncode == status


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps a folder that a program is in")
def test_a_folder_that_was_deleted_around_the_program_is_named(tmp_path: Path) -> None:
    begin = "import os, sys; os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
    code = begin + PROGRAM.format(body="import pathlib; pathlib.Path('tokenizer').absolute()")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "here")], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr[:39]) == (2, "error: the folder that you are in was d")


def test_no_folder_for_temporary_files() -> None:
    begin = "import tempfile; tempfile._candidate_tempdir_list = list\n"
    code = begin + PROGRAM.format(body="print('not reached')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: there is no folder for temporary files: set TMPDIR to one to which you may write\n"


def test_results_do_not_replace_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    # Where pytest captures the output, /dev/stdout leads to a file.
    for name in ("pipe", "link", "/dev/null", "/dev/stdout"):
        with pytest.raises(UserError, match="is a device or a pipe: name a file"):
            check_output_file(str(tmp_path / name))
    (tmp_path / "earlier.json").write_text("{}")
    check_output_file(str(tmp_path / "earlier.json"))


def test_a_program_that_is_called_from_another_one_has_its_verb_as_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["started/in/another/folder.py"])
    assert command("plan") == "clozebert plan"
    monkeypatch.setattr(sys, "argv", [os.path.relpath(program.__file__)])
    assert command("plan") == f"python {sys.argv[0]}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--count", "1" + "0" * 24], f"--count: '1{'0' * 24}' is too large: at most 2147483647"),
        (["--count=-1e300"], "--count: '-1e300' is too large"),
        (["--seed", str(2**64)], f"--seed: '{2**64}' is too large"),
        (["--share", "1e300"], "--share: '1e300' is too large: at most 1e+18"),
    ],
)
def test_a_number_of_many_digits_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [Flag("count", int, ""), Flag("seed", int, ""), Flag("share", float, "")]
    with pytest.raises(SystemExit):
        Parser(flags, prog="p", description="").read(words)
    assert message in capsys.readouterr().err
    assert Parser(flags, prog="p", description="").read(["--seed", str(2**64 - 1)])["seed"] == 2**64 - 1


@pytest.mark.parametrize(
    ("rank", "error", "waits"),
    [("0", UserError("x"), []), ("1", UserError("x"), [1.0]), ("1", LostProcessError("x"), [])],
)
def test_the_first_process_says_an_error_for_the_others(
    rank: str, error: UserError, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher ends the others while they wait. What only they know, they say afterwards."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match=r"^2$"):
        _program._end_with(error)
    assert slept == waits


def test_a_program_for_one_process_refuses_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would do the same work, and write the same answers to standard output once more."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(UserError, match="check runs in one process, and a launcher started 2"):
        check.main(["nowhere"])
    monkeypatch.delenv("LOCAL_RANK")  # a cluster may set the other for each machine, without a launcher
    with pytest.raises(UserError, match="there is no folder nowhere"):
        check.main(["nowhere"])
