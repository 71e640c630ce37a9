"""A composed verl configuration as a flat mapping, and reading it without surprises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

FlatConfig: TypeAlias = Mapping[str, Any]
"""Dotted key → value, as Hydra composed and resolved it; lists stay lists, empty mappings stay mappings."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a nested configuration under dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{key}."))
        else:
            flat[key] = value
    return flat


def integer(config: FlatConfig, key: str) -> int | None:
    """The whole number at `key`, or None where it is absent, null or not a whole number."""
    value = config.get(key)
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def flag(config: FlatConfig, key: str, default: bool = False) -> bool:
    """The truth value at `key`; `default` where it is absent or null."""
    value = config.get(key)
    return default if value is None else bool(value)
