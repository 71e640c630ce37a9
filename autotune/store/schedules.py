"""Schedules and their nights in the store: frozen records, and every change that they may make."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from sqlalchemy import and_, delete, func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from autotune.store.queries import Page, _within
from autotune.store.records import Lease, WrongTransition
from autotune.store.store import Store, _json, _now, _text, _utc
from autotune.store.tables import NightRow, ScheduleRow, StudyRow
from autotune.values import BadInput

NAME_LENGTH = 100


class NightState(str, Enum):
    """States of a night; `finished`, `skipped`, `stopped` and `failed` are final."""

    DUE = "due"
    """Planned or asked for; nobody has taken it yet."""
    RUNNING = "running"
    FINISHED = "finished"
    """The study of the night has its verdict."""
    UNFINISHED = "unfinished"
    """The window closed, or the service ended, before the study did; the study goes on in the next night, or in this one
    where its window is open still."""
    SKIPPED = "skipped"
    """Nothing was measured: the node was busy, or the window closed first."""
    STOPPED = "stopped"
    """A person ended it."""
    FAILED = "failed"


NIGHT_TRANSITIONS: Mapping[NightState, frozenset[NightState]] = {
    NightState.DUE: frozenset({NightState.RUNNING, NightState.SKIPPED, NightState.STOPPED, NightState.FAILED}),
    NightState.RUNNING: frozenset(
        {
            NightState.RUNNING,  # taken over from a process that is gone
            NightState.FINISHED,
            NightState.UNFINISHED,
            NightState.SKIPPED,
            NightState.STOPPED,
            NightState.FAILED,
        }
    ),
    NightState.UNFINISHED: frozenset({NightState.RUNNING}),
    NightState.FINISHED: frozenset(),
    NightState.SKIPPED: frozenset(),
    NightState.STOPPED: frozenset(),
    NightState.FAILED: frozenset(),
}
"""The only ways in which a night changes its state."""


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule as stored; times in UTC."""

    id: int
    name: str
    created_at: datetime
    updated_at: datetime
    state: str
    """`active` or `paused`."""
    host: str
    """The node whose service runs it."""
    cron: str
    tz: str
    """IANA name of the time zone in which `cron` and `window` are read."""
    window: str
    """`HH:MM-HH:MM`, wall time; may go past midnight."""
    pairs: int
    """Pairs of the best setting and the user's command that a canary measures."""
    script_path: str
    script_hash: str
    """SHA-256 of the script when it was registered, or last accepted."""
    request: Mapping[str, Any]
    """`RunRequest.to_json`, redacted."""
    reference: Mapping[str, Any] | None
    """What tonight is compared with (`autotune.service.reference`); None: no night has set one yet."""


@dataclass(frozen=True, slots=True)
class NightRecord:
    """A night as stored; times in UTC."""

    id: int
    schedule: str
    """Name of its schedule."""
    schedule_id: int
    slot: str
    """What it was planned for: a local wall time, or `manual …`; unique in its schedule, so that no night runs twice."""
    state: NightState
    reason: str
    """Why it was skipped, failed, or is unfinished; empty otherwise."""
    planned_at: datetime
    until: datetime
    """End of its window."""
    started_at: datetime | None
    ended_at: datetime | None
    attempts: int
    """How often a process took it up."""
    lease: Lease | None
    """The process that runs it."""
    study_id: int | None
    study: str | None
    """Name of its study."""
    script_hash: str | None
    """Of the script as it ran."""
    simulated: bool
    environment: Mapping[str, Any]
    """Versions, driver and clocks that the night found."""
    canary: Mapping[str, Any] | None
    """What the canary measured (`autotune.service.canary`)."""
    verdict: Mapping[str, Any] | None
    """What it says against the reference (`autotune.service.canary`)."""

    @property
    def regressed(self) -> bool:
        """Whether it raised an alarm."""
        return (self.verdict or {}).get("decision") == "regression"


# -- schedules -------------------------------------------------------------------------------------------------------------


