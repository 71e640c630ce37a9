"""The one place that takes secrets out of text before it is stored or shown. Imports nothing of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

MASK = "***"

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
    """A value of JSON without credentials: in its texts, in its keys, and whatever a telling key names.

    Lone surrogates become question marks: a script in another encoding leaves them, and nothing can send them.
    """
    if isinstance(value, str):
        return _redact_short(value) if len(value) < 200 else redact(_printable(value))
    if isinstance(value, Mapping):
        return {redact_json(str(key)): _named(str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_json(inner) for inner in value]
    return value


def _named(name: str, value: Any) -> Any:
    shown = redact_json(value)
    if not isinstance(value, str) or not value or shown != _printable(value):
        return shown
    assigned = _printable(f"{name}={value}")
    return shown if redact(assigned) == assigned else MASK


@lru_cache(maxsize=16384)
def _redact_short(text: str) -> str:
    """For the short texts of which an answer has thousands, most of them alike."""
    return redact(_printable(text))


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
