"""A store with a finished study, and the dashboard over it. Every figure is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from autotune.dashboard.app import create_app
from autotune.store.store import Store
from tests.nights import add_schedule, history
from tests.studies import finished_study


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    opened = Store.open(f"sqlite:///{tmp_path}/trials.db")
    yield opened
    opened.close()


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    """A browser without scripts, on this host."""
    with TestClient(create_app(store), base_url="http://localhost:8500") as made:
        yield made


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A browser for tests that only read: a finished study, and a schedule whose last night is a regression."""
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('read')}/trials.db")
    finished_study(store)
    history(store, add_schedule(store))
    with TestClient(create_app(store), base_url="http://localhost:8500") as made:
        yield made
    store.close()
