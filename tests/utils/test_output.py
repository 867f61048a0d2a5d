import io
import os
import subprocess
import sys

import pytest

from clozebert.utils.output import outliving_readers

PROGRAM = """
import os, sys
from clozebert.utils.output import outliving_readers
with outliving_readers():
    print("a", flush=True)
    sys.stdin.read()  # until the reader of our output is gone
    for _ in range(3):
        print("b" * 100_000, flush=True)
        print("c", file=sys.stderr, flush=True)
    os.write(int(sys.argv[1]), b"survived")
"""


def test_a_program_survives_the_reader_of_its_output():
    told, tells = os.pipe()
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tells)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[tells],
    )  # fmt: skip
    os.close(tells)
    assert program.stdout.readline() == b"a\n"
    program.stdout.close()
    program.stdin.close()
    assert program.wait(timeout=60) == 0
    assert os.read(told, 100) == b"survived"
    os.close(told)


def test_other_errors_of_the_output_are_errors(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with outliving_readers(), pytest.raises(OSError, match="No space left"):
            print("a", flush=True)
        with pytest.raises(OSError, match="No space left"):
            full.close()


def test_what_another_program_puts_in_their_place_stays(monkeypatch):
    other = io.StringIO()
    with monkeypatch.context() as patch:
        with outliving_readers():
            patch.setattr(sys, "stdout", other)
        assert sys.stdout is other


@pytest.mark.parametrize(("encoding", "shown"), [("cp1252", b"\xe9\\u597d\x80"), ("cp1251", b"\\xe9\\u597d\x88")])
def test_letters_that_the_encoding_lacks_are_escaped(encoding, shown, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    with outliving_readers():
        print("é好€", end="", flush=True)
    assert written.getvalue() == shown


def test_a_program_without_streams_writes_to_nowhere(monkeypatch):
    """As in a daemon that has closed them, or in `pythonw`."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stderr", None)
        with outliving_readers():
            print("a", flush=True)
            assert not sys.stderr.isatty()
        assert (sys.stdout, sys.stderr) == (None, None)


def test_the_streams_come_back(capsys):
    before = sys.stdout
    with outliving_readers():
        print("within")
        assert sys.stdout.isatty() is before.isatty()
    assert sys.stdout is before
    assert capsys.readouterr().out == "within\n"
