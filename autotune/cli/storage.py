"""Opening the store that the other commands read."""

from __future__ import annotations

import os

from sqlalchemy.engine import make_url

from autotune.store.records import StudyRecord
from autotune.store.store import Store, usable_url
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


def absolute(storage: str) -> str:
    """The URL with the whole path of a SQLite database, for processes that work in other folders.

    Raises:
        BadInput: it is no URL, or its database cannot be used.
    """
    usable_url(storage)
    url = make_url(storage)
    if url.get_backend_name() == "sqlite" and url.database:
        url = url.set(database=os.path.abspath(url.database))
    return url.render_as_string(hide_password=False)
