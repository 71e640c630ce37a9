"""Server-sent events: what a page hears while a study runs."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest

from autotune.dashboard import app
from autotune.dashboard.tokens import digest
from autotune.store import queries
from autotune.values import TrialKind
from tests.studies import BASELINE, add_study, add_trial, finished_study, measurement, step


def events(text: str) -> list[str]:
    return [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Studies count as ended as soon as they are."""
    monkeypatch.setattr(app.pages, "SETTLES_SECONDS", 0.0)


def test_a_study_that_has_ended_says_so_and_the_stream_ends(store, client):
    study = finished_study(store)
    answer = client.get(f"/studies/{study}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events(answer.text) == ["change", "end"]


def test_a_study_that_does_not_exist_has_no_events_to_wait_for(client):
    assert events(client.get("/studies/7/events").text)[-1] == "end"


def test_what_changed_between_page_and_stream_is_not_missed(store, client):
    study = finished_study(store)
    since = digest(queries.study_token(store, study))
    assert events(client.get(f"/studies/{study}/events?since={since}").text) == ["end"]
    assert events(client.get(f"/studies/{study}/events?since=older").text) == ["change", "end"]


def test_a_running_study_is_heard_of_until_it_ends(store, monkeypatch):
    monkeypatch.setattr(app, "POLL_SECONDS", 0.01)
    study = add_study(store)
    going = iter([True, True, True, True, False])
    tokens = iter(["a", "a", "b", "b", "c"])

    async def hear() -> list[str]:
        stream = app._changes(lambda: next(tokens), digest("a"), running=lambda: next(going))
        return [line async for line in stream]

    assert events("".join(asyncio.run(hear()))) == ["change", "change", "end"]
    assert study


@pytest.mark.parametrize("token", [lambda s, i: queries.study_token(s, i), lambda s, i: queries.store_token(s)])
def test_a_token_changes_with_every_trial_and_step_and_stays_otherwise(store, token):
    study = add_study(store)
    seen = [token(store, study)]

    def moved() -> bool:
        now = token(store, study)
        changed = now != seen[-1]
        seen.append(now)
        return changed

    assert not moved()
    number = add_trial(store, study, BASELINE, TrialKind.BASELINE)
    assert moved()
    store.add_step(study, number, step(1, 2.0))
    assert moved()
    add_trial(store, study, BASELINE, outcome=measurement(1.0))
    assert moved()
    store.set_study_state(study, "finished")
    assert moved()
    assert not moved()


def test_a_study_is_listened_to_a_little_longer_than_it_runs():
    now = datetime.now(timezone.utc)
    assert app.pages.may_change("running", now - timedelta(days=3))
    assert not app.pages.may_change("finished", now - timedelta(seconds=1))
