"""Saves figures of matplotlib."""

import re
import warnings
from typing import Any


def save_figure(figure: Any, place: Any, *, about_missing: str, **options: Any) -> None:
    """Save a figure, with one warning if letters are missing from the fonts, where matplotlib has one for each.

    Args:
        place: a path, or an open file.
        about_missing: the warning.
        options: of matplotlib's `savefig`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(place, **options)
    # "missing from current font." before matplotlib 3.9
    missing = [
        text for text in (str(one.message) for one in caught) if re.search(r"missing from (current )?font", text)
    ]
    if missing:
        warnings.warn(about_missing, stacklevel=2)
    for one in caught:
        if str(one.message) not in missing:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
