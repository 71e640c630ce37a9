from __future__ import annotations

from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture
def cases() -> Path:
    """Logs with what is right about them."""
    return CASES / "logs"
