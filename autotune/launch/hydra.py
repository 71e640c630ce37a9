"""Hydra's override grammar: reading an override, and writing one that reads back as the same value."""

from __future__ import annotations

import re
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.errors import HydraException

from autotune.launch.launch import LaunchError, Override, Span
from autotune.values import KnobValue

_SIGN = {"set": "", "add": "+", "force_add": "++", "delete": "~"}
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@:-]*")
_WORDS = frozenset({"null", "true", "false", "nan", "inf"})


def format_override(key: str, value: KnobValue, op: str = "set") -> str:
    """One argument for Hydra, not quoted for a shell. Strings are quoted where Hydra would read something else."""
    return f"{_SIGN[op]}{key}={format_value(value)}"


def format_value(value: KnobValue) -> str:
    """A value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, (bool, int, float)):
        return str(value)
    if _BARE.fullmatch(value) and value.lower() not in _WORDS:
        return value
    escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + r"\'", value)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"


def parse_override(text: str, *, line: int | None = None, span: Span | None = None, literal: bool = False) -> Override:
    """The override that an argument of the launch makes, typed by Hydra's own parser.

    Raises:
        LaunchError: Hydra does not take it.
    """
    op = (
        "delete"
        if text.startswith("~")
        else "force_add"
        if text.startswith("++")
        else "add"
        if text.startswith("+")
        else "set"
    )
    key, equals, value = text.lstrip("+~").partition("=")
    try:
        parsed: HydraOverride = OverridesParser.create().parse_override(text)
        typed: Any = parsed.value()
    except HydraException as error:
        raise LaunchError(
            "HYDRA_SYNTAX", f"Hydra cannot read the override {text!r}: {str(error).splitlines()[0]}", line
        ) from error
    return Override(op, key, value if equals else None, _plain(typed), line, span, literal)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return getattr(value, "text", None) or str(value)
