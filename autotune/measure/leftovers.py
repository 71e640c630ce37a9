"""What a job leaves outside its own folders, and taking it away: shared memory and sockets that died with their owner."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_SEGMENTS = re.compile(r"(verl_weights_|psm_|sem\.|torch_|plasma|nccl-|__KMP_REGISTERED_LIB_|loky|pymp-|ray|vllm|cuda)")
"""How verl (bucketed_weight_transfer.py:190) and its libraries begin the names of what they share. What a user copies to
/dev/shm during a job (models, data sets) is called otherwise, and is never touched."""
_SOCKETS = re.compile("rl-colocate-zmq-")
"""Sockets that verl's vLLM rollout makes in /tmp (vllm_rollout.py:139)."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What was there before a job, so that what it leaves can be told from it.

    Removed is only what has appeared since, has a name that such jobs give, belongs to this user and is in no living
    process' hands: another job of the same user keeps its segments mapped.
    """

    private: Path
    """Folder of the job (0700) with a short path: Ray's socket paths may have 107 characters at most."""
    before: frozenset[str]
    """Paths that were there."""

    @classmethod
    def before_job(cls, name: str) -> Leftovers:
        """What is there now, for a job whose private folder is to have this name; nothing is made."""
        return cls(Path("/tmp") / name, frozenset(map(str, _candidates())))

    @property
    def temporary(self) -> Path:
        """Folder for the job's TMPDIR."""
        return self.private / "t"

    @property
    def ray(self) -> Path:
        """Folder for the job's Ray cluster, which opens its own folder to everybody: it lies in one that nobody else enters."""
        return self.private / "r"

    def make(self) -> None:
        """Makes the private folder.

        Raises:
            FileExistsError: there is something of that name; another user may have put it there.
        """
        self.private.mkdir(mode=0o700)
        self.temporary.mkdir()

    def remove(self) -> list[str]:
        """Takes away what the ended job left; returns the paths. Calling it again does nothing more."""
        removed = []
        mine = [path for path in _candidates() if str(path) not in self.before and _is_ours(path)]
        if mine:
            files, sockets = _in_use()
            for path in mine:
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    if path.lstat().st_ino not in files and str(path) not in sockets:
                        path.unlink()
                        removed.append(str(path))
        if self.private.exists() and self.private.lstat().st_uid == os.getuid():
            shutil.rmtree(self.private, ignore_errors=True)
        return removed


def _candidates() -> list[Path]:
    found = []
    for folder, names in ((SHARED_MEMORY, _SEGMENTS), (Path("/tmp"), _SOCKETS)):
        with contextlib.suppress(FileNotFoundError):
            found += [folder / name for name in os.listdir(folder) if names.match(name)]
    return found


def _is_ours(path: Path) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    plain = stat.S_ISREG(facts.st_mode) or stat.S_ISSOCK(facts.st_mode)
    return plain and facts.st_uid == os.getuid()


def _in_use() -> tuple[set[int], set[str]]:
    """Inodes in shared memory that a living process has mapped or open, and paths of bound sockets.

    Names would not do: the C library makes a named semaphore under another name first, and that is the one which
    stands in the maps of the process that made it.
    """
    files: set[int] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
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
