"""What the API and the metrics ask about nights and running studies, in both kinds of database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from autotune.store import queries, schedules
from autotune.store.schedules import NightState
from autotune.values import TrialState
from tests.service.registered import NOW, add_night, register
from tests.studies import BASELINE, add_study, add_trial, finished_study, measurement


def test_the_newest_night_of_each_schedule(store):
    first, second = register(store, "first"), register(store, "second")
    register(store, "never ran")
    add_night(store, first, 1)
    add_night(store, first, 3)
    add_night(store, second, 2)
    found = schedules.last_nights(store)
    assert {key: night.slot for key, night in found.items()} == {
        first.id: "2026-11-29T12:00",
        second.id: "2026-11-28T12:00",
    }


def test_the_newest_night_with_one_of_these_decisions(store):
    schedule = register(store)
    add_night(store, schedule, 3, decision="regression")
    add_night(store, schedule, 2, decision="failed")
    add_night(store, schedule, 1, decision=None, state=NightState.SKIPPED)
    found = schedules.last_nights(store, ("steady", "regression"))
    assert {night.slot for night in found.values()} == {"2026-11-27T12:00"}
    assert schedules.last_nights(store, ("faster",)) == {}


def test_nights_are_counted_by_schedule_and_state(store):
    schedule = register(store)
    add_night(store, schedule, 2)
    add_night(store, schedule, 1)
    add_night(store, register(store, "other"), state=NightState.DUE)
    assert schedules.night_counts(store) == {
        ("nightly", NightState.FINISHED): 2,
        ("other", NightState.DUE): 1,
    }


def test_trials_of_running_studies_are_counted_by_state(store):
    finished_study(store, "done")
    add_study(store, "new")
    study = add_study(store, "goes on")
    add_trial(store, study, BASELINE, outcome=measurement(2.0))
    add_trial(store, study, BASELINE)
    assert queries.running_trials(store) == {
        ("new", True): {},
        ("goes on", True): {TrialState.MEASURED: 1, TrialState.RUNNING: 1},
    }
    assert list(queries.running_trials(store, most=1)) == [("goes on", True)]
    assert queries.study_states(store) == {"finished": 1, "running": 2}


def test_one_night_is_planned_where_many_are_asked_for_at_once(store):
    schedule = register(store)

    def plan(number: int) -> int | None:
        until = NOW + timedelta(hours=1)
        return schedules.plan_night(
            store, schedule.id, slot=f"manual {number}", planned_at=NOW, until=until, alone=True
        )

    with ThreadPoolExecutor(8) as pool:
        planned = [night for night in pool.map(plan, range(16)) if night is not None]
    assert len(planned) == 1
    schedules.end_night(store, planned[0], NightState.STOPPED)
    assert plan(16) is not None
