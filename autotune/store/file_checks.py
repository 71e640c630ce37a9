"""Looking after the file of a SQLite database: whether it is whole, and a copy of it before its tables change."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

CHECKED_BYTES = 256 << 20
"""Up to this size a database is checked whole whenever a study opens it: a second or two. Of a larger one, the tables' roots."""


def damage(path: Path, *, busy: float, checked_bytes: int = CHECKED_BYTES) -> str | None:
    """What is broken in a database, in SQLite's words; None: nothing was found.

    Args:
        busy: seconds to wait for a lock.
        checked_bytes: a larger file is not read whole: only the header and the schema are.
    """
    with closing(sqlite3.connect(path, timeout=busy)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if path.stat().st_size > checked_bytes:
                return None
            found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # locked, unreadable: not known to be damaged
            return str(error)
    return None if found == ["ok"] else "; ".join(line for entry in found for line in entry.splitlines()[:3])


def back_up(path: Path, revision: str, *, busy: float) -> Path:
    """Copies a database as it is now, its write-ahead log included, whole or not at all; returns the copy's path.

    Args:
        revision: of its tables before they change.

    Raises:
        OSError: no space, no permission.
        sqlite3.Error: the database cannot be read.
    """
    path = path.resolve()
    copy = path.with_name(f"{path.name}.bak-{revision}")
    scratch = path.with_name(f"{path.name}.bak-{revision}.{os.getpid()}.new")
    if shutil.disk_usage(path.parent).free < path.stat().st_size:
        raise OSError(errno.ENOSPC, "No space left on device", str(copy))
    try:
        # With the permissions of the database: it holds what that holds.
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, path.stat().st_mode & 0o777))
        with (
            closing(sqlite3.connect(path, timeout=busy)) as source,
            closing(sqlite3.connect(scratch, timeout=busy)) as sink,
        ):
            source.backup(sink)
        os.replace(scratch, copy)
    finally:
        scratch.unlink(missing_ok=True)
    return copy
