"""The supervisor of one verl job: a small process that outlives its tuner just long enough to clean up.

    python -m autotune.measure.supervisor

It reads JSON lines from stdin: first the record of the job that it is to keep, then the command, which it starts, and
perhaps the wish to stop. It reports on stdout. Stdin stays open as long as the tuner
lives; when it closes, however the tuner ended, the job is ended and what it left is removed. As the child subreaper it
stays the ancestor of every process of the job, Ray's daemons included, so that none is missed and none of another job
is hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.measure.job_record import JobRecord, record_from, with_processes
from autotune.measure.processes import MARK, ProcessId, descendants, this_process

_PR_SET_CHILD_SUBREAPER = 36
_DAEMON_PATIENCE = 5.0
"""Seconds that the rest of a job has to end by itself once the driver is gone; Ray's daemons take about two."""
_POLL_SECONDS = 0.2
_SCAN_SECONDS = 2.0
"""Least time between two looks at the process tree, which cost CPU that the job is measured on."""
_SCAN_SHARE = 50
"""A look is never taken more often than this many times its own duration."""


class Supervisor:
    """Runs one job to its end, whoever asks for it."""

    def __init__(self) -> None:
        self._record: JobRecord
        self._process: subprocess.Popen[bytes] | None = None
        self._tuner = os.getppid()
        self._driver = -1
        self._exit: int | None = None
        self._told_gone = False
        self._asked_to_stop = False
        self._buffer = b""

    def run(self) -> None:
        """From the job's record until nothing of it is left."""
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the kernel refuses PR_SET_CHILD_SUBREAPER")
        signal.signal(signal.SIGTERM, self._on_signal)
        for number in (signal.SIGINT, signal.SIGHUP):  # handled, not ignored: what is ignored stays so in the job
            signal.signal(number, lambda *_: None)
        order = self._next_line()
        if order is None:
            return  # the tuner is gone, and nothing of the job exists yet
        patience = float(order["patience"])
        self._record = replace(record_from(order["record"]), supervisor=this_process())
        self._record.write()
        try:
            self._record.leftovers.make()
        except OSError as error:
            self._tell({"error": str(error)})
        else:
            self._tell({"ready": True})
            spec = self._next_line()
            if spec is not None and "stop" not in spec and self._start(spec):
                asked = self._watch()
                patience = patience if asked is None else asked
        self._end(patience)

    def _start(self, spec: dict[str, Any]) -> bool:
        try:
            with Path(spec["log"]).open("ab") as sink:
                process = subprocess.Popen(
                    spec["command"],
                    env={**spec["env"], MARK: self._record.mark},
                    cwd=spec["cwd"],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self._tell({"error": str(error)})
            return False
        self._process = process  # kept: when it is collected it reaps the driver, whose status would be lost
        self._driver = process.pid
        self._scan()
        self._tell({"started": process.pid})
        return True

    def _watch(self) -> float | None:
        """Until the tuner asks for the end (its patience, seconds) or is gone (None)."""
        scanned = time.monotonic()
        pause = 0.0
        while not self._asked_to_stop:
            line = self._line(_POLL_SECONDS)
            if line is not None:
                return float(json.loads(line)["stop"])
            if self._tuner_is_gone():
                return None
            self._reap()
            now = time.monotonic()
            if now - scanned >= pause or (self._exit is not None and not self._told_gone):
                left = self._scan()
                scanned = time.monotonic()
                pause = max(_SCAN_SECONDS, _SCAN_SHARE * (scanned - now))
                if self._exit is not None and not left and not self._told_gone:
                    self._told_gone = True
                    self._tell({"gone": True})
        return None

    def _end(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        left = self._scan()
        if self._exit is None and self._driver > 0:
            for process in left:
                if process.pid == self._driver:
                    process.send(signal.SIGTERM)
        alone = self._exit is not None
        if alone:
            deadline = min(deadline, time.monotonic() + _DAEMON_PATIENCE)
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            self._reap()
            left = self._scan()
            if self._exit is not None and not alone:
                alone = True
                deadline = min(deadline, time.monotonic() + _DAEMON_PATIENCE)
        while left:  # SIGKILL cannot be refused; only a process in the kernel's hands takes longer
            for process in left:
                process.send(signal.SIGKILL)
            time.sleep(0.1)
            self._reap()
            left = self._scan()
            if time.monotonic() > deadline + 20.0:
                break
        self._reap()
        ended = self._record.clean()
        self._tell({"exit": self._exit, "ended": ended})

    def _scan(self) -> set[ProcessId]:
        left = descendants(os.getpid())
        if not left <= self._record.processes:
            self._record = with_processes(self._record, left)
            self._record.write()
        return left

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._driver:
                self._exit = os.waitstatus_to_exitcode(status)
                self._tell({"exit": self._exit})

    def _tuner_is_gone(self) -> bool:
        """Asked beside the pipe: another child of the tuner may hold its end open."""
        return os.getppid() != self._tuner

    def _next_line(self) -> dict[str, Any] | None:
        """What the tuner says next; None: it is gone, or somebody wants an end."""
        while not self._asked_to_stop and not self._tuner_is_gone():
            line = self._line(_POLL_SECONDS)
            if line is not None:
                spec: dict[str, Any] = json.loads(line)
                return spec
        return None

    def _line(self, patience: float) -> bytes | None:
        """A line from the tuner; None: none came in time. A closed pipe reads as the wish to stop."""
        if b"\n" not in self._buffer:
            if not select.select([0], [], [], patience)[0]:
                return None
            more = os.read(0, 1 << 16)
            if not more:
                self._asked_to_stop = True
                return None
            self._buffer += more
            if b"\n" not in self._buffer:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _on_signal(self, *_: object) -> None:
        self._asked_to_stop = True

    @staticmethod
    def _tell(message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the tuner is gone; what has to be done is done all the same
            os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    Supervisor().run()
