"""What goes wrong with a database while it is in use, told so that one knows what to do."""

from __future__ import annotations

import shutil
import sqlite3
from enum import Enum
from pathlib import Path

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, OperationalError

from autotune.values import RunFailed


class TroubleKind(str, Enum):
    """What is wrong."""

    FULL = "full"
    LOCKED = "locked"
    READ_ONLY = "read_only"
    DAMAGED = "damaged"
    DISK = "disk"
    UNREACHABLE = "unreachable"


class StoreTrouble(RunFailed):
    """The database cannot be used now. Nothing that was stored before is lost, and the call that failed stored nothing."""

    def __init__(self, kind: TroubleKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def may_pass(self) -> bool:
        """Whether trying again may help: a disk is emptied, a lock is given back; a damaged file stays damaged."""
        return self.kind is not TroubleKind.DAMAGED


_ADVICE = {
    TroubleKind.FULL: "the disk of {where} is full; free some space",
    TroubleKind.LOCKED: "{where} is locked by another process for longer than {busy:.0f} s; end the one that holds it "
    "(fuser or lsof name it: a database browser, a backup, a stopped program)",
    TroubleKind.READ_ONLY: "{where} cannot be written any more; give its file and its folder write permission, and see "
    "whether the disk was mounted read-only",
    TroubleKind.DAMAGED: "{where} is damaged; save a copy of it and of its -wal file, then put a backup in its place "
    "(trials.db.bak-… beside it, if there is one) or save what is left: sqlite3 {file} .recover | sqlite3 recovered.db",
    TroubleKind.DISK: "the disk of {where} refuses to read or write; see whether it is full, over a quota, removed or failing",
    TroubleKind.UNREACHABLE: "{where} does not answer; see whether its server runs",
}
_CODES = {
    3: TroubleKind.READ_ONLY,  # PERM
    5: TroubleKind.LOCKED,  # BUSY
    6: TroubleKind.LOCKED,
    8: TroubleKind.READ_ONLY,
    10: TroubleKind.DISK,  # IOERR
    11: TroubleKind.DAMAGED,  # CORRUPT
    13: TroubleKind.FULL,
    14: TroubleKind.DISK,  # CANTOPEN
}
"""SQLite's primary result codes (sqlite.org/rescode.html); the module has names for them from Python 3.11 on only."""
_TEXTS = {
    "disk is full": TroubleKind.FULL,
    "is locked": TroubleKind.LOCKED,
    "readonly database": TroubleKind.READ_ONLY,
    "malformed": TroubleKind.DAMAGED,
    "disk i/o error": TroubleKind.DISK,
    "unable to open": TroubleKind.DISK,
}
"""SQLite's own words: Python 3.10 gives no code."""
_ROOM = 1 << 20
"""Bytes that are free at least on a disk that is not full."""


def kind_of(error: BaseException) -> TroubleKind | None:
    """What a driver's error means; None: something else."""
    if isinstance(error, DBAPIError):
        if not isinstance(error.orig, sqlite3.Error):
            return TroubleKind.UNREACHABLE if isinstance(error, OperationalError) else None
        error = error.orig
    if not isinstance(error, sqlite3.Error):
        return None
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _CODES:
        return _CODES[code & 0xFF]  # the higher bits tell the system call that failed
    text = str(error).lower()
    return next((kind for words, kind in _TEXTS.items() if words in text), None)


def trouble(error: BaseException, *, where: str, file: str, busy: float) -> StoreTrouble | None:
    """The error for people, or None where it is none of those.

    Args:
        where: the database, without its password.
        file: its path, for a command that can be copied.
        busy: seconds that SQLite waits for a lock.
    """
    kind = kind_of(error)
    if kind is None:
        return None
    if kind is TroubleKind.DISK and _is_full(file):
        kind = TroubleKind.FULL  # SQLite has no better word than "I/O error" for a log that cannot grow
    told = _ADVICE[kind].format(where=where, file=file, busy=busy)
    reason = str(getattr(error, "orig", error) or error).strip().splitlines()[0]
    return StoreTrouble(kind, f"{told} ({reason})")


def _is_full(file: str) -> bool:
    try:
        return shutil.disk_usage(Path(file).resolve().parent).free < _ROOM
    except OSError:
        return False


def tell_troubles(engine: Engine, *, where: str, file: str, busy: float) -> None:
    """Makes an engine raise `StoreTrouble` for what has a remedy, and SQLAlchemy's own error for everything else."""

    @event.listens_for(engine, "handle_error")
    def instead(context: ExceptionContext) -> StoreTrouble | None:
        error = context.sqlalchemy_exception or context.original_exception
        return trouble(error, where=where, file=file, busy=busy)
