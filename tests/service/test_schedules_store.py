"""Schedules and nights in the store: who may change what, and what two processes at once make of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from autotune.measure.processes import here, process_id, this_process
from autotune.service import control
from autotune.store import schedules
from autotune.store.records import Lease, WrongTransition
from autotune.store.schedules import NIGHT_TRANSITIONS, NightRecord, NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.values import BadInput
from tests.service.registered import heed_interrupts

NOW = datetime(2026, 11, 30, 1, tzinfo=timezone.utc)
UNTIL = NOW + timedelta(hours=4)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    opened = Store.open(f"sqlite:///{tmp_path}/trials.db")
    yield opened
    opened.close()


@pytest.fixture
def schedule(store: Store) -> ScheduleRecord:
    """A schedule of this node."""
    return added(store, "math-7b")


def added(store: Store, name: str, host: str | None = None) -> ScheduleRecord:
    return schedules.add_schedule(
        store,
        name=name,
        host=host or socket.gethostname(),
        cron="0 2 * * *",
        tz="UTC",
        window="02:00-06:00",
        pairs=5,
        script_path="/jobs/train.sh",
        script_hash="a" * 64,
        request={"trials": 30},
    )


def planned(store: Store, schedule: ScheduleRecord, slot: str = "2026-11-30T02:00") -> int:
    night_id = schedules.plan_night(store, schedule.id, slot=slot, planned_at=NOW, until=UNTIL)
    assert night_id is not None
    return night_id


def lease(token: str, *, host: str | None = None, pid: int | None = None) -> Lease:
    """A lease of this process, or of the one with this pid."""
    process = this_process() if pid is None else process_id(pid)
    assert process is not None
    return Lease(token, host or socket.gethostname(), "/".join(here()), process.pid, process.start)


def found(store: Store, night_id: int) -> NightRecord:
    night = schedules.night(store, night_id)
    assert night is not None
    return night


def brought_to(store: Store, schedule: ScheduleRecord, state: NightState, slot: str) -> int:
    """A night in that state, by allowed steps alone."""
    night_id = planned(store, schedule, slot)
    if state is not NightState.DUE:
        assert schedules.take_night(store, night_id, lease("own"), instead_of=None)
        if state is not NightState.RUNNING:
            schedules.end_night(store, night_id, state, "why", lease=lease("own"))
    return night_id


# -- schedules -------------------------------------------------------------------------------------------------------------


def test_what_is_added_is_read_back_as_it_was(store: Store, schedule: ScheduleRecord) -> None:
    assert schedules.schedule(store, "math-7b") == schedule
    assert (schedule.state, schedule.reference, dict(schedule.request)) == ("active", None, {"trials": 30})
    assert schedules.schedules(store) == [schedule]


def test_a_name_is_used_once(store: Store, schedule: ScheduleRecord) -> None:
    with pytest.raises(BadInput, match="there is a schedule named 'math-7b' already; remove it first"):
        added(store, schedule.name)


def test_an_unknown_name_is_refused_with_near_ones(store: Store, schedule: ScheduleRecord) -> None:
    with pytest.raises(BadInput, match="did you mean math-7b"):
        schedules.schedule(store, "math-7")
    with pytest.raises(BadInput, match="autotune schedule list"):
        schedules.schedule(store, "zzz")


def test_a_change_leaves_the_rest(store: Store, schedule: ScheduleRecord) -> None:
    schedules.change_schedule(store, schedule.id, reference={"gain": 0.2})
    schedules.change_schedule(store, schedule.id, state="paused")
    now = schedules.schedule(store, schedule.name)
    assert (now.state, now.reference, now.script_hash) == ("paused", {"gain": 0.2}, "a" * 64)


def test_a_removed_schedule_takes_its_nights_along_and_cannot_be_planned(
    store: Store, schedule: ScheduleRecord
) -> None:
    night_id = planned(store, schedule)
    schedules.remove_schedule(store, schedule.id)
    assert schedules.schedules(store) == []
    assert schedules.night(store, night_id) is None
    assert schedules.plan_night(store, schedule.id, slot="x", planned_at=NOW, until=UNTIL) is None
    with pytest.raises(BadInput, match="was removed meanwhile"):
        schedules.change_schedule(store, schedule.id, state="paused")


def test_a_schedule_that_runs_is_not_removed(store: Store, schedule: ScheduleRecord) -> None:
    brought_to(store, schedule, NightState.RUNNING, "one")
    with pytest.raises(BadInput, match=r"runs right now \(one\); stop that first"):
        schedules.remove_schedule(store, schedule.id)


# -- nights ----------------------------------------------------------------------------------------------------------------


def test_a_slot_is_planned_once_even_when_many_try(store: Store, schedule: ScheduleRecord) -> None:
    planners = [Store.open(store.url) for _ in range(4)]
    start, ids = threading.Barrier(4), []

    def plan(own: Store) -> None:
        start.wait(10)
        ids.append(schedules.plan_night(own, schedule.id, slot="same", planned_at=NOW, until=UNTIL))

    threads = [threading.Thread(target=plan, args=(own,)) for own in planners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for own in planners:
        own.close()
    assert len(ids) == 4
    assert len([night_id for night_id in ids if night_id is not None]) == 1
    assert len(schedules.nights(store, schedule.id)) == 1


def test_a_slot_that_ran_is_not_planned_again(store: Store, schedule: ScheduleRecord) -> None:
    brought_to(store, schedule, NightState.FINISHED, "one")
    assert schedules.plan_night(store, schedule.id, slot="one", planned_at=NOW, until=UNTIL) is None


@pytest.mark.parametrize("before", list(NightState))
@pytest.mark.parametrize("after", [state for state in NightState if state is not NightState.RUNNING])
def test_nights_change_their_state_only_as_they_may(
    store: Store, schedule: ScheduleRecord, before: NightState, after: NightState
) -> None:
    if before is NightState.DUE or before in NIGHT_TRANSITIONS[NightState.RUNNING]:
        night_id = brought_to(store, schedule, before, "one")
    if after in NIGHT_TRANSITIONS[before]:
        schedules.end_night(store, night_id, after, "because")
        ended = found(store, night_id)
        assert (ended.state, ended.reason, ended.lease) == (after, "because", None)
        assert ended.ended_at is not None
    else:
        with pytest.raises(WrongTransition):
            schedules.end_night(store, night_id, after, "because")
        assert found(store, night_id).state is before


@pytest.mark.parametrize("state", list(NightState))
def test_only_a_night_that_can_go_on_is_taken(store: Store, schedule: ScheduleRecord, state: NightState) -> None:
    night_id = brought_to(store, schedule, state, "one")
    held = found(store, night_id).lease
    taken = schedules.take_night(store, night_id, lease("next"), instead_of=held)
    assert taken is (NightState.RUNNING in NIGHT_TRANSITIONS[state])


def test_of_two_that_take_a_night_one_gets_it(store: Store, schedule: ScheduleRecord) -> None:
    night_id = planned(store, schedule)
    assert schedules.take_night(store, night_id, lease("first"), instead_of=None)
    assert not schedules.take_night(store, night_id, lease("second"), instead_of=None)
    night = found(store, night_id)
    assert (night.lease and night.lease.token, night.attempts) == ("first", 1)


def test_the_night_of_a_dead_process_is_taken_over_once(store: Store, schedule: ScheduleRecord) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    dead = lease("dead", pid=child.pid)
    night_id = planned(store, schedule)
    assert schedules.take_night(store, night_id, dead, instead_of=None)
    assert control.alive(dead)
    child.kill()
    child.wait()
    assert not control.alive(dead)
    assert schedules.take_night(store, night_id, lease("heir"), instead_of=dead)
    assert not schedules.take_night(store, night_id, lease("late"), instead_of=dead)
    night = found(store, night_id)
    assert (night.lease and night.lease.token, night.attempts) == ("heir", 2)
    # The dead one was not dead but slow: it cannot end what is no longer its own.
    with pytest.raises(WrongTransition, match="another process has taken the night over"):
        schedules.end_night(store, night_id, NightState.FINISHED, lease=dead)


def test_a_night_that_goes_on_keeps_its_beginning_and_what_it_found(store: Store, schedule: ScheduleRecord) -> None:
    night_id = planned(store, schedule)
    schedules.take_night(store, night_id, lease("one"), instead_of=None)
    schedules.tell_night(store, night_id, canary={"pairs": 5}, simulated=True, environment={"verl": "0.9.1"})
    first = found(store, night_id)
    schedules.end_night(store, night_id, NightState.UNFINISHED, "the window closed", lease=lease("one"))
    assert schedules.take_night(store, night_id, lease("two"), instead_of=None)
    night = found(store, night_id)
    assert (night.started_at, night.ended_at, night.reason) == (first.started_at, None, "")
    assert (night.canary, night.simulated, night.environment) == ({"pairs": 5}, True, {"verl": "0.9.1"})


def test_nights_are_paged_newest_first_and_listed_oldest_first(store: Store, schedule: ScheduleRecord) -> None:
    for day in range(5):
        schedules.plan_night(
            store, schedule.id, slot=str(day), planned_at=NOW + timedelta(days=day), until=UNTIL + timedelta(days=day)
        )
    assert [night.slot for night in schedules.nights(store, schedule.id, most=3)] == ["2", "3", "4"]
    page = schedules.nights_page(store, schedule.id, page=2, size=2)
    assert ([night.slot for night in page.rows], page.total) == (["2", "1"], 5)


# -- what people do with them ----------------------------------------------------------------------------------------------


def test_a_night_that_was_asked_for_is_due_at_once(store: Store, schedule: ScheduleRecord) -> None:
    night = control.run_now(store, schedule, NOW, length=timedelta(hours=2))
    assert (night.state, night.planned_at, night.until) == (NightState.DUE, NOW, NOW + timedelta(hours=2))
    with pytest.raises(BadInput, match="is due already"):
        control.run_now(store, schedule, NOW)


def test_without_a_length_it_may_run_as_long_as_the_window(store: Store, schedule: ScheduleRecord) -> None:
    assert control.run_now(store, schedule, NOW).until == NOW + timedelta(hours=4)


def test_a_schedule_of_another_node_is_started_there(store: Store) -> None:
    with pytest.raises(BadInput, match="belongs to elsewhere; start it there"):
        control.run_now(store, added(store, "far", host="elsewhere"), NOW)


def test_a_night_that_has_not_begun_is_stopped_in_the_store(store: Store, schedule: ScheduleRecord) -> None:
    control.run_now(store, schedule, NOW)
    assert control.stop_night(store, schedule).state is NightState.STOPPED
    with pytest.raises(BadInput, match="no night of 'math-7b' runs right now"):
        control.stop_night(store, schedule)


def test_a_night_that_runs_is_asked_to_stop(store: Store, schedule: ScheduleRecord) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], preexec_fn=heed_interrupts)
    try:
        night_id = planned(store, schedule)
        schedules.take_night(store, night_id, lease("one", pid=child.pid), instead_of=None)
        assert control.stop_night(store, schedule).state is NightState.RUNNING  # its process ends it
        assert child.wait(30) in (-signal.SIGINT, 1)
    finally:
        child.kill()
        child.wait()
    assert control.stop_night(store, schedule).state is NightState.STOPPED  # its process is gone


def test_a_night_of_another_host_is_stopped_there(store: Store, schedule: ScheduleRecord) -> None:
    night_id = planned(store, schedule)
    schedules.take_night(store, night_id, lease("one", host="elsewhere"), instead_of=None)
    with pytest.raises(BadInput, match="runs on elsewhere; stop it there"):
        control.stop_night(store, schedule)
    assert found(store, night_id).state is NightState.RUNNING


def test_a_night_that_begins_in_the_moment_of_the_stop_is_signalled_not_forgotten(
    store: Store, schedule: ScheduleRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    night_id = planned(store, schedule)
    due = found(store, night_id)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], preexec_fn=heed_interrupts)
    try:
        schedules.take_night(store, night_id, lease("one", pid=child.pid), instead_of=None)
        seen = [due]
        # As it was read: the service took it right afterwards.
        monkeypatch.setattr(
            control, "current_night", lambda store, schedule: seen.pop() if seen else found(store, night_id)
        )
        assert control.stop_night(store, schedule).state is NightState.RUNNING
        assert child.wait(30) in (-signal.SIGINT, 1)
    finally:
        child.kill()
        child.wait()


def test_a_paused_schedule_is_not_due(store: Store, schedule: ScheduleRecord) -> None:
    assert control.next_run(schedule, NOW) == NOW + timedelta(hours=1)
    schedules.change_schedule(store, schedule.id, state="paused")
    assert control.next_run(schedules.schedule(store, schedule.name), NOW) is None


def test_a_pid_of_another_boot_or_start_is_another_process() -> None:
    own = this_process()
    boot = "/".join(here())
    host = socket.gethostname()
    assert control.alive(Lease("x", host, boot, os.getpid(), own.start))
    assert not control.alive(Lease("x", host, boot, os.getpid(), own.start + 1))
    assert not control.alive(Lease("x", host, "another", os.getpid(), own.start))
    assert not control.alive(Lease("x", "another", boot, os.getpid(), own.start))
    assert not control.alive(None)
