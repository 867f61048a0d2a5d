"""`UserError`, for mistakes of the user as opposed to bugs of ours, and `did_you_mean`.

A program shows a `UserError` as one line and exits with status 2. Every other exception keeps its traceback and exits
with status 1. So raise `UserError` only where a value is checked or a path that the user gave is opened.
"""

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn


class UserError(ValueError):
    """A mistake of the user. The message names the argument, its value and what to do."""


class UserFileError(UserError, OSError):
    """A file or folder that the user named cannot be read or written.

    Attributes:
        finding: the message without a way out, if it ends with a general one that a caller may replace.
    """

    finding: str | None = None


class MissingFileError(UserFileError, FileNotFoundError):
    """A file or folder that the user named does not exist."""


class ExistingFileError(UserFileError, FileExistsError):
    """A file or folder that the user named already exists and must not be overwritten."""


class MissingPackageError(UserError, ImportError):
    """A package that the user has to install for what they asked for."""


class FullMemoryError(UserError, MemoryError):
    """What the user asked for does not fit into the memory of the GPU or of the machine."""


def exit_with_error(message: str) -> NoReturn:
    """End the program with status 2 and one line on stderr."""
    # A single write: print makes two, and the lines of two processes could interleave.
    sys.stderr.write(f"error: {message}\n")
    sys.exit(2)


@contextmanager
def as_user_errors(*kinds: type[Exception], about: str = "") -> Iterator[None]:
    """Turn exceptions of `kinds` into `UserError`, around a single call that takes the user's values.

    For code that cannot raise `UserError` itself: libraries, and `configuration/` and `modeling/`, which travel with
    checkpoints. Around more than one such call it would hide bugs.

    Args:
        kinds: the exceptions that mean a mistake of the user in this call; by default `ValueError`.
        about: what the user gave, as a prefix of the message: `--config tiny.yaml`.
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
    """Refuse a field of `values` that is less than its bound; None passes.

    Raises:
        UserError: names the field.
    """
    for name, bound in bounds.items():
        value = getattr(values, name)
        if value is not None and value < bound:
            raise UserError(f"{name}={value} must be at least {bound}")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, since some libraries write pages; without a message, the error's type.

    A line that ends in a colon comes with the line behind it.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def nearest_name(name: object, known: Iterable[object]) -> str | None:
    """The known name that resembles `name` most, if any is similar enough."""
    found = difflib.get_close_matches(str(name), list(map(str, known)), n=1)
    return found[0] if found else None


def did_you_mean(name: object, known: Iterable[object], *, otherwise: str | None = None) -> str:
    """`did you mean 'hidden_size'?`; if no name is similar, `otherwise`, or by default the known names."""
    names = [str(one) for one in known]
    nearest = nearest_name(name, names)
    if nearest is not None:
        return f"did you mean {nearest!r}?"
    return f"known: {', '.join(names)}" if otherwise is None else otherwise


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Refuse a value that is none of `choices`; the `UserError` names all of them, and the nearest one."""
    known = [str(choice) for choice in choices]
    if value not in known:
        hint = did_you_mean(value, known, otherwise="")
        raise UserError(f"{name}={value!r} must be one of {', '.join(known)}{hint and '; '}{hint}")


def reject_unknown_keys(keys: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Raise a `UserError` that names the first of `keys` that is not `known`, and the nearest known one."""
    known = list(known)
    for key in keys:
        if key not in known:
            raise UserError(f"unknown key {key!r} in {where}; {did_you_mean(key, sorted(known))}")


def there_and_here(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """`name=old there, name=new here` for each value that differs; names that are missing there are skipped."""
    return [
        f"{name}={there[name]!r} there, {name}={value!r} here"
        for name, value in here.items()
        if name in there and there[name] != value
    ]
