"""One service per database."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.service.lock import ServiceLock, holder, lock_path
from autotune.values import BadInput

ROOT = str(Path(__file__).resolve().parents[2])
HOLD = """\
import sys
from autotune.service.lock import ServiceLock
lock = ServiceLock.acquire(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records for the test alone."""
    folder = tmp_path / "records"
    monkeypatch.setenv("AUTOTUNE_JOBS", str(folder))
    return folder


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database."""
    return f"sqlite:///{tmp_path}/trials.db"


@pytest.fixture
def other(url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_nobody_serves_a_database_until_somebody_does(url: str) -> None:
    assert holder(url) is None
    with ServiceLock.acquire(url):
        assert holder(url) == os.getpid()
    assert holder(url) is None


def test_looking_makes_no_file(url: str, records: Path) -> None:
    assert holder(url) is None
    assert list(records.iterdir()) == []


def test_a_second_service_is_refused_and_told_who_has_it(url: str, other: subprocess.Popen[str]) -> None:
    assert holder(url) == other.pid
    with pytest.raises(BadInput, match=rf"process {other.pid} serves this database already"):
        ServiceLock.acquire(url)


def test_the_lock_of_a_killed_service_is_free_at_once(url: str, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    assert holder(url) is None
    with ServiceLock.acquire(url):
        assert holder(url) == os.getpid()


def test_children_of_a_service_do_not_keep_its_lock(url: str) -> None:
    lock = ServiceLock.acquire(url)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        lock.release()
        assert holder(url) is None
        assert child.poll() is None
    finally:
        child.communicate(b"\n")


def test_two_databases_have_two_services(url: str, tmp_path: Path) -> None:
    with ServiceLock.acquire(url), ServiceLock.acquire(f"sqlite:///{tmp_path}/other.db"):
        assert holder(url) == os.getpid()


def test_a_database_is_the_same_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    same = [
        f"sqlite:///{tmp_path}/trials.db",
        "sqlite:///trials.db",
        "sqlite+pysqlite:///./trials.db",
        f"sqlite:///{tmp_path}/link/trials.db",
    ]
    assert len({lock_path(url) for url in same}) == 1
    servers = ["postgresql://a:secret@db/x", "postgresql+psycopg://b@db/x"]
    assert len({lock_path(url) for url in servers}) == 1
    assert len({lock_path(url) for url in [same[0], servers[0], "postgresql://a@db/y", "postgresql://a@db2/x"]}) == 4


def test_a_lock_file_that_was_removed_keeps_nobody_out_and_lets_nobody_share(url: str) -> None:
    first = ServiceLock.acquire(url)
    first.path.unlink()
    second = ServiceLock.acquire(url)
    with pytest.raises(BadInput):
        ServiceLock.acquire(url)
    first.release()
    assert holder(url) == os.getpid()
    second.release()


def test_a_link_in_the_place_of_the_lock_is_not_followed(url: str, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    lock_path(url).symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        ServiceLock.acquire(url)
    assert target.read_text() == "kept"


def test_touching_makes_the_file_look_used(url: str) -> None:
    with ServiceLock.acquire(url) as lock:
        os.utime(lock.path, (0, 0))
        lock.touch()
        assert lock.path.stat().st_mtime > 1
