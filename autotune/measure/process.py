"""One job in its own process session, and every process that came out of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

MARK = "AUTOTUNE_JOB"
"""Environment variable that every process of a job inherits; its value is unique to the launch."""


class JobProcess:
    """A command, started in a session of its own, with its descendants recorded as (pid, start time).

    Pids are used again by the kernel and names belong to everybody, so that nothing is ever ended by pid or name alone.
    Descendants are found both as children and by the mark in their environment: Ray's daemons leave the tree, and
    processes that set their title overwrite the environment.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, log: Path, hold: Sequence[int] = ()
    ) -> None:
        self._mark = uuid.uuid4().hex
        self._known: dict[int, float] = {}
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                list(command),
                env={**env, MARK: self._mark},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=hold,
            )
        self.record()

    @property
    def pid(self) -> int:
        """Pid of the driver."""
        return self._process.pid

    @property
    def pids(self) -> frozenset[int]:
        """Pids of every process of the job that was ever seen."""
        return frozenset(self._known)

    @property
    def exit_code(self) -> int | None:
        """Exit status of the driver, negative for a signal; None while it runs."""
        return self._process.poll()

    def record(self) -> None:
        """Takes down the processes of the job that exist now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self._process.pid)
            for process in [driver, *driver.children(recursive=True)]:
                self._note(process)
        needle = f"{MARK}={self._mark}".encode()
        for pid in psutil.pids():
            if pid in self._known:
                continue
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except (OSError, ValueError):
                continue  # gone meanwhile, or another user's
            if needle in environment:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._note(psutil.Process(pid))

    def alive(self) -> list[psutil.Process]:
        """The recorded processes that still run (zombies that only wait to be reaped are not among them)."""
        found = []
        for pid, started in self._known.items():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process = psutil.Process(pid)
                if process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def stop(self, *, patience: float = 20.0) -> None:
        """Ends the job: SIGTERM to the driver, `patience` seconds, SIGKILL to whatever is left. Safe to call again."""
        self.record()
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
        self.await_end(patience)
        deadline = time.monotonic() + 10.0
        while (left := self.alive()) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._reap()
            time.sleep(0.1)
            self.record()

    def await_end(self, patience: float) -> bool:
        """Waits until every recorded process is gone; False if some are left after `patience` seconds."""
        deadline = time.monotonic() + patience
        while True:
            self._reap()
            if self.exit_code is not None and not self.alive():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
            self.record()

    def _note(self, process: psutil.Process) -> None:
        self._known[process.pid] = process.create_time()

    def _reap(self) -> None:
        self._process.poll()
