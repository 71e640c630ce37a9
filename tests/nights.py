"""Schedules and nights filled in by hand for tests of what is stored and shown. Every figure in them is simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from autotune.store import schedules
from autotune.store.records import Lease
from autotune.store.schedules import NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.verl import keys

FIRST = datetime(2026, 11, 1, 1, 0, tzinfo=timezone.utc)
"""02:00 in Berlin."""


def add_schedule(store: Store, name: str = "nightly", **changes: Any) -> ScheduleRecord:
    """An active schedule without nights, due at two in the morning in Berlin."""
    values: dict[str, Any] = {
        "name": name,
        "host": "gpu-node",
        "cron": "0 2 * * *",
        "tz": "Europe/Berlin",
        "window": "02:00-06:00",
        "pairs": 5,
        "script_path": "/jobs/train.sh",
        "script_hash": "ab" * 32,
        "request": {"space": "grpo_fsdp_vllm", "gpus": 8, "trials": 30},
    }
    return schedules.add_schedule(store, **{**values, **changes})


def canary(own: Sequence[float] = (200.0, 202.0, 198.0), best: Sequence[float] | None = (300.0, 303.0, 297.0)) -> Any:
    """What a canary measured; tokens/s/GPU."""

    def side(speeds: Sequence[float]) -> dict[str, Any]:
        seconds = [1000.0 / speed for speed in speeds]
        return {
            "point": {keys.MAX_NUM_SEQS: 8},
            "throughput": list(speeds),
            "seconds": {"step": seconds, "gen": [0.6 * s for s in seconds], "update_actor": [0.3 * s for s in seconds]},
            "failure": None,
        }

    return {"how": "session", "pairs": len(own), "own": side(own), "best": None if best is None else side(best)}


def said(decision: str = "steady", **changes: Any) -> dict[str, Any]:
    """The verdict of a night."""
    slow = decision == "regression"
    change = 0.064 if slow else 0.004
    values = {
        "decision": decision,
        "text": "update_actor takes 6.4 % more time." if slow else "As fast as the nights before.",
        "phases": ["update_actor"] if slow else [],
        "tests": [
            {"subject": "own", "quantity": "gen", "change": -0.003, "band": 0.021, "beyond": False},
            {"subject": "own", "quantity": "update_actor", "change": change, "band": 0.023, "beyond": slow},
            {"subject": "best", "quantity": "step", "change": 0.011, "band": 0.02, "beyond": False},
        ],
        "nights": 10,
        "environment": ["vllm 0.12.0 → 0.12.1", "the driver is 580.82 instead of 575.57"] if slow else [],
    }
    return {**values, **changes}


def add_night(
    store: Store,
    schedule: ScheduleRecord,
    at: int = 0,
    state: NightState = NightState.FINISHED,
    *,
    slot: str | None = None,
    reason: str = "",
    study: int | None = None,
    measured: Mapping[str, Any] | None = None,
    verdict: Mapping[str, Any] | None = None,
    simulated: bool = True,
) -> int:
    """A night `at` days after the first one, brought into a state; returns its id."""
    planned = FIRST + timedelta(days=at)
    wall = f"{planned + timedelta(hours=1):%Y-%m-%dT%H:%M}" if slot is None else slot
    night = schedules.plan_night(
        store, schedule.id, slot=wall, planned_at=planned, until=planned + timedelta(hours=4)
    )  # fmt: skip
    assert night is not None
    if state is NightState.DUE:
        return night
    if state is not NightState.SKIPPED:
        lease = Lease(f"token-{night}", "gpu-node", "boot", 4242, 1)
        assert schedules.take_night(store, night, lease, instead_of=None)
        schedules.tell_night(
            store, night, study_id=study, simulated=simulated, environment={"verl": "0.9.1"}, canary=measured, verdict=verdict
        )  # fmt: skip
    if state is not NightState.RUNNING:
        schedules.end_night(store, night, state, reason)
    return night


def history(store: Store, schedule: ScheduleRecord, *, count: int = 8, study: int | None = None) -> None:
    """Steady nights, one of them skipped, and a regression in the last one."""
    for at in range(count - 1):
        if at == 3:
            add_night(
                store, schedule, at, NightState.SKIPPED, reason="GPU 3 was busy with pid 77 until the window closed"
            )
        else:
            add_night(store, schedule, at, measured=canary(), verdict=said() if at else said("no_reference", tests=[]))
    add_night(
        store, schedule, count - 1, study=study, measured=canary((190.0, 189.0, 191.0)), verdict=said("regression")
    )  # fmt: skip
