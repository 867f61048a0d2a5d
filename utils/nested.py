"""Mappings in mappings."""

from typing import Any


def merge_nested(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of `values` with `changes`, merged recursively."""
    merged = dict(values)
    for name, change in changes.items():
        before = merged.get(name)
        if isinstance(before, dict) and isinstance(change, dict):
            merged[name] = merge_nested(before, change)
        else:
            merged[name] = change
    return merged
