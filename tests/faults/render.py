"""Put the figures that `make faults` measured into docs/reliability.md.

python tests/faults/render.py FIGURES.jsonl docs/reliability.md
"""

import json
import sys
from pathlib import Path

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def render(figures: Path, page: Path) -> None:
    """Replace what stands between the two marks by a table of the figures, sorted by name."""
    found: dict[str, str] = {}
    for line in figures.read_text(encoding="utf-8").splitlines():
        found |= json.loads(line)
    rows = [f"| {name} | {found[name]} |" for name in sorted(found)]
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    table = "\n".join([BEGIN, "| what | measured |", "| --- | --- |", *rows, END])
    page.write_text(before + table + after, encoding="utf-8")


if __name__ == "__main__":
    render(Path(sys.argv[1]), Path(sys.argv[2]))
