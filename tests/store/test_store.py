"""What is stored comes back, for SQLite and PostgreSQL."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.store.records import TRANSITIONS, WrongTransition
from autotune.store.store import Store
from autotune.values import BadInput, GpuUsage, KnobValue, MemoryCheck, Point, TrialKind, TrialState
from tests.studies import BASELINE, FASTER, add_study, add_trial, failure, finished_study, measurement, step

SHARED = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

knob_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from([1, 1.0, True, "1", 0, -0.0, 2**70, "null", "\x00", "\ud800", "ключ", "a|b`c\n"]),
)


@SHARED
@given(values=st.dictionaries(st.text(min_size=1, max_size=20).filter(str.isprintable), knob_values, max_size=5))
def test_point_comes_back_with_the_types_of_its_values(store: Store, values: dict[str, KnobValue]) -> None:
    point = Point.of(values)
    study = store.study("night").id if store.studies() else add_study(store)
    number = add_trial(store, study, point)
    found = store.trials(study)[number].point
    assert found == point
    assert [type(value) for _, value in found.values] == [type(value) for _, value in point.values]


def test_point_with_nan_is_refused_rather_than_changed(store: Store) -> None:
    study = add_study(store)
    with pytest.raises(Exception, match="not JSON compliant"):
        add_trial(store, study, Point.of({"x.y": math.nan}))
    assert store.trials(study) == []


def test_study_comes_back_whole(store: Store) -> None:
    study = add_study(store, script_text="echo \x00 \udcff end", config={"a.b": [1, None, {"c": math.inf}]})
    found = store.study("night")
    assert (found.id, found.name, found.state, found.trials) == (study, "night", "running", 0)
    assert found.config == {"a.b": [1, None, {"c": None}]}
    assert found.script_text.startswith("echo ")
    assert found.script_text.endswith(" end")
    assert found.simulated is True
    assert found.verdict is None
    assert found.created_at.utcoffset() is not None
    store.set_verdict(study, {"decision": "better", "gain": math.nan})
    store.set_study_state(study, "finished")
    after = store.study("night")
    assert after.verdict == {"decision": "better", "gain": None}
    assert after.state == "finished"
    assert after.updated_at >= found.updated_at


def test_second_study_of_a_name_is_refused(store: Store) -> None:
    add_study(store)
    with pytest.raises(BadInput, match=r"named 'night' .*--study"):
        add_study(store)
    assert len(store.studies()) == 1


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b"])
def test_name_that_no_database_takes_is_refused(store: Store, name: str) -> None:
    with pytest.raises(BadInput, match="--study"):
        add_study(store, name)


def test_unknown_study_names_near_ones(store: Store) -> None:
    for name in ("qwen-grpo", "demo"):
        add_study(store, name)
    with pytest.raises(BadInput, match=r"no study named 'qwen-gpro'.*did you mean qwen-grpo\?"):
        store.study("qwen-gpro")
    with pytest.raises(BadInput, match="autotune studies lists them"):
        store.study("zzz")


def test_studies_come_oldest_first_with_their_trial_counts(store: Store) -> None:
    assert store.latest_study() is None
    first, second = add_study(store, "b"), add_study(store, "a")
    add_trial(store, first)
    assert [(study.name, study.trials) for study in store.studies()] == [("b", 1), ("a", 0)]
    latest = store.latest_study()
    assert latest is not None
    assert latest.id == second


def test_trials_are_numbered_from_zero_in_each_study(store: Store) -> None:
    one, two = add_study(store, "one"), add_study(store, "two")
    assert [add_trial(store, one), add_trial(store, two), add_trial(store, one)] == [0, 0, 1]
    assert [trial.number for trial in store.trials(one)] == [0, 1]


def test_measured_trial_comes_back_with_its_figures(store: Store) -> None:
    study = add_study(store)
    usage = GpuUsage(0, "H200", 0.9, 650.0, math.nan, 10**12, False)
    made = replace(measurement(2.0, mfu=0.25), gpus=(usage,))
    number = add_trial(store, study, outcome=made)
    found = store.trials(study)[number]
    assert found.state is TrialState.MEASURED
    assert found.throughput == pytest.approx(made.throughput) == pytest.approx(250.0)
    assert (found.step_seconds, found.mfu, found.memory_gb) == (2.0, 0.25, 1.5)
    assert found.phases == pytest.approx({"gen": 1.2, "update_actor": 0.6, "rest": 0.2})
    assert (found.settling_steps, found.counted_steps) == (1, 2)
    assert (found.source, found.work, found.engine, found.simulated) == ("whole", "full", "cold", True)
    assert found.gpus[0]["clock_mhz"] is None
    assert found.gpus[0]["peak_memory_bytes"] == 10**12
    assert found.failure is None
    assert found.run_dir == "/runs/t000"
    assert store.steps(study, number) == list(made.steps)


def test_unknown_durations_are_null_not_nan(store: Store) -> None:
    study = add_study(store)
    number = add_trial(store, study, outcome=replace(measurement(2.0), startup_seconds=math.nan, wall_seconds=math.inf))
    found = store.trials(study)[number]
    assert (found.startup_seconds, found.wall_seconds, found.mfu) == (None, None, None)


def test_steps_seen_live_are_readable_and_give_way_to_those_of_the_measurement(store: Store) -> None:
    study = add_study(store)
    number = add_trial(store, study)
    store.add_step(study, number, step(1, 4.0))
    store.add_step(study, number, step(2, 2.0, tokens=3_000_000_000))
    assert [s.step for s in store.steps(study, number)] == [1, 2]
    assert store.steps(study, number)[1].tokens == 3_000_000_000
    assert store.trials(study)[0].counted_steps == 2
    made = measurement(2.0)
    record = store.finish_trial(study, number, TrialState.MEASURED, measurement=made, failure=None)
    assert (record.settling_steps, record.counted_steps) == (1, 2)
    assert store.steps(study, number) == list(made.steps)


def test_step_reported_twice_is_stored_once(store: Store) -> None:
    study = add_study(store)
    number = add_trial(store, study)
    store.add_step(study, number, step(1, 4.0))
    store.add_step(study, number, step(1, 5.0))
    assert [s.seconds for s in store.steps(study, number)] == [5.0]


def test_failed_trial_keeps_its_reason_and_the_steps_it_made(store: Store) -> None:
    study = add_study(store)
    number = add_trial(store, study)
    store.add_step(study, number, step(1, 4.0))
    made = failure("bad \x00 line\nsecond")
    record = store.finish_trial(study, number, TrialState.INFEASIBLE, measurement=None, failure=made)
    assert record.failure == made.to_json()
    assert record.throughput is None
    assert [s.step for s in store.steps(study, number)] == [1]


@pytest.mark.parametrize("end", [state for state, onward in TRANSITIONS.items() if not onward])
def test_final_state_is_never_left(store: Store, end: TrialState) -> None:
    study = add_study(store)
    number = add_trial(store, study)
    store.finish_trial(study, number, end, measurement=measurement(2.0), failure=None)
    for then in TrialState:
        with pytest.raises(WrongTransition, match=f"is {end.value} and cannot become {then.value}"):
            store.finish_trial(study, number, then, measurement=measurement(1.0), failure=None)
    assert store.trials(study)[0].state is end
    assert store.trials(study)[0].step_seconds == 2.0


def test_trial_cannot_be_measured_without_having_been_started(store: Store) -> None:
    study = add_study(store)
    number = store.add_trial(
        study, kind=TrialKind.SEARCH, point=BASELINE, overrides=[], origin="tpe", optuna_number=4, simulated=True
    )
    with pytest.raises(WrongTransition, match="is queued and cannot become measured"):
        store.finish_trial(study, number, TrialState.MEASURED, measurement=measurement(1.0), failure=None)
    found = store.finish_trial(study, number, TrialState.INFEASIBLE, measurement=None, failure=failure())
    assert (found.state, found.optuna_number, found.started_at) == (TrialState.INFEASIBLE, 4, None)


def test_measured_needs_a_measurement(store: Store) -> None:
    study = add_study(store)
    number = add_trial(store, study)
    with pytest.raises(ValueError, match="without a measurement"):
        store.finish_trial(study, number, TrialState.MEASURED, measurement=None, failure=None)


def test_reader_sees_a_whole_state_while_a_writer_is_in_its_transaction(
    url: str, store: Store, open_store: Callable[[str], Store]
) -> None:
    study = add_study(store)
    add_trial(store, study, outcome=measurement(2.0))
    reader = open_store(url)
    with store._writing.begin() as connection:
        connection.exec_driver_sql("UPDATE autotune_trial SET throughput = 1.0")
        assert reader.trials(study)[0].throughput == pytest.approx(250.0)
        assert open_store(url).study("night").trials == 1
    assert reader.trials(study)[0].throughput == 1.0


def test_writers_at_once_neither_fail_nor_take_one_number_twice(
    url: str, store: Store, open_store: Callable[[str], Store]
) -> None:
    study = add_study(store)
    start = threading.Barrier(4)

    def write(own: Store) -> list[int]:
        start.wait(30)
        return [add_trial(own, study, outcome=measurement(1.0)) for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        taken = [number for numbers in pool.map(write, [open_store(url) for _ in range(4)]) for number in numbers]
    assert sorted(taken) == list(range(20))
    assert {trial.state for trial in store.trials(study)} == {TrialState.MEASURED}


def test_optuna_writes_while_the_store_writes(url: str, store: Store) -> None:
    import optuna

    study = add_study(store)
    theirs = optuna.create_study(storage=store.optuna_storage(), direction="maximize")
    for value in (1.0, 2.0):
        trial = theirs.ask()
        add_trial(store, study, FASTER, outcome=measurement(value))
        theirs.tell(trial, value)
    assert theirs.best_value == 2.0
    assert len(store.trials(study)) == 2


def test_everything_stored_is_strict_json(store: Store) -> None:
    finished_study(store, config={"a.b": math.nan})
    for trial in store.trials(store.study("night").id):
        json.dumps([trial.phases, trial.echo, trial.gpus, trial.failure], allow_nan=False)
    json.dumps(store.study("night").config, allow_nan=False)


def test_memory_checks_come_back_as_they_were_stored(store: Store) -> None:
    study, other = add_study(store), add_study(store, "other")
    fits = MemoryCheck(BASELINE, "s1", 196_608, 61 << 30, 2 << 30, 140 << 30)
    failed = MemoryCheck(FASTER, "s1", 0, None, 2 << 30, 140 << 30, failure())
    for check in (fits, failed):
        store.add_memory_check(study, check)
    assert store.memory_checks(study) == [fits, failed]
    assert store.memory_checks(other) == []
