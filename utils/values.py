"""Values from a recipe, the command line or Python, as the types of their fields."""

import dataclasses
import math
import os
import types
import typing
from typing import Any, Literal

from .command_line import most_of
from .errors import UserError, check_choice

# By the type of a field: the types of its values, and what messages call them.
_KINDS: dict[Any, tuple[Any, str]] = {
    dict: (dict, "a list of phases, each of `name: value` entries"),
    bool: (bool, "true or false"),
    str: ((str, os.PathLike), "text"),
}

# Lists of a recipe that a flag can empty, by "" or none.
_CLEARED = ("corpus", "corpus_weights", "phases", "report_to")


def read_fields(arguments: Any) -> None:
    """Read every field of a dataclass as its type: paths as text, NumPy's numbers and numbers in text as numbers.

    Raises:
        UserError: a value does not fit.
    """
    for item in dataclasses.fields(arguments):
        setattr(arguments, item.name, read_value(item.name, getattr(arguments, item.name), item.type))


def read_value(name: str, value: Any, annotation: Any) -> Any:
    """A value as the type of its field; YAML reads `1e-3` as a string.

    Raises:
        ValueError: the value does not fit.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return None if value is None and type(None) in arguments else _read_one_of(name, value, arguments)
    if origin is Literal:
        return _read_choice(name, value, arguments)
    if origin is list:
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if (
            name in _CLEARED
            and items in ([None], [""], ["none"])
            and not (isinstance(value, list) and arguments[0] is dict)
        ):
            return []
        return [read_value(name, item, arguments[0]) for item in items]
    if annotation in (int, float):
        return read_number(name, value, annotation)
    kinds, wanted = _KINDS[annotation]
    if not isinstance(value, kinds):
        raise UserError(f"{name}={value!r} must be {wanted}")
    return str(value) if annotation is str else value


def _read_one_of(name: str, value: Any, annotations: tuple[Any, ...]) -> Any:
    """A value of `int | float` is a share below 1, and a whole number otherwise; other unions are `X | None`."""
    if {int, float} <= set(annotations):
        number = read_number(name, value, float)
        return number if 0 < number < 1 else read_number(name, value, int)
    return read_value(name, value, next(kind for kind in annotations if kind is not type(None)))


def _read_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    # YAML reads a bare `no` as False.
    value = "no" if value is False and "no" in choices else value
    check_choice(name, value, choices)
    return value


def read_number(name: str, value: Any, kind: type) -> int | float:
    """Convert a value from a recipe or a flag to int or float; a `UserError` if it is not a number."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or (kind is int and number != int(number)):
        raise UserError(f"{name}={value!r} must be a {'whole ' if kind is int else ''}number")
    exact: int | float = int(value) if kind is int and isinstance(value, int) else kind(number)
    if abs(exact) > most_of(name, kind):
        raise UserError(f"{name}={value!r} is too large: at most {most_of(name, kind)}")
    return exact


__all__ = ["read_fields", "read_number"]
