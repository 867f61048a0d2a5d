"""The run over other people's programs, without a network: what it reads of a program, and what it writes."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
specification = importlib.util.spec_from_file_location("doors_run", HERE / "run.py")
assert specification is not None
assert specification.loader is not None
doors = importlib.util.module_from_spec(specification)
specification.loader.exec_module(doors)

PASSED = {
    "way": "as is",
    "ways": 2,
    "difference": 2e-7,
    "is_mended": False,
    "versions": {"transformers": "5", "x": "1"},
}
FAILED = {"way": "as is", "ways": 2, "error": "KeyError: 'a|b' in /home/me/x.py", "whose": "theirs: no flag"}


@pytest.mark.parametrize("name", doors.PROGRAMS)
def test_every_program_says_what_it_needs_and_does(name):
    needed = doors.header(doors.PROGRAMS[name])["dependencies"]
    assert needed
    assert all(isinstance(requirement, str) for requirement in needed)
    assert doors.program(name)
    assert doors.job(name)


def result(bundle, native):
    return {"date": "2026-11-22", "program": "Some", "job": "does it", "bundle": bundle, "native": native}


def test_the_table_and_what_failed():
    imported = {**PASSED, "way": "after import", "difference": None}
    text = doors.table({"some": result([FAILED, imported], [PASSED])})
    assert "| Some 1 | 5 | does it | after import | as is, 2e-07 |" in text
    assert "| Some | bundle | as is | `KeyError: 'a/b' in …/x.py` | theirs: no flag |" in text
    assert "1 programs; bundle: 1 of 1 work; native: 1 of 1 work." in text
    none = doors.table({"some": result([FAILED], [FAILED])})
    assert "| does it | no | no |" in none
    assert "bundle: 0 of 1 work; native: 0 of 1 work" in none
    assert "| does it | not tried | as is, 2e-07 |" in doors.table({"some": result([], [PASSED])})
    assert "bundle: 0 of 0 work" in doors.table({"some": result([], [PASSED])})


def test_what_was_not_known_is_told():
    assert doors.find_surprises([PASSED]) == []
    assert doors.find_surprises([FAILED, PASSED]) == []
    assert doors.find_surprises([{**FAILED, "whose": "not known"}]) == ["as is: KeyError: 'a|b' in /home/me/x.py"]
    mended = doors.find_surprises([{**PASSED, "is_mended": True}])
    assert mended == ["as is: works now, and is named as a known failure"]


def test_only_what_stands_between_the_marks_changes():
    page = f"before\n{doors.BEGIN}\nold\n{doors.END}\nafter\n"
    assert doors.put_between(page, "new") == f"before\n{doors.BEGIN}\nnew\n{doors.END}\nafter\n"


@pytest.mark.parametrize(("form", "whose"), [("bundle", "theirs"), ("native", "not known")])
def test_a_failure_is_known_by_its_form_way_and_message(form, whose, tmp_path):
    script = tmp_path / "door_x.py"
    script.write_text(
        "from door import run\n"
        "def job():\n    raise KeyError('no such thing')\n"
        "run({'as is': job, 'otherwise': lambda: None}, {('bundle', 'as is'): ('no such', 'theirs')})\n"
    )
    found = []
    for way in (0, 1):
        variables = {**os.environ, "PYTHONPATH": str(HERE), "DOORS_FORM": form, "DOORS_WAY": str(way)}
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=variables, timeout=60)
        found.append(doors.read_result(done.stdout))
    assert found[0]["whose"] == whose
    assert found[0]["error"] == "KeyError: 'no such thing'"
    assert found[0]["ways"] == 2
    assert "error" not in found[1]
    assert found[1]["way"] == "otherwise"
