"""A database for every test: a SQLite file, or a database of a private PostgreSQL server that this run starts and stops."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from autotune.store.store import Store

POSTGRES = pytest.param("postgresql", marks=pytest.mark.postgres)


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest) -> str:
    """A database that holds nothing yet."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/trials.db"


@pytest.fixture
def postgresql_url(postgres_server: URL) -> str:
    """The database of the private server, emptied first: that takes a fraction of the time of making one."""
    with create_engine(postgres_server, poolclass=NullPool).begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '20s'"))
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    return postgres_server.render_as_string(hide_password=False)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An open store in a new database."""
    opened = Store.open(url)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[Store]:
    """An open store in a new SQLite file, for what does not depend on the kind of database."""
    opened = Store.open(sqlite_url)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[URL]:
    """A PostgreSQL server on a free loopback port, with a password; stopped and deleted at the end."""
    programs = _programs()
    # PostgreSQL refuses to run as root. The path is short because that of a socket may have 107 characters.
    account = "nobody" if os.geteuid() == 0 else None
    place = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    data, password, log = place / "data", secrets.token_hex(16), place / "log"

    def call(program: str, *arguments: str | Path) -> None:
        finished = subprocess.run(
            [programs / program, *arguments],
            user=account,
            extra_groups=[] if account else None,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=(place / "output").open("a"),
            stderr=subprocess.STDOUT,
            timeout=60,
        )
        if finished.returncode:
            said = (place / "output").read_text() + (log.read_text() if log.exists() else "")
            pytest.fail(f"{program} failed with status {finished.returncode}:\n{said}", pytrace=False)

    try:
        (place / "password").write_text(password)
        if account:
            for path in (place, place / "password"):
                shutil.chown(path, account)
        call(
            "initdb",
            "-D",
            data,
            "-U",
            "tuner",
            "-A",
            "scram-sha-256",
            "--pwfile",
            place / "password",
            "-N",
            "-E",
            "UTF8",
        )
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        options = f"-c listen_addresses=127.0.0.1 -p {port} -k {place} -F -c synchronous_commit=off -c autovacuum=off"
        call("pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "-t", "50", "start")
        try:
            yield URL.create("postgresql+psycopg", "tuner", password, "127.0.0.1", port, "postgres")
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(place)


def _programs() -> Path:
    """The folder of the newest PostgreSQL's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        pytest.fail(
            "there is no PostgreSQL: initdb is neither under /usr/lib/postgresql nor on the PATH; "
            "`make test` installs it, `make test-fast` leaves these tests out",
            pytrace=False,
        )
    return Path(on_path).resolve().parent
