"""How many kills: a few in every run, as many as wanted by hand."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest tests/survival --kills 200 --seed 1`"""
    parser.addoption("--kills", type=int, default=None, help="how often something is killed")
    parser.addoption("--seed", type=int, default=0, help="which moments and victims")
