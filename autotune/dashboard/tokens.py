"""How a page knows that something has changed since it was made."""

from __future__ import annotations

import hashlib


def digest(token: str) -> str:
    """A short text for a long one."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]
