"""The logs that a study's launches left on disk. They may be gone, or on another host."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotune.redaction import redact

_MOST_LOG = 32 << 20
_TAIL_BYTES = 64 << 10
_TAIL_LINES = 80
_AROUND = 6
_LINE = 2000
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log as it may be shown."""

    text: str
    decisive: bool
    """Whether it is the line that the failure was told from."""


@dataclass(frozen=True, slots=True)
class LogView:
    """The parts of a log that a page shows."""

    path: str
    around: tuple[LogLine, ...]
    """The decisive line and its neighbours, where the tail does not hold it."""
    tail: tuple[LogLine, ...]
    shortened: bool
    """Whether the log begins before the tail."""


def log_view(run_dir: str, evidence: str, secrets: Iterable[str] = ()) -> LogView | None:
    """The end of a launch's console log, and the place that its failure was told from; None where it is not on this host.

    Args:
        evidence: the decisive line as stored; empty: none.
        secrets: values to mask besides those that the log itself gives away.
    """
    path = Path(run_dir) / "console.log"
    try:
        if not path.is_file():
            return None
        size = path.stat().st_size
        with path.open("rb") as source:
            source.seek(max(0, size - _TAIL_BYTES))
            end = source.read(_TAIL_BYTES)
            source.seek(0)
            whole = source.read(_MOST_LOG) if evidence else b""
    except OSError:
        return None
    known = set(secrets)
    needle = _needle(evidence)
    last = _lines(end, known)
    tail = last[-_TAIL_LINES:]
    around: list[LogLine] = []
    if needle and not any(needle in line for line in tail):
        lines = whole.decode("utf-8", "replace").splitlines()
        at = next((i for i, line in enumerate(lines) if needle in _CONTROL.sub("", line)), None)
        if at is not None:
            excerpt = "\n".join(lines[max(0, at - _AROUND) : at + _AROUND + 1])
            around = [LogLine(line, needle in line) for line in _lines(excerpt.encode(), known)]
    marked = tuple(LogLine(line, bool(needle) and needle in line) for line in tail)
    return LogView(str(path), tuple(around), marked, size > _TAIL_BYTES or len(last) > len(tail))


def _lines(data: bytes, secrets: set[str]) -> list[str]:
    text = _CONTROL.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n"))
    return [line[:_LINE] for line in redact(text, secrets).splitlines()]


def _needle(evidence: str) -> str:
    """The longest part of a stored line that stands in the log as it is: masks and cuts are ours."""
    parts = re.split(r"\*\*\*|…|\n", evidence)
    longest = max(parts, key=len, default="").strip()
    return longest[:200] if len(longest) >= 8 else ""
