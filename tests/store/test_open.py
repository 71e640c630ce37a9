"""What `Store.open` refuses, and what it leaves behind."""

from __future__ import annotations

import hashlib
import multiprocessing
import sqlite3
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

from autotune.store import store as module
from autotune.store.store import VERSION_TABLE, Store, filesystem_of
from autotune.store.tables import SCHEMA
from autotune.values import BadInput
from tests.studies import add_study

OpenStore = Callable[[str], Store]


def test_new_sqlite_file_uses_a_write_ahead_log_and_full_schema(tmp_path: Path, open_store: OpenStore) -> None:
    path = tmp_path / "trials.db"
    open_store(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert tables == {*SCHEMA.tables, VERSION_TABLE}


def test_migrations_make_the_tables_that_the_code_declares(url: str, open_store: OpenStore) -> None:
    open_store(url)
    engine = create_engine(url, poolclass=NullPool)
    seen = inspect(engine)
    for table in SCHEMA.tables.values():
        columns = {column["name"]: column for column in seen.get_columns(table.name)}
        assert set(columns) == set(table.columns.keys())
        assert {name: column["nullable"] for name, column in columns.items()} == {
            column.name: bool(column.nullable) for column in table.columns
        }
        declared = {
            str(constraint.name) for constraint in table.constraints if type(constraint).__name__ == "UniqueConstraint"
        }
        assert {unique["name"] for unique in seen.get_unique_constraints(table.name)} == declared


def test_opening_again_changes_nothing(tmp_path: Path, open_store: OpenStore) -> None:
    path = tmp_path / "trials.db"
    add_study(open_store(f"sqlite:///{path}"))
    before = hashlib.sha256(path.read_bytes()).digest()
    assert [study.name for study in open_store(f"sqlite:///{path}").studies()] == ["night"]
    assert hashlib.sha256(path.read_bytes()).digest() == before


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("trials.db", "no database URL"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:///file:trials.db?uri=true", "path alone"),
        ("mysql+pymysql://host/x", "SQLite"),
        ("postgresql+psycopg2://host/x", "psycopg"),
    ],
)
def test_url_that_cannot_hold_a_study_is_refused(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=said):
        Store.open(url)
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"folder .*nowhere does not exist"):
        Store.open(f"sqlite:///{tmp_path / 'nowhere' / 'trials.db'}")
    assert list(tmp_path.iterdir()) == []


def test_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a folder"):
        Store.open(f"sqlite:///{tmp_path}")


def test_file_without_write_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trials.db"
    path.touch()
    # Root may write anything, so that the answer of the system is set here.
    monkeypatch.setattr(module.os, "access", lambda asked, mode: Path(asked) != path)
    with pytest.raises(BadInput, match="cannot be written"):
        Store.open(f"sqlite:///{path}")


@pytest.mark.parametrize("content", [b"trial,throughput\n0,100\n" * 9, b"SQLite format 3\x00" + b"\xff" * 200])
def test_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trials.db"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"no SQLite database|not a database"):
        Store.open(f"sqlite:///{path}")
    assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["trials.db"]


def test_schema_of_a_later_autotune_is_refused_and_left_alone(url: str, open_store: OpenStore) -> None:
    open_store(url).close()
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(BadInput, match=r"later autotune \(schema 9999\); upgrade autotune"):
        Store.open(url)
    with engine.connect() as connection:
        assert connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() == "9999"


def test_interrupted_migration_leaves_no_table(
    url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.alembic.upgrade

    def interrupted(config: module.Config, revision: str) -> None:
        real(config, revision)
        raise KeyboardInterrupt

    monkeypatch.setattr(module.alembic, "upgrade", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Store.open(url)
    assert inspect(create_engine(url, poolclass=NullPool)).get_table_names() == []
    monkeypatch.setattr(module.alembic, "upgrade", real)
    assert open_store(url).studies() == []


def test_sqlite_on_a_network_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_mounts", lambda: f"server:/export {tmp_path} nfs4 rw 0 0\n")
    with pytest.raises(BadInput, match=r"on nfs4, where SQLite's locks do not hold.*PostgreSQL"):
        Store.open(f"sqlite:///{tmp_path / 'trials.db'}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/home/me/job", "nfs"), ("/home/me/local disk/x", "ext4"), ("/home2", "overlay"), ("/home", "nfs")],
)
def test_filesystem_is_that_of_the_innermost_mount(folder: str, kind: str) -> None:
    mounts = "overlay / overlay rw 0 0\nserver:/home /home nfs rw 0 0\n/dev/sda1 /home/me/local\\040disk ext4 rw 0 0\n"
    assert filesystem_of(Path(folder), mounts) == kind


def test_unreachable_server_is_bad_input_and_its_password_stays_secret(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        Store.open(f"postgresql+psycopg://me:hunter22@/db?host={tmp_path}")
    assert "cannot be opened" in str(caught.value)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("first", ["optuna", "autotune"])
def test_optuna_shares_the_database_whoever_came_first(url: str, first: str, open_store: OpenStore) -> None:
    if first == "optuna":
        optuna.create_study(
            storage=optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool}), study_name="theirs"
        )
    store = open_store(url)
    add_study(store)
    study = optuna.create_study(storage=store.optuna_storage(), study_name="ours", direction="maximize")
    study.tell(study.ask(), 1.0)
    again = open_store(url)
    assert [record.name for record in again.studies()] == ["night"]
    names = optuna.get_all_study_names(again.optuna_storage())
    assert set(names) == ({"ours", "theirs"} if first == "optuna" else {"ours"})


def test_tables_of_another_optuna_are_refused(tmp_path: Path, open_store: OpenStore) -> None:
    path = tmp_path / "trials.db"
    store = open_store(f"sqlite:///{path}")
    store.optuna_storage()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
    connection.close()
    with pytest.raises(BadInput, match=r"--storage .*optuna"):
        store.optuna_storage()


def _open_and_add(url: str, name: str) -> None:
    store = Store.open(url)
    add_study(store, name)
    store.close()


@pytest.mark.timeout(240)
def test_processes_that_make_one_database_at_once_all_succeed(url: str, open_store: OpenStore) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_open_and_add, args=(url, f"s{i}")) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(200)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert {study.name for study in open_store(url).studies()} == {"s0", "s1"}
