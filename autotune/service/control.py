"""Asking for a night, and ending one: what people may do with a registered schedule, from any process of its node."""

from __future__ import annotations

import os
import signal
import socket
from datetime import datetime, timedelta

from autotune.measure.processes import ProcessId, here
from autotune.service.timing import Timetable
from autotune.store import schedules
from autotune.store.records import Lease, WrongTransition
from autotune.store.schedules import NightRecord, NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.values import BadInput

STORAGE_VARIABLE = "AUTOTUNE_STORAGE"
"""How the process of a night is told its database: a URL on a command line would show its password to everybody."""
PERSON = signal.SIGINT
"""Sent to the process of a night that a person ends: it finishes its step, and the night is over."""
SERVICE = signal.SIGTERM
"""Sent when the service ends: the night goes on when it is back, while its window is open."""
_ATTEMPTS = 3


def timetable(schedule: ScheduleRecord) -> Timetable:
    """When a schedule runs."""
    return Timetable(schedule.cron, schedule.window, schedule.tz)


def alive(lease: Lease | None) -> bool:
    """Whether the process that holds a night lives, on this host."""
    if lease is None or (lease.host, lease.boot) != (socket.gethostname(), "/".join(here())):
        return False
    return ProcessId(lease.pid, lease.start).alive()


def next_run(schedule: ScheduleRecord, now: datetime) -> datetime | None:
    """When a schedule is due next, UTC; None while it is paused."""
    if schedule.state != "active":
        return None
    firing = next(timetable(schedule).after(now), None)
    return None if firing is None else firing.at


def run_now(store: Store, schedule: ScheduleRecord, now: datetime, *, length: timedelta | None = None) -> NightRecord:
    """Plans a night that is due at once; the service takes it up within seconds.

    Args:
        length: how long it may run; None: as long as the schedule's window.

    Raises:
        BadInput: a night of the schedule runs or is due already, or the schedule belongs to another node.
    """
    if schedule.host != socket.gethostname():
        raise BadInput(f"the schedule {schedule.name!r} belongs to {schedule.host}; start it there")
    until = now + (length or timetable(schedule).longest)
    slot = f"manual {now:%Y-%m-%dT%H:%M:%S.%f}Z"
    night_id = schedules.plan_night(store, schedule.id, slot=slot, planned_at=now, until=until, alone=True)
    found = None if night_id is None else schedules.night(store, night_id)
    if found is not None:
        return found
    active = current_night(store, schedule)
    if active is not None:
        raise BadInput(f"a night of {schedule.name!r} is {active.state.value} already ({active.slot})")
    raise BadInput(f"the schedule {schedule.name!r} was removed, or another night of it ended, meanwhile; ask again")


def stop_night(store: Store, schedule: ScheduleRecord) -> NightRecord:
    """Ends the night of a schedule after the step that is running; its study can be taken up by hand.

    Raises:
        BadInput: none runs, or it runs on another node.
    """
    for _ in range(_ATTEMPTS):
        active = current_night(store, schedule)
        if active is None:
            raise BadInput(f"no night of {schedule.name!r} runs right now")
        try:
            _stop(store, active)
        except WrongTransition:
            continue  # the service began it, took it over or ended it in this moment
        return schedules.night(store, active.id) or active
    raise BadInput(f"the night of {schedule.name!r} changes its state again and again; try once more")


def _stop(store: Store, active: NightRecord) -> None:
    if active.state is NightState.DUE:
        schedules.end_night(store, active.id, NightState.STOPPED, "stopped before it began", seen=NightState.DUE)
    elif not signalled(active, PERSON):
        if active.lease is not None and active.lease.host != socket.gethostname():
            raise BadInput(f"the night runs on {active.lease.host}; stop it there")
        schedules.end_night(
            store, active.id, NightState.STOPPED, "stopped after its process was gone", lease=active.lease
        )


def current_night(store: Store, schedule: ScheduleRecord) -> NightRecord | None:
    """The night of a schedule that runs or is due."""
    active = schedules.nights_in(store, [NightState.DUE, NightState.RUNNING])
    return next((night for night in active if night.schedule_id == schedule.id), None)


def signalled(night: NightRecord, how: signal.Signals) -> bool:
    """Sends a signal to the process of a night; False: it is gone."""
    if night.lease is None or not alive(night.lease):
        return False
    try:
        os.kill(night.lease.pid, how)
    except ProcessLookupError:
        return False
    return True
