"""Nights as the service runs them: real processes over the double of verl. Every figure is simulated."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from autotune.service.control import stop_night
from autotune.service.daemon import Daemon
from autotune.store import schedules
from autotune.store.schedules import NightState
from autotune.values import BadInput, TrialKind, TrialState
from tests.service.node import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def daemons() -> Iterator[list[Daemon]]:
    """Services that a test starts; none outlives it."""
    started: list[Daemon] = []
    yield started
    for daemon in started:
        if daemon.healthy:
            daemon.stop()


def start(node: Node, daemons: list[Daemon], **faults: str) -> Daemon:
    daemon = node.daemon(**faults)
    daemon.start()
    daemons.append(daemon)
    return daemon


def test_nights_are_compared_the_best_setting_is_kept_and_a_slower_phase_is_named(node, daemons):
    schedule = node.add("qwen")
    calm = start(node, daemons, noise="0.001", seed="1")
    first = node.ended(node.ask(schedule))
    assert first.state is NightState.FINISHED, first.reason
    assert node.verdict(first)["decision"] == "no_reference"
    found = schedules.schedule(node.store, "qwen").reference
    assert found is not None
    assert found["study"] == first.study
    assert found["gain"] > 0.2
    folder = node.folder / "nights" / "qwen" / str(first.study)
    assert {"best.sh", "report.md", "report.html"} <= {path.name for path in folder.iterdir()}

    second = node.ended(node.ask(schedule))
    assert node.verdict(second)["decision"] == "steady", node.verdict(second)
    assert second.canary is not None
    assert second.canary["best"]["point"] == found["point"], "the canary measures the best setting of the first night"
    assert len(second.canary["own"]["throughput"]) == len(second.canary["best"]["throughput"]) == schedule.pairs
    calm.stop()

    start(node, daemons, noise="0.001", seed="2", slow="update_actor:1.6")
    third = node.ended(node.ask(schedule))
    said = node.verdict(third)
    assert said["decision"] == "regression", said
    assert said["phases"][0] == "update_actor"
    assert "update_actor" in said["text"]
    assert "regression: Slower than 2 nights before" in node.log(third)
    kept = schedules.schedule(node.store, "qwen").reference
    assert kept is not None
    assert kept["point"] == found["point"], "a slow night takes nothing back"


def test_a_night_that_its_window_ends_goes_on_in_the_next_one(node, daemons):
    schedule = node.add("qwen", pairs=2, trials=30)
    start(node, daemons, step_seconds="1.5")
    first = node.ended(node.ask(schedule, seconds=12.0), seconds=60)
    assert (first.state, first.reason) == (NightState.UNFINISHED, "the window closed"), first
    assert first.study_id is not None
    before = {trial.number for trial in node.store.trials(first.study_id)}
    for daemon in daemons:
        daemon.stop()
    start(node, daemons)
    second = node.ended(node.ask(schedule))
    assert second.state is NightState.FINISHED, second.reason
    assert second.study_id == first.study_id
    trials = node.store.trials(first.study_id)
    assert before < {trial.number for trial in trials}
    assert not any(trial.state in (TrialState.RUNNING, TrialState.QUEUED) for trial in trials)
    assert sum(t.kind is TrialKind.BASELINE and t.state is TrialState.MEASURED for t in trials) == 1


def test_two_schedules_of_a_node_never_measure_at_the_same_time(node, daemons):
    one, two = node.add("one"), node.add("two")
    start(node, daemons, step_seconds="0.05")
    nights = [node.ask(one), node.ask(two)]
    for night in nights:
        assert node.ended(night).state is NightState.FINISHED
    spans = []
    for night in nights:
        ended = node.night(night)
        assert ended.study_id is not None
        trials = [t for t in node.store.trials(ended.study_id) if t.started_at and t.ended_at]
        spans.append((min(t.started_at for t in trials), max(t.ended_at for t in trials)))
    spans.sort()
    assert spans[0][1] <= spans[1][0]


def test_a_node_that_stays_busy_is_waited_for_and_then_the_night_is_skipped_with_the_reason(node, daemons):
    one, two = node.add("one", trials=30, pairs=8), node.add("two")
    start(node, daemons, step_seconds="0.4")
    long = node.ask(one)
    node.until(lambda: node.night(long).study_id is not None, "the first night's study")
    short = node.ended(node.ask(two, seconds=20.0))
    assert short.state is NightState.SKIPPED
    assert "busy" in short.reason
    assert "one-" in short.reason, "who had the node"
    assert short.study_id is None
    stop_night(node.store, one)
    stopped = node.ended(long)
    assert (stopped.state, stopped.reason) == (NightState.STOPPED, "stopped by a person")


def test_a_service_that_ends_and_comes_back_goes_on_with_its_night(node, daemons):
    schedule = node.add("qwen", trials=8)
    first = start(node, daemons, step_seconds="0.2")
    night = node.ask(schedule)
    node.until(lambda: node.measured(night) >= 2, "two trials")
    first.stop()
    left = node.night(night)
    assert (left.state, left.reason) == (NightState.UNFINISHED, "the service ended")
    start(node, daemons)
    ended = node.ended_for_good(night)
    assert ended.state is NightState.FINISHED, ended.reason
    assert ended.study_id == left.study_id
    assert ended.attempts == 2


def test_a_night_whose_process_is_killed_is_taken_up_again(node, daemons):
    schedule = node.add("qwen", trials=8)
    start(node, daemons, step_seconds="0.1")
    night = node.ask(schedule)
    node.until(lambda: node.measured(night) >= 2, "two trials")
    lease = node.night(night).lease
    assert lease is not None
    os.kill(lease.pid, signal.SIGKILL)
    ended = node.ended_for_good(night)
    assert ended.state is NightState.FINISHED, ended.reason
    assert ended.attempts == 2
    assert ended.study_id is not None
    trials = node.store.trials(ended.study_id)
    assert sum(t.kind is TrialKind.BASELINE and t.state is TrialState.MEASURED for t in trials) == 1


def test_a_script_that_changed_is_noticed_and_not_compared_with_earlier_nights(node, daemons):
    schedule = node.add("qwen", trials=2)
    start(node, daemons, noise="0.001")
    first = node.ended(node.ask(schedule))
    node.script.write_text(node.script.read_text().replace("ppo_mini_batch_size=64", "ppo_mini_batch_size=128"))
    second = node.ended(node.ask(schedule))
    assert second.state is NightState.FINISHED, second.reason
    assert second.script_hash != first.script_hash
    assert node.verdict(second)["decision"] == "not_comparable"
    assert any("script" in change for change in node.verdict(second)["environment"])
    assert "has changed since it was registered" in " ".join(node.log(second).split())


def test_a_night_whose_command_cannot_run_fails_and_says_why(node, daemons):
    schedule = node.add("qwen")
    start(node, daemons, crash="data.train_batch_size=128")
    night = node.ended(node.ask(schedule))
    assert night.state is NightState.FAILED
    assert "the user's own command failed" in night.reason
    assert "failure:" in node.log(night)


def test_a_process_that_never_takes_its_night_is_given_up_and_told(node, daemons):
    schedule = node.add("qwen")
    daemon = Daemon(
        node.store,
        "sqlite:////nowhere/trials.db",
        logs=node.folder / "logs",
        announce=lambda text, told, night: node.told.append(f"{told.name}: {text}"),
        env=node.env(),
    )
    daemon.start()
    daemons.append(daemon)
    night = node.ended(node.ask(schedule), seconds=120)
    assert night.state is NightState.FAILED
    assert node.told == [f"qwen: {night.reason}"]


def test_a_night_that_was_due_while_no_service_ran_begins_with_it_if_its_window_is_open(node, daemons):
    open_ = node.add("open", cron="0 2 * * *", window="02:00-06:00", trials=1)
    closed = node.add("closed", cron="0 1 * * *", window="01:00-02:30", trials=1)
    morning = (datetime.now(timezone.utc) + timedelta(days=1)).replace(hour=3, minute=0)
    daemon = node.daemon(now=lambda: morning)
    daemon.start()
    daemons.append(daemon)
    node.until(lambda: bool(schedules.nights(node.store, open_.id)), "a night")
    night = schedules.nights(node.store, open_.id)[0]
    assert night.slot == f"{morning:%Y-%m-%d}T02:00"
    assert node.ended(night).state is NightState.FINISHED
    time.sleep(2.5)
    assert len(schedules.nights(node.store, open_.id)) == 1, "a slot runs once"
    assert schedules.nights(node.store, closed.id) == [], "its window was over"


def test_a_second_night_of_a_schedule_is_refused_while_one_is_due(node):
    schedule = node.add("qwen")
    node.ask(schedule)
    with pytest.raises(BadInput, match="is due already"):
        node.ask(schedule)
