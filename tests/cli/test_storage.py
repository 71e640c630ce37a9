"""Commands that only read never make a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli.storage import open_existing
from autotune.store.store import Store
from autotune.values import BadInput


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite"])
def test_a_missing_database_is_refused_and_not_made(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "trials.db"
    with pytest.raises(
        BadInput, match=rf"no study was run here yet: {path} does not exist\. Start one with autotune run"
    ):
        open_existing(f"{scheme}:///{path}")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_database_is_opened(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/trials.db"
    Store.open(url).close()
    assert open_existing(url).studies() == []


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(BadInput, match="is no database URL"):
        open_existing("trials.db")