def add_schedule(
    store: Store,
    *,
    name: str,
    host: str,
    cron: str,
    tz: str,
    window: str,
    pairs: int,
    script_path: str,
    script_hash: str,
    request: Mapping[str, Any],
) -> ScheduleRecord:
    """Stores a new, active schedule.

    Raises:
        BadInput: there is one of that name.
    """
    now = _now()
    row = ScheduleRow(
        name=name,
        created_at=now,
        updated_at=now,
        state="active",
        host=host,
        cron=cron,
        tz=tz,
        window=window,
        pairs=pairs,
        script_path=_text(script_path),
        script_hash=script_hash,
        request=_json(request),
        reference=None,
    )
    try:
        with store.writing() as session, session.begin():
            session.add(row)
            session.flush()
            return _schedule(row)
    except IntegrityError as error:
        raise BadInput(
            f"there is a schedule named {name!r} already; remove it first (autotune schedule remove {name}), or choose another name"
        ) from error


def schedules(store: Store) -> list[ScheduleRecord]:
    """Every schedule, by name."""
    with store.reading() as session:
        return [_schedule(row) for row in session.scalars(select(ScheduleRow).order_by(ScheduleRow.name))]


def schedule(store: Store, name: str) -> ScheduleRecord:
    """The schedule of that name.

    Raises:
        BadInput: there is none; the message names near ones.
    """
    with store.reading() as session:
        row = session.scalars(select(ScheduleRow).where(ScheduleRow.name == name)).one_or_none()
        if row is not None:
            return _schedule(row)
        names = list(session.scalars(select(ScheduleRow.name).order_by(ScheduleRow.name)))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "autotune schedule list shows them"
    raise BadInput(f"no schedule named {name!r}; {hint}")


def change_schedule(
    store: Store,
    schedule_id: int,
    *,
    state: str | None = None,
    script_hash: str | None = None,
    reference: Mapping[str, Any] | None = None,
) -> None:
    """Stores what is given and leaves the rest.

    Raises:
        BadInput: the schedule was removed meanwhile.
    """
    with store.writing() as session, session.begin():
        row = session.get(ScheduleRow, schedule_id, with_for_update=True)
        if row is None:
            raise BadInput("the schedule was removed meanwhile")
        row.updated_at = _now()
        if state is not None:
            row.state = state
        if script_hash is not None:
            row.script_hash = script_hash
        if reference is not None:
            row.reference = _json(reference)


def remove_schedule(store: Store, schedule_id: int) -> None:
    """Forgets a schedule and its nights; their studies stay.

    Raises:
        BadInput: a night of it runs.
    """
    with store.writing() as session, session.begin():
        running = select(NightRow.slot).where(
            NightRow.schedule_id == schedule_id, NightRow.state == NightState.RUNNING.value
        )
        slot = session.scalar(running.limit(1))
        if slot is not None:
            raise BadInput(f"the schedule runs right now ({slot}); stop that first")
        session.execute(delete(NightRow).where(NightRow.schedule_id == schedule_id))
        session.execute(delete(ScheduleRow).where(ScheduleRow.id == schedule_id))


# -- nights ----------------------------------------------------------------------------------------------------------------


def plan_night(
    store: Store, schedule_id: int, *, slot: str, planned_at: datetime, until: datetime, alone: bool = False
) -> int | None:
    """Stores a night that is due; returns its id, or None where the slot has one already: it ran, or runs.

    Args:
        alone: not while another night of the schedule is due or runs; two who ask at once get one night.
    """
    row = NightRow(
        schedule_id=schedule_id,
        slot=slot,
        state=NightState.DUE.value,
        reason="",
        planned_at=planned_at,
        until=until,
        attempts=0,
        simulated=False,
        environment={},
    )
    try:
        with store.writing() as session, session.begin():
            taken = select(NightRow.id).where(NightRow.schedule_id == schedule_id, NightRow.slot == slot)
            if session.scalar(taken) is not None or (alone and _is_active(session, schedule_id)):
                return None
            session.add(row)
            session.flush()
            return row.id
    except IntegrityError:
        return None  # another process planned it, or the schedule is gone


