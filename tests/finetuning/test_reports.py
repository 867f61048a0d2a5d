"""Pictures of mistakes."""

import numpy as np
import pytest

from clozebert.finetuning.reports import CLASSES_SHOWN, ClassReport, draw_confusion


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
