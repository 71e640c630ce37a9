"""Opening a database: what is refused and how, the tables of ours and Optuna's, several processes at once."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from autotune.store import store as store_module
from autotune.store.store import VERSION_TABLE, Store
from autotune.store.tables import SCHEMA
from autotune.values import BadInput
from tests.store.rows import at_once, new_study, new_trial

OURS = {
    "autotune_schedule",
    "autotune_memory_check",
    "autotune_night",
    "autotune_study",
    "autotune_trial",
    "autotune_step",
    VERSION_TABLE,
}


def tables(url: str) -> set[str]:
    engine = create_engine(url, poolclass=NullPool)
    return set(inspect(engine).get_table_names())


def execute(url: str, *statements: str) -> None:
    with create_engine(url, poolclass=NullPool).begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[None]:
    """Runs a test as an ordinary user: root may write everywhere. Its temporary folder is made first, as who we are."""
    if os.getuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_new_database_gets_the_tables_and_keeps_its_rows(url: str) -> None:
    first = Store.open(url)
    study = new_study(first)
    new_trial(first, study)
    first.close()
    second = Store.open(url)
    assert tables(url) == OURS
    assert [trial.number for trial in second.trials(second.study("first").id)] == [0]
    second.close()


def test_the_migrations_make_the_tables_that_the_code_declares(url: str) -> None:
    Store.open(url).close()
    with create_engine(url, poolclass=NullPool).connect() as connection:
        options = {
            "include_object": lambda _object, name, kind, _reflected, _to: kind != "table" or name != VERSION_TABLE
        }
        context = MigrationContext.configure(connection, opts={**options, "compare_type": True})
        assert compare_metadata(context, SCHEMA) == []


def test_a_failed_migration_leaves_nothing_behind(url: str) -> None:
    execute(url, "CREATE TABLE autotune_step (id INTEGER)")
    with pytest.raises(BadInput, match=r"cannot be opened:.*autotune_step.*already exists"):
        Store.open(url)
    assert tables(url) == {"autotune_step"}
    execute(url, "DROP TABLE autotune_step")
    Store.open(url).close()
    assert tables(url) == OURS


def test_optuna_comes_first(url: str) -> None:
    theirs = optuna.create_study(storage=optuna.storages.RDBStorage(url), study_name="theirs", direction="maximize")
    theirs.tell(theirs.ask(), 1.0)
    store = Store.open(url)
    new_study(store)
    loaded = optuna.load_study(study_name="theirs", storage=store.optuna_storage())
    assert [trial.value for trial in loaded.trials] == [1.0]
    store.close()


def test_optuna_comes_second(url: str) -> None:
    store = Store.open(url)
    new_study(store)
    ours = optuna.create_study(storage=store.optuna_storage(), study_name="ours", direction="maximize")
    ours.tell(ours.ask(), 2.0)
    loaded = optuna.load_study(study_name="ours", storage=optuna.storages.RDBStorage(url))
    assert [trial.value for trial in loaded.trials] == [2.0]
    store.close()
    Store.open(url).close()


def test_first_opens_at_once_all_succeed(url: str) -> None:
    def open_and_count() -> int:
        store = Store.open(url)
        found = len(store.studies())
        store.close()
        return found

    assert at_once(open_and_count, 3) == [0, 0, 0]
    assert tables(url) == OURS


def test_a_reader_sees_what_was_committed_while_a_writer_is_busy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.2)
    store = Store.open(url)
    new_study(store)
    store.close()
    with create_engine(url, poolclass=NullPool).begin() as writer:
        writer.execute(text("UPDATE autotune_study SET state = 'stopped'"))
        reader = Store.open(url)
        assert reader.study("first").state == "running"
    assert reader.study("first").state == "stopped"
    reader.close()


def test_a_writer_does_not_wait_for_a_reader(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.2)
    store = Store.open(url)
    study = new_study(store)
    with create_engine(url, poolclass=NullPool).connect() as reader:
        reader.exec_driver_sql(
            "BEGIN" if url.startswith("sqlite") else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
        )
        assert reader.scalar(text("SELECT state FROM autotune_study")) == "running"
        store.set_study_state(study, "stopped")
        assert reader.scalar(text("SELECT state FROM autotune_study")) == "running"
    assert store.study("first").state == "stopped"
    store.close()


def test_a_later_schema_is_refused(url: str) -> None:
    Store.open(url).close()
    execute(url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(BadInput, match=r"written by a later autotune \(schema 9999\); upgrade autotune"):
        Store.open(url)


def test_a_refused_file_is_not_changed(sqlite_url: str, tmp_path: Path) -> None:
    Store.open(sqlite_url).close()
    execute(sqlite_url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with sqlite3.connect(tmp_path / "trials.db", isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    before = files(tmp_path)
    with pytest.raises(BadInput, match="later autotune"):
        Store.open(sqlite_url)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("trials.db", "'trials.db' is no database URL; try sqlite:///trials.db"),
        ("postgresql+psycopg://tuner:hunter2@host:port/trials", "is no database URL"),
        ("postgresql:/tuner:hunter2@host/trials", "is no database URL"),
        (
            "mysql://tuner:hunter2@host/trials",
            r"mysql://tuner:\*\*\*@host/trials: autotune stores in SQLite or PostgreSQL",
        ),
        ("postgresql+oracle://tuner:hunter2@host/trials", "there is no driver postgresql.oracle"),
        ("postgresql+psycopg://tuner:hunter2@127.0.0.1:1/trials", r"127.0.0.1:1/trials cannot be opened: .*refused"),
        ("sqlite://", "a study needs a file, such as sqlite:///trials.db"),
        ("sqlite:///:memory:", "a study needs a file"),
        ("sqlite:////no/such/trials.db", "the folder /no/such does not exist"),
        ("sqlite:////tmp", "/tmp is a folder"),
    ],
)
def test_a_refused_url_is_told_without_its_password(url: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        Store.open(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.postgres
def test_messages_about_studies_hide_the_password(postgresql_url: str) -> None:
    password = make_url(postgresql_url).password
    store = Store.open(postgresql_url)
    new_study(store)
    for attempt in (lambda: new_study(store), lambda: store.study("other")):
        with pytest.raises(BadInput, match=r"in postgresql\+psycopg://tuner:\*\*\*@127.0.0.1") as refused:
            attempt()
        assert str(password) not in str(refused.value)
    store.close()


def test_a_missing_driver_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(BadInput, match=r"the driver psycopg is not installed; pip install 'verl-autotune\[postgres\]'"):
        Store.open("postgresql+psycopg://tuner@host/trials")


def test_a_file_of_another_kind_is_refused_and_kept(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / "trials.db").write_text("number,throughput\n")
    before = files(tmp_path)
    with pytest.raises(BadInput, match=r"trials\.db is no SQLite database"):
        Store.open(sqlite_url)
    assert files(tmp_path) == before


def test_a_damaged_file_is_refused(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / "trials.db").write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000)
    with pytest.raises(BadInput, match="cannot be opened: file is not a database; name another"):
        Store.open(sqlite_url)


@pytest.mark.usefixtures("unprivileged")
def test_a_place_without_permission_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"/usr/trials\.db cannot be written"):
        Store.open("sqlite:////usr/trials.db")
    with pytest.raises(BadInput, match="not be entered"):
        Store.open(f"sqlite:///{tmp_path}/a/trials.db")


def test_a_name_is_taken_once(store: Store) -> None:
    new_study(store, "first")
    with pytest.raises(
        BadInput, match=r"there is a study named 'first' in .* already; choose another name with --study"
    ):
        new_study(store, "first")


def test_an_unknown_study_is_told_with_near_names(store: Store) -> None:
    new_study(store, "qwen-grpo")
    with pytest.raises(BadInput, match=r"no study named 'qwen-gspo' in .*; did you mean qwen-grpo\?"):
        store.study("qwen-gspo")
    with pytest.raises(BadInput, match=r"no study named 'xyz' in .*; autotune studies lists them"):
        store.study("xyz")


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite"])
def test_a_missing_file_is_found_whatever_the_driver(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "trials.db"
    assert Store.missing_file(f"{scheme}:///{path}") == path
    Store.open(f"{scheme}:///{path}").close()
    assert Store.missing_file(f"{scheme}:///{path}") is None


@pytest.mark.parametrize("url", ["trials.db", "postgresql://host:port/a", "postgresql://host/a", "sqlite://"])
def test_only_a_sqlite_file_can_be_missing(url: str) -> None:
    assert Store.missing_file(url) is None
