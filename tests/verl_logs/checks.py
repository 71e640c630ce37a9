"""What has to hold for a spoiled log."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from autotune.verl.failures import diagnose
from autotune.verl.log_report import LogReader
from autotune.verl.metrics import LoggedStep
from tests.verl_logs.mutations import Mutated


def check(log: Mutated, rng: random.Random) -> int:
    """Reads the log in pieces of random size; returns how many untouched steps it had. Raises AssertionError where one was misread."""
    found: list[LoggedStep] = []
    reader = LogReader(found.append)
    at = 0
    while at < len(log.data):
        size = rng.choice((1, 100, 4096, 1 << 20)) if len(log.data) < 3000 else rng.choice((1000, 1 << 20))
        reader.feed(log.data[at : at + size])
        at += size
    reader.close()
    report = reader.report(exit_code=rng.choice((None, 0, 1, -15)))
    if report.failure is not None:
        assert len(report.failure.evidence) <= 500
    diagnose(log.data.decode("utf-8", "replace").splitlines(), exit_code=1)

    have = {(step.step, _sorted(step.metrics)) for step in found}
    for line in log.kept:
        assert _truth(line) in have, line
    return len(log.kept)


def _truth(line: str) -> tuple[int, str]:
    """The step of an untouched step line, read in another way than the reader does it."""
    start = re.search(r"\bstep:(\d+) - ", line)
    assert start is not None
    pairs = re.findall(
        r"(\S+):(?:np\.\w+\()?(-?(?:[\d.]+(?:e[+-]?\d+)?|nan|inf))", line[start.end() :].partition("\r")[0]
    )
    return int(start[1]), _sorted({name: float(number) for name, number in pairs})


def _sorted(metrics: Mapping[str, float | None]) -> str:
    return repr(sorted((name, None if value is None else float(value)) for name, value in metrics.items()))
