"""One service per database and user: a lock that the kernel gives back when its process dies, however it dies."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from pathlib import Path

from sqlalchemy.engine import make_url

from autotune.measure.job_record import records_folder
from autotune.measure.processes import process_id
from autotune.values import BadInput

UNKNOWN_PID = 0
"""Told for a holder that has not written its pid, or could not."""
_PATIENCE = 1.0
"""Seconds for which a lock may be in the hands of somebody who only looks, or of a child that is just being started."""
_STEP = 0.02


class ServiceLock:
    """The right to serve a database, until `release` or the end of this process."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor: int | None = descriptor
        self.path = path

    @classmethod
    def acquire(cls, url: str) -> ServiceLock:
        """Takes the lock of a storage URL.

        Raises:
            BadInput: another service has it; the message names its process.
            AutotuneError: the folder of the locks is not this user's alone.
        """
        path = lock_path(url)
        deadline = time.monotonic() + _PATIENCE
        while True:
            descriptor = _attempt(path, create=True)
            if descriptor is not None:
                break
            if time.monotonic() > deadline:
                pid = _pid(path)
                who = "another process" if pid == UNKNOWN_PID else f"process {pid}"
                raise BadInput(
                    f"{who} serves this database already (lock {path}); end it first, or name another database with --storage"
                )
            time.sleep(_STEP)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        return cls(descriptor, path)

    def touch(self) -> None:
        """Makes the file look used: programs that tidy /tmp remove what was not for days, and a second service could start."""
        if self._descriptor is not None:
            os.utime(self._descriptor)

    def release(self) -> None:
        """Gives the lock back; calling it again does nothing. The file stays: removing it could let two services in."""
        if self._descriptor is not None:
            os.ftruncate(
                self._descriptor, 0
            )  # a child that is just being started may keep the lock for a moment longer
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> ServiceLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(url: str) -> int | None:
    """Pid of the service that serves a storage URL on this host; None: nobody does.

    Raises:
        AutotuneError: the folder of the locks is not this user's alone.
    """
    path = lock_path(url)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            descriptor = _attempt(path, create=False)
        except FileNotFoundError:
            return None
        if descriptor is not None:
            os.close(descriptor)
            return None
        pid = _pid(path)
        # A service that has just taken the lock writes its pid within a moment; of one that has just been killed, a child that
        # was being started may keep the lock for a moment.
        if _lives(pid) or time.monotonic() > deadline:
            return pid
        time.sleep(_STEP)


def lock_path(url: str) -> Path:
    """The lock file of a storage URL: the same one for every way of writing the same database."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        named = f"sqlite:{os.path.realpath(parsed.database or '')}"
    else:
        named = f"{parsed.get_backend_name()}:{parsed.host or ''}:{parsed.port or ''}:{parsed.database or ''}"
    return records_folder() / f"serve-{hashlib.sha256(named.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.lock"


def _attempt(path: Path, *, create: bool) -> int | None:
    """An open file with the lock on it, or None where somebody else has it."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between open and lock the file may have been removed; a lock on what has no name keeps nobody out.
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lives(pid: int) -> bool:
    process = process_id(pid) if pid != UNKNOWN_PID else None
    return process is not None and process.alive()


def _pid(path: Path) -> int:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return UNKNOWN_PID
    return int(text) if text.isdecimal() else UNKNOWN_PID
