"""What Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event

import autotune
from autotune.service.metrics import metrics_router
from autotune.store import schedules
from autotune.store.schedules import NightState
from autotune.store.store import Store
from autotune.store.trouble import StoreTrouble, TroubleKind
from tests.service.registered import NOW, add_night, canary, register
from tests.studies import BASELINE, add_study, add_trial, finished_study, measurement


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/trials.db")
    yield opened
    opened.close()


def scrape(store: Store) -> dict[tuple[str, ...], float]:
    """Values by name and labels, the labels as `name=value` by name."""
    app = FastAPI()
    app.include_router(metrics_router(store, now=lambda: NOW))
    answer = TestClient(app).get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_an_empty_store_has_the_build_and_zeros(store):
    seen = scrape(store)
    assert next(key for key in seen if key[0] == "autotune_build_info")[2] == f"version={autotune.__version__}"
    assert seen["autotune_schedules", "state=active"] == 0
    assert seen["autotune_studies", "state=running"] == 0
    assert not any(key[0] in ("autotune_regression", "autotune_nights") for key in seen)


def test_schedules_and_when_they_are_due(store):
    register(store, "a")
    paused = register(store, "b")
    schedules.change_schedule(store, paused.id, state="paused")
    seen = scrape(store)
    assert seen["autotune_schedules", "state=active"] == 1
    assert seen["autotune_schedules", "state=paused"] == 1
    # Noon UTC on a winter day; two o'clock in Berlin is 01:00 UTC.
    assert seen["autotune_schedule_next_run_seconds", "schedule=a"] == 13 * 3600
    assert ("autotune_schedule_next_run_seconds", "schedule=b") not in seen


def test_a_schedule_whose_zone_is_gone_hides_no_other_one(store):
    register(store, "lost", tz="Atlantis/Poseidonis")
    register(store, "kept")
    seen = scrape(store)
    assert ("autotune_schedule_next_run_seconds", "schedule=kept") in seen
    assert ("autotune_schedule_next_run_seconds", "schedule=lost") not in seen


def test_nights_by_state_with_zeros(store):
    schedule = register(store)
    add_night(store, schedule, 3)
    add_night(store, schedule, 2)
    add_night(store, schedule, 1, state=NightState.SKIPPED, decision=None, reason="busy")
    seen = scrape(store)
    counts = {state.value: seen["autotune_nights", "schedule=nightly", f"state={state.value}"] for state in NightState}
    assert counts == {
        "due": 0,
        "running": 0,
        "finished": 2,
        "unfinished": 0,
        "skipped": 1,
        "stopped": 0,
        "failed": 0,
    }


def test_an_alarm_stands_until_a_night_that_could_be_compared_ends_it(store):
    schedule = register(store)
    alarm = ("autotune_regression", "schedule=nightly", "simulated=true")
    add_night(store, schedule, 9, decision="no_reference")
    assert alarm not in scrape(store)
    add_night(store, schedule, 8)
    assert scrape(store)[alarm] == 0
    add_night(store, schedule, 7, decision="regression")
    assert scrape(store)[alarm] == 1
    add_night(store, schedule, 6, state=NightState.SKIPPED, decision=None, reason="busy")
    add_night(store, schedule, 5, decision="failed", state=NightState.FAILED)
    add_night(store, schedule, 4, decision="not_comparable")
    assert scrape(store)[alarm] == 1
    add_night(store, schedule, 3)
    assert scrape(store)[alarm] == 0


def test_the_decision_of_the_last_night_with_a_verdict(store):
    schedule = register(store)
    add_night(store, schedule, 2, decision="regression")
    add_night(store, schedule, 1, decision="not_comparable")
    seen = scrape(store)
    true = [key for key, value in seen.items() if key[0] == "autotune_night_verdict" and value == 1]
    assert true == [("autotune_night_verdict", "decision=not_comparable", "schedule=nightly", "simulated=true")]


def test_the_levels_of_the_last_night_and_the_gain_of_the_reference(store):
    schedule = register(store)
    schedules.change_schedule(store, schedule.id, reference={"gain": 0.2})
    add_night(store, schedule, 2, canary=canary(500.0, 600.0))
    add_night(store, schedule, 1, canary=canary(1000.0, 1200.0))
    seen = scrape(store)
    labels = ("schedule=nightly", "simulated=true")
    assert seen[("autotune_own_tokens_per_second_per_gpu", *labels)] == 1000.0
    assert seen[("autotune_best_tokens_per_second_per_gpu", *labels)] == 1200.0
    assert seen[("autotune_reference_gain", *labels)] == 0.2


def test_without_a_best_setting_only_the_own_level_is_shown(store):
    add_night(store, register(store), canary=canary(1000.0, None), simulated=False)
    seen = scrape(store)
    assert seen["autotune_own_tokens_per_second_per_gpu", "schedule=nightly", "simulated=false"] == 1000.0
    assert not any(key[0] == "autotune_best_tokens_per_second_per_gpu" for key in seen)


def test_running_studies_and_their_trials(store):
    finished_study(store, "done")
    study = add_study(store, "now")
    add_trial(store, study, BASELINE, outcome=measurement(2.0))
    add_trial(store, study, BASELINE)
    seen = scrape(store)
    assert seen["autotune_studies", "state=running"] == 1
    assert seen["autotune_studies", "state=finished"] == 1
    counts = {key[2]: value for key, value in seen.items() if key[0] == "autotune_running_study_trials"}
    assert counts["state=measured"] == 1
    assert counts["state=running"] == 1
    assert sum(counts.values()) == 2


def test_hostile_names_stay_inside_their_label(store):
    name = 'a"} 1\nautotune_regression{schedule="b\\'
    add_night(store, register(store, name), decision="steady")
    add_study(store, name)
    seen = scrape(store)
    assert seen["autotune_regression", f"schedule={name}", "simulated=true"] == 0
    assert len([key for key in seen if key[0] == "autotune_regression"]) == 1
    assert ("autotune_running_study_trials", "simulated=true", "state=queued", f"study={name}") in seen


def test_the_store_is_asked_as_often_for_many_schedules_as_for_one(store):
    asked: list[str] = []
    event.listen(store.reading().get_bind(), "before_cursor_execute", lambda *given: asked.append(given[2]))

    def count() -> int:
        asked.clear()
        scrape(store)
        return len([text for text in asked if text.lstrip().upper().startswith("SELECT")])

    add_night(store, register(store, "first"))
    add_study(store, "first")
    one = count()
    for number in range(12):
        add_night(store, register(store, f"s{number}"))
        add_study(store, f"s{number}")
    assert count() == one
    assert one > 0


def test_a_database_that_cannot_be_read_is_told(store, monkeypatch):
    def locked(_: Store) -> None:
        raise StoreTrouble(TroubleKind.LOCKED, "trials.db is locked")

    monkeypatch.setattr(schedules, "schedules", locked)
    app = FastAPI()
    app.include_router(metrics_router(store, now=lambda: NOW))
    answer = TestClient(app).get("/metrics")
    assert (answer.status_code, answer.text) == (503, "trials.db is locked\n")
