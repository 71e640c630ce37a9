"""The one place that takes secrets out of text before it is stored or shown. Imports nothing of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

MASK = "***"

_LONG = 200
_MIN_SECRET = 6
"""Shorter values are too common in ordinary text: masking them wherever they reappear would shred it."""

# Environment-style names (`HF_TOKEN`, `WANDB_API_KEY`), and lower-case names that can only mean a credential.
# verl's own keys hold the words too (`data.prompt_key`, `ppo_max_token_len_per_gpu`, `eos_token_id`): they must survive.
_NAME = (
    r"(?:[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)[A-Z0-9_]*"
    r"|[A-Za-z0-9_.-]*(?:secret|password|passwd|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|(?:auth|access|hf|api|bearer|github|gitlab|wandb)[_-]?token)(?:_id)?)"
)
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9_])(?P<name>{_NAME})(?P<mark>['\"]?\s*[:=]\s*|['\"]\s*,\s*|\s+(?=[A-Za-z0-9_/+-]{{20}}))"
    r"(?P<quote>['\"]?)(?P<value>[^\s'\",;}\])]+)"
)
_URL = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)(?P<login>[^\s/@'\"]{1,500})@")
_BEARER = re.compile(r"(?P<kind>\b(?:Bearer|Basic)\s+)(?P<value>[A-Za-z0-9._~+/=-]{8,})")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16})\b"
)
_TELLING = re.compile(rf"(?<![A-Za-z0-9_]){_NAME}\Z")
_HARMLESS = re.compile(r"(?:[+-]?[\d.]+(?:e[+-]?\d+)?|true|false|none|null|\$\{?\w+\}?|\*+)\Z", re.IGNORECASE)


def find_secrets(text: str) -> set[str]:
    """The credentials that `text` itself gives away: assigned to a telling name, in a URL, or of a known shape."""
    found = {match["value"] for match in _ASSIGNED.finditer(text) if not _HARMLESS.match(match["value"])}
    for match in _URL.finditer(text):
        found.add(match["login"])
        found.add(match["login"].partition(":")[2])
    found |= {match["value"] for match in _BEARER.finditer(text)}
    found |= set(_SHAPES.findall(text))
    return {value for value in found if len(value) >= _MIN_SECRET}


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without credentials.

    Masked are values of names that hold KEY, TOKEN, SECRET or PASSWORD, logins in URLs, tokens of known shapes, and every
    place where such a value, or one of `secrets`, stands again. Numbers and booleans are never credentials.
    """

    def assigned(match: re.Match[str]) -> str:
        return match[0] if _HARMLESS.match(match["value"]) else match[0][: match.start("value") - match.start()] + MASK

    known = find_secrets(text) | {value for value in secrets if len(value) >= _MIN_SECRET}
    text = _URL.sub(rf"\g<scheme>{MASK}@", text)
    text = _BEARER.sub(rf"\g<kind>{MASK}", text)
    text = _ASSIGNED.sub(assigned, text)
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, MASK)
    return _SHAPES.sub(MASK, text)


def redact_json(value: Any) -> Any:
    """A JSON value without credentials, and otherwise the same: what `redact` would make of the text of a JSON document need
    not be one, since the quotes inside its strings look like the ends of values.

    A string is a credential where its key, or the string before it in a list, is the telling name of one; others are redacted
    as text. A credential of one string is masked in all of them. Lone surrogates become question marks: a script in another
    encoding leaves them, and nothing can send or store them.
    """
    return _json(value, "", _json_secrets(value, ""))


def _json(value: Any, name: str, known: set[str]) -> Any:
    if isinstance(value, str):
        return MASK if _is_credential(name, value) else _shown(value, known)
    if isinstance(value, Mapping):
        return {_shown(str(key), known): _json(item, str(key), known) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item, of, known) for of, item in _named_items(value, name)]
    return value


def _shown(text: str, known: set[str]) -> str:
    return redact(_printable(text), known) if known or len(text) >= _LONG else _redact_short(text)


@lru_cache(maxsize=16384)
def _redact_short(text: str) -> str:
    """For the short texts of which an answer has thousands, most of them alike."""
    return redact(_printable(text))


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _found(text: str) -> frozenset[str]:
    return frozenset(find_secrets(text)) if len(text) >= _LONG else _found_in_short(text)


@lru_cache(maxsize=16384)
def _found_in_short(text: str) -> frozenset[str]:
    return frozenset(find_secrets(text))


def _json_secrets(value: Any, name: str) -> set[str]:
    if isinstance(value, str):
        return {*_found(value), *([value] if _is_credential(name, value) and len(value) >= _MIN_SECRET else [])}
    found: set[str] = set()
    if isinstance(value, Mapping):
        for key, item in value.items():
            found |= _found(str(key)) | _json_secrets(item, str(key))
    elif isinstance(value, (list, tuple)):
        for of, item in _named_items(value, name):
            found |= _json_secrets(item, of)
    return found


def _named_items(items: Iterable[Any], name: str) -> list[tuple[str, Any]]:
    """The items of a list, each with the name that tells what it is: that of the list, or the string before it."""
    named, before = [], ""
    for item in items:
        named.append((before if _TELLING.search(before) else name, item))
        before = item if isinstance(item, str) else ""
    return named


def _is_credential(name: str, value: str) -> bool:
    return bool(value) and _TELLING.search(name) is not None and not _HARMLESS.match(value)
