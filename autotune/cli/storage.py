"""Opening the store that the other commands read."""

from __future__ import annotations

from pathlib import Path

from autotune.store.store import Store
from autotune.values import BadInput

DEFAULT_STORAGE = "sqlite:///trials.db"


def open_existing(url: str) -> Store:
    """The store at `url`; a command that only reads never makes one.

    Raises:
        BadInput: there is no such database yet, or it cannot be opened.
    """
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        if not path.exists():
            raise BadInput(
                f"no study was run here yet: {path} does not exist. Start one with autotune run, or name another --storage"
            )
    return Store.open(url)
