"""Turns errors of the Hub into one line that says what to do and contains no token."""

import contextlib
from collections.abc import Iterator
from typing import Any

from ..utils.errors import UserError


@contextlib.contextmanager
def hub_errors(repo_id: str) -> Iterator[None]:
    """Raise any error of the Hub as a UserError of one line.

    Of the libraries' messages only the Hub's own sentence is shown, and never a token.
    """
    try:
        yield
    except Exception as error:
        message = explain(error, repo_id)
        if message is None:
            raise
        raise UserError(message) from None


def explain(error: BaseException, repo_id: str) -> str | None:
    """The line for an error of huggingface_hub or of a library below it; None for any other error."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
    )

    if isinstance(error, UserError):  # it says what to do already
        return None
    is_not_cached = isinstance(error, LocalEntryNotFoundError)
    if isinstance(error, LocalTokenNotFoundError):
        return "there is no token for the Hub: run `hf auth login`, or set HF_TOKEN"
    if isinstance(error, OfflineModeIsEnabled) or (is_not_cached and constants.HF_HUB_OFFLINE):
        return "HF_HUB_OFFLINE is set: unset it"
    if isinstance(error, HFValidationError):
        return f"{repo_id!r} is not a name on the Hub: it is ORG/NAME"
    if isinstance(error, HfHubHTTPError):
        return _explain_answer(error, repo_id)
    if isinstance(error, UnicodeError):  # in the header that holds the token
        return "the token for the Hub holds characters that none has: run `hf auth login`, or set HF_TOKEN"
    if is_not_cached or type(error).__module__.split(".")[0] in ("httpx", "httpx2", "requests"):
        return f"the Hub at {constants.ENDPOINT} cannot be reached ({type(error).__name__}): is there a network?"
    if isinstance(error, ValueError) and "metadata in README.md" in str(error):
        return f"the Hub does not take the metadata on top of README.md{_quote(str(error))}"
    return _explain_transfer(error, repo_id)


def _explain_transfer(error: BaseException, repo_id: str) -> str | None:
    """The line for an interrupted upload or download; None for any other error."""
    if isinstance(error, RuntimeError) and error.__cause__ is not None:  # an upload in a thread wraps the real error
        explained = explain(error.__cause__, repo_id)
        if explained is not None:
            return explained
    # Xet has no error class of its own; errors of the operating system have an errno.
    if isinstance(error, RuntimeError) or (isinstance(error, OSError) and error.errno is None):
        return f"the transfer of {repo_id} broke off{_quote(str(error))}: try again, and it goes on from there"
    return None


def _quote(text: str) -> str:
    """A foreign message in parentheses, on one line and without the token."""
    from huggingface_hub import get_token

    said, token = " ".join(text.split()), get_token()
    said = (said.replace(token, "…") if token else said)[:300]
    return f" ({said})" if said else ""


def _explain_answer(error: Any, repo_id: str) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return f"{repo_id} is for those only who accepted its terms: do that on its page, with the token's account"
    # Without a token, the Hub answers "not allowed" for a repository that does not exist.
    status = 404 if isinstance(error, RepositoryNotFoundError) else error.response.status_code
    said = _quote(str(error.server_message or error.response.headers.get("X-Error-Message") or ""))
    return {
        401: f"the Hub does not accept the token{said}: run `hf auth login`, or set HF_TOKEN",
        403: f"the token has no right to {repo_id}{said}: it needs the right to read, and to write where you publish",
        404: f"there is no repository {repo_id}, or the token cannot see it{said}",
        409: f"{repo_id} was changed by somebody else at the same time{said}: publish again",
        412: f"{repo_id} was changed by somebody else at the same time{said}: publish again",
    }.get(status, f"the Hub answers {status} for {repo_id}{said}")
