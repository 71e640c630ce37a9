"""`best.sh` that a study left on disk, as it may be shown. It may be gone, or on another host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.redaction import find_secrets, redact

_MOST_BYTES = 512 << 10


@dataclass(frozen=True, slots=True)
class Script:
    """A script as it may be shown."""

    path: str
    text: str
    """Without its credentials."""
    masked: bool
    """Whether a credential was taken out, so that the text does not run as it stands."""


def best_script(folder: str) -> Script | None:
    """`best.sh` of a study's output folder; None where it is not on this host, or the study has no folder."""
    text = _text(folder)
    if text is None:
        return None
    shown = redact(text)
    return Script(str(Path(folder) / "best.sh"), shown, shown != text)


def secrets_of(folder: str) -> set[str]:
    """Credentials that a study's script holds, so that they can be masked in its logs too."""
    text = _text(folder)
    return set() if text is None else find_secrets(text)


def _text(folder: str) -> str | None:
    path = Path(folder) / "best.sh"
    try:
        if not folder or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
