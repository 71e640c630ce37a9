"""What all tests share: how many kills, which files begin, and records of launches that no other run of tests sees."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from autotune.measure.job_record import FOLDER_VARIABLE

for _size in (
    "COLUMNS",
    "LINES",
):  # set in a worker of pytest-xdist; a console that sees them when it is made keeps that width
    os.environ.pop(_size, None)

LONG = (
    "tests/tuner/test_sessions.py",
    "tests/cli/test_run.py",
    "tests/measure/test_warm.py",
    "tests/cli/test_resume.py",
)
"""Files that take longest. `make test-fast` runs whole files side by side; one of these begun last would run alone at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest tests/survival --kills 200 --seed 1`"""
    parser.addoption("--kills", type=int, default=None, help="how often something is killed")
    parser.addoption("--seed", type=int, default=0, help="which moments and victims")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first."""
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONG)))


@pytest.fixture(autouse=True, scope="session")
def own_records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A launch that was killed in another run of tests would be waited for and swept by the commands of this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("records")))
        yield
