"""The REST API: what it shows, what it changes, and for whom."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import text

from autotune.dashboard.app import create_app
from autotune.measure.processes import here, process_id
from autotune.service.api import MOUNTED_AT, create_api
from autotune.service.token import Token
from autotune.store import schedules
from autotune.store.records import Lease
from autotune.store.schedules import NightState
from autotune.store.store import Store
from autotune.store.trouble import StoreTrouble, TroubleKind
from autotune.values import Point
from tests.service.registered import NOW, add_night, heed_interrupts, register, verdict
from tests.studies import add_study, add_trial, finished_study, measurement
from tests.studies import verdict as study_verdict

SECRET = "the-token-of-these-tests"
BEARER = {"Authorization": f"Bearer {SECRET}"}
CHANGES = ("run-now", "stop", "pause", "resume")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/trials.db")
    yield opened
    opened.close()


def served(store: Store) -> FastAPI:
    """The dashboard with the API, as the service has them; every look at its clock sees a later microsecond."""
    moments = count()

    def now() -> datetime:
        return NOW + timedelta(microseconds=next(moments))

    app = create_app(store, hosts=("localhost",))
    app.mount(MOUNTED_AT, create_api(store, token=Token(SECRET), now=now))
    return app


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(served(store), base_url="http://localhost:8500", raise_server_exceptions=False) as made:
        made.base_url = made.base_url.join(f"{MOUNTED_AT}/")
        yield made


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A finished study and two schedules, one of them with a night that is due, for tests of what changes nothing."""
    opened = Store.open(f"sqlite:///{tmp_path_factory.mktemp('kept')}/trials.db")
    finished_study(opened)
    register(opened)
    add_night(opened, register(opened, "busy"), state=NightState.DUE)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def stranger(kept: Store) -> Iterator[TestClient]:
    """Asks the service of `kept`."""
    with TestClient(served(kept), base_url="http://localhost:8500", raise_server_exceptions=False) as made:
        made.base_url = made.base_url.join(f"{MOUNTED_AT}/")
        yield made


def rows(store: Store) -> str:
    """Everything that a change could touch."""
    with store.reading() as session:
        tables = ("autotune_schedule", "autotune_night")
        found = {table: session.execute(text(f"SELECT * FROM {table} ORDER BY id")).all() for table in tables}
    return repr(found)


