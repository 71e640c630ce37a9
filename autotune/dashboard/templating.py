"""The templates and the words they may use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import autotune
from autotune.dashboard.figures import figure_json
from autotune.dashboard.schedules import slot_text
from autotune.launch import Override
from autotune.redaction import redact
from autotune.tuner import wording
from autotune.values import KnobValue

STATIC = files("autotune.dashboard") / "static"


def environment() -> Environment:
    """Escapes everything and takes credentials out of everything that a template prints."""
    made = Environment(
        loader=PackageLoader("autotune.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        gain=wording.gain,
        number=wording.number,
        duration=wording.duration,
        short_key=wording.short_key,
        setting=_setting,
        settings=wording.changes,
        verdict=wording.verdict,
        equivalence=wording.equivalence,
        memory=wording.memory,
        theft=wording.theft,
        percent=_percent,
        figure=lambda figure: Markup(figure_json(figure)),
        moment=_moment,
        slot=slot_text,
        iso=lambda moment: moment.astimezone(timezone.utc).isoformat(timespec="seconds"),
        slug=lambda name: str(name).replace("_", "-"),
        shade=_shade,
        breaks=_breaks,
        json_text=lambda value: json.dumps(value, indent=2, ensure_ascii=False, default=str),
    )
    made.globals.update(version=autotune.__version__, asset=asset_url, query=_query, assigned=_assigned)
    return made


def asset_text(name: str) -> str:
    """The text of a shipped file."""
    place = STATIC
    for part in name.split("/"):
        place = place / part
    return place.read_text(encoding="utf-8")


@lru_cache
def asset_url(name: str) -> str:
    """Where a shipped file is served; its name changes with its text, so that it can be kept for ever."""
    return f"/static/{sha256(asset_text(name).encode()).hexdigest()[:12]}/{name}"


def _clean(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Markup):
        return _redacted(value) if len(value) < 200 else redact(_printable(value))
    return value


@lru_cache(maxsize=8192)
def _redacted(text: str) -> str:
    """For the short texts of which a page has thousands, most of them alike."""
    return redact(_printable(text))


def _printable(text: str) -> str:
    """Bytes that were no UTF-8 cannot be sent; they are shown as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _setting(value: KnobValue | list[Any] | Mapping[str, Any]) -> str:
    return json.dumps(value) if isinstance(value, (list, dict)) else wording.value(value)  # type: ignore[arg-type]


def _assigned(override: Override) -> str:
    """The value of an override; masked where its key says that it is a credential."""
    value = override.value or ""
    return value if redact(f"{override.key}={value}") == f"{override.key}={value}" else redact(f"KEY={value}")[4:]


def _breaks(name: str) -> Markup:
    """A key that may be broken after its dots and underscores."""
    escaped = str(escape(redact(name)))
    return Markup(escaped.replace("_", "_<wbr>").replace(".", ".<wbr>"))


def _percent(fraction: float | None, digits: int = 1) -> str:
    return "–" if fraction is None else f"{fraction * 100:.{digits}f} %"


def _moment(moment: datetime | None) -> str:
    return "–" if moment is None else f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"


def _shade(change: float) -> int:
    """How strongly a change is coloured, 0 to 4."""
    size = abs(change)
    return sum(size >= edge for edge in (0.02, 0.1, 0.25, 0.5))


def _query(**parameters: Any) -> str:
    """`?a=b` of what is not empty; a list gives its name several times."""
    kept = {name: value for name, value in parameters.items() if value not in ("", None, False, [])}
    return f"?{urlencode(kept, doseq=True)}" if kept else ""
