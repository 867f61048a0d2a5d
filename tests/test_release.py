"""The model that comes with the repository: it loads offline in transformers' own form, and says what it is made of."""

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForMaskedLM
from warm_python import WarmPython

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "release" / "clozebert-books"
# In a process that knows nothing of clozebert.
FILL = """
import json, sys
from transformers import pipeline
fill = pipeline("fill-mask", model=sys.argv[1])
print(json.dumps([fill(text)[0]["token_str"].strip() for text in sys.argv[2:]]))
assert "clozebert" not in sys.modules
"""


def test_it_fills_blanks_offline_without_our_code(tmp_path: Path, python: WarmPython) -> None:
    words = {
        "In the nineteenth [MASK], many people moved to the cities.": "century",
        "The brain and the spinal [MASK] form the central nervous system.": "cord",
        "Plants take in carbon [MASK] from the air.": "dioxide",
        "The Supreme [MASK] of the United States has nine judges.": "Court",
    }
    done = python.run(["-c", FILL, MODEL, *words], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == list(words.values())


def test_it_is_a_small_modernbert_in_bf16() -> None:
    assert json.loads((MODEL / "config.json").read_text("utf-8"))["model_type"] == "modernbert"
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 25e6
    with safe_open(MODEL / "model.safetensors", framework="np") as tensors:
        names = list(tensors.keys())
        assert {tensors.get_slice(name).get_dtype() for name in names} == {"BF16"}
        size = 0
        for name in names:
            count = 1
            for length in tensors.get_slice(name).get_shape():
                count *= length
            size += count
    assert size < 12e6


def test_it_loads_in_float32_so_that_it_can_be_trained_further() -> None:
    """In bf16, AdamW's updates of a thousandth of a weight round to nothing."""
    assert AutoModelForMaskedLM.from_pretrained(MODEL).dtype == torch.float32


def test_its_card_names_every_book_and_its_licence() -> None:
    card = (MODEL / "README.md").read_text("utf-8")
    with (ROOT / "release" / "books.tsv").open(encoding="utf-8", newline="") as file:
        books = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(books) == 46
    for book in books:
        line = next(line for line in card.splitlines() if book["commit"] in line)
        assert all(book[name] in line for name in ("title", "author", "licence", "repository", "split"))


@pytest.mark.parametrize("part", ["## Training data", "## Training\n", "## Evaluation", "![Loss over training]"])
def test_its_card_says_how_it_came_to_be(part: str) -> None:
    assert part in (MODEL / "README.md").read_text("utf-8")
