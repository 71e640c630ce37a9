"""What is known about a running job, on disk: enough to end it and to clean up after everybody else was killed."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.measure.leftovers import Leftovers
from autotune.measure.processes import ProcessId, here, living, marked, this_process
from autotune.values import AutotuneError

FOLDER_VARIABLE = "AUTOTUNE_JOBS"
"""Environment variable that names another folder for the records."""
_NAME = re.compile(r"[0-9a-f]{32}\.json")
_KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One verl job of this user on this host.

    The supervisor writes it before anything of the job exists and removes it after everything of it is gone, so that whatever
    is killed in between, the record says what is left.
    """

    mark: str
    tuner: ProcessId
    supervisor: ProcessId | None
    processes: frozenset[ProcessId]
    """Every process of the job that was ever seen."""
    leftovers: Leftovers
    boot: str
    pid_namespace: str

    @classmethod
    def new(cls) -> JobRecord:
        """A record for a job that this process is about to start."""
        mark = uuid.uuid4().hex
        boot, namespace = here()
        return cls(mark, this_process(), None, frozenset(), Leftovers.before_job(f"at-{mark[:12]}"), boot, namespace)

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return records_folder() / f"{self.mark}.json"

    def write(self) -> None:
        """Keeps it, in one move: nobody ever reads half of it."""
        scratch = self.path.with_suffix(f".{os.getpid()}.new")
        scratch.write_text(json.dumps(self.to_json()), encoding="utf-8")
        os.replace(scratch, self.path)

    def to_json(self) -> dict[str, Any]:
        """The record as it is kept."""
        return {
            "version": 1,
            "mark": self.mark,
            "tuner": [self.tuner.pid, self.tuner.start],
            "supervisor": None if self.supervisor is None else [self.supervisor.pid, self.supervisor.start],
            "processes": sorted([process.pid, process.start] for process in self.processes),
            "private": str(self.leftovers.private),
            "before": sorted(self.leftovers.before),
            "boot": self.boot,
            "pid_namespace": self.pid_namespace,
        }

    def remove(self) -> None:
        """Forgets it."""
        self.path.unlink(missing_ok=True)

    def of_this_boot(self) -> bool:
        """Whether the host has not been started anew since: otherwise its pids are other processes."""
        return self.boot == here()[0]

    def kill(self) -> int:
        """Sends SIGKILL to every process of the job that is left, until none is; returns how many there were."""
        known = set(self.processes)
        ended: set[ProcessId] = set()
        deadline = time.monotonic() + _KILL_SECONDS
        while (left := living(known | marked(self.mark))) and time.monotonic() < deadline:
            known |= left
            ended |= left
            for process in left:
                process.send(signal.SIGKILL)
            time.sleep(0.1)
        return len(ended)

    def clean(self) -> int:
        """Ends what is left of the job, removes what it left and forgets it; returns how many processes it ended."""
        ended = self.kill() if self.of_this_boot() else 0
        self.leftovers.remove()
        self.remove()
        return ended

    def clean_as_written(self) -> int:
        """As `clean`, with the processes that the file tells of."""
        written = read_record(self.path)
        return (written or self).clean()


def read_record(path: Path) -> JobRecord | None:
    """The record in a file; None if it went meanwhile.

    Raises:
        AutotuneError: it is no record of this release.
    """
    try:
        shown: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if shown["version"] != 1:
            raise AutotuneError(f"{path} was written by another release of autotune; let that one end its jobs first")
        return record_from(shown)
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise AutotuneError(f"{path} is not a record of a job ({error}); look at it and remove it") from error


def record_from(shown: dict[str, Any]) -> JobRecord:
    """The record behind `JobRecord.to_json`.

    Raises:
        KeyError, TypeError: it is none.
    """
    supervisor = shown["supervisor"]
    return JobRecord(
        mark=shown["mark"],
        tuner=ProcessId(*shown["tuner"]),
        supervisor=None if supervisor is None else ProcessId(*supervisor),
        processes=frozenset(ProcessId(*pair) for pair in shown["processes"]),
        leftovers=Leftovers(Path(shown["private"]), frozenset(shown["before"])),
        boot=shown["boot"],
        pid_namespace=shown["pid_namespace"],
    )


def records_folder() -> Path:
    """The folder of this user's records, made where it is missing.

    Raises:
        AutotuneError: it belongs to somebody else or others may write there; they could name processes to end.
    """
    folder = Path(os.environ.get(FOLDER_VARIABLE) or f"/tmp/autotune-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise AutotuneError(
            f"{folder} must be a folder of yours that nobody else can write; remove it, or name another one "
            f"in {FOLDER_VARIABLE}"
        )
    return folder


def orphans() -> list[JobRecord]:
    """Jobs whose tuner is gone."""
    return [record for record in _records() if not (record.of_this_boot() and record.tuner.alive())]


def _records() -> list[JobRecord]:
    """All records whose pids can be looked up from here: those of a container that shares the folder cannot."""
    paths = sorted(path for path in records_folder().iterdir() if _NAME.fullmatch(path.name))
    found = [record for path in paths if (record := read_record(path)) is not None]
    boot, namespace = here()
    return [record for record in found if record.boot != boot or record.pid_namespace == namespace]


def sweep() -> int:
    """Cleans up after jobs whose tuner and supervisor are both gone; returns how many processes were ended.

    A supervisor that is alive cleans up by itself.
    """
    ended = 0
    for record in orphans():
        if not record.of_this_boot() or record.supervisor is None or not record.supervisor.alive():
            ended += record.clean()
    return ended


def await_orphans(patience: float, *, say: Callable[[str], None]) -> None:
    """Waits until nothing is left of jobs whose tuner was killed; what nobody supervises is cleaned up here.

    Args:
        patience: seconds; a supervisor needs 45 at most.

    Raises:
        AutotuneError: one is still there afterwards. Two jobs on the same GPUs would both be wrong.
    """
    deadline = time.monotonic() + patience
    said = False
    while True:
        sweep()
        left = orphans()
        if not left:
            return
        if time.monotonic() > deadline:
            raise AutotuneError(
                f"a launch of a tuner that was killed is still being ended by {_supervisors(left)}; try again in a minute"
            )
        if not said:
            say("waiting until the launch of a tuner that was killed has ended")
            said = True
        time.sleep(0.25)


def with_processes(record: JobRecord, seen: Iterable[ProcessId]) -> JobRecord:
    """The record with more processes."""
    return replace(record, processes=record.processes | frozenset(seen))


def _supervisors(records: Iterable[JobRecord]) -> str:
    return ", ".join(f"process {record.supervisor.pid}" for record in records if record.supervisor is not None)
