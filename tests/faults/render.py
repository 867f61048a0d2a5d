"""Put the figures that `make faults` measured into docs/reliability.md, where the page names them.

python tests/faults/render.py FIGURES.jsonl docs/reliability.md

A place in the page is `<!--NAME-->figure<!--end-->`. What was not measured this time keeps its figure.
"""

import datetime
import json
import re
import sys
from pathlib import Path

_PLACE = re.compile(r"<!--(.+?)-->(.*?)<!--end-->", flags=re.DOTALL)


def render(figures: Path, page: Path) -> list[str]:
    """Write the figures, and the day, into the page; the names for which it has no place."""
    found: dict[str, str] = {"day": datetime.date.today().isoformat()}
    for line in figures.read_text(encoding="utf-8").splitlines():
        found |= json.loads(line)
    text = page.read_text(encoding="utf-8")
    # A bar would end the cell of the table.
    shown = {name: value.replace("|", "/").replace("\n", " ") for name, value in found.items()}
    places = {match.group(1) for match in _PLACE.finditer(text)}
    page.write_text(
        _PLACE.sub(lambda match: f"<!--{match[1]}-->{shown.get(match[1], match[2])}<!--end-->", text), encoding="utf-8"
    )
    return sorted(found.keys() - places)


if __name__ == "__main__":
    without_place = render(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.exit(f"no place in {sys.argv[2]} for: {', '.join(without_place)}" if without_place else 0)
