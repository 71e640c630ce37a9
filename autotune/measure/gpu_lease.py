"""Holding GPUs against every other tuner of this host, whoever runs it.

One file per GPU lies in a folder that all users of the host share, and the tuner that holds an advisory lock (flock) on it has
the GPU. The lock is the truth: it goes with the last process that has the file open, so that a killed tuner frees its GPUs
and nothing has to be cleaned up. What the file says is for messages alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from autotune.measure.processes import ProcessId, this_process
from autotune.values import BadInput

FOLDER = Path("/tmp/autotune-leases")
"""Where every tuner of the host looks. Not TMPDIR, which differs by user; not /run/lock, which not everybody may write."""
FOLDER_VARIABLE = "AUTOTUNE_LEASES"
"""Environment variable that names another folder, such as one that containers with the same GPUs have mounted."""
CPU = "CPU"
"""What stands for the whole host among GPUs: two measurements on its cores would slow each other down."""
_MOST_READ = 4096
_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a GPU, for messages."""

    pid: int
    start_time: int
    """Clock ticks from the boot to its start; with the pid, it names one process."""
    user: str
    study: str
    since: str
    """UTC, ISO 8601."""

    @classmethod
    def of_this_process(cls, study: str) -> Holder:
        """This process, holding for a study."""
        process = this_process()
        return cls(
            pid=process.pid,
            start_time=process.start,
            user=_user(),
            study=study,
            since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def __str__(self) -> str:
        ended = "" if self._lives() else ", which has ended; what it started is still being taken down"
        since = f" since {self.since}" if self.since else ""
        return f"study {self.study} of {self.user} (pid {self.pid}{ended}){since}"

    def _lives(self) -> bool:
        return ProcessId(self.pid, self.start_time).alive()


class GpuBusy(BadInput):
    """GPUs that a study wants are in somebody's hands."""


class GpuLease:
    """GPUs that this process holds until `release`, its end, or the end of those it handed `fds` to, whichever is last."""

    def __init__(self, descriptors: Mapping[str, int]) -> None:
        self._descriptors = dict(descriptors)

    @classmethod
    def acquire(
        cls,
        uuids: Sequence[str],
        holder: Holder,
        *,
        wait: Callable[[GpuBusy], bool] | None = None,
        folder: Path | None = None,
    ) -> GpuLease:
        """Takes all of these GPUs, or none of them.

        Nothing is held while it waits, so that two tuners that want each other's GPUs cannot block each other.

        Args:
            uuids: UUIDs as NVML tells them; any other text names something else to be had once.
            holder: who to name to others.
            wait: asked while some are busy, with what would be raised; it takes its time, then says whether to try again.
                None: not at all.
            folder: where the files are; None: what AUTOTUNE_LEASES names, or the host's folder.

        Raises:
            GpuBusy: another tuner holds one of them.
            BadInput: the folder cannot be used.
        """
        place = folder or Path(os.environ.get(FOLDER_VARIABLE) or FOLDER)
        while True:
            try:
                return cls._attempt(sorted(set(uuids)), holder, place)
            except GpuBusy as busy:
                if wait is None or not wait(busy):
                    raise

    @classmethod
    def _attempt(cls, uuids: Sequence[str], holder: Holder, place: Path) -> GpuLease:
        if not uuids:
            return cls({})
        held: dict[str, int] = {}
        try:
            with _folder(place) as folder:
                for uuid in uuids:
                    held[uuid] = _lock(folder, place, uuid)
        except BaseException:
            cls(held).release()
            raise
        note = json.dumps(asdict(holder)).encode()
        for descriptor in held.values():
            # A full disk takes the name from a message and nothing from the lock; a file of another user may be read-only.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, note, 0)
        return cls(held)

    @property
    def uuids(self) -> tuple[str, ...]:
        """What is held, sorted."""
        return tuple(self._descriptors)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that carry the locks: a process that inherits them (`pass_fds`) holds the GPUs as long as it lives.

        They are closed on exec everywhere else.
        """
        return tuple(self._descriptors.values())

    def release(self) -> None:
        """Gives this process' hold back; calling it again does nothing.

        The files are closed, never unlocked: unlocking would take the GPUs from a supervisor that inherited them, too.
        """
        while self._descriptors:
            _, descriptor = self._descriptors.popitem()
            os.close(descriptor)

    def __enter__(self) -> GpuLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lease_name(uuid: str) -> str:
    """The file name of a GPU's lease; what is no plain name is told by its hash, so that nothing leaves the folder."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", uuid):
        return f"{uuid}.lock"
    return f"other-{hashlib.sha256(uuid.encode()).hexdigest()[:32]}.lock"


@contextlib.contextmanager
def _folder(place: Path) -> Iterator[int]:
    """A descriptor of the shared folder, made where it is missing so that every user can use it."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(place, 0o777)
            os.chmod(place, 0o1777)  # mkdir obeys the umask
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        linked = error.errno in (errno.ELOOP, errno.ENOTDIR)
        raise _unusable(place, "it is a link or no folder" if linked else error.strerror or str(error)) from error
    try:
        yield folder
    finally:
        os.close(folder)


def _lock(folder: int, place: Path, uuid: str) -> int:
    """An open, locked file for a GPU."""
    name = lease_name(uuid)
    for _ in range(_ATTEMPTS):
        descriptor = _open(folder, place, name)
        if descriptor is None:
            time.sleep(0.01)
            continue
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise GpuBusy(_busy(uuid, _read(descriptor))) from None
            # Between open and lock somebody may have removed the file; a lock on what has no name keeps nobody out.
            if _is_named(folder, name, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise _unusable(place, f"{name} can be neither made nor opened")


def _open(folder: int, place: Path, name: str) -> int | None:
    """The lease file, made where it is missing; None: try again.

    Anybody may put anything into the folder, so that a link is never followed, a pipe never waited for, and a second name
    of some other file never written to.
    """
    # Without O_CREAT first: the kernel refuses that for another user's file in a sticky folder (fs.protected_regular).
    plain = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(name, os.O_RDWR | plain, dir_fd=folder)
    except FileNotFoundError:
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | plain, 0o666, dir_fd=folder)
        except (FileExistsError, PermissionError):
            return None  # another one was faster with the file, or is about to open the folder to all
        except OSError as error:
            raise _unusable(place, f"{name} cannot be made: {error.strerror}") from error
        os.fchmod(descriptor, 0o666)  # open obeys the umask
    except PermissionError:
        # Just being made by another user, or made read-only; a lock needs no more than reading.
        try:
            descriptor = os.open(name, os.O_RDONLY | plain, dir_fd=folder)
        except PermissionError:
            return None
        except OSError as error:
            raise _unusable(place, f"{name} cannot be opened: {error.strerror}") from error
    except OSError as error:
        told = "is a link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        raise _unusable(place, f"{name} {told}") from error
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
        os.close(descriptor)
        raise _unusable(place, f"{name} is no plain file with one name")
    return descriptor


def _is_named(folder: int, name: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> Holder | None:
    """Who a lease file names; None where it names nobody that can be understood."""
    try:
        said = json.loads(os.pread(descriptor, _MOST_READ, 0))
        return Holder(
            pid=_pid(said["pid"]),
            start_time=int(said["start_time"]),
            user=_plain(said["user"]),
            study=_plain(said["study"]),
            since=_plain(said["since"]),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _pid(value: object) -> int:
    """A number that can be one; another user wrote it."""
    if not isinstance(value, (int, float)) or not 0 < value < 2**31:
        raise ValueError(f"{value!r} is no pid")
    return int(value)


def _busy(uuid: str, holder: Holder | None) -> str:
    who = str(holder) if holder is not None else "another autotune of this host"
    if uuid == CPU:
        return f"this node measures already: {who}"
    return (
        f"GPU {uuid} is held by {who}; wait for it with --wait, or choose other GPUs with CUDA_VISIBLE_DEVICES "
        "(--env CUDA_VISIBLE_DEVICES=…)"
    )


def _unusable(place: Path, reason: str) -> BadInput:
    return BadInput(
        f"the folder of GPU leases {place} cannot be used: {reason}. It keeps two tuners of this host off the same GPUs; "
        f"have its owner remove or repair it (mode 1777), or name another one for every tuner of the host with {FOLDER_VARIABLE}"
    )


def _plain(text: object) -> str:
    """Text of another user that cannot reach into the terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))[:200]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
