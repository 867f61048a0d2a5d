"""The page gets the figures that were measured; the others stay."""

import json
import re
from pathlib import Path

from render import render


def test_figures_go_to_their_places(tmp_path: Path) -> None:
    page, figures = tmp_path / "page.md", tmp_path / "figures.jsonl"
    page.write_text("| a | <!--kills-->old<!--end--> |\n| b | <!--other-->kept<!--end--> | <!--day-->x<!--end-->\n")
    figures.write_text(json.dumps({"kills": "1 | 2"}) + "\n" + json.dumps({"nowhere": "3"}) + "\n")
    assert render(figures, page) == ["nowhere"]
    text = page.read_text()
    assert "| a | <!--kills-->1 / 2<!--end--> |" in text
    assert "<!--other-->kept<!--end-->" in text
    assert "<!--day-->20" in text


def test_every_figure_of_the_suite_has_its_place(repository: Path) -> None:
    """By the beginnings of their names, where these are written out."""
    page = (repository / "docs" / "reliability.md").read_text()
    places = re.findall(r"<!--(.+?)-->.*?<!--end-->", page)
    for path in (repository / "tests" / "faults").glob("test_*.py"):
        for name in re.findall(r'figure\(\s*f?"([^"{]+)', path.read_text()):
            assert any(place.startswith(name) for place in places), (path.name, name)
