"""Opening the store that the other commands read."""

from __future__ import annotations

import os

from sqlalchemy.engine import make_url

from autotune.store.records import StudyRecord
from autotune.store.store import Store
from autotune.values import BadInput

DEFAULT_STORAGE = "sqlite:///trials.db"


def open_existing(url: str) -> Store:
    """The store at `url`; a command that only reads never makes one.

    Raises:
        BadInput: there is no such database yet, or it cannot be opened.
    """
    path = Store.missing_file(url)
    if path is not None:
        raise BadInput(
            f"no study was run here yet: {path} does not exist. Start one with autotune run, or name another --storage"
        )
    return Store.open(url)


def chosen_study(store: Store, name: str | None) -> StudyRecord:
    """The study of that name, or the newest one.

    Raises:
        BadInput: there is none.
    """
    if name is not None:
        return store.study(name)
    newest = store.latest_study()
    if newest is None:
        raise BadInput("the database holds no study yet; start one with autotune run")
    return newest


def absolute_storage(url: str) -> str:
    """The same database, whatever folder its user is in."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        parsed = parsed.set(database=os.path.abspath(parsed.database))
    return parsed.render_as_string(hide_password=False)
