"""Studies, trials and steps: what goes in comes out, and trials change their state in one way only."""

from __future__ import annotations

import logging
import math
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.store.records import TRANSITIONS, WrongTransition
from autotune.store.store import Store
from autotune.values import (
    Failure,
    FailureClass,
    GpuUsage,
    Measurement,
    Phase,
    Point,
    Source,
    StepRecord,
    TrialKind,
    TrialState,
)
from tests.store.rows import at_once, new_study, new_trial, running_trial, step

OUT_OF_MEMORY = Failure(FailureClass.OOM_GPU, Phase.UPDATE_ACTOR, "smaller micro-batches", "CUDA out of memory", False)
PATHS_TO = {
    TrialState.QUEUED: (),
    TrialState.RUNNING: (TrialState.RUNNING,),
    **{state: (TrialState.RUNNING, state) for state in TrialState if not TRANSITIONS[state]},
}

# One database serves all examples of a test: each adds a trial of its own.
many = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
any_float = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf])
keys = st.text(min_size=1, max_size=20)
points = st.dictionaries(
    keys,
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    max_size=6,
).map(Point.of)
step_records = st.builds(
    StepRecord,
    step=st.integers(0, 10**6),
    seconds=st.floats(0, 1e6),
    tokens=st.none() | st.integers(0, 2**60),
    phases=st.dictionaries(keys, any_float, max_size=4),
    mfu=st.none() | any_float,
    memory_gb=st.none() | any_float,
    settling=st.booleans(),
    metrics=st.dictionaries(keys, any_float, max_size=4),
)


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def without_nan(step: StepRecord) -> StepRecord:
    return StepRecord(
        step.step,
        step.seconds,
        step.tokens,
        {key: finite(value) for key, value in step.phases.items()},  # type: ignore[misc]
        finite(step.mfu),
        finite(step.memory_gb),
        step.settling,
        {key: finite(value) for key, value in step.metrics.items()},  # type: ignore[misc]
    )


def move(store: Store, study: int, number: int, state: TrialState) -> None:
    if state is TrialState.RUNNING:
        store.start_trial(study, number, run_dir="out")
    else:
        store.finish_trial(study, number, state, measurement=None, failure=None)


@many
@given(point=points)
def test_a_point_comes_back_with_the_types_of_its_values(store: Store, point: Point) -> None:
    study = latest_or_new(store)
    number = new_trial(store, study, point=point)
    assert store.trials(study)[number].point == point


@many
@given(records=st.lists(step_records, max_size=4, unique_by=lambda step: step.step))
def test_steps_come_back_in_order_with_null_for_nan_and_infinity(store: Store, records: list[StepRecord]) -> None:
    study = latest_or_new(store)
    number = running_trial(store, study)
    measured = Measurement(steps=tuple(records), world_size=8)
    store.finish_trial(study, number, TrialState.MEASURED, measurement=measured, failure=None)
    assert store.steps(study, number) == sorted(map(without_nan, records), key=lambda step: step.step)


def latest_or_new(store: Store) -> int:
    study = store.latest_study()
    return study.id if study else new_study(store)


