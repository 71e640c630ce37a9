"""Spoiled logs: nothing crashes, and a step line that was left alone is read to the last digit. `benchmarks/log_reader.py` does 100,000."""

from __future__ import annotations

import random

from tests.verl_logs.checks import check
from tests.verl_logs.conftest import CASES
from tests.verl_logs.mutations import mutate, sources


def test_spoiled_logs_keep_their_whole_steps() -> None:
    logs = sources(CASES)
    rng = random.Random(20260203)
    kept = sum(check(mutate(rng.choice(logs), rng), rng) for _ in range(1500))
    assert kept > 1000
