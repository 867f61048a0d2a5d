"""Values from a recipe, the command line or Python, as the types of their fields."""

import contextlib
import dataclasses
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from .errors import UserError, check_choice

# By the type of a field: the types of its values, and what messages call them.
_KINDS: dict[Any, tuple[Any, str]] = {
    dict: (dict, "a list of phases, each of `name: value` entries"),
    bool: (bool, "true or false"),
    str: ((str, os.PathLike, int), "text"),
}


def read_fields(arguments: Any) -> None:
    """Read every field of a dataclass as its type: paths as text, NumPy's numbers and numbers in text as numbers.

    "none" and "" empty a list that is empty by default.

    Raises:
        UserError: a value does not fit.
    """
    for item in dataclasses.fields(arguments):
        by_default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        value = _read_value(item.name, getattr(arguments, item.name), item.type, may_be_empty=by_default == [])
        setattr(arguments, item.name, value)


def _read_value(name: str, value: Any, annotation: Any, *, may_be_empty: bool = False) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if getattr(value, "ndim", None) == 0:  # a number of NumPy
        value = value.item()
    if origin in (types.UnionType, typing.Union):
        return None if value is None and type(None) in arguments else _read_one_of(name, value, arguments)
    if origin is Literal:
        return _read_choice(name, value, arguments)
    if origin is list:
        items = _items(value)
        is_emptied = items in ([None], [""], ["none"]) and not (isinstance(value, list) and arguments[0] is dict)
        return [] if is_emptied and may_be_empty else [_read_value(name, item, arguments[0]) for item in items]
    if annotation in (int, float):
        return read_number(name, value, annotation)
    kinds, wanted = _KINDS[annotation]
    if not isinstance(value, kinds) or (annotation is str and isinstance(value, bool)):
        raise UserError(f"{name}={value!r} must be {wanted}")
    if annotation is str:
        # An enumeration's text is its value. YAML reads the name 2024 as a number.
        return str(value) if isinstance(value, int) else str.__str__(os.fspath(value))
    return value


def _items(value: Any) -> list[Any]:
    """What a list holds, or one value by itself."""
    is_one = isinstance(value, (str, bytes, os.PathLike, Mapping)) or not isinstance(value, Iterable)
    return [value] if is_one else list(value)


def _read_one_of(name: str, value: Any, annotations: tuple[Any, ...]) -> Any:
    """A value of `int | float` is a share below 1, and a whole number otherwise; other unions are `X | None`."""
    if {int, float} <= set(annotations):
        number = read_number(name, value, float)
        return number if 0 < number < 1 else read_number(name, value, int)
    return _read_value(name, value, next(kind for kind in annotations if kind is not type(None)))


def _read_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    # YAML reads a bare `no` as False.
    value = "no" if value is False and "no" in choices else value
    check_choice(name, value, choices)
    return choices[choices.index(value)]  # an enumeration's member may be equal to its text


def read_number(name: str, value: Any, kind: type) -> int | float:
    """Convert the value of a flag or of a recipe's field to int or float; a `UserError` if it is no such number."""
    try:
        return to_number(name, value, kind)
    except ValueError as error:
        raise UserError(f"{name}={value!r} {error}") from None


def to_number(name: str, value: Any, kind: type) -> int | float:
    """As `read_number`; the error is a `ValueError` that says what is wrong with the value, and does not name it."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan  # YAML reads `1e-3` as text
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or (kind is int and number != int(number)):
        raise ValueError(f"must be a {'whole ' if kind is int else ''}number")
    exact: int | float = kind(number)
    if kind is int and not isinstance(value, float):
        with contextlib.suppress(ValueError):  # 1e5
            exact = int(value)  # every digit counts, as in a seed
    # Libraries fail in many ways at larger numbers.
    most = 1e18 if kind is float else (1 << 64) - 1 if name in ("seed", "seeds") else (1 << 31) - 1
    if abs(exact) > most:
        raise ValueError(f"is too large: at most {most}")
    return exact


__all__ = ["read_fields", "read_number", "to_number"]
