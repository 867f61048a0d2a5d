"""Progress: a bar in a terminal, lines in a log."""

import io
import sys

import pytest

from clozebert.utils import progress_bar as module
from clozebert.utils.progress_bar import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_with_a_total_and_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_bar(description="scoring", unit=" documents", total=4, mininterval=0) as bar:
        for _ in range(3):
            bar.update(1)
        shown = sys.stderr.getvalue()
    assert "scoring:  75%" in shown
    assert "3/4" in shown
    assert "\r" in shown


def test_a_log_gets_lines_and_a_short_job_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert list(progress_bar(range(5), description="short", unit="")) == list(range(5))
    assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
    for _ in progress_bar(range(3), description="long", unit=" documents"):
        module._Lines.write("a line of a log", file=sys.stderr)
    lines = sys.stderr.getvalue().splitlines()
    assert len(lines) >= 3
    assert "\r" not in sys.stderr.getvalue()
    assert any(line.startswith("long:") and "2/3" in line and "left" in line for line in lines)
