"""Finding the processes of a running study, to kill one of them, and what is left of a job afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from autotune.measure.job_record import JobRecord, read_record
from autotune.measure.processes import ProcessId, living

VICTIMS = ("tuner", "supervisor", "driver", "raylet", "engine")
_COMMANDS = {"driver": ("verl.trainer.main_ppo",), "raylet": ("raylet",), "engine": ("EngineCore", "vLLMHttpServer")}


def jobs_in(records: Path) -> list[JobRecord]:
    """The jobs that run now."""
    return [record for path in records.glob("*.json") if (record := read_record(path)) is not None]


def find(victim: str, tuner: ProcessId, records: Path) -> ProcessId | None:
    """The process of that role that runs now; None: there is none at this moment."""
    if victim == "tuner":
        return tuner
    for record in jobs_in(records):
        if victim == "supervisor":
            return record.supervisor
        for process in sorted(living(record.processes)):
            command = _command(process.pid)
            if victim == "driver" and process.pid != _session(process.pid):
                continue
            if any(word in command for word in _COMMANDS[victim]):
                return process
    return None


def leftovers(records: Path, seen: set[ProcessId], marks: set[str]) -> list[str]:
    """What is left of jobs: processes, records, private folders, shared memory."""
    left = [f"process {p.pid}: {_command(p.pid)[:80]}" for p in living(seen)]
    left += [str(path) for path in records.glob("*.json")]
    left += [str(path) for mark in marks for path in Path("/tmp").glob(f"at-{mark[:12]}")]
    left += [str(path) for mark in marks for path in Path("/dev/shm").glob(f"psm_*{mark}*")]
    return left


def eventually(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it becomes true within that time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1
