"""docs/architecture.md says what the code does: its quoted lines, its worked example, its numbers."""

import re

import numpy as np
import pytest
import reference
import torch

from clozebert import ClozeBertConfig, ClozeBertModel


@pytest.fixture(scope="module")
def text(repository):
    return (repository / "docs" / "architecture.md").read_text(encoding="utf-8")


def squeezed(source):
    return re.sub(r"\s+", "", source)


def test_every_quoted_line_is_in_its_file(text, repository):
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 6
    for path, code in blocks:
        source = squeezed((repository / path).read_text(encoding="utf-8"))
        for line in code.strip().splitlines():
            assert squeezed(line) in source, f"{path} no longer holds: {line.strip()}"


def matrices(text):
    """Rows like `[.401, .198, .401]` of the worked example's last two matrices, in reading order."""
    example = text[text.index("### A worked example") : text.index("The first token keeps")]
    return [[float(x) for x in row.split(",")] for row in re.findall(r"\[(\.\d{3}(?:, \.\d{3})+)\]", example)]


def test_the_worked_example_is_what_the_reference_computes(text):
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    out, weights = reference.attention(x, x, x)
    assert matrices(text) == [*np.round(weights, 3).tolist(), *np.round(out, 3).tolist()]


def test_the_numbers_of_the_lecture_notes_are_not_the_softmax(text):
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    _, weights = reference.attention(x, x, x)
    printed = re.search(r"print ([\d./]+), ([\d./]+) or ([\d./]+) for these rows", text)
    assert printed is not None
    for row in printed.groups():
        numbers = np.array([float(x) for x in row.split("/")])
        assert np.abs(weights - numbers).max(axis=1).min() > 0.01


def test_the_numbers_of_parameters(text):
    assert f"{12 * 768**2 + 13 * 768:,} for D = 768" in text
    for name, shown in (("transformer-base", "34.5 M"), ("small", "13.5 M")):
        with torch.device("meta"):
            model = ClozeBertModel(ClozeBertConfig.from_name(name))
        assert f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f} M" == shown
        assert f"`{name}` | {shown}" in text


def test_every_file_it_names_is_there(text, repository):
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (repository / "docs" / link).is_file(), link
    for name in re.findall(r"`(test_\w+\.py)`", text):
        assert (repository / "tests" / "modeling" / name).is_file(), name
    assert (repository / "docs" / "images" / "gradient_by_depth.png").stat().st_size < 60_000


@pytest.mark.slow
def test_the_table_of_gradients_at_initialisation(text, repository):
    import runpy

    norms = runpy.run_path(str(repository / "benchmarks" / "gradient_by_depth.py"))["gradient_norms"]
    for norm_position in ("post", "pre"):
        row = re.search(rf"\| {norm_position}-norm \| ([\d. |]+) \|", text)
        assert row is not None
        for layers, shown in zip((3, 6, 12, 24), row[1].split(" | "), strict=True):
            assert norms(norm_position, layers=layers, draws=5)[-1] == pytest.approx(float(shown), rel=0.05)
