"""Processes of this host by (pid, start time), read from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARK = "AUTOTUNE_JOB"
"""Environment variable that every process of a job inherits; its value is unique to the launch."""


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process that cannot be taken for another one: the kernel uses pids again, but not together with the start time."""

    pid: int
    start: int
    """Clock ticks from the boot to its start (field 22 of /proc/PID/stat): no step of the wall clock changes it."""

    def alive(self) -> bool:
        """Whether it still runs; a zombie that only waits to be reaped does not."""
        facts = _facts(self.pid)
        return facts is not None and facts.start == self.start and not facts.dead

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, to this process or to none."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


@dataclass(frozen=True, slots=True)
class _Facts:
    parent: int
    start: int
    dead: bool


def process_id(pid: int) -> ProcessId | None:
    """The process that has this pid now; None if there is none."""
    facts = _facts(pid)
    return None if facts is None else ProcessId(pid, facts.start)


def this_process() -> ProcessId:
    """The process that asks."""
    own = process_id(os.getpid())
    assert own is not None
    return own


def descendants(pid: int) -> set[ProcessId]:
    """All living processes that came out of a process, itself left out.

    Complete only where the process is a child subreaper: daemons otherwise leave the tree when their parent ends.
    """
    children: dict[int, list[tuple[int, _Facts]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (facts := _facts(int(entry))) is not None:
            children.setdefault(facts.parent, []).append((int(entry), facts))
    found: set[ProcessId] = set()
    waiting = [pid]
    while waiting:
        for child, facts in children.get(waiting.pop(), ()):
            waiting.append(child)
            if not facts.dead:
                found.add(ProcessId(child, facts.start))
    return found


def marked(mark: str) -> set[ProcessId]:
    """Living processes of this user whose environment carries the mark of a job.

    A process that sets its title may overwrite its environment, so that this finds less than all of them.
    """
    needle = f"{MARK}={mark}".encode()
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environment = Path("/proc", entry, "environ").read_bytes()
        except OSError:
            continue  # gone meanwhile, or another user's
        if needle in environment.split(b"\0"):
            process = process_id(int(entry))
            if process is not None and process.alive():
                found.add(process)
    return found


def living(processes: Iterable[ProcessId]) -> set[ProcessId]:
    """Those that still run."""
    return {process for process in processes if process.alive()}


def here() -> tuple[str, str]:
    """Which boot of the host, and which namespace of pids: a pid means nothing in another one."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return boot, os.readlink("/proc/self/ns/pid")


def _facts(pid: int) -> _Facts | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name in front may hold blanks and brackets
    return _Facts(parent=int(fields[1]), start=int(fields[19]), dead=fields[0] in "ZX")
