"""Whole logs with what is right about them: written ones of every release, and real ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autotune.verl.log_report import LogReader, LogReport
from autotune.verl.metrics import LoggedStep
from tests.verl_logs.conftest import CASES

WRITTEN = sorted((CASES / "logs").glob("*.json"))
REAL = sorted((CASES / "logs_real").glob("*.json"))


def read(path: Path, piece: int = 1 << 20, **known: Any) -> tuple[list[LoggedStep], LogReport]:
    steps: list[LoggedStep] = []
    reader = LogReader(steps.append)
    data = path.read_bytes()
    for at in range(0, len(data), piece):
        reader.feed(data[at : at + piece])
    reader.close()
    return steps, reader.report(**known)


def as_json(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def test_all_cases_are_there() -> None:
    assert len(WRITTEN) == 31
    assert len(REAL) == 6


@pytest.mark.parametrize("case", WRITTEN, ids=lambda path: path.stem)
@pytest.mark.parametrize("piece", [1 << 20, 997])
def test_a_written_log_reads_as_it_should(case: Path, piece: int) -> None:
    expected = json.loads(case.read_text())
    known = {"ended_by": "time_limit"} if "requires" in expected else {}
    steps, report = read(case.with_name(expected["source"]), piece, **known)

    assert [(s.step, {name: as_json(value) for name, value in s.metrics.items()}) for s in steps] == [
        (step["step"], step["metrics"]) for step in expected["steps"]
    ]
    if score := expected.get("score"):
        assert report.score.throughput == pytest.approx(score["throughput_tok_s_gpu"], rel=1e-4)
        assert report.score.mfu == (None if score["mfu_actor"] is None else pytest.approx(score["mfu_actor"], rel=1e-4))
        assert report.score.steps_used == score["steps_used"]
        assert report.score.derived == score.get("derived", False)
    if expected["failure"] is None:
        assert report.failure is None
    else:
        assert report.failure is not None
        assert report.failure.failure_class.value == expected["failure"]["class"]
        assert report.failure.phase.value == expected["failure"]["phase"]
        assert report.failure.retryable == expected.get("retryable", False)
    for name, value in expected.get("hints", {}).items():
        assert report.hints[name] == value


@pytest.mark.parametrize("case", REAL, ids=lambda path: path.stem)
def test_a_real_log_reads_as_it_should(case: Path) -> None:
    expected = json.loads(case.read_text())
    steps, report = read(case.with_name(expected["source"]), **expected["known"])
    assert [step.step for step in steps] == expected["steps"]
    if expected["failure"] is None:
        assert report.failure is None
        assert report.finished
    else:
        assert report.failure is not None
        said = report.failure.to_json()
        assert {name: said[name] for name in ("class", "phase", "retryable")} == {
            name: expected["failure"][name] for name in ("class", "phase", "retryable")
        }
        assert expected["failure"]["evidence"] in said["evidence"]
        assert expected["failure"]["remedy"] in said["remedy"]


def test_console_and_file_logger_of_a_real_run_agree() -> None:
    console, said = read(CASES / "logs_real" / "clean_run.log")
    written, told = read(CASES / "logs_real" / "clean_run.jsonl")
    assert [step.step for step in console] == [step.step for step in written]
    for one, other in zip(console, written, strict=True):
        assert one.metrics.keys() == other.metrics.keys()
        assert all(value == pytest.approx(other.metrics[name], rel=1e-9) for name, value in one.metrics.items())
    assert said.score == told.score


def test_the_remedy_for_a_small_kv_cache_points_up() -> None:
    _, report = read(CASES / "logs" / "f06_kv_no_blocks.log")
    assert report.failure is not None
    assert report.failure.remedy.startswith("Raise rollout.gpu_memory_utilization")


def test_a_growing_residue_after_sleep_is_a_warning_not_a_failure() -> None:
    _, report = read(CASES / "logs" / "f30_vllm_hints_no_failure.log")
    assert report.failure is None
    assert any("4.11 to 25.00 GiB" in warning for warning in report.warnings)
