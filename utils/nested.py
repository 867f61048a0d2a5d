"""Mappings in mappings."""

from typing import Any


def merge_nested(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of `values` with `changes`, merged recursively.

    Another `rope_type` takes only `rope_theta` from the one before, as types have parameters of their own.
    """
    merged = dict(values)
    if "rope_type" in values and changes.get("rope_type", values["rope_type"]) != values["rope_type"]:
        merged = {name: value for name, value in values.items() if name == "rope_theta"}
    for name, change in changes.items():
        before = merged.get(name)
        if isinstance(before, dict) and isinstance(change, dict):
            merged[name] = merge_nested(before, change)
        else:
            merged[name] = change
    return merged
