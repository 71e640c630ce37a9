"""A night on the CPU stack, from `autotune serve`: canary, verdict, search, report, and a message to a local receiver.

The nights before it are planted: they claim to have been so fast that tonight must raise an alarm.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.gpu_lease import FOLDER_VARIABLE
from autotune.service.control import run_now
from autotune.service.registration import hash_of
from autotune.service.timing import Timetable
from autotune.store import schedules
from autotune.store.schedules import NightState
from autotune.store.store import Store
from autotune.tuner.demo import DEMO_SPACE, demo_request
from autotune.tuner.lease import new_lease
from autotune.tuner.prepare import launch_environment, open_composer, prepare, read_script
from autotune.tuner.request import RunRequest
from autotune.values import Point, TrialKind, TrialState
from autotune.verl import keys
from tests.service.running import Service, get, processes_of

pytestmark = [pytest.mark.verl, pytest.mark.timeout(1500)]
PLANTED = 4


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Where messages are sent to, and what has arrived."""
    messages: list[dict[str, Any]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"json://127.0.0.1:{server.server_port}/hook", messages
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_night_of_real_verl_measures_both_settings_raises_the_alarm_searches_and_reports(tmp_path: Path, received):
    address, messages = received
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    asked = RunRequest(
        script=Path(), out=tmp_path / "nights", storage=storage, study="", space=DEMO_SPACE, python=sys.executable
    )
    request = demo_request(asked, trials=3, confirmations=1, steps=None, dry_run=False)
    request = replace(request, plan=replace(request.plan, at_least=2, at_most=3))
    store = Store.open(storage)
    script_hash = hash_of(request.script)
    timetable = Timetable("0 2 29 2 *", "01:00-00:59", "UTC")
    schedule = schedules.add_schedule(
        store,
        name="demo",
        host=os.uname().nodename,
        cron=timetable.cron,
        tz=timetable.tz,
        window=timetable.window,
        pairs=2,
        script_path=str(request.script),
        script_hash=script_hash,
        request={**request.to_json(), "cwd": str(tmp_path)},
    )
    own, best = own_and_best(request)
    schedules.change_schedule(
        store,
        schedule.id,
        reference={"point": best.as_dict(), "overrides": {}, "gain": 1.0, "study": "x", "slot": "x", "script_hash": script_hash},
    )  # fmt: skip
    plant(store, schedule.id, own, script_hash)

    env = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "AUTOTUNE_NOTIFY": address,
        FOLDER_VARIABLE: str(tmp_path / "leases"),
    }
    service = Service(tmp_path, storage, env)
    port = service.port()
    night = run_now(store, schedules.schedule(store, "demo"), datetime.now(timezone.utc), length=timedelta(hours=1))
    seen: list[str] = []
    try:
        while True:
            now = schedules.night(store, night.id)
            assert now is not None
            if now.state not in (NightState.DUE, NightState.RUNNING):
                break
            if now.canary is not None and not seen:
                seen = [message["title"] for message in messages]  # while the night goes on
            time.sleep(1.0)
        log = "\n".join(path.read_text() for path in (tmp_path / "autotune-out" / "logs").iterdir())
        assert now.state is NightState.FINISHED, f"{now.reason}\n{log}"
        assert get(port, f"/api/v1/studies/{now.study_id}")[0] == 200
        assert 'autotune_regression{schedule="demo",simulated="false"} 1.0' in get(port, "/metrics")[1]
    finally:
        status = service.end()
    assert status == 0, service.said
    assert "Traceback" not in service.said

    assert not now.simulated
    assert now.canary is not None
    assert now.canary["how"] == "session"
    for subject in ("own", "best"):
        assert len(now.canary[subject]["throughput"]) == 2
        assert {"step", "gen", "update_actor"} <= now.canary[subject]["seconds"].keys()
    slower = {test["quantity"] for test in (now.verdict or {})["tests"] if test["beyond"]}
    assert (now.verdict or {})["decision"] == "regression"
    assert {"gen", "update_actor", "step"} <= slower
    assert any("demo is slower than before" in title for title in seen), "the alarm does not wait for the morning"
    assert "your command" in messages[0]["message"]

    assert now.study_id is not None
    trials = store.trials(now.study_id)
    canaries = [trial for trial in trials if trial.kind is TrialKind.CANARY]
    assert [trial.state for trial in canaries] == [TrialState.MEASURED] * 4
    assert len({trial.session for trial in canaries}) == 1
    assert sum(trial.kind is TrialKind.SEARCH for trial in trials) >= 2
    assert all(trial.state is not TrialState.RUNNING for trial in trials)
    folder = tmp_path / "nights" / str(now.study)
    assert {"best.sh", "report.md", "report.html"} <= {path.name for path in folder.iterdir()}
    store.close()
    assert processes_of(tmp_path) == []


def own_and_best(request: RunRequest) -> tuple[Point, Point]:
    """The demo's own Point, and one that is faster and that a session can measure."""
    launch = read_script(request)
    env = launch_environment(request, launch)
    composer, python = open_composer(request, launch, env)
    with composer:
        prepared = prepare(request, composer, launch, python, env)
    own = prepared.space.baseline
    faster = {keys.MAX_NUM_SEQS: 64, keys.ACTOR_MICRO_BATCH: 16, keys.LOG_PROB_MICRO_BATCH: 32}
    return own, Point.of({**own.as_dict(), **faster})


def plant(store: Store, schedule_id: int, own: Point, script_hash: str) -> None:
    """Nights that took a thousandth of a second for a thousand tokens."""
    for number in range(PLANTED):
        when = datetime.now(timezone.utc) - timedelta(days=PLANTED - number)
        planned = schedules.plan_night(
            store, schedule_id, slot=f"{when:%Y-%m-%dT%H:%M}", planned_at=when, until=when + timedelta(hours=1)
        )
        assert planned is not None
        lease = new_lease()
        assert schedules.take_night(store, planned, lease, instead_of=None)
        rows = {"step": 0.004, "gen": 0.002, "update_actor": 0.001, "old_log_prob": 0.001}
        levels = {name: [value * 0.99, value * 1.01] for name, value in rows.items()}
        subject = {"point": own.as_dict(), "throughput": [250_000.0, 250_000.0], "seconds": levels, "failure": None}
        schedules.tell_night(
            store,
            planned,
            script_hash=script_hash,
            environment={"planted": "yes"},
            canary={"how": "session", "pairs": 2, "own": subject, "best": None},
            verdict={"decision": "steady", "text": "planted", "phases": [], "tests": [], "nights": number, "environment": []},
        )  # fmt: skip
        schedules.end_night(store, planned, NightState.FINISHED, lease=lease)
