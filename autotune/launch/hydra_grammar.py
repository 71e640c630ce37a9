"""Hydra's override grammar, by Hydra's own parser: reading values and writing them so that they come back the same."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType, QuotedString, Sweep
from hydra.errors import HydraException

from autotune.values import KnobValue

MAX_VALUE = 20_000
"""Longer values are not given to Hydra's parser: it needs milliseconds per hundred characters."""
MAX_NESTING = 24
"""Hydra's parser recurses some ten frames per bracket."""

_SHAPE = re.compile(r"(?P<mark>\+\+|\+|~)?(?P<key>[^=\s'\"]+)(?:(?P<equals>=)(?P<value>.*))?\Z", re.DOTALL)
_OPS = {None: "set", "+": "add", "++": "force_add", "~": "delete"}
MARKS = {"set": "", "add": "+", "force_add": "++", "delete": "~"}
_SIMPLE = re.compile(r"[A-Za-z0-9_./:%@?|-]+\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReadOverride:
    """One argument as Hydra reads it; `error` is why Hydra refuses it."""

    op: str
    key: str
    value: str | None
    typed: Any
    error: str | None = None


def looks_like_override(argument: str) -> bool:
    """Whether an argument has the form of an override (`key=value`, `+key=…`, `~key`)."""
    match = _SHAPE.match(argument)
    return bool(match and (match["equals"] or match["mark"] == "~"))


@lru_cache(maxsize=4096)
def read_override(argument: str) -> ReadOverride:
    """What Hydra makes of one argument of the command."""
    match = _SHAPE.match(argument)
    if not match or not (match["equals"] or match["mark"] == "~"):
        return ReadOverride("set", argument, None, None, "not of the form key=value")
    op, key, value = _OPS[match["mark"]], match["key"], match["value"] if match["equals"] else None
    if len(argument) > MAX_VALUE or _nesting(argument) > MAX_NESTING:
        return ReadOverride(op, key, value, value, "longer or deeper than autotune gives to Hydra's parser")
    try:
        parsed = _parser().parse_override(argument)
    except HydraException as error:
        return ReadOverride(op, key, value, None, _short(str(error)))
    if parsed.is_sweep_override():
        return ReadOverride(op, key, value, value, "a sweep, which Hydra takes with --multirun only")
    typed = None if parsed.type is OverrideType.DEL and value is None else plain(parsed)
    return ReadOverride(op, key, value, typed)


def plain(parsed: Override) -> Any:
    """The value as plain Python and JSON data; Hydra's infinities and NaN become the strings Infinity, -Infinity, NaN."""
    return _plain(parsed.value())


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, (Sweep, Glob)):
        return str(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def format_override(key: str, value: KnobValue, op: str = "set") -> str:
    """One argument for Hydra, not quoted for a shell: `key=value` with `+`, `++` or `~` in front for the other ops.

    Hydra reads exactly `value` back: a string that its grammar would take for something else is quoted.

    Raises:
        ValueError: unknown op, or a number that Hydra's grammar cannot express.
    """
    if op not in MARKS:
        raise ValueError(f"unknown op {op!r}; one of {', '.join(MARKS)}")
    if op == "delete":
        return f"~{key}"
    return f"{MARKS[op]}{key}={format_value(value)}"


@lru_cache(maxsize=4096, typed=True)
def format_value(value: KnobValue) -> str:
    """`value` in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return (
            "nan"
            if math.isnan(value)
            else "inf"
            if value == math.inf
            else "-inf"
            if value == -math.inf
            else repr(value)
        )
    if _SIMPLE.match(value) and _reads_back(value, value):
        return value
    for quote in "'", '"':
        quoted = _quote(value, quote)
        if len(value) > MAX_VALUE or _reads_back(quoted, value):
            return quoted
    raise ValueError(f"Hydra's grammar cannot express the string {value!r}")


def _quote(value: str, quote: str) -> str:
    """Hydra's quoted string: backslashes count only before the quote or at the end, where each must be doubled."""
    body = re.sub(rf"(\\*){quote}", lambda match: match[1] * 2 + "\\" + quote, value)
    tail = len(body) - len(body.rstrip("\\"))
    return quote + body + "\\" * tail + quote


def _reads_back(text: str, value: str) -> bool:
    try:
        parsed = _parser().parse_override(f"k={text}")
    except HydraException:
        return False
    if parsed.is_sweep_override():
        return False
    read = parsed.value()
    return (read.text if isinstance(read, QuotedString) else read) == value and not isinstance(read, (bool, int, float))


def _nesting(text: str) -> int:
    deepest = depth = 0
    for char in text:
        depth += (char in "[{(") - (char in "]})")
        deepest = max(deepest, depth)
    return deepest


def _short(message: str) -> str:
    return message.strip().split("\n")[0][:200]


@lru_cache(maxsize=1)
def _parser() -> OverridesParser:
    return OverridesParser.create()
