"""Pages of schedules and nights as a browser gets them. Every figure in here is simulated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, event

from autotune.dashboard import app, schedules
from autotune.dashboard.tokens import digest
from autotune.store import queries
from autotune.store import schedules as stored
from autotune.store.schedules import NightState
from autotune.verl import keys
from tests.dashboard.test_pages import HOSTILE, Parsed, text_of
from tests.nights import add_night, add_schedule, canary, history, said
from tests.studies import finished_study

REFERENCE = {
    "point": {keys.MAX_NUM_SEQS: 64},
    "overrides": {keys.MAX_NUM_SEQS: 64},
    "gain": 0.5,
    "study": "night",
    "slot": "2026-11-02T02:00",
    "script_hash": "ab" * 32,
}


def section(page: str, name: str) -> str:
    """The text of the element with that id."""
    start = page.index(f'id="{name}"')
    return text_of(page[start : page.index("</section>", start)])


def figure(page: str) -> dict[str, list[dict[str, object]]]:
    found = re.search(r'data-for="nights">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@contextmanager
def statements() -> Iterator[list[str]]:
    """Every statement that reaches a database meanwhile."""
    seen: list[str] = []

    def note(connection, cursor, statement, *rest):
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("path", ["/", "/schedules", "/schedules/nightly", "/schedules/nightly?page=9"])
def test_every_page_answers_and_stays_on_this_host(reader, path):
    answer = reader.get(path)
    assert answer.status_code == 200
    assert [address for address in Parsed(answer.text).addresses if not address.startswith(("/", "#"))] == []
    assert "SIMULATED" in answer.text


def test_without_schedules_home_says_nothing_of_them_and_their_page_says_how_to_begin(client):
    assert "schedules-h" not in client.get("/").text
    assert "autotune schedule add" in client.get("/schedules").text
    assert 'href="/schedules"' in client.get("/").text


@pytest.mark.parametrize("name", ["other", "nightly/more", "%00", "n" * 5000, quote(HOSTILE)])
def test_a_schedule_that_does_not_exist_is_not_found(reader, name):
    answer = reader.get(f"/schedules/{name}")
    assert answer.status_code == 404
    assert "<h1>" in answer.text


@pytest.mark.parametrize("path", ["/", "/schedules"])
def test_a_regression_is_an_alarm_that_names_phase_size_noise_and_what_changed(reader, path):
    found = re.search(r'<p class="alarm">(.*?)</p>', reader.get(path).text, re.DOTALL)
    assert found is not None
    alarm = text_of(found[1])
    assert "Regression of nightly in the night 2026-11-08 02:00" in alarm.strip()
    assert "update_actor of your command takes 6.4 % longer (noise ± 2.3 %)" in alarm
    assert "vllm 0.12.0 → 0.12.1" in alarm


def test_an_alarm_stands_until_a_night_says_otherwise(store, client):
    schedule = add_schedule(store)
    history(store, schedule)
    add_night(store, schedule, 8, NightState.SKIPPED, reason="the node was busy")
    assert 'class="alarm"' in client.get("/schedules").text, "a skipped night has measured nothing"
    failed = said("failed", text="Your command could not be measured: oom_gpu in gen.", tests=[])
    add_night(store, schedule, 9, measured=canary(), verdict=failed)
    assert 'class="alarm"' in client.get("/schedules").text, "a failed canary could not be compared"
    assert "Your command could not be measured" in client.get("/schedules").text
    assert "of the night 2026-11-08 02:00 stands" in text_of(client.get("/schedules/nightly").text)
    add_night(store, schedule, 10, measured=canary(), verdict=said())
    assert 'class="alarm"' not in client.get("/schedules").text


def test_a_whole_step_that_is_slower_is_an_alarm_without_a_phase(store, client):
    schedule = add_schedule(store)
    slow = [{"subject": "best", "quantity": "step", "change": 0.05, "band": 0.03, "beyond": True}]
    add_night(store, schedule, measured=canary(), verdict=said("regression", phases=[], tests=slow, environment=[]))
    assert "the whole step of the best setting takes 5.0 % longer" in text_of(client.get("/schedules").text)
    page = text_of(client.get("/schedules/nightly").text)
    assert "the whole step takes 5.0 % longer in the best setting; up to ± 3.0 % is noise" in page
    assert "Nothing that is watched changed" in page


def test_home_says_when_a_schedule_runs_next_in_its_own_zone_and_what_last_night_came_to(store, client, monkeypatch):
    schedule = add_schedule(store)
    stored.change_schedule(store, schedule.id, reference=REFERENCE)
    add_night(store, schedule, 0, NightState.SKIPPED, reason="GPU 3 was busy")
    [line] = schedules.lines(store, datetime(2026, 11, 30, 13, 0, tzinfo=timezone.utc))
    assert line.next == schedules.Run(datetime(2026, 12, 1, 1, 0, tzinfo=timezone.utc), "Tue 1 Dec, 02:00")
    page = text_of(client.get("/").text)
    assert "02:00 Europe/Berlin" in page
    assert "skipped" in page
    assert "GPU 3 was busy" in page
    assert "+50.0 %" in page
    assert "data-due" in client.get("/").text


def test_a_paused_schedule_has_no_next_run(store, client):
    schedule = add_schedule(store)
    stored.change_schedule(store, schedule.id, state="paused")
    assert "none while paused" in client.get("/").text
    page = text_of(client.get("/schedules/nightly").text)
    assert "Paused: it would run" in page


def test_a_running_night_links_to_its_study_and_the_study_to_its_night(store, client):
    study = finished_study(store)
    schedule = add_schedule(store)
    add_night(store, schedule, 0, measured=canary(), verdict=said())
    add_night(store, schedule, 1, NightState.RUNNING, study=study, measured=canary())
    for path in ("/", "/schedules", "/schedules/nightly"):
        assert f'href="/studies/{study}"' in client.get(path).text, path
    assert "its window closes Mon 2 Nov, 06:00 Europe/Berlin" in text_of(client.get("/schedules/nightly").text)
    page = client.get(f"/studies/{study}")
    assert 'href="/schedules/nightly"' in page.text
    assert "Night 2026-11-02 02:00 of the schedule nightly" in text_of(page.text)


def test_a_study_that_was_started_by_hand_names_no_schedule(store, client):
    study = finished_study(store)
    add_night(store, add_schedule(store))
    assert "of the schedule" not in client.get(f"/studies/{study}").text


def test_the_verdict_comes_first_then_the_trend_the_tests_and_the_nights(store, client):
    history(store, add_schedule(store))
    page = text_of(client.get("/schedules/nightly").text)
    order = ["Regression", "update_actor takes 6.4 % longer in your command", "Next runs", "by night", "What was compared",
             "Best setting", "What is tuned", "Nights 8"]  # fmt: skip
    assert order == sorted(order, key=page.index)
    assert "the driver is 580.82 instead of 575.57" in page
    assert "compared with 10 nights" in page
    assert "autotune schedule run-now nightly" in page


def test_every_quantity_that_was_compared_is_shown_those_beyond_noise_first(store, client):
    history(store, add_schedule(store))
    tests = section(client.get("/schedules/nightly").text, "tests-h")
    assert tests.index("update_actor") < tests.index("gen") < tests.index("whole step")
    assert "+6.4 % ± 2.3 % your command slower" in tests
    assert "-0.3 % ± 2.1 % your command no" in tests


def test_the_trend_is_the_median_of_each_night_with_alarms_marked(store, client):
    history(store, add_schedule(store))
    best, own, alarms = figure(client.get("/schedules/nightly").text)["data"]
    assert own["y"] == [200.0] * 6 + [190.0], "the skipped night has no place"
    assert best["y"] == [300.0] * 7
    assert (alarms["y"], alarms["text"]) == ([190.0], ["2026-11-08T02:00 (SIMULATED): update_actor"])


def test_the_trend_of_a_job_without_a_better_setting_shows_the_command_alone(store, client):
    schedule = add_schedule(store)
    for at in range(2):
        add_night(store, schedule, at, measured=canary(best=None), verdict=said())
    assert [trace["name"] for trace in figure(client.get("/schedules/nightly").text)["data"]] == ["your command"]


def test_measured_nights_carry_no_label(store, client):
    schedule = add_schedule(store)
    for at in range(2):
        add_night(store, schedule, at, measured=canary(), verdict=said(), simulated=False)
    for path in ("/", "/schedules", "/schedules/nightly"):
        assert "SIMULATED" not in client.get(path).text, path


def test_the_best_setting_is_named_with_its_study(store, client):
    study = finished_study(store)
    schedule = add_schedule(store)
    assert "your command is the best that is known" in client.get("/schedules/nightly").text
    stored.change_schedule(store, schedule.id, reference=REFERENCE)
    page = client.get("/schedules/nightly").text
    best = section(page, "best-h")
    assert "+50.0 % over your command" in best
    assert "since the night 2026-11-02 02:00" in best
    assert "max_num_seqs" in re.sub(r"\s", "", best)
    assert f'href="/studies/{study}"' in page
    stored.change_schedule(store, schedule.id, reference={**REFERENCE, "study": "deleted"})
    assert "not in this database" in client.get("/schedules/nightly").text


def test_a_change_that_was_accepted_before_any_best_setting_is_no_best_setting(store, client):
    schedule = add_schedule(store)
    stored.change_schedule(store, schedule.id, reference={"since": "2026-11-20T09:30:00+00:00"})
    page = text_of(client.get("/schedules/nightly").text)
    assert "your command is the best that is known" in page
    assert "2026-11-20 09:30 UTC : nights before it are not compared with" in page


def test_nights_are_paged_newest_first(store, client):
    schedule = add_schedule(store)
    for at in range(35):
        add_night(store, schedule, at, NightState.FAILED, reason=f"because {at}")

    def reasons(query: str) -> list[str]:
        return re.findall(r"because \d+", section(client.get(f"/schedules/nightly{query}").text, "nights-h"))

    assert reasons("") == [f"because {at}" for at in range(34, 4, -1)]
    assert reasons("?page=2") == [f"because {at}" for at in range(4, -1, -1)]
    assert 'href="/schedules/nightly?page=2"' in client.get("/schedules/nightly").text


def test_a_night_asked_for_by_hand_is_called_so(store, client):
    add_night(store, add_schedule(store), slot="manual 2026-11-30T09:15:02.000001Z")
    assert "by hand, 2026-11-30 09:15 UTC" in client.get("/schedules/nightly").text


def test_hostile_text_stays_text(store, client):
    schedule = add_schedule(
        store, HOSTILE, host=HOSTILE, cron=HOSTILE, tz=HOSTILE, window=HOSTILE, script_path=HOSTILE, script_hash=HOSTILE,
        request={HOSTILE: HOSTILE, "gpus": HOSTILE},
    )  # fmt: skip
    reference = {**REFERENCE, "overrides": {HOSTILE: HOSTILE}, "study": HOSTILE, "slot": HOSTILE}
    stored.change_schedule(store, schedule.id, reference=reference)
    tests = [{"subject": HOSTILE, "quantity": HOSTILE, "change": 1.0, "band": 0.1, "beyond": True}]
    verdict = said("regression", text=HOSTILE, phases=[HOSTILE], tests=tests, environment=[HOSTILE])
    study = finished_study(store)
    for at in range(2):
        add_night(
            store, schedule, at, NightState.FAILED, slot=f"{at} {HOSTILE}", reason=HOSTILE, measured=canary(), verdict=verdict, study=study
        )  # fmt: skip
    for path in ("/", "/schedules", f"/schedules/{quote(HOSTILE)}", f"/studies/{study}"):
        page = client.get(path)
        assert page.status_code == 200, path
        tags = Parsed(page.text).tags
        assert not any("onerror" in attributes for _, attributes in tags), path
        assert not any(tag == "img" for tag, _ in tags), path
        inline = [a for tag, a in tags if tag == "script" and "src" not in a and a.get("type") != "application/json"]
        assert inline == [], path
    page = client.get(f"/schedules/{quote(HOSTILE)}").text
    assert "Never due:" in page
    assert "<" not in json.dumps(figure(page)).replace("<br>", "").replace("<extra>", "").replace("</extra>", "")


@pytest.mark.parametrize("name", ["a b", "a/b", "events", "50%", "näch#tlich?", "it's"])
def test_every_name_has_a_page_that_its_links_lead_to(store, client, name):
    add_schedule(store, name)
    [address] = [a for a in Parsed(client.get("/schedules").text).addresses if a.startswith("/schedules/")]
    page = client.get(address)
    assert page.status_code == 200
    assert "run-now" in page.text


def test_a_name_stands_in_the_command_as_a_shell_takes_it(store, client):
    add_schedule(store, "it's; reboot")
    import html

    assert """run-now 'it'"'"'s; reboot'""" in html.unescape(client.get("/schedules/it's; reboot").text)


def test_a_schedule_whose_zone_this_host_does_not_know_has_a_page_that_says_so(store, client):
    add_schedule(store, tz="Mars/Olympus")
    assert client.get("/").status_code == 200
    assert "is no time zone" in text_of(client.get("/schedules/nightly").text)


def test_twenty_schedules_take_no_more_queries_than_one(store, client):
    history(store, add_schedule(store, "first"))
    one, twenty = {}, {}
    for path in ("/", "/schedules"):
        with statements() as seen:
            client.get(path)
        one[path] = len(seen)
    for at in range(19):
        history(store, add_schedule(store, f"job {at}"), count=5)
    for path in one:
        with statements() as seen:
            assert client.get(path).text.count("job ") >= 19
        twenty[path] = len(seen)
    assert twenty == one
    assert all(one.values())


@pytest.mark.parametrize("path", ["/", "/schedules", "/schedules/nightly"])
def test_pages_offer_nothing_that_changes_a_schedule(reader, path):
    with statements() as seen:
        page = reader.get(path).text
    assert [s for s in seen if not s.lstrip().upper().startswith(("SELECT", "PRAGMA", "BEGIN"))] == []
    forms = [a for tag, a in Parsed(page).tags if tag == "form" or "hx-post" in a or "hx-delete" in a]
    assert forms == []
    assert reader.post(path).status_code == 405


@pytest.mark.parametrize("token", [queries.store_token, queries.schedules_token])
def test_a_token_changes_with_everything_that_happens_to_a_night_and_stays_otherwise(store, token):
    seen = [token(store)]

    def moved() -> bool:
        now = token(store)
        changed = now != seen[-1]
        seen.append(now)
        return changed

    assert not moved()
    schedule = add_schedule(store)
    assert moved()
    night = add_night(store, schedule, state=NightState.DUE)
    assert moved()
    lease = stored.Lease("token", "gpu-node", "boot", 1, 1)
    stored.take_night(store, night, lease, instead_of=None)
    assert moved()
    stored.tell_night(store, night, canary=canary())
    assert moved()
    stored.tell_night(store, night, verdict=said())
    assert moved()
    stored.end_night(store, night, NightState.UNFINISHED, "the window closed")
    assert moved()
    stored.take_night(store, night, lease, instead_of=None)
    assert moved()
    stored.end_night(store, night, NightState.FINISHED)
    assert moved()
    stored.change_schedule(store, schedule.id, state="paused")
    assert moved()
    stored.remove_schedule(store, schedule.id)
    assert moved()
    assert not moved()


def test_pages_of_schedules_hear_of_schedules_alone(store, client, monkeypatch):
    add_schedule(store)
    page = client.get("/schedules/nightly").text
    since = digest(queries.schedules_token(store))
    assert f"/events?of=schedules&amp;since={since}" in page
    asked = []
    monkeypatch.setattr(app, "_changes", lambda token, since, **rest: asked.append(token()) or iter_nothing())
    client.get("/events?of=schedules")
    client.get("/events")
    assert asked == [queries.schedules_token(store), queries.store_token(store)]


async def iter_nothing():
    return
    yield ""
