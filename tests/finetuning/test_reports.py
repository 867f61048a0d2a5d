"""Pictures of mistakes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finetuning_helpers import arguments_of

from clozebert.finetuning import reports
from clozebert.finetuning.reports import CLASSES_SHOWN, ClassReport, Report, draw_confusion, write_report
from clozebert.finetuning.run import finetune


def test_of_many_classes_the_shades_are_still_shares_of_the_gold_class() -> None:
    """Class 0 is right in 1 case of 10; most of its mistakes are classes that the picture leaves out."""
    pytest.importorskip("sklearn")
    figures = pytest.importorskip("matplotlib.figure")
    names = [f"c{number:02}" for number in range(CLASSES_SHOWN + 20)]
    gold = ["c00"] * 10 + [name for name in names[1:CLASSES_SHOWN] for _ in range(10)] + names[CLASSES_SHOWN:]
    predicted = ["c00", *names[-9:]] + ["c01"] * 10 * (CLASSES_SHOWN - 1) + names[CLASSES_SHOWN:]
    figure = figures.Figure()
    draw_confusion(figure, ClassReport(names, gold, predicted, {}))
    (image,) = figure.axes[0].images
    shares = np.asarray(image.get_array())
    assert shares.shape == (CLASSES_SHOWN, CLASSES_SHOWN)
    assert figure.axes[0].get_yticklabels()[0].get_text() == "c00"
    assert shares[0].tolist() == [0.1] + [0.0] * (CLASSES_SHOWN - 1)
    assert shares[1, 1] == 1.0


def test_values_are_not_called_mistakes(tmp_path: Path) -> None:
    """A value is hardly ever right to the last digit."""
    write_report(str(tmp_path), "eval", Report([{}, {}, {}], ["far off", "near"], None))
    assert (tmp_path / "eval_mistakes.txt").read_text().startswith("3 examples; the 2 largest errors:\n\nfar off")


@pytest.mark.reports
def test_pictures(models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    finetune(arguments_of("token", data["token"], models["clozebert"], tmp_path / "o", max_steps=1))
    for name in ("eval_confusion.png", "eval_f1_by_class.png"):
        assert (tmp_path / "o" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.reports
def test_letters_that_no_font_has_are_one_warning_for_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = ["\U000f0000", "\U000f0001", "b"]
    scores = {name: {"precision": 1.0, "recall": 1.0, "f1-score": 1.0, "support": 1.0} for name in names}
    report = Report([], [], ClassReport(names, names, names, scores))
    with pytest.warns(UserWarning, match="no font here has all letters") as caught:
        write_report(str(tmp_path), "eval", report)
    said = [str(one.message) for one in caught if "no font" in str(one.message)]
    assert [text.partition(":")[0] for text in said] == ["eval_confusion.png", "eval_f1_by_class.png"]
    assert "eval_report.json has the names" in said[0]
    assert not any("missing from" in str(one.message) for one in caught)


def test_a_class_called_as_an_average_is_has_its_bar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures: dict[str, list[str]] = {}

    def keep(figure: Any, path: Path, *, about_missing: str) -> None:
        pictures[path.name] = [label.get_text() for label in figure.axes[0].get_yticklabels()]

    monkeypatch.setattr(reports, "save_figure", keep)
    names = ["moving avg", "sum"]
    scores = {
        name: {"precision": 1.0, "recall": 1.0, "f1-score": 1.0, "support": 1.0} for name in (*names, "macro avg")
    }
    write_report(str(tmp_path), "eval", Report([], [], ClassReport(names, names, names, scores)))
    assert pictures["eval_f1_by_class.png"] == ["moving avg (1)", "sum (1)"]
