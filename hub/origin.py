"""What the card of a model takes from the model that it was made from."""

import os
import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import RemoteEntryNotFoundError

from ..utils.errors import UserError
from ..utils.files import WriteCard
from ..utils.hub_names import is_hub_name, refuse_unreachable
from .card import CARD_NAME, Card, read_card, write_card
from .hub_errors import hub_errors

# Facts about an encoder that also hold for a model that is fine-tuned from it.
OF_AN_ENCODER = ("license", "license_name", "license_link", "language")


def card_writer(origin: str | None, kept: Collection[str] | None = None) -> WriteCard:
    """A `write_card` for models that are trained further from `origin`: a new fact replaces one of the old card.

    A model on the Hub without a card has no facts; nor has one out of reach, with a warning.

    Args:
        origin: a local folder or a name on the Hub; None: nothing is known.
        kept: the facts of the old card to keep; None: all of `Card.lasting_facts`.
    """
    if origin is None:
        return write_card
    folder, of_origin = Path(origin), {}
    if folder.is_dir():
        of_origin["started_from"] = _name_of(folder)
    else:
        try:
            refuse_unreachable(origin)
            with hub_errors(origin):
                try:
                    folder = Path(hf_hub_download(origin, CARD_NAME)).parent
                except RemoteEntryNotFoundError:  # it has no card
                    return write_card
        except UserError as error:
            if is_hub_name(origin):  # and not a folder that is gone
                warnings.warn(
                    f"the card of {origin} cannot be read ({error}): the new card names neither its licence nor its "
                    "language",
                    stacklevel=2,
                )
            return write_card
    card = card_of_origin(folder)
    if card is not None:
        lasting = card.lasting_facts()
        of_origin |= lasting if kept is None else {name: lasting[name] for name in kept if name in lasting}

    def write(directory: str | os.PathLike, facts: dict[str, Any]) -> None:
        write_card(directory, {**of_origin, **{name: value for name, value in facts.items() if value is not None}})

    return write


def _name_of(folder: Path) -> str:
    """The folder's name, without its path, which is private; of a run's checkpoint with the run's name."""
    place = folder.resolve()
    is_checkpoint = re.fullmatch(r"checkpoint-\d+", place.name) and place.parent.name
    return f"{place.name} of {place.parent.name}" if is_checkpoint else place.name


def facts_of_origin(source: str | os.PathLike, folder: Path) -> tuple[str, Card | None, dict[str, Any]]:
    """The facts about the original model for the card of a model made from it: its name, its card, facts of its card.

    Args:
        source: the original model as the user named it. folder: its local folder.
    """
    on_the_hub = not Path(source).is_dir()
    origin = os.fspath(source) if on_the_hub else _name_of(folder)
    old = card_of_origin(folder)
    facts = {} if old is None else old.facts()
    if on_the_hub:
        facts["base_model"] = origin
    return origin, old, facts


def card_of_origin(folder: Path) -> Card | None:
    """The card of a folder; None with a warning if its metadata cannot be read, which must not stop the work."""
    try:
        return read_card(folder)
    except UserError as error:
        warnings.warn(f"{error}; the new card has none of it, not even the licence", stacklevel=3)
        return None