def test_an_infinite_knob_is_stored_as_null(store: Store) -> None:
    study = new_study(store)
    new_trial(store, study, point=Point.of({"clip": math.inf, "loss": math.nan}))
    assert store.trials(study)[0].point == Point.of({"clip": None, "loss": None})


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_a_step_without_a_duration_is_left_out_with_a_warning(
    store: Store, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    study = new_study(store)
    number = running_trial(store, study)
    with caplog.at_level(logging.WARNING, logger="autotune"):
        store.add_step(study, number, step(1, seconds, phases={}))
        measured = Measurement(steps=(step(1, seconds, phases={}), step(2)), world_size=8)
        record = store.finish_trial(study, number, TrialState.MEASURED, measurement=measured, failure=None)
    assert [s.step for s in store.steps(study, number)] == [2]
    assert (record.counted_steps, record.throughput) == (1, finite(measured.throughput))
    assert caplog.messages == [f"trial 0: step 1 took {seconds} seconds and is left out"] * 2


def test_a_step_that_is_told_twice_is_stored_once(store: Store) -> None:
    study = new_study(store)
    number = running_trial(store, study)
    store.add_step(study, number, step(1, 10.0))
    store.add_step(study, number, step(1, 12.0))
    assert [s.seconds for s in store.steps(study, number)] == [12.0]


@pytest.mark.parametrize(
    ("now", "then"), [pair for pair in product(TrialState, TrialState) if pair[1] is not TrialState.QUEUED]
)
def test_a_trial_takes_the_allowed_transitions_and_no_other(
    sqlite_store: Store, now: TrialState, then: TrialState
) -> None:
    study = new_study(sqlite_store)
    number = new_trial(sqlite_store, study)
    for state in PATHS_TO[now]:
        move(sqlite_store, study, number, state)
    if then in TRANSITIONS[now]:
        move(sqlite_store, study, number, then)
        assert sqlite_store.trials(study)[0].state is then
    else:
        with pytest.raises(WrongTransition, match=f"trial 0 is {now.value} and cannot become {then.value}"):
            move(sqlite_store, study, number, then)
        assert sqlite_store.trials(study)[0].state is now


def test_a_finished_trial_keeps_what_it_delivered_first(store: Store) -> None:
    study = new_study(store)
    number = running_trial(store, study)
    first = Measurement(steps=(step(1, 10.0),), world_size=8)
    store.finish_trial(study, number, TrialState.MEASURED, measurement=first, failure=None)
    again = Measurement(steps=(step(1, 1.0),), world_size=8)
    with pytest.raises(WrongTransition):
        store.finish_trial(study, number, TrialState.MEASURED, measurement=again, failure=None)
    assert store.trials(study)[0].throughput == first.throughput
    assert [s.seconds for s in store.steps(study, number)] == [10.0]


def test_settling_steps_are_counted_apart(store: Store) -> None:
    study = new_study(store)
    for settling, counted in [(0, 0), (2, 0), (2, 3)]:
        number = running_trial(store, study)
        for index in range(settling + counted):
            store.add_step(study, number, step(index, settling=index < settling))
    assert [(t.settling_steps, t.counted_steps) for t in store.trials(study)] == [(0, 0), (2, 0), (2, 3)]


def test_a_measurement_comes_back_whole(store: Store) -> None:
    study = new_study(store)
    number = running_trial(store, study, kind=TrialKind.BASELINE, point=Point.of({}), overrides=[], optuna_number=7)
    store.add_step(study, number, step(9))
    measured = Measurement(
        steps=(step(1, 30.0, settling=True), step(2, 10.0, mfu=0.4, memory_gb=60.0), step(3, 12.0, mfu=0.42)),
        world_size=8,
        source=Source.COMPOSED,
        work="half",
        engine="live",
        startup_seconds=90.0,
        echo={"rollout.tp": 2},
        gpus=(GpuUsage(0, "H100", 0.9, 650.0, 1800.0, 60 * 2**30, False),),
        simulated=True,
    )
    record = store.finish_trial(study, number, TrialState.MEASURED, measurement=measured, failure=None)
    assert store.trials(study) == [record]
    assert (record.kind, record.state, record.optuna_number) == (TrialKind.BASELINE, TrialState.MEASURED, 7)
    assert (record.source, record.work, record.engine, record.simulated) == ("composed", "half", "live", True)
    assert (record.throughput, record.step_seconds) == (measured.throughput, 11.0)
    assert (record.mfu, record.memory_gb, record.world_size) == (measured.mfu, 60.0, 8)
    assert (record.startup_seconds, record.wall_seconds) == (90.0, None)
    assert record.phases == measured.phase_seconds
    assert record.echo == {"rollout.tp": 2}
    assert [gpu["name"] for gpu in record.gpus] == ["H100"]
    assert (record.settling_steps, record.counted_steps) == (1, 2)
    assert record.started_at is not None
    assert record.ended_at is not None
    assert record.started_at.utcoffset() == record.ended_at.utcoffset() == record.ended_at - record.ended_at
    assert store.steps(study, number) == list(measured.steps)


def test_a_failure_comes_back_whole(store: Store) -> None:
    study = new_study(store)
    number = running_trial(store, study)
    store.finish_trial(study, number, TrialState.INFEASIBLE, measurement=None, failure=OUT_OF_MEMORY)
    record = store.trials(study)[0]
    assert (record.state, record.failure) == (TrialState.INFEASIBLE, OUT_OF_MEMORY.to_json())


def test_trials_are_numbered_from_0_in_each_study(store: Store) -> None:
    first, second = new_study(store, "first"), new_study(store, "second")
    assert [new_trial(store, study) for study in (first, first, second, first)] == [0, 1, 0, 2]
    assert [study.trials for study in store.studies()] == [3, 1]


def test_writers_at_once_give_every_trial_its_own_number(url: str) -> None:
    store = Store.open(url)
    study = new_study(store)
    store.close()

    def add_five() -> list[int]:
        mine = Store.open(url)
        return [new_trial(mine, study) for _ in range(5)]

    assert sorted(number for numbers in at_once(add_five, 3) for number in numbers) == list(range(15))


def test_a_study_comes_back_whole(store: Store) -> None:
    study = new_study(store, "first", settings={"trials": 20, "limit": math.inf}, simulated=True)
    store.set_verdict(study, {"decision": "better", "gain": 0.2, "hook_gain": math.nan})
    store.set_study_state(study, "finished")
    record = store.study("first")
    assert (record.id, record.state, record.simulated, record.n_gpus) == (study, "finished", True, 8)
    assert record.settings == {"trials": 20, "limit": None}
    assert record.verdict == {"decision": "better", "gain": 0.2, "hook_gain": None}
    assert record.updated_at >= record.created_at
    assert record.script_text == "python3 -m verl.trainer.main_ppo\n"


def test_the_latest_study_is_the_newest(store: Store) -> None:
    assert store.latest_study() is None
    for name in ("b", "a"):
        new_study(store, name)
    latest = store.latest_study()
    assert latest is not None
    assert latest.name == "a"
    assert [study.name for study in store.studies()] == ["b", "a"]
