"""`autotune serve` as people and init systems treat it: started twice, ended, killed. Every figure is simulated."""

from __future__ import annotations

import http.client
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import optuna
import pytest

from autotune.service.control import current_night
from autotune.store import schedules
from autotune.store.schedules import NightState
from autotune.values import BadInput, TrialKind, TrialState
from tests.service.node import Node
from tests.service.running import Service, get, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KILLS = 6


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.store.close()
    for process in processes_of(tmp_path):
        process.kill()


def test_one_service_for_a_database_with_pages_api_metrics_and_health_ends_cleanly(node):
    schedule = node.add("qwen", trials=8)
    service = Service(node.folder, node.storage, node.env(step_seconds="0.2"))
    port = service.port()
    for path in (
        "/",
        "/readyz",
        "/healthz",
        "/metrics",
        "/api/v1/schedules",
        "/api/v1/openapi.json",
        "/schedules/qwen",
    ):
        assert get(port, path)[0] == 200, path
    second = Service(node.folder, node.storage, node.env())
    assert second.process.wait(timeout=60) == 2
    assert f"process {service.process.pid} serves this database already" in " ".join(second.said.split())

    night = node.ask(schedule)
    node.until(lambda: node.measured(night) >= 1, "a trial")
    assert service.end() == 0, service.said
    assert "Traceback" not in service.said
    left = node.night(night)
    assert (left.state, left.reason) == (NightState.UNFINISHED, "the service ended")
    assert processes_of(node.folder) == []
    mode = (node.folder / "config" / "autotune" / "token").stat().st_mode
    assert mode & 0o077 == 0


def test_a_service_that_is_killed_again_and_again_loses_no_trial_and_runs_no_night_twice(node, request):
    kills = request.config.getoption("--kills") or KILLS
    dice = random.Random(request.config.getoption("--seed"))
    both = [node.add("one", trials=4), node.add("two", trials=4)]
    ports: list[int] = []
    done = threading.Event()
    broken: list[str] = []

    def ask_all_the_time() -> None:
        while not done.is_set():
            for path in ("/", "/api/v1/studies", "/api/v1/schedules/one/nights", "/metrics"):
                try:
                    status, body = get(ports[-1], path)
                except (OSError, http.client.HTTPException):
                    continue  # killed in the middle of it, or not there yet
                if status >= 500:
                    broken.append(f"{path}: {status} {body[:300]}")
            time.sleep(0.02)

    service = Service(node.folder, node.storage, node.env(step_seconds="0.1"))
    ports.append(service.port())
    client = threading.Thread(target=ask_all_the_time, daemon=True)
    client.start()
    try:
        for _ in range(kills):
            for schedule in both:
                if current_night(node.store, schedule) is None:
                    node.ask(schedule)
            time.sleep(dice.uniform(0.1, 4.0))
            service.process.kill()
            service.process.wait()
            service = Service(node.folder, node.storage, node.env(step_seconds="0.1"))
            ports.append(service.port())
        nights = [night for schedule in both for night in schedules.nights(node.store, schedule.id)]
        for night in nights:
            node.ended_for_good(night, seconds=240)
    finally:
        done.set()
        client.join()
    assert service.end() == 0, service.said
    assert broken == []

    spans = []
    studies = set()
    for night in (node.night(night) for night in nights):
        assert night.state is NightState.FINISHED, night
        assert night.attempts == 1, "a night outlives the service that began it, and no other process takes it up"
        assert night.study_id is not None
        assert night.study_id not in studies
        studies.add(night.study_id)
        trials = node.store.trials(night.study_id)
        assert all(trial.state not in (TrialState.RUNNING, TrialState.QUEUED) for trial in trials)
        assert sum(t.kind is TrialKind.BASELINE for t in trials) == 1
        spans.append((min(t.started_at for t in trials), max(t.ended_at for t in trials)))
    spans.sort()
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans)), "one at a time"
    told = optuna.study.get_all_study_summaries(node.store.optuna_storage())
    assert len(told) == len(studies) == len(node.store.studies())
    for summary in told:
        study = optuna.load_study(study_name=summary.study_name, storage=node.store.optuna_storage())
        assert all(trial.state.is_finished() for trial in study.trials)
    with closing(sqlite3.connect(node.folder / "trials.db")) as connection:
        assert connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
    assert processes_of(node.folder) == []
    print(f"{kills} kills, {len(nights)} nights")


def test_a_night_is_not_planned_for_a_schedule_of_another_node(node):
    schedule = node.add("qwen")
    with pytest.raises(BadInput, match="belongs to elsewhere"):
        node.ask(replace(schedule, host="elsewhere"))
