"""Schedules and nights filled in by hand. Every figure is simulated."""

from __future__ import annotations

import signal
import socket
from datetime import datetime, timedelta, timezone
from typing import Any

from autotune.store import schedules
from autotune.store.schedules import NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.tuner.lease import new_lease

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)


def register(store: Store, name: str = "nightly", **changes: Any) -> ScheduleRecord:
    """An active schedule of this host: at two, until six, in Berlin."""
    values: dict[str, Any] = {
        "name": name,
        "host": socket.gethostname(),
        "cron": "0 2 * * *",
        "tz": "Europe/Berlin",
        "window": "02:00-06:00",
        "pairs": 5,
        "script_path": "/jobs/train.sh",
        "script_hash": "0" * 64,
        "request": {"gpus": 8},
    }
    return schedules.add_schedule(store, **{**values, **changes})


def canary(own: float = 1000.0, best: float | None = 1200.0) -> dict[str, Any]:
    """Three pairs around these tokens/s/GPU."""
    sides = {"own": own, "best": best}
    return {
        "how": "session",
        "pairs": 3,
        **{
            side: None
            if level is None
            else {"point": {}, "throughput": [level, level + 10, level - 10], "seconds": {}, "failure": None}
            for side, level in sides.items()
        },
    }


def verdict(decision: str = "steady", **changes: Any) -> dict[str, Any]:
    """What a night says."""
    about = {"text": f"The night was {decision}.", "phases": [], "tests": [], "nights": 7, "environment": []}
    return {"decision": decision, **about, **changes}


def add_night(
    store: Store,
    schedule: ScheduleRecord,
    days_ago: int = 0,
    *,
    state: NightState = NightState.FINISHED,
    decision: str | None = "steady",
    reason: str = "",
    **told: Any,
) -> int:
    """A night that began so many days ago; returns its id.

    Args:
        decision: None: no canary ran.
    """
    at = NOW - timedelta(days=days_ago)
    night = schedules.plan_night(
        store, schedule.id, slot=f"{at:%Y-%m-%dT%H:%M}", planned_at=at, until=at + timedelta(hours=4)
    )
    assert night is not None
    if state is NightState.DUE:
        return night
    lease = new_lease()
    assert schedules.take_night(store, night, lease, instead_of=None)
    facts: dict[str, Any] = {"simulated": True}
    if decision is not None:
        facts |= {"canary": canary(), "verdict": verdict(decision)}
    schedules.tell_night(store, night, **{**facts, **told})
    if state is not NightState.RUNNING:
        schedules.end_night(store, night, state, reason, lease=lease)
    return night


def heed_interrupts() -> None:
    """For a child that SIGINT is to end, also where the tests were started with that signal ignored (nohup, a background job)."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
