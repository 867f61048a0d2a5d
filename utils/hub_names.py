"""Names on the Hub: which are possible, and whether the Hub can be asked."""

import os
from pathlib import Path

from .errors import MissingFileError, UserError

_SECONDS_TO_ANSWER = 10.0
_answered: set[str] = set()  # addresses of the Hub that did


def is_hub_name(name: str) -> bool:
    """Whether the Hub allows this name of a repository: NAME, or OWNER/NAME."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def hub_name(name_or_path: str | None) -> str | None:
    """A name on the Hub; None for a local file or folder, whose path is private. Ask while it is there."""
    return None if name_or_path is None or os.path.exists(name_or_path) else name_or_path


def refuse_unreachable(name: str) -> None:
    """Refuse what cannot be a name on the Hub; and a name, if the Hub does not answer and the cache has no such model.

    The Hub's own library asks again and again, for half a minute a file.

    Raises:
        MissingFileError: it can only be the name of a folder.
        UserError: names the Hub's address.
    """
    if not is_hub_name(name):
        raise MissingFileError(f"there is no folder {name}")
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cached = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model"))
    if constants.HF_HUB_OFFLINE or cached.is_dir():
        return
    if reason := _why_no_hub(constants.ENDPOINT):
        raise UserError(
            f"there is no folder {name}, and the Hub at {constants.ENDPOINT} cannot be reached ({reason}): is there a "
            f"network?"
        )


def _why_no_hub(address: str) -> str | None:
    """The name of the error of two requests; None if there is an answer, whatever it is, or a slow one may come."""
    from huggingface_hub.utils import get_session

    if address in _answered:
        return None
    for _ in range(2):
        try:
            get_session().head(address, timeout=_SECONDS_TO_ANSWER, follow_redirects=False)
            reason = None
        except Exception as error:  # of a library that depends on the release
            reason = type(error).__name__
        if reason in (None, "ReadTimeout"):
            _answered.add(address)
            return None
    return reason
