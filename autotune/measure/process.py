"""One verl job, seen from the tuner: a command under a supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import autotune
from autotune.measure.job_record import JobRecord
from autotune.measure.leftovers import Leftovers
from autotune.measure.processes import descendants
from autotune.values import AutotuneError

_GRACE = 60.0
"""Seconds beyond the patience of a stop after which a supervisor that does not answer is itself ended."""


class SupervisorLost(AutotuneError):
    """The supervisor of a job is gone, killed perhaps; what was left of the job has been ended and removed."""


class NotStarted(AutotuneError):
    """The command of a job cannot be started at all."""


class JobProcess:
    """A command in a session of its own, under a supervisor that ends it when this process is gone, however it went.

    The supervisor comes first: it keeps the record of the job and makes its private folder, so that there is no moment at which
    something of the job exists that nobody would remove. Nothing is ever ended by pid or name alone: pids are used again by the
    kernel and names belong to everybody.
    """

    def __init__(self, *, hold: Sequence[int] = (), patience: float = 20.0) -> None:
        """Starts the supervisor; the job's private folder is there afterwards.

        Args:
            hold: file descriptors that the supervisor keeps open until the job has ended, such as locks on its GPUs.
            patience: seconds from SIGTERM to SIGKILL once this process is gone.

        Raises:
            NotStarted: there is no supervisor.
        """
        self._record = JobRecord.new()
        self._exit: int | None = None
        self._gone = False
        self._ended = False
        self._lost = False
        self._buffer = b""
        self._seen: frozenset[int] = frozenset()
        self.pid = -1
        """Pid of the driver, once it was started."""
        package = str(Path(autotune.__file__).resolve().parents[1])
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "autotune.measure.supervisor"],
            env={**os.environ, "PYTHONPATH": package},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=hold,
        )
        self._send({"record": self._record.to_json(), "patience": patience})
        self._await("ready", "the supervisor")

    @property
    def leftovers(self) -> Leftovers:
        """The job's private folder, and what was there before it."""
        return self._record.leftovers

    def start(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, log: Path) -> None:
        """Starts the command.

        Args:
            env: whole environment of the command.
            log: file to which its stdout and stderr are added.

        Raises:
            NotStarted: it cannot be started; nothing is left of the job.
        """
        self._send({"command": list(command), "env": dict(env), "cwd": cwd, "log": str(log.resolve())})
        self.pid = int(self._await("started", command[0]))

    def _await(self, word: str, what: str) -> Any:
        error: str | None = None
        while error is None:
            for message in self._messages(wait=1.0):
                if word in message:
                    return message[word]
                error = message.get("error", error)
            if self._lost or self._ended:
                error = error or "its supervisor ended"
        self.stop()
        raise NotStarted(f"{what} cannot be started: {error}")

    @property
    def pids(self) -> frozenset[int]:
        """Pids of every process of the job that was ever seen from here, those that run now included."""
        now = {self._supervisor.pid, *(process.pid for process in descendants(self._supervisor.pid))}
        self._seen = self._seen | now  # a new set each time: another thread may be reading the last one
        return self._seen

    @property
    def exit_code(self) -> int | None:
        """Exit status of the driver, negative for a signal; None while it runs.

        Raises:
            SupervisorLost: the supervisor was killed; the job has been ended.
        """
        self._messages()
        if self._lost and self._exit is None:
            raise SupervisorLost(f"the supervisor (process {self._supervisor.pid}) of the launch was killed")
        return self._exit

    def await_end(self, patience: float) -> bool:
        """Waits until every process of the job is gone; False if some are left after `patience` seconds."""
        deadline = time.monotonic() + patience
        while not (self._gone or self._ended or self._lost):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._messages(wait=min(left, 1.0))
        return True

    def stop(self, *, patience: float = 20.0) -> None:
        """Ends the job and removes what it left: SIGTERM to the driver, `patience` seconds, SIGKILL to what is left.

        Calling it again does nothing.
        """
        if not (self._ended or self._lost):
            self._send({"stop": patience})
            deadline = time.monotonic() + patience + _GRACE
            while not (self._ended or self._lost) and time.monotonic() < deadline:
                self._messages(wait=1.0)
        if not (self._ended or self._lost):
            self._supervisor.kill()
            self._lose()
        if self._supervisor.stdin is not None and not self._supervisor.stdin.closed:
            self._close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._supervisor.stdin is not None
        try:
            self._supervisor.stdin.write(json.dumps(message).encode() + b"\n")
            self._supervisor.stdin.flush()
        except BrokenPipeError:
            self._lose()

    def _messages(self, *, wait: float = 0.0) -> list[dict[str, Any]]:
        """What the supervisor has said meanwhile, taken in."""
        if self._ended or self._lost:
            return []
        assert self._supervisor.stdout is not None
        source = self._supervisor.stdout.fileno()
        found: list[dict[str, Any]] = []
        while select.select([source], [], [], 0.0 if found else wait)[0]:
            more = os.read(source, 1 << 16)
            if not more:
                if not self._ended:
                    self._lose()
                break
            *lines, self._buffer = (self._buffer + more).split(b"\n")
            for line in lines:
                message = json.loads(line)
                found.append(message)
                if message.get("exit") is not None:
                    self._exit = message["exit"]
                self._gone = self._gone or "gone" in message
                self._ended = self._ended or "ended" in message
        return found

    def _lose(self) -> None:
        """The supervisor is gone: this process does its work."""
        self._lost = True
        self._supervisor.wait()
        self._record.clean_as_written()

    def _close(self) -> None:
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # of what was not sent to a dead supervisor
                    pipe.close()
        self._supervisor.wait()
