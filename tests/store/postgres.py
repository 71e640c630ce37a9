"""A private PostgreSQL server for tests: own data folder, reached through a unix socket alone, gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_USER = "autotune"


def _binary(name: str) -> str:
    installed = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3].split(".")[0])
    )
    found = str(installed[-1]) if installed else shutil.which(name)
    if found is None:
        raise RuntimeError(
            f"{name} was found neither on PATH nor under /usr/lib/postgresql; `make test` installs PostgreSQL, or leave "
            "these tests out with -m 'not postgres'"
        )
    return found


def _as_nobody(command: list[str]) -> list[str]:
    """The command as an unprivileged user where this process is root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return command
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise RuntimeError(
            "PostgreSQL does not run as root, and setpriv (util-linux) to become another user is missing"
        )
    return [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", *command]


@contextmanager
def server() -> Iterator[str]:
    """Starts a server; gives the URL of its database `postgres`."""
    # Not under pytest's folder: that one is closed to other users, and a socket's path may have 107 bytes at most.
    base = Path(tempfile.mkdtemp(prefix="autotune-pg-"))
    try:
        if os.geteuid() == 0:
            os.chown(base, 65534, 65534)
        data = base / "data"
        control = _binary("pg_ctl")
        environment = {**os.environ, "LC_ALL": "C", "HOME": str(base)}

        def call(command: list[str]) -> None:
            done = subprocess.run(
                _as_nobody(command),
                cwd=base,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=90,
            )
            if done.returncode:
                raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout.decode(errors='replace')}")

        call([_binary("initdb"), "-D", str(data), "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync"])
        options = f"-c listen_addresses='' -c unix_socket_directories={base} -c fsync=off -c shared_buffers=16MB"
        log = str(base / "server.log")
        call([control, "-D", str(data), "-l", log, "-o", options, "-w", "-t", "60", "start"])
        try:
            yield f"postgresql+psycopg://{_USER}@/postgres?host={base}"
        finally:
            call([control, "-D", str(data), "-m", "immediate", "-w", "-t", "60", "stop"])
    finally:
        shutil.rmtree(base)
