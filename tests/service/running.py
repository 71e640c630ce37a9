"""A running `autotune serve`, and what of it can be found from outside."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import psutil


class Service:
    """A running `autotune serve`."""

    def __init__(self, folder: Path, storage: str, env: Mapping[str, str]) -> None:
        """
        Args:
            folder: where it works and keeps its token.
            env: of the service and its nights.
        """
        self._said = folder / f"serve-{time.monotonic_ns()}.out"
        with self._said.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "autotune.cli.main", "serve", "--port", "0", "--storage", storage],
                cwd=folder,
                env={**env, "XDG_CONFIG_HOME": str(folder / "config")},
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def port(self) -> int:
        """Where it listens, once it does."""
        deadline = time.monotonic() + 60
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/", self.said)):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)
        return int(found[1])

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes that work in a folder or below it."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in f"{process.cwd()} {' '.join(process.cmdline())}" and process.pid != os.getpid():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def get(port: int, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
