"""`UserError`, for a person's mistakes as opposed to bugs of ours, and `did_you_mean`.

A program shows a `UserError` as one line and exits with status 2. Every other exception keeps its traceback and exits
with status 1. So `UserError` is raised on purpose only: where a value is checked, or where a person's path is opened.
"""

import difflib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn


class UserError(ValueError):
    """A person's mistake. The message names the argument, its value and the way out."""


class UserFileError(UserError, OSError):
    """A file or folder that a person named cannot be read or written."""


class MissingFileError(UserFileError, FileNotFoundError):
    """A file or folder that a person named is not there."""


class ExistingFileError(UserFileError, FileExistsError):
    """A file or folder that a person named is there, and must not be written over."""


class MissingPackageError(UserError, ImportError):
    """A package that a person has to install for what they ask."""


def exit_with_error(message: str) -> NoReturn:
    """End the program with status 2 and one line on stderr."""
    # One write: print makes two, and the lines of two processes could mingle.
    sys.stderr.write(f"error: {message}\n")
    sys.exit(2)


@contextmanager
def as_user_errors(*kinds: type[Exception], about: str = "") -> Iterator[None]:
    """Around the one call that takes a person's values: what it raises of `kinds` becomes a `UserError`.

    For code that cannot raise one itself: `configuration/` and `modeling/`, which travel with checkpoints, and
    libraries. Around more than such a call it would hide bugs.

    Args:
        kinds: the exceptions that mean a person's mistake there; none given: `ValueError`.
        about: what the person gave, to stand before the message: `--config tiny.yaml`.
    """
    wanted = kinds or (ValueError,)
    try:
        yield
    except UserError:
        raise
    except wanted as error:
        message = str(error) or type(error).__name__
        raise _kind_of(error)(f"{about}: {message}" if about else message) from error


def _kind_of(error: Exception) -> type[UserError]:
    pairs: tuple[tuple[type[Exception], type[UserError]], ...] = (
        (FileNotFoundError, MissingFileError),
        (FileExistsError, ExistingFileError),
        (OSError, UserFileError),
        (ImportError, MissingPackageError),
    )
    return next((ours for theirs, ours in pairs if isinstance(error, theirs)), UserError)


def check_at_least(values: object, **bounds: float) -> None:
    """Refuse a field of `values` that is less than its bound; None is no number, and passes.

    Raises:
        UserError: names the field.
    """
    for name, bound in bounds.items():
        value = getattr(values, name)
        if value is not None and value < bound:
            raise UserError(f"{name}={value} must be at least {bound}")


def first_line(error: Exception) -> str:
    """What a library says is wrong, without the pages that some of them write; else the name of its kind of error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest_name(name: object, known: Iterable[object]) -> str | None:
    """The known name that `name` is likely meant to be, if one comes near."""
    found = difflib.get_close_matches(str(name), list(map(str, known)), n=1)
    return found[0] if found else None


def did_you_mean(name: object, known: Iterable[object], *, otherwise: str | None = None) -> str:
    """`did you mean 'hidden_size'?`; where nothing comes near, `otherwise`, or else the known names."""
    names = [str(one) for one in known]
    nearest = nearest_name(name, names)
    if nearest is not None:
        return f"did you mean {nearest!r}?"
    return f"known: {', '.join(names)}" if otherwise is None else otherwise


def reject_unknown_keys(keys: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Raise a `UserError` that names the first of `keys` that is not `known`, and the nearest known one."""
    known = list(known)
    for key in keys:
        if key not in known:
            raise UserError(f"unknown key {key!r} in {where}; {did_you_mean(key, sorted(known))}")
