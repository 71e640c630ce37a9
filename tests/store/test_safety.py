"""What can happen to a database file: damage, a full disk, locks, lost permissions, older tables, a clock that jumps."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from alembic import command as alembic
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from autotune.store import store as store_module
from autotune.store.file_checks import back_up, damage
from autotune.store.store import Store, filesystem_of
from autotune.store.trouble import StoreTrouble, TroubleKind, kind_of, trouble
from autotune.values import BadInput, TrialState
from tests.store.rows import new_study, new_trial, running_trial, step
from tests.store.test_opening import unprivileged  # noqa: F401  a fixture
from tests.studies import measurement

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trials.db"


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.1)


def filled(path: Path, trials: int = 12) -> Store:
    """A closed database of several pages; opened again by the test."""
    store = Store.open(f"sqlite:///{path}")
    study = new_study(store)
    for _ in range(trials):
        number = running_trial(store, study)
        store.finish_trial(study, number, TrialState.MEASURED, measurement=measurement(2.0), failure=None)
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store


def break_a_page(path: Path) -> None:
    """Overwrites the root of our table of steps with noise."""
    with closing(sqlite3.connect(path)) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'autotune_step'").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xa5" * size)


def test_damage_is_found_before_a_study_starts_and_nothing_is_changed(path: Path) -> None:
    filled(path)
    assert damage(path, busy=1.0) is None
    break_a_page(path)
    before = path.read_bytes()
    with pytest.raises(BadInput, match=r"is damaged \(.*\); nothing was changed\..*\.bak-.*\.recover"):
        Store.open(f"sqlite:///{path}", check=True)
    assert path.read_bytes() == before


def test_damage_that_shows_while_a_study_runs_is_told_with_the_way_out(path: Path) -> None:
    filled(path)
    break_a_page(path)
    store = Store.open(f"sqlite:///{path}")
    with pytest.raises(StoreTrouble, match=r"is damaged; save a copy.*\.recover") as met:
        store.trials(store.study("first").id)
    assert met.value.kind is TroubleKind.DAMAGED
    assert not met.value.may_pass
    store.close()


def test_a_large_database_is_not_read_whole(path: Path) -> None:
    filled(path)
    break_a_page(path)
    assert damage(path, busy=1.0, checked_bytes=1000) is None
    assert damage(path, busy=1.0)


def test_a_full_disk_is_told_and_takes_nothing_that_was_stored(path: Path) -> None:
    filled(path, 3)
    store = Store.open(f"sqlite:///{path}")
    study = store.study("first").id
    number = running_trial(store, study)
    with closing(store._engine.raw_connection()) as connection:
        pages = connection.cursor().execute("PRAGMA page_count").fetchone()[0]

    @store_module.event.listens_for(store._engine, "connect")
    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}")

    def fill() -> None:
        for place in range(400):
            store.add_step(study, number, step(place, metrics={f"metric_{i}": 1.0 * i for i in range(200)}))

    with pytest.raises(StoreTrouble, match=r"the disk of sqlite:.* is full; free some space") as met:
        fill()
    assert met.value.kind is TroubleKind.FULL
    assert met.value.may_pass
    assert len(store.trials(study)) == 4
    store.close()
    assert damage(path, busy=1.0) is None


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB; only root can make one, and not in every container."""
    place = tmp_path / "tiny"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_others_filled_is_told_and_takes_steps_again_when_it_is_freed(tiny_disk: Path) -> None:
    store = Store.open(f"sqlite:///{tiny_disk}/trials.db")
    study = new_study(store)
    number = running_trial(store, study)
    store.add_step(study, number, step(1))
    with (tiny_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    assert shutil.disk_usage(tiny_disk).free == 0
    with pytest.raises(StoreTrouble, match="is full; free some space"):
        store.add_step(study, number, step(2))
    (tiny_disk / "filler").unlink()
    store.add_step(study, number, step(3))
    assert [found.step for found in store.steps(study, number)] == [1, 3]
    store.close()
    assert damage(tiny_disk / "trials.db", busy=1.0) is None


FILL = """
import resource, signal, sys
from autotune.store.store import Store
from autotune.store.trouble import StoreTrouble
from tests.store.rows import running_trial, step
store = Store.open(sys.argv[1])
study = store.study("first").id
number = running_trial(store, study)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, 250_000))
stored = 0
try:
    for place in range(1000):
        store.add_step(study, number, step(place, metrics={f"metric_{i}": 1.0 * i for i in range(200)}))
        stored += 1
except StoreTrouble as error:
    print(stored, error.kind.value, error)
"""


def test_a_file_that_may_not_grow_keeps_every_step_that_was_stored(path: Path) -> None:
    """A real refusal by the kernel, in the middle of the write-ahead log."""
    filled(path, 1)
    ran = subprocess.run(
        [sys.executable, "-c", FILL, f"sqlite:///{path}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    stored, kind, *_ = ran.stdout.split()
    assert kind in {TroubleKind.FULL.value, TroubleKind.DISK.value}
    assert 0 < int(stored) < 1000
    store = Store.open(f"sqlite:///{path}", check=True)
    assert len(store.steps(store.study("first").id, 1)) == int(stored)
    store.close()


@pytest.mark.usefixtures("short_patience")
def test_a_lock_that_stays_is_told_after_a_while(path: Path) -> None:
    store = Store.open(f"sqlite:///{path}")
    study = new_study(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreTrouble, match=r"is locked by another process.*fuser or lsof") as met:
            new_trial(store, study)
        assert met.value.kind is TroubleKind.LOCKED
        other.execute("ROLLBACK")
    assert new_trial(store, study) == 0
    store.close()


@pytest.mark.usefixtures("short_patience")
def test_optunas_own_calls_tell_the_same(path: Path) -> None:
    store = Store.open(f"sqlite:///{path}")
    storage = store.optuna_storage()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreTrouble, match="is locked by another process"):
            storage.create_new_study([store_module.optuna.study.StudyDirection.MAXIMIZE], "theirs")
        other.execute("ROLLBACK")
    store.close()


@pytest.mark.usefixtures("unprivileged")
def test_a_file_that_lost_its_write_permission_is_told() -> None:
    here = Path(tempfile.mkdtemp(prefix="autotune-safety-", dir="/tmp"))
    try:
        file = here / "trials.db"
        store = Store.open(f"sqlite:///{file}")
        study = new_study(store)
        store.close()
        file.chmod(0o444)
        with pytest.raises(StoreTrouble, match="cannot be written any more; give its file and its folder") as met:
            new_trial(store, study)
        assert met.value.kind is TroubleKind.READ_ONLY
        with pytest.raises(BadInput, match="cannot be written"):
            Store.open(f"sqlite:///{file}")
        file.chmod(0o644)
        log = here / "trials.db-wal"
        log.touch(mode=0o444)
        log.chmod(0o444)
        with pytest.raises(BadInput, match=r"trials\.db-wal cannot be written; .* never delete it"):
            Store.open(f"sqlite:///{file}")
        log.unlink()
        here.chmod(0o555)
        with pytest.raises(BadInput, match="cannot be written"):
            Store.open(f"sqlite:///{file}")
    finally:
        here.chmod(0o755)
        shutil.rmtree(here)


def test_a_write_ahead_log_that_came_along_from_another_host_is_taken_in(path: Path, tmp_path: Path) -> None:
    """A tuner is killed there, and its folder copied here: what it stored last is in the log alone."""
    store = Store.open(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as other:  # keeps the log from being emptied when the store's connections close
        other.execute("SELECT count(*) FROM autotune_study").fetchone()
        study = new_study(store)
        new_trial(store, study)
        there = tmp_path / "copied"
        there.mkdir()
        for name in ("trials.db", "trials.db-wal", "trials.db-shm"):
            shutil.copy(tmp_path / name, there)
        assert (there / "trials.db-wal").stat().st_size > 0
    store.close()
    copied = Store.open(f"sqlite:///{there / 'trials.db'}", check=True)
    assert len(copied.trials(copied.study("first").id)) == 1
    copied.close()


def older(path: Path) -> None:
    """Takes the tables of a database back to the first revision."""
    config = Config()
    config.set_main_option("script_location", str(store_module._MIGRATIONS))
    with create_engine(f"sqlite:///{path}", poolclass=NullPool).begin() as connection:
        config.attributes["connection"] = connection
        alembic.downgrade(config, "0001")


def test_a_database_is_copied_before_its_tables_change(path: Path) -> None:
    filled(path, 2)
    older(path)
    path.chmod(0o600)
    store = Store.open(f"sqlite:///{path}")
    assert len(store.trials(store.study("first").id)) == 2
    store.close()
    copy = path.with_name("trials.db.bak-0001")
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT version_num FROM autotune_alembic_version").fetchone() == ("0001",)
        assert connection.execute("SELECT count(*) FROM autotune_trial").fetchone() == (2,)
    assert sorted(p.name for p in path.parent.glob("*.bak*")) == ["trials.db.bak-0001"]


def test_no_copy_is_made_where_no_table_changes(path: Path) -> None:
    Store.open(f"sqlite:///{path}").close()
    Store.open(f"sqlite:///{path}", check=True).close()
    assert [p.name for p in path.parent.iterdir()] == ["trials.db"]


def test_tables_stay_as_they_are_where_no_copy_can_be_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, 2)
    older(path)
    before = path.read_bytes()
    usage = shutil.disk_usage(path.parent)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(BadInput, match=r"needs newer tables, and no copy of it could be made.*free some space"):
        Store.open(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_the_copy_holds_what_is_only_in_the_write_ahead_log(path: Path) -> None:
    store = Store.open(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM autotune_study").fetchall()
        new_study(store)
        copy = back_up(path, "test", busy=1.0)
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT name FROM autotune_study").fetchall() == [("first",)]
    store.close()


def test_a_link_or_mount_to_a_network_disk_is_seen_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share, local = tmp_path / "my share", tmp_path / "local"
    share.mkdir()
    local.mkdir()
    escaped = str(share).replace(" ", "\\040")
    monkeypatch.setattr(store_module, "_mounts", lambda: f"/dev/sda / ext4 rw 0 0\nserver:/x {escaped} nfs4 rw 0 0\n")
    (share / "trials.db").touch()
    (local / "trials.db").symlink_to(share / "trials.db")
    (tmp_path / "folder").symlink_to(share)
    for path in (local / "trials.db", tmp_path / "folder" / "new.db", share / "trials.db"):
        with pytest.raises(BadInput, match="on nfs4"):
            Store.open(f"sqlite:///{path}")
    Store.open(f"sqlite:///{local / 'other.db'}").close()


def test_a_bind_mount_has_the_kind_of_what_it_shows() -> None:
    mounts = "/dev/sda / ext4 rw 0 0\nserver:/x /mnt/share nfs4 rw 0 0\nserver:/x/sub /home/me/bound nfs4 rw 0 0\n"
    assert filesystem_of(Path("/home/me/bound/deep"), mounts) == "nfs4"
    assert filesystem_of(Path("/a\tb/c"), "/dev/sda / ext4 rw 0 0\nx /a\\011b fuse.sshfs rw 0 0\n") == "fuse.sshfs"


def test_the_newest_study_is_the_last_made_even_if_the_clock_was_set_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(f"sqlite:///{path}")
    clock = iter(datetime(2026, 1, 2, tzinfo=timezone.utc) - timedelta(days=day) for day in range(100))
    monkeypatch.setattr(store_module, "_now", lambda: next(clock))
    new_study(store, "before")
    after = new_study(store, "after")
    number = running_trial(store, after)
    record = store.finish_trial(after, number, TrialState.MEASURED, measurement=measurement(2.0), failure=None)
    assert record.ended_at < record.started_at
    assert record.wall_seconds == 60.0
    newest = store.latest_study()
    assert newest is not None
    assert newest.name == "after"
    store.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("database or disk is full", TroubleKind.FULL),
        ("database is locked", TroubleKind.LOCKED),
        ("database table is locked", TroubleKind.LOCKED),
        ("attempt to write a readonly database", TroubleKind.READ_ONLY),
        ("database disk image is malformed", TroubleKind.DAMAGED),
        ("disk I/O error", TroubleKind.DISK),
        ("unable to open database file", TroubleKind.DISK),
        ("no such table: x", None),
    ],
)
def test_errors_are_known_by_their_words_where_there_is_no_code(text: str, kind: TroubleKind | None) -> None:
    assert kind_of(sqlite3.OperationalError(text)) is kind


def test_an_error_without_a_remedy_stays_what_it_is() -> None:
    assert trouble(ValueError("x"), where="w", file="f", busy=1.0) is None
