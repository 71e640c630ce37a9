"""What a job leaves outside its own folders, and taking it away: shared memory and sockets that died with their owner."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
_SOCKETS = "rl-colocate-zmq-"
"""Prefix of the sockets that verl's vLLM rollout makes in /tmp (vllm_rollout.py:139)."""


class Leftovers:
    """Remembers what was there before a job, and removes what it left.

    Removed is only what appeared since, belongs to this user and is in no living process' hands: another job of the same
    user keeps its segments mapped.
    """

    def __init__(self) -> None:
        self.private = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
        """A new folder (0700) with a short path: Ray's socket paths may have 107 characters at most."""
        self.temporary = self.private / "t"
        self.temporary.mkdir()
        self._since = time.time()
        self._before = _names(SHARED_MEMORY)

    def remove(self) -> list[str]:
        """Takes away what the ended job left; returns the paths."""
        removed = []
        candidates = [SHARED_MEMORY / name for name in _names(SHARED_MEMORY) - self._before]
        candidates += [Path("/tmp") / name for name in _names(Path("/tmp")) if name.startswith(_SOCKETS)]
        mine = [path for path in candidates if self._is_ours(path)]
        if mine:
            files, sockets = _in_use()
            for path in mine:
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    if path.lstat().st_ino not in files and str(path) not in sockets:
                        path.unlink()
                        removed.append(str(path))
        shutil.rmtree(self.private, ignore_errors=True)
        return removed

    def _is_ours(self, path: Path) -> bool:
        try:
            facts = path.lstat()
        except OSError:
            return False
        plain = stat.S_ISREG(facts.st_mode) or stat.S_ISSOCK(facts.st_mode)
        return plain and facts.st_uid == os.getuid() and facts.st_ctime >= self._since - 1.0


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def _in_use() -> tuple[set[int], set[str]]:
    """Inodes in shared memory that a living process has mapped or open, and paths of bound sockets.

    Names would not do: the C library makes a named semaphore under another name first, and that is the one which
    stands in the maps of the process that made it.
    """
    files: set[int] = set()
    for pid in psutil.pids():
        try:
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                if "/dev/shm/" in line:
                    files.add(int(line.split(maxsplit=5)[4]))
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith("/dev/shm/"):
                        files.add(os.stat(entry.path).st_ino)
        except OSError:
            continue  # gone meanwhile, or another user's
    sockets: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
            sockets.add(line.split(maxsplit=7)[-1])
    return files, sockets