def refusal(answer: Any, status: int) -> dict[str, str]:
    """The error of an answer that must have this status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"code", "message"}
    return answer.json()["error"]


# -- reading ---------------------------------------------------------------------------------------------------------------


def test_studies_newest_first_page_by_page(store, client):
    for number in range(5):
        finished_study(store, f"s{number}")
    first = client.get("studies", params={"size": 2}).json()
    assert [study["name"] for study in first["studies"]] == ["s4", "s3"]
    assert (first["page"], first["pages"], first["total"], first["size"]) == (1, 3, 5, 2)
    assert first["studies"][0] | {"created": 0, "updated": 0} == {
        "id": 5,
        "name": "s4",
        "workload": "tiny · grpo · 4×2 · 64 tokens · CPU",
        "created": 0,
        "updated": 0,
        "state": "finished",
        "trials": 4,
        "best": 3,
        "gain": 0.5,
        "decision": "better",
        "gpus": 2,
        "simulated": True,
    }
    seen = [
        client.get("studies", params={"size": 2, "page": page}).json()["studies"] for page in (1, 2, 3, 4, 1_000_000)
    ]
    assert [len(page) for page in seen] == [2, 2, 1, 0, 0]


def test_studies_by_name_and_state(store, client):
    finished_study(store, "100% sure")
    finished_study(store, "1000 sure")
    add_study(store, "goes on")
    names = [study["name"] for study in client.get("studies", params={"q": "100%"}).json()["studies"]]
    assert names == ["100% sure"]
    found = client.get("studies", params={"state": "running"}).json()["studies"]
    # Nobody holds its lease.
    assert [(study["name"], study["state"]) for study in found] == [("goes on", "interrupted")]
    refusal(client.get("studies", params={"state": "interrupted"}), 422)


def test_a_study_and_its_verdict(store, client):
    finished_study(store)
    study = client.get("studies/1").json()
    assert study["baseline"]["number"] == 0
    assert study["best_trial"]["number"] == 3
    assert study["environment"] == {"verl": "0.9.1", "autotune": "0.1.0"}
    assert study["verdict"]["gain"] == 0.5
    assert study["verdict"]["reason"] == "the whole interval lies above zero"
    told = client.get("studies/1/verdict").json()
    assert told["study"] == "night"
    assert told["verdict"]["interval"] == [0.4, 0.6]
    assert told["verdict"]["equivalent"] == {"config": True, "gradient": None, "trajectory": None}


def test_what_is_not_there_is_told(store, client):
    add_study(store, "young")
    assert "has no verdict; it is running" in refusal(client.get("studies/1/verdict"), 404)["message"]
    assert "has no result" in refusal(client.get("studies/1/script"), 404)["message"]
    for path in ("studies/2", "studies/2/verdict", "studies/2/trials", "studies/2/trials/0", "studies/2/script"):
        assert refusal(client.get(path), 404) == {"code": "NOT_FOUND", "message": "there is no study 2"}
    assert "has no trial 7" in refusal(client.get("studies/1/trials/7"), 404)["message"]
    refusal(client.get("nothing"), 404)
    refusal(client.get("studies/"), 404)


def test_trials_have_the_keys_of_show(store, client):
    from autotune.store.json_shapes import trial_json

    study = finished_study(store)
    page = client.get("studies/1/trials", params={"size": 3}).json()
    assert [trial["number"] for trial in page["trials"]] == [0, 1, 2]
    assert (page["study"], page["total"]) == ("night", 4)
    for number, record in enumerate(store.trials(study)):
        shown = json.loads(json.dumps(trial_json(record)))
        whole = client.get(f"studies/1/trials/{number}").json()
        assert {key: whole[key] for key in shown} == shown
    line = page["trials"][0]
    assert line == {key: value for key, value in client.get("studies/1/trials/0").json().items() if key in line}


def test_a_trial_has_its_last_measurements(store, client):
    finished_study(store)
    trial = client.get("studies/1/trials/0", params={"steps": 2}).json()
    assert trial["steps_total"] == 3
    assert [(step["step"], step["settling"], step["seconds"]) for step in trial["steps"]] == [
        (2, False, 2.0),
        (3, False, 2.0),
    ]
    assert trial["steps"][0]["phases"]["gen"] == pytest.approx(1.2)
    assert len(client.get("studies/1/trials/0").json()["steps"]) == 3
    assert client.get("studies/1/trials/0", params={"steps": 0}).json()["steps"] == []


def test_the_script_comes_as_text_without_its_credentials(store, client, tmp_path):
    (tmp_path / "best.sh").write_text("export HF_TOKEN=hf_abcdefghijklmnopqrst\npython3 -m verl.trainer.main_ppo\n")
    finished_study(store, settings={"out": str(tmp_path)})
    answer = client.get("studies/1/script")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == "export HF_TOKEN=***\npython3 -m verl.trainer.main_ppo\n"
    assert answer.headers["autotune-masked"] == "yes"
    (tmp_path / "best.sh").write_text("python3 -m verl.trainer.main_ppo\n")
    assert client.get("studies/1/script").headers["autotune-masked"] == "no"


def test_a_script_that_is_elsewhere_comes_as_settings(store, client):
    emitted = {"overrides": {"trainer.api_key": "abcdef123456", "a.b": 1}, "changed": ["a.b"]}
    finished_study(store, end=study_verdict(emitted=emitted))
    answer = client.get("studies/1/script")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"study": "night", "overrides": {"trainer.api_key": "***", "a.b": 1}, "changed": ["a.b"]}


def test_a_study_without_a_folder_shows_no_script_of_the_current_one(store, client, tmp_path, monkeypatch):
    (tmp_path / "best.sh").write_text("somebody else's")
    monkeypatch.chdir(tmp_path)
    finished_study(store, settings={})
    assert client.get("studies/1/script").headers["content-type"] == "application/json"


def test_what_cannot_be_sent_is_replaced_and_credentials_are_masked(store, client):
    study = add_study(
        store, workload="hf_abcdefghijklmnopqrst trained", environment={"WANDB_API_KEY": "0123456789ab", "x": "\ud800"}
    )
    add_trial(store, study, Point.of({"a": "\udcff", "password": "hunter2222"}), outcome=measurement(2.0))
    shown = client.get("studies/1").json()
    assert shown["workload"] == "*** trained"
    assert shown["environment"] == {"WANDB_API_KEY": "***", "x": "?"}
    assert client.get("studies/1/trials/0").json()["point"] == {"a": "?", "password": "***"}


def test_schedules_with_what_runs_and_what_was_last(store, client):
    add_night(store, register(store, "b"), 1, decision="regression")
    paused = register(store, "a")
    schedules.change_schedule(store, paused.id, state="paused")
    found = client.get("schedules").json()["schedules"]
    assert [schedule["name"] for schedule in found] == ["a", "b"]
    assert found[0]["next"] is None
    assert found[1] == {
        "name": "b",
        "cron": "0 2 * * *",
        "tz": "Europe/Berlin",
        "window": "02:00-06:00",
        "next": "2026-12-01T01:00:00Z",
        "state": "active",
        "host": socket.gethostname(),
        "running": None,
        "last": {"slot": "2026-11-29T12:00", "state": "finished", "decision": "regression"},
    }
    whole = client.get("schedules/b").json()
    assert found[1] == {key: whole[key] for key in found[1]}
    assert (whole["script"], whole["request"], whole["reference"]) == ("/jobs/train.sh", {"gpus": 8}, None)
    add_night(store, paused, state=NightState.RUNNING)
    assert client.get("schedules").json()["schedules"][0]["running"] == "2026-11-30T12:00"


def test_a_schedule_whose_zone_is_gone_hides_no_other_one(store, client):
    register(store, "lost", tz="Atlantis/Poseidonis")
    register(store, "kept")
    assert [schedule["next"] is None for schedule in client.get("schedules").json()["schedules"]] == [False, True]
    assert client.get("schedules/lost").json()["next"] is None
    refusal(client.post("schedules/lost/run-now", headers=BEARER), 409)


def test_nights_newest_first_without_their_lease(store, client):
    schedule = register(store)
    for days in (3, 2):
        add_night(store, schedule, days)
    add_night(store, schedule, 1, state=NightState.RUNNING, verdict=verdict("regression", phases=["gen"]))
    page = client.get("schedules/nightly/nights", params={"size": 2}).json()
    assert [night["slot"] for night in page["nights"]] == ["2026-11-29T12:00", "2026-11-28T12:00"]
    assert (page["schedule"], page["total"], page["pages"]) == ("nightly", 3, 2)
    assert page["nights"][0]["regressed"] is True
    assert page["nights"][0]["verdict"]["phases"] == ["gen"]
    assert page["nights"][0]["canary"]["own"]["throughput"] == [1000.0, 1010.0, 990.0]
    lease = schedules.nights_in(store, [NightState.RUNNING])[0].lease
    assert lease is not None
    assert lease.token not in json.dumps(page)


def test_an_unknown_schedule_names_near_ones(store, client):
    register(store, "nightly")
    for answer in (client.get("schedules/nighty"), client.get("schedules/nighty/nights")):
        assert "did you mean nightly?" in refusal(answer, 404)["message"]
    assert "did you mean nightly?" in refusal(client.post("schedules/nighty/pause", headers=BEARER), 404)["message"]


def test_the_document_describes_every_path(store, client):
    document = client.get("openapi.json").json()
    assert document["servers"] == [{"url": "/api/v1"}]
    paths = document["paths"]
    assert set(paths) == {
        "/studies",
        *(f"/studies/{{study_id}}{rest}" for rest in ("", "/verdict", "/trials", "/trials/{number}", "/script")),
        "/schedules",
        *(f"/schedules/{{name}}{rest}" for rest in ("", "/nights", *(f"/{change}" for change in CHANGES))),
    }
    posts = {path for path in paths if "post" in paths[path]}
    assert posts == {f"/schedules/{{name}}/{change}" for change in CHANGES}
    assert {method for path in paths for method in paths[path]} == {"get", "post"}
    assert all(paths[path]["post"]["security"] == [{"HTTPBearer": []}] for path in posts)
    assert not any("HTTPValidationError" in name for name in document["components"]["schemas"])
    assert client.get("docs").status_code == client.get("redoc").status_code == 404


# -- changing --------------------------------------------------------------------------------------------------------------


def test_a_night_is_due_at_once(store, client):
    register(store)
    answer = client.post("schedules/nightly/run-now", headers=BEARER)
    assert answer.status_code == 202
    night = answer.json()
    assert (night["state"], night["schedule"], night["slot"][:6]) == ("due", "nightly", "manual")
    (stored,) = schedules.nights_in(store, [NightState.DUE])
    assert stored.until - stored.planned_at == timedelta(hours=4)
    assert timedelta(0) <= stored.planned_at - NOW < timedelta(seconds=1)
    again = refusal(client.post("schedules/nightly/run-now", headers=BEARER), 409)
    assert again["code"] == "CONFLICT"
    assert "is due already" in again["message"]


def test_those_who_ask_at_once_get_one_night(store, client):
    register(store)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("schedules/nightly/run-now", headers=BEARER), range(16)))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 15
    assert len(schedules.nights_in(store, list(NightState))) == 1


def test_a_night_may_be_as_long_as_asked(store, client):
    register(store)
    for body in (
        {"minutes": 0},
        {"minutes": 1441},
        {"minutes": "10"},
        {"minutes": 1.5},
        {"minutes": True},
        {"script": "x"},
        [],
        5,
    ):
        refusal(client.post("schedules/nightly/run-now", headers=BEARER, json=body), 422)
    assert client.post("schedules/nightly/run-now", headers=BEARER, json={"minutes": 90}).status_code == 202
    (stored,) = schedules.nights_in(store, [NightState.DUE])
    assert stored.until - stored.planned_at == timedelta(minutes=90)


def test_a_schedule_of_another_node_is_not_started_here(store, client):
    register(store, host="elsewhere")
    assert "elsewhere" in refusal(client.post("schedules/nightly/run-now", headers=BEARER), 409)["message"]


def test_a_night_that_is_due_is_stopped(store, client):
    register(store)
    assert "no night" in refusal(client.post("schedules/nightly/stop", headers=BEARER), 409)["message"]
    client.post("schedules/nightly/run-now", headers=BEARER)
    answer = client.post("schedules/nightly/stop", headers=BEARER)
    assert (answer.status_code, answer.json()["state"]) == (202, "stopped")


def test_the_process_of_a_night_is_asked_to_end(store, client):
    schedule = register(store)
    night = add_night(store, schedule, state=NightState.DUE)
    worker = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    )
    try:
        assert worker.stdout is not None
        worker.stdout.readline()
        process = process_id(worker.pid)
        assert process is not None
        lease = Lease("0" * 32, socket.gethostname(), "/".join(here()), process.pid, process.start)
        assert schedules.take_night(store, night, lease, instead_of=None)
        answer = client.post("schedules/nightly/stop", headers=BEARER)
        assert (answer.status_code, answer.json()["state"]) == (202, "running")
        assert worker.wait(20) == -signal.SIGINT
    finally:
        worker.kill()
        worker.wait()
    assert client.post("schedules/nightly/stop", headers=BEARER).json()["state"] == "stopped"


def test_a_schedule_is_paused_and_resumed(store, client):
    register(store)
    paused = client.post("schedules/nightly/pause", headers=BEARER)
    assert (paused.status_code, paused.json()["state"], paused.json()["next"]) == (200, "paused", None)
    assert schedules.schedule(store, "nightly").state == "paused"
    assert client.post("schedules/nightly/pause", headers=BEARER).status_code == 200
    resumed = client.post("schedules/nightly/resume", headers=BEARER)
    assert (resumed.json()["state"], resumed.json()["next"]) == ("active", "2026-12-01T01:00:00Z")


# -- for whom --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {SECRET}",
        SECRET,
        f"Bearer {SECRET}x",
        f"Bearer {SECRET[:-1]}",
        "Bearer é",
        f"Bearer {SECRET} x",
    ],
)
def test_no_change_without_the_token(kept, stranger, header):
    before = rows(kept)
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for change in CHANGES:
        for name in ("nightly", "busy", "unknown"):
            answer = stranger.post(f"schedules/{name}/{change}", headers=headers)
            assert refusal(answer, 401)["code"] == "UNAUTHORIZED"
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert SECRET not in answer.text
    assert rows(kept) == before


def test_the_word_bearer_may_be_written_in_any_case(store, client):
    register(store)
    assert client.post("schedules/nightly/pause", headers={"Authorization": f"bearer {SECRET}"}).status_code == 200


def test_a_stranger_is_told_nothing_about_what_exists_and_nothing_is_parsed(store, client):
    register(store)
    told = {
        client.post(path, content=body, headers={"content-type": "application/json"}).text
        for path in (
            "schedules/nightly/run-now",
            "schedules/unknown/run-now",
            "studies",
            "nothing",
            "schedules/%00/stop",
        )
        for body in (b"", b"{", b"\xff" * 100, b"[" * 100_000)
    }
    assert len(told) == 1
    for method in ("PUT", "PATCH", "DELETE", "PURGE"):
        refusal(client.request(method, "schedules/nightly"), 401)


def test_nothing_but_the_named_changes_exists(store, client):
    register(store)
    before = rows(store)
    for method in ("PUT", "PATCH", "DELETE", "POST"):
        for path in ("schedules", "schedules/nightly", "schedules/nightly/nights", "studies", "studies/1/script"):
            answer = client.request(method, path, headers=BEARER, json={"name": "new", "script": "rm -rf /"})
            assert refusal(answer, 405)["code"] == "METHOD_NOT_ALLOWED"
            assert answer.headers["allow"] == "GET"
    refusal(client.get("schedules/nightly/run-now"), 405)
    refusal(client.get("schedules/nightly/stop", headers=BEARER), 405)
    assert rows(store) == before


def test_a_foreign_name_of_this_host_reads_and_changes_nothing(store, client):
    register(store)
    before = rows(store)
    for host in ("evil.example", "evil.example:8500", "localhost.evil.example"):
        assert refusal(client.get("studies", headers={"host": host}), 403)["code"] == "FORBIDDEN"
        refusal(client.post("schedules/nightly/pause", headers={**BEARER, "host": host}), 403)
    assert rows(store) == before


def test_a_foreign_page_changes_nothing_even_with_the_token(store, client):
    register(store)
    before = rows(store)
    for origin in ("http://evil.example", "null", "http://localhost:9999", "http://localhost.evil.example"):
        for change in CHANGES:
            answer = client.post(f"schedules/nightly/{change}", headers={**BEARER, "origin": origin})
            assert refusal(answer, 403)["code"] == "FORBIDDEN"
    assert rows(store) == before
    own = client.post("schedules/nightly/pause", headers={**BEARER, "origin": "http://localhost:8500"})
    assert own.status_code == 200


def test_no_other_origin_is_allowed_to_read(store, client):
    finished_study(store)
    answer = client.get("studies", headers={"origin": "http://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


# -- hostile ---------------------------------------------------------------------------------------------------------------

HOSTILE = [
    "a/b",
    "../../etc",
    "\x00",
    "x\x00y",
    "é",
    "💥" * 30,
    "x" * 101,
    "x" * 20_000,
    "%",
    "%2F",
    "..",
    "nightly' OR 1=1",
    "{name}",
    "\u202e",
    " ",
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:12]))
def test_hostile_names_are_refused(kept, stranger, name):
    before = rows(kept)
    path = f"schedules/{quote(name, safe='')}"
    for answer in (
        stranger.get(path),
        stranger.get(f"{path}/nights"),
        *(stranger.post(f"{path}/{change}", headers=BEARER) for change in CHANGES),
    ):
        assert answer.status_code in (404, 405, 422)
        refusal(answer, answer.status_code)
        assert len(answer.text) < 3000
    assert rows(kept) == before


@pytest.mark.parametrize("name", ["\n", "nightly\n", "a\r\nb"])
def test_a_name_with_line_breaks_reaches_nothing(kept, stranger, name):
    before = rows(kept)
    for change in CHANGES:
        refusal(stranger.post(f"schedules/{quote(name)}/{change}", headers=BEARER), 404)
    refusal(stranger.get(f"schedules/{quote(name)}"), 404)
    assert rows(kept) == before


@pytest.mark.parametrize(
    "given", ["0", "-1", "1000001", "9" * 30, "9" * 5000, "1.5", "x", "", "NaN", "1e3", "\x00", "٣x"]
)
def test_numbers_out_of_range_are_refused(stranger, given):
    for path in ("studies", "studies/1/trials", "schedules/nightly/nights"):
        for name in ("page", "size"):
            message = refusal(stranger.get(path, params={name: given}), 422)["message"]
            assert f"query.{name}: " in message


@pytest.mark.parametrize("given", ["x" * 201, "\x00"])
def test_texts_that_no_name_contains_are_not_searched(stranger, given):
    refusal(stranger.get("studies", params={"q": given}), 422)


@pytest.mark.parametrize("given", ["0", "-1", "2147483648", "9" * 30, "9" * 5000, "x", "1.5", "%00", "1%2F2"])
def test_ids_out_of_range_are_refused(stranger, given):
    for path in (f"studies/{given}", f"studies/{given}/trials", f"studies/{given}/script", f"studies/{given}/trials/0"):
        assert stranger.get(path).status_code in (404, 422)
    assert stranger.get(f"studies/1/trials/{given}").status_code == (
        200 if given == "0" else 404 if "F" in given else 422
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"\xff\xff", 400),
        (b"[" * 20_000, 400),
        (b'{"minutes": 1e400}', 422),
        (b'{"minutes": ' + b"9" * 5000 + b"}", 400),
        (b'{"minutes": NaN}', 422),
        (b'{"\\ud800": 1}', 422),
        (b'{"minutes": "\\ud800"}', 422),
        (b'"\\u0000"', 422),
        (b'{"minutes": 5, "minutes": 0}', 422),
        (b" " * 70_000, 413),
        (b'{"minutes": 5}' + b" " * 70_000, 413),
    ],
    ids=lambda given: str(given[:20]) if isinstance(given, bytes) else str(given),
)
def test_hostile_bodies_are_refused(kept, stranger, body, status):
    before = rows(kept)
    headers = {**BEARER, "content-type": "application/json"}
    refusal(stranger.post("schedules/nightly/run-now", content=body, headers=headers), status)
    refusal(stranger.post("schedules/nightly/run-now", content=iter([body]), headers=headers), status)
    assert rows(kept) == before


def test_a_form_is_no_body(store, client):
    # What a page of another site could send without asking first.
    register(store)
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        headers = {**BEARER, "content-type": kind}
        refusal(client.post("schedules/nightly/run-now", content=b'{"minutes": 5}', headers=headers), 422)


def test_a_database_that_cannot_be_used_is_told(store, client, monkeypatch):
    def locked(*_: object, **__: object) -> None:
        raise StoreTrouble(TroubleKind.LOCKED, "trials.db is locked")

    register(store)
    monkeypatch.setattr(schedules, "schedule", locked)
    expected = {"code": "UNAVAILABLE", "message": "trials.db is locked"}
    assert refusal(client.get("schedules/nightly"), 503) == expected
    assert refusal(client.post("schedules/nightly/pause", headers=BEARER), 503) == expected


def test_a_fault_of_ours_shows_nothing_of_it(store, client, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"with {SECRET} inside")

    monkeypatch.setattr(schedules, "schedules", broken)
    answer = client.get("schedules")
    assert refusal(answer, 500)["code"] == "INTERNAL"
    assert SECRET not in answer.text
