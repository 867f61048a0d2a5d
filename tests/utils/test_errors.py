"""A person's mistake is a type of its own, and still what a caller of a function expects to catch."""

import pickle
from pathlib import Path

import pytest

from clozebert.utils.errors import (
    ExistingFileError,
    FullMemoryError,
    MissingFileError,
    MissingPackageError,
    UserError,
    UserFileError,
    as_user_errors,
    did_you_mean,
    first_line,
    nearest_name,
    reject_unknown_keys,
)


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        (UserError, (ValueError,)),
        (UserFileError, (ValueError, OSError)),
        (MissingFileError, (ValueError, FileNotFoundError)),
        (ExistingFileError, (ValueError, FileExistsError)),
        (MissingPackageError, (ValueError, ImportError)),
        (FullMemoryError, (ValueError, MemoryError)),
    ],
)
def test_each_is_a_user_error_and_what_python_calls_it(kind: type[UserError], bases: tuple[type, ...]) -> None:
    error = pickle.loads(pickle.dumps(kind("size=3: must be even")))
    assert type(error) is kind
    assert str(error) == "size=3: must be even"
    assert isinstance(error, (UserError, *bases))
    assert all(isinstance(error, base) for base in bases)


def test_what_a_value_raises_becomes_a_user_error_and_other_errors_do_not() -> None:
    with pytest.raises(UserError, match="--size: invalid literal"), as_user_errors(about="--size"):
        int("x")
    with pytest.raises(MissingFileError, match="No such file"), as_user_errors(OSError):
        Path("/not/there").read_text()
    with pytest.raises(MissingPackageError), as_user_errors(ImportError):
        raise ImportError("no such package")
    own = UserError("said already")
    with pytest.raises(UserError) as caught, as_user_errors(about="again"):
        raise own
    assert caught.value is own
    with pytest.raises(TypeError), as_user_errors():
        len(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="invalid literal") as bug, as_user_errors(OSError):
        int("x")
    assert not isinstance(bug.value, UserError)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("one\ntwo", "one"),
        ("  \none\n", "one"),
        ("", "ValueError"),
        ("Validation of field x:\n    it is 3\nmore", "Validation of field x: it is 3"),
        ("nothing follows:", "nothing follows:"),
    ],
)
def test_a_first_line_says_something(message: str, shown: str) -> None:
    assert first_line(ValueError(message)) == shown


def test_the_nearest_name_is_said() -> None:
    assert nearest_name("hiden_size", ["hidden_size", "seed"]) == "hidden_size"
    assert nearest_name("zzz", ["hidden_size"]) is None
    assert did_you_mean("hiden_size", ["hidden_size"]) == "did you mean 'hidden_size'?"
    assert did_you_mean("zzz", ["a", "b"]) == "known: a, b"
    assert did_you_mean("zzz", ["a"], otherwise="see --help") == "see --help"
    reject_unknown_keys(["a"], ["a", "b"], where="a recipe")
    with pytest.raises(UserError, match="unknown key 'hiden_size' in a recipe; did you mean 'hidden_size'"):
        reject_unknown_keys(["hiden_size"], ["hidden_size", "seed"], where="a recipe")
