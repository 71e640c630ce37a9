"""Recorded measurements come back as they were, marked as replayed, and nothing is made up."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from autotune.measure.bench import repeated, same_gradient
from autotune.measure.outcome_json import outcome_from_json, outcome_to_json
from autotune.measure.replay import REPLAYED, Recorded, ReplayRunner, read_recordings
from autotune.measure.runner import Event, Order, StageSeen, StepPlan, StepSeen
from autotune.values import (
    AutotuneError,
    Failure,
    FailureClass,
    GpuUsage,
    Measurement,
    Phase,
    Point,
    Source,
    StepRecord,
)

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "h200" / "records.jsonl"
POINT = Point.of({"actor_rollout_ref.rollout.max_num_seqs": 64})
OOM = Failure(FailureClass.OOM_GPU, Phase.UPDATE_ACTOR, "Lower it.", "CUDA out of memory", False)


def measurement(seconds: float) -> Measurement:
    steps = tuple(
        StepRecord(n, seconds, 1000, {"gen": seconds / 2}, mfu=0.1, settling=n == 1, metrics={"timing_s/gen": 1.5})
        for n in (1, 2, 3)
    )
    gpu = GpuUsage(0, "NVIDIA H200", 0.5, 300.0, 1980.0, 1 << 30, False)
    return Measurement(steps, 1, source=Source.COMPOSED, engine="live", session="ab", wall_seconds=9.0, gpus=(gpu,))


def order(point: Point, folder: Path, *, fresh: bool = False) -> Order:
    return Order("t001", point, (), folder, StepPlan(), fresh)


def ask(runner: ReplayRunner, wanted: Order) -> tuple[object, list[Event]]:
    seen: list[Event] = []
    return runner.measure(wanted, seen.append), seen


@pytest.mark.parametrize("outcome", [measurement(2.0), OOM])
def test_an_outcome_survives_being_written(outcome: Measurement | Failure) -> None:
    again = outcome_from_json(json.loads(json.dumps(outcome_to_json(outcome))))
    if isinstance(outcome, Measurement):
        assert isinstance(again, Measurement)
        assert math.isnan(again.startup_seconds)
        assert (again.steps, again.gpus, again.source, again.wall_seconds) == (
            outcome.steps,
            outcome.gpus,
            outcome.source,
            outcome.wall_seconds,
        )
    else:
        assert again == outcome


def test_a_replayed_measurement_says_so_and_shows_every_step(tmp_path: Path) -> None:
    runner = ReplayRunner([Recorded("a", POINT, False, measurement(2.0))], origin="h200")
    outcome, seen = ask(runner, order(POINT, tmp_path))
    assert isinstance(outcome, Measurement)
    assert outcome.work == f"{REPLAYED}h200"
    assert not outcome.simulated
    assert [event.step.step for event in seen if isinstance(event, StepSeen)] == [1, 2, 3]
    assert [event.stage for event in seen if isinstance(event, StageSeen)] == ["starting", "stepping", "stopping"]


def test_a_launch_of_its_own_and_a_session_are_not_mixed_up(tmp_path: Path) -> None:
    recordings = [Recorded("a", POINT, False, measurement(2.0)), Recorded("a", POINT, True, measurement(3.0))]
    runner = ReplayRunner(recordings, origin="h200")
    cold, _ = ask(runner, order(POINT, tmp_path, fresh=True))
    assert isinstance(cold, Measurement)
    assert cold.step_seconds == 3.0


def test_repeated_measurements_come_in_their_order_and_the_last_one_stays(tmp_path: Path) -> None:
    recordings = [Recorded("a", POINT, False, measurement(2.0)), Recorded("b", POINT, False, OOM)]
    runner = ReplayRunner(recordings, origin="h200")
    found = [ask(runner, order(POINT, tmp_path))[0] for _ in range(3)]
    assert isinstance(found[0], Measurement)
    assert found[1:] == [OOM, OOM]


def test_a_point_that_was_not_recorded_gets_no_figure(tmp_path: Path) -> None:
    runner = ReplayRunner([], origin="h200")
    outcome, seen = ask(runner, order(POINT, tmp_path))
    assert isinstance(outcome, Failure)
    assert "no session measurement" in outcome.evidence
    assert not seen


def test_a_stopped_runner_serves_nothing(tmp_path: Path) -> None:
    runner = ReplayRunner([Recorded("a", POINT, False, measurement(2.0))], origin="h200")
    runner.stop(now=False)
    outcome, _ = ask(runner, order(POINT, tmp_path))
    assert isinstance(outcome, Failure)
    assert outcome.failure_class is FailureClass.INTERRUPTED


def test_a_file_of_something_else_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"kind": "start"}\n{"kind": "point", "label": "a"}\n')
    with pytest.raises(AutotuneError, match=r"records\.jsonl:2"):
        read_recordings(path)


@pytest.mark.parametrize("name", ["records", "longest", "beside", "launches", "launches_second"])
def test_a_recorded_session_is_reproduced(name: str, tmp_path: Path) -> None:
    recordings = read_recordings(DATA.with_name(f"{name}.jsonl"))
    runner = ReplayRunner(recordings, origin="h200-2026-11-30")
    for recorded in recordings:
        outcome, seen = ask(runner, order(recorded.point, tmp_path, fresh=recorded.fresh))
        if isinstance(recorded.outcome, Failure):
            assert outcome == recorded.outcome
            continue
        assert isinstance(outcome, Measurement)
        assert outcome.throughput == recorded.outcome.throughput
        assert outcome.phase_seconds == recorded.outcome.phase_seconds
        assert [event.step for event in seen if isinstance(event, StepSeen)] == list(recorded.outcome.steps)


def test_the_first_session_has_twenty_points_and_ends_out_of_memory() -> None:
    measured = [recorded for recorded in read_recordings(DATA) if not recorded.fresh]
    assert len(measured) >= 20
    assert measured[-1].outcome.failure_class is FailureClass.OOM_GPU  # type: ignore[union-attr]


def test_the_session_on_the_h200_repeated_itself_after_it_ran_out_of_memory() -> None:
    lines = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    frozen = [StepRecord(**line["step"]) for line in lines if line.get("work") == "frozen" and "step" in line]
    assert not same_gradient(frozen[2], frozen[-1])  # five digits are too many for a GPU
    assert repeated(frozen[:3], frozen[-1])


def test_a_recorded_measurement_is_no_simulation_and_names_its_session() -> None:
    first = read_recordings(DATA)[0].outcome
    assert isinstance(first, Measurement)
    assert not first.simulated
    assert first.session
    assert first.gpus[0].name == "NVIDIA H200"
