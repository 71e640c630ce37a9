"""`NAME=VALUE` options."""

from __future__ import annotations

from autotune.values import BadInput


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """The options as a mapping.

    Raises:
        BadInput: one has no name or no `=`.
    """
    found = {}
    for item in given or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise BadInput(f"{option} {item!r}: expected NAME=VALUE")
        found[key] = value
    return found