def _is_active(session: Session, schedule_id: int) -> bool:
    """Whether a night of a schedule is due or runs; nobody else plans one until the transaction ends."""
    session.execute(select(ScheduleRow.id).where(ScheduleRow.id == schedule_id).with_for_update())
    states = [NightState.DUE.value, NightState.RUNNING.value]
    found = select(NightRow.id).where(NightRow.schedule_id == schedule_id, NightRow.state.in_(states))
    return session.scalar(found.limit(1)) is not None


def take_night(store: Store, night_id: int, lease: Lease, *, instead_of: Lease | None) -> bool:
    """Begins a night, or goes on with one whose process is gone; False: somebody else was faster, or it has ended.

    Args:
        instead_of: the lease that the caller found dead; None where the night had none.
    """
    with store.writing() as session, session.begin():
        row = session.get(NightRow, night_id, with_for_update=True)
        if row is None or (row.lease or {}).get("token") != (instead_of.token if instead_of else None):
            return False
        if NightState.RUNNING not in NIGHT_TRANSITIONS[NightState(row.state)]:
            return False
        row.state = NightState.RUNNING.value
        row.lease = asdict(lease)
        row.attempts += 1
        row.reason = ""
        row.started_at = row.started_at or _now()
        row.ended_at = None
        return True


def tell_night(
    store: Store,
    night_id: int,
    *,
    study_id: int | None = None,
    script_hash: str | None = None,
    simulated: bool | None = None,
    environment: Mapping[str, Any] | None = None,
    canary: Mapping[str, Any] | None = None,
    verdict: Mapping[str, Any] | None = None,
) -> None:
    """Stores what a running night found out, and leaves the rest."""
    values: dict[str, Any] = {
        "study_id": study_id,
        "script_hash": script_hash,
        "simulated": simulated,
        "environment": None if environment is None else _json(environment),
        "canary": None if canary is None else _json(canary),
        "verdict": None if verdict is None else _json(verdict),
    }
    with store.writing() as session, session.begin():
        row = session.get_one(NightRow, night_id, with_for_update=True)
        for name, value in values.items():
            if value is not None:
                setattr(row, name, value)


def end_night(
    store: Store,
    night_id: int,
    state: NightState,
    reason: str = "",
    *,
    lease: Lease | None = None,
    seen: NightState | None = None,
) -> None:
    """Moves a night to a state in which nobody runs it.

    Args:
        lease: that the night must have; the caller's own where it ran the night.
        seen: state that the night must be in still; None: any.

    Raises:
        WrongTransition: it is in a state that forbids it, or somebody else has taken it.
    """
    with store.writing() as session, session.begin():
        row = session.get_one(NightRow, night_id, with_for_update=True)
        before = NightState(row.state)
        if seen is not None and before is not seen:
            raise WrongTransition(f"the night is {before.value} meanwhile")
        if state not in NIGHT_TRANSITIONS[before] or state is NightState.RUNNING:
            raise WrongTransition(f"a night cannot go from {before.value} to {state.value}")
        if lease is not None and (row.lease or {}).get("token") != lease.token:
            raise WrongTransition("another process has taken the night over")
        row.state = state.value
        row.reason = _text(reason)
        row.lease = None
        row.ended_at = _now()


def night(store: Store, night_id: int) -> NightRecord | None:
    """The night with that id."""
    with store.reading() as session:
        found = _nights(session, NightRow.id == night_id, most=1)
    return found[0] if found else None


def nights(store: Store, schedule_id: int, *, most: int = 60) -> list[NightRecord]:
    """The newest nights of a schedule, oldest first."""
    with store.reading() as session:
        return list(reversed(_nights(session, NightRow.schedule_id == schedule_id, most=most)))


def nights_page(store: Store, schedule_id: int, *, page: int = 1, size: int = 30) -> Page[NightRecord]:
    """Nights of a schedule, newest first."""
    with store.reading() as session:
        total = session.scalar(select(func.count()).where(NightRow.schedule_id == schedule_id)) or 0
        number = _within(page, total, size)
        rows = _nights(session, NightRow.schedule_id == schedule_id, most=size, skip=(number - 1) * size)
    return Page(tuple(rows), total, number, size)


