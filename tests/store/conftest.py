"""Databases for the tests of the store: each test gets an empty one, once in SQLite and once in PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from autotune.store.store import Store
from tests.store.postgres import server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a server of our own; tests that cannot have one fail, they are not skipped."""
    with server() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """URL of a new, empty database."""
    name = f"t{uuid.uuid4().hex}"
    admin = create_engine(postgres_server, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a new, empty database of either kind."""
    if request.param == "postgres":
        found: str = request.getfixturevalue("postgres_url")
        return found
    return f"sqlite:///{tmp_path / 'trials.db'}"


@pytest.fixture
def open_store() -> Iterator[Callable[[str], Store]]:
    """Opens stores and closes them after the test."""
    opened: list[Store] = []

    def open_(url: str) -> Store:
        opened.append(Store.open(url))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(url: str, open_store: Callable[[str], Store]) -> Store:
    """A store over an empty database of either kind."""
    return open_store(url)