def nights_in(store: Store, states: Sequence[NightState]) -> list[NightRecord]:
    """Every night in one of these states, newest first."""
    with store.reading() as session:
        return _nights(session, NightRow.state.in_([state.value for state in states]), most=1000)


def open_nights(store: Store, host: str, now: datetime) -> list[NightRecord]:
    """The nights of a node that are due, run, or may go on since their window is open still; newest first."""
    may_go_on = and_(NightRow.state == NightState.UNFINISHED.value, NightRow.until > now)
    active = NightRow.state.in_([NightState.DUE.value, NightState.RUNNING.value])
    with store.reading() as session:
        return _nights(session, and_(ScheduleRow.host == host, or_(active, may_go_on)), most=1000)


def night_of_study(store: Store, study_id: int) -> NightRecord | None:
    """The newest night that a study ran in; None: it was started by hand."""
    with store.reading() as session:
        found = _nights(session, NightRow.study_id == study_id, most=1)
    return found[0] if found else None


def last_nights(store: Store, decisions: Collection[str] = ()) -> dict[int, NightRecord]:
    """The newest night of each schedule, by the schedule's id.

    Args:
        decisions: only of the nights whose verdict is one of these; empty: of all.
    """
    conditions = [NightRow.verdict["decision"].as_string().in_(decisions)] if decisions else []
    # One look into the index for each schedule, instead of every night of all of them.
    newest = (
        select(NightRow.id)
        .where(NightRow.schedule_id == ScheduleRow.id, *conditions)
        .order_by(NightRow.planned_at.desc(), NightRow.id.desc())
        .limit(1)
        .correlate(ScheduleRow)
        .scalar_subquery()
    )
    with store.reading() as session:
        chosen = [night_id for night_id in session.scalars(select(newest).select_from(ScheduleRow)) if night_id]
        found = _nights(session, NightRow.id.in_(chosen), most=len(chosen)) if chosen else []
    return {night.schedule_id: night for night in found}


def night_counts(store: Store) -> dict[tuple[str, NightState], int]:
    """How many nights each schedule has in each state, by the schedule's name; what there is none of is left out."""
    query = (
        select(ScheduleRow.name, NightRow.state, func.count())
        .join(NightRow, NightRow.schedule_id == ScheduleRow.id)
        .group_by(ScheduleRow.name, NightRow.state)
    )
    with store.reading() as session:
        return {(name, NightState(state)): count for name, state, count in session.execute(query)}


def _nights(session: Session, where: Any, *, most: int, skip: int = 0) -> list[NightRecord]:
    query = (
        select(NightRow, ScheduleRow.name, StudyRow.name)
        .join(ScheduleRow, ScheduleRow.id == NightRow.schedule_id)
        .outerjoin(StudyRow, StudyRow.id == NightRow.study_id)
        .where(where)
        .order_by(NightRow.planned_at.desc(), NightRow.id.desc())
        .limit(most)
        .offset(skip)
    )
    return [_night(row, name, study) for row, name, study in session.execute(query)]


def _night(row: NightRow, name: str, study: str | None) -> NightRecord:
    return NightRecord(
        id=row.id,
        schedule=name,
        schedule_id=row.schedule_id,
        slot=row.slot,
        state=NightState(row.state),
        reason=row.reason,
        planned_at=_utc(row.planned_at),
        until=_utc(row.until),
        started_at=None if row.started_at is None else _utc(row.started_at),
        ended_at=None if row.ended_at is None else _utc(row.ended_at),
        attempts=row.attempts,
        lease=None if row.lease is None else Lease(**row.lease),
        study_id=row.study_id,
        study=study,
        script_hash=row.script_hash,
        simulated=row.simulated,
        environment=row.environment,
        canary=row.canary,
        verdict=row.verdict,
    )


def _schedule(row: ScheduleRow) -> ScheduleRecord:
    return ScheduleRecord(
        id=row.id,
        name=row.name,
        created_at=_utc(row.created_at),
        updated_at=_utc(row.updated_at),
        state=row.state,
        host=row.host,
        cron=row.cron,
        tz=row.tz,
        window=row.window,
        pairs=row.pairs,
        script_path=row.script_path,
        script_hash=row.script_hash,
        request=row.request,
        reference=row.reference,
    )
