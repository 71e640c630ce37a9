"""What pages ask of the store: only reading, only the columns that are shown, and never more rows than fit a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, Text, and_, case, cast, func, null, or_, select

from autotune.store.records import StudyRecord, TrialRecord
from autotune.store.store import DATABASE_NOW, Store, _utc, study_record, trial_facts
from autotune.store.tables import NightRow, ScheduleRow, StepRow, StudyRow, TrialRow
from autotune.values import Point, StepRecord, TrialKind, TrialState

Row = TypeVar("Row")
_ESCAPE = "\\"
_ACTIVE_NIGHTS = ("due", "running")


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some rows of a longer list."""

    rows: tuple[Row, ...]
    total: int
    """Rows of the whole list."""
    number: int
    """From 1."""
    size: int
    """Rows of a full page."""

    @property
    def pages(self) -> int:
        """How many pages there are, at least one."""
        return max(1, -(-self.total // self.size))

    @property
    def first(self) -> int:
        """Position of the first row in the whole list, from 1; 0 where there is none."""
        return (self.number - 1) * self.size + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """Position of the last row in the whole list."""
        return (self.number - 1) * self.size + len(self.rows)


@dataclass(frozen=True, slots=True)
class StudySummary:
    """A study in a list; times in UTC."""

    id: int
    name: str
    created_at: datetime
    updated_at: datetime
    state: str
    workload: str
    fingerprint: str
    n_gpus: int
    simulated: bool
    verdict: Mapping[str, Any]
    """Empty while there is none."""
    trials: int


@dataclass(frozen=True, slots=True)
class TrialSummary:
    """A trial in a list or a picture; seconds, GiB, tokens/s/GPU; times in UTC."""

    id: int
    study_id: int
    number: int
    kind: TrialKind
    state: TrialState
    point: Point
    origin: str
    source: str | None
    work: str | None
    engine: str | None
    session: str | None
    simulated: bool
    started_at: datetime | None
    ended_at: datetime | None
    startup_seconds: float | None
    wall_seconds: float | None
    throughput: float | None
    mfu: float | None
    step_seconds: float | None
    memory_gb: float | None
    phases: Mapping[str, float]
    failure: Mapping[str, Any] | None
    settling_steps: int
    counted_steps: int
    invalid_steps: int
    """Steps that were disturbed and therefore not counted."""
    settling_seconds: float
    counted_seconds: float


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """Every study of one workload; simulated ones stand apart from measured ones."""

    fingerprint: str
    simulated: bool
    workload: str
    studies: int
    newest: datetime


@dataclass(frozen=True, slots=True)
class Night:
    """One study as a point of its workload's trend; tokens/s/GPU."""

    study_id: int
    name: str
    created_at: datetime
    state: str
    baseline: float | None
    """Of the user's own command, over all its launches."""
    best: float | None
    """Of the best setting, from launches made after it was chosen; None: nothing was better."""
    noise: float | None
    """Relative standard deviation between launches of one setting, as the study saw it."""
    decision: str | None
    versions: Mapping[str, str]


SORTS: Mapping[str, ColumnElement[Any]] = {
    "number": TrialRow.number.expression,
    "state": TrialRow.state.expression,
    "throughput": TrialRow.throughput.expression,
    "step": TrialRow.step_seconds.expression,
    "mfu": TrialRow.mfu.expression,
    "memory": TrialRow.memory_gb.expression,
    "startup": TrialRow.startup_seconds.expression,
}
"""Columns by which a list of trials can be sorted."""

_STUDY = (
    StudyRow.id,
    StudyRow.name,
    StudyRow.created_at,
    StudyRow.updated_at,
    StudyRow.state,
    StudyRow.workload,
    StudyRow.workload_fingerprint,
    StudyRow.n_gpus,
    StudyRow.simulated,
    StudyRow.verdict,
)
_TRIAL = (
    TrialRow.id,
    TrialRow.study_id,
    TrialRow.number,
    TrialRow.kind,
    TrialRow.state,
    TrialRow.point,
    TrialRow.origin,
    TrialRow.source,
    TrialRow.work,
    TrialRow.engine,
    TrialRow.session,
    TrialRow.simulated,
    TrialRow.started_at,
    TrialRow.ended_at,
    TrialRow.startup_seconds,
    TrialRow.wall_seconds,
    TrialRow.throughput,
    TrialRow.mfu,
    TrialRow.step_seconds,
    TrialRow.memory_gb,
    TrialRow.phases,
    TrialRow.failure,
)


def studies_page(
    store: Store, *, text: str = "", state: str = "", fingerprint: str = "", page: int = 1, size: int = 50
) -> Page[StudySummary]:
    """Studies, newest first.

    Args:
        text: part of the name or of the workload; upper and lower case do not matter.
        state: only those in this state.
        fingerprint: only those of this workload.
    """
    conditions: list[ColumnElement[bool]] = []
    if text:
        like = f"%{_literal(text)}%"
        conditions.append(or_(StudyRow.name.ilike(like, escape=_ESCAPE), StudyRow.workload.ilike(like, escape=_ESCAPE)))
    if state:
        conditions.append(StudyRow.state == state)
    if fingerprint:
        conditions.append(StudyRow.workload_fingerprint == fingerprint)
    with store.reading() as session:
        total = session.scalar(select(func.count(StudyRow.id)).where(*conditions)) or 0
        number = _within(page, total, size)
        ids = list(
            session.scalars(
                select(StudyRow.id)
                .where(*conditions)
                .order_by(StudyRow.created_at.desc(), StudyRow.id.desc())
                .limit(size)
                .offset((number - 1) * size)
            )
        )
        return Page(tuple(_summaries(session, ids)), total, number, size)


def running_studies(store: Store, *, most: int = 20) -> list[StudySummary]:
    """Studies that have not ended, newest first."""
    with store.reading() as session:
        ids = session.scalars(
            select(StudyRow.id).where(StudyRow.state == "running").order_by(StudyRow.created_at.desc()).limit(most)
        )
        return _summaries(session, list(ids))


def running_trials(store: Store, *, most: int = 20) -> dict[tuple[str, bool], dict[TrialState, int]]:
    """How many trials the newest studies that have not ended have in each state, by their name and whether they are simulated."""
    newest = (
        select(StudyRow.id, StudyRow.name, StudyRow.simulated)
        .where(StudyRow.state == "running")
        .order_by(StudyRow.created_at.desc())
        .limit(most)
        .subquery()
    )
    query = (
        select(newest.c.name, newest.c.simulated, TrialRow.state, func.count(TrialRow.id))
        .outerjoin(TrialRow, TrialRow.study_id == newest.c.id)
        .group_by(newest.c.name, newest.c.simulated, TrialRow.state)
    )
    found: dict[tuple[str, bool], dict[TrialState, int]] = {}
    with store.reading() as session:
        for name, simulated, state, count in session.execute(query):
            counts = found.setdefault((name, simulated), {})
            if state is not None:
                counts[TrialState(state)] = count
    return found


def study_states(store: Store) -> dict[str, int]:
    """How many studies are in each state; what there is none of is left out."""
    with store.reading() as session:
        rows = session.execute(select(StudyRow.state, func.count()).group_by(StudyRow.state))
        return {row[0]: row[1] for row in rows}


def study_summaries(store: Store, ids: Sequence[int]) -> list[StudySummary]:
    """The studies with these ids, in the order of `ids`; those that do not exist are left out."""
    with store.reading() as session:
        return _summaries(session, list(ids))


def study_id(store: Store, name: str) -> int | None:
    """The id of the study of that name, or None."""
    with store.reading() as session:
        return session.scalar(select(StudyRow.id).where(StudyRow.name == name))


def study_by_id(store: Store, study_id: int) -> StudyRecord | None:
    """The whole study, or None."""
    with store.reading() as session:
        if not 0 < study_id < 2**31:
            return None
        found = session.execute(select(StudyRow, DATABASE_NOW).where(StudyRow.id == study_id)).one_or_none()
        if found is None:
            return None
        count = session.scalar(select(func.count()).where(TrialRow.study_id == study_id)) or 0
        return study_record(found[0], count, found[1])


def trials_page(
    store: Store,
    study_id: int,
    *,
    sort: str = "number",
    descending: bool = False,
    state: str = "",
    text: str = "",
    page: int = 1,
    size: int = 100,
) -> Page[TrialSummary]:
    """Trials of a study. What has no figure in the sorted column comes last.

    Args:
        sort: a key of `SORTS`.
        text: part of a knob's key or value, of the origin, or of the failure; upper and lower case do not matter.
    """
    conditions: list[ColumnElement[bool]] = [TrialRow.study_id == study_id]
    if state:
        conditions.append(TrialRow.state == state)
    if text:
        like = f"%{_literal(text)}%"
        conditions.append(
            or_(
                cast(TrialRow.point, Text).ilike(like, escape=_ESCAPE),
                TrialRow.origin.ilike(like, escape=_ESCAPE),
                cast(TrialRow.failure, Text).ilike(like, escape=_ESCAPE),
            )
        )
    column = SORTS[sort]
    order = [column.is_(None), column.desc() if descending else column.asc(), TrialRow.number]
    with store.reading() as session:
        total = session.scalar(select(func.count(TrialRow.id)).where(*conditions)) or 0
        number = _within(page, total, size)
        query = select(*_TRIAL).where(*conditions).order_by(*order).limit(size).offset((number - 1) * size)
        return Page(tuple(_trials(session, query)), total, number, size)


def trial_summaries(store: Store, study_id: int, *, most: int = 2000) -> list[TrialSummary]:
    """The first `most` trials of a study, by number."""
    with store.reading() as session:
        query = select(*_TRIAL).where(TrialRow.study_id == study_id).order_by(TrialRow.number).limit(most)
        return _trials(session, query)


def trial_summary(store: Store, study_id: int, number: int) -> TrialSummary | None:
    """One trial as it stands in lists, or None."""
    if not (0 < study_id < 2**31 and 0 <= number < 2**31):
        return None
    with store.reading() as session:
        found = _trials(session, select(*_TRIAL).where(TrialRow.study_id == study_id, TrialRow.number == number))
        return found[0] if found else None


def trial(store: Store, study_id: int, number: int) -> TrialRecord | None:
    """One whole trial, or None."""
    with store.reading() as session:
        found = store._records(session, study_id, number) if 0 <= number < 2**31 else []
        return found[0] if found else None


def steps_of(store: Store, study_id: int, number: int, *, most: int = 500) -> list[StepRecord]:
    """The last `most` steps of a trial in order, without verl's own metrics; empty where there is no such trial."""
    with store.reading() as session:
        query = (
            select(
                StepRow.step,
                StepRow.seconds,
                StepRow.tokens,
                StepRow.phases,
                StepRow.mfu,
                StepRow.memory_gb,
                StepRow.settling,
                StepRow.invalid,
            )
            .join(TrialRow, TrialRow.id == StepRow.trial_id)
            .where(TrialRow.study_id == study_id, TrialRow.number == number)
            .order_by(StepRow.step.desc())
            .limit(most)
        )
        return [
            StepRecord(
                step=row.step,
                seconds=row.seconds,
                tokens=row.tokens,
                phases=row.phases,
                mfu=row.mfu,
                memory_gb=row.memory_gb,
                settling=row.settling,
                invalid=row.invalid,
            )
            for row in reversed(session.execute(query).all())
        ]


def newest_trial(store: Store, study_id: int) -> TrialSummary | None:
    """The trial with the highest number, or None."""
    with store.reading() as session:
        query = select(*_TRIAL).where(TrialRow.study_id == study_id).order_by(TrialRow.number.desc()).limit(1)
        found = _trials(session, query)
        return found[0] if found else None


def levels(store: Store, study_id: int) -> list[TrialSummary]:
    """What the trials of a study are compared with: the user's own command, by itself and inside sessions."""
    kinds = (TrialKind.BASELINE.value, TrialKind.ANCHOR.value)
    with store.reading() as session:
        query = select(*_TRIAL).where(TrialRow.study_id == study_id, TrialRow.kind.in_(kinds)).order_by(TrialRow.number)
        return _trials(session, query)


def workloads_page(store: Store, *, page: int = 1, size: int = 12) -> Page[WorkloadSummary]:
    """Workloads, the one with the newest study first."""
    newest = func.max(StudyRow.created_at)
    groups = (StudyRow.workload_fingerprint, StudyRow.simulated)
    with store.reading() as session:
        grouped = select(*groups, func.count(), newest).group_by(*groups)
        total = session.scalar(select(func.count()).select_from(grouped.subquery())) or 0
        number = _within(page, total, size)
        rows = session.execute(grouped.order_by(newest.desc(), *groups).limit(size).offset((number - 1) * size)).all()
        found = []
        for fingerprint, simulated, count, when in rows:
            label = session.scalar(
                select(StudyRow.workload)
                .where(StudyRow.workload_fingerprint == fingerprint, StudyRow.simulated == simulated)
                .order_by(StudyRow.created_at.desc())
                .limit(1)
            )
            found.append(WorkloadSummary(fingerprint, simulated, label or "", count, _utc(when)))
        return Page(tuple(found), total, number, size)


def nights_of(store: Store, fingerprint: str, *, simulated: bool, most: int = 60) -> list[Night]:
    """The newest studies of a workload, oldest first."""
    own = (
        select(TrialRow.throughput)
        .where(
            TrialRow.study_id == StudyRow.id,
            TrialRow.kind == TrialKind.BASELINE.value,
            TrialRow.state == TrialState.MEASURED.value,
        )
        .limit(1)
        .correlate(StudyRow)
        .scalar_subquery()
    )
    with store.reading() as session:
        rows = session.execute(
            select(
                StudyRow.id,
                StudyRow.name,
                StudyRow.created_at,
                StudyRow.state,
                own,
                StudyRow.environment,
                StudyRow.verdict,
            )
            .where(StudyRow.workload_fingerprint == fingerprint, StudyRow.simulated == simulated)
            .order_by(StudyRow.created_at.desc(), StudyRow.id.desc())
            .limit(most)
        ).all()
    return [_night(*row) for row in reversed(rows)]


def study_token(store: Store, study_id: int) -> str:
    """A text that changes whenever a study does: its state, a trial or a step."""
    with store.reading() as session:
        about = session.execute(
            select(StudyRow.state, StudyRow.updated_at).where(StudyRow.id == study_id)
        ).one_or_none()
        if about is None:
            return ""
        trials = session.execute(
            select(TrialRow.state, func.count(), func.max(TrialRow.id))
            .where(TrialRow.study_id == study_id)
            .group_by(TrialRow.state)
            .order_by(TrialRow.state)
        ).all()
        newest = max((row[2] for row in trials), default=None)
        steps = session.scalar(select(func.max(StepRow.id)).where(StepRow.trial_id == newest)) if newest else None
    return f"{about.state}|{about.updated_at}|{[tuple(row) for row in trials]}|{steps}"


def store_token(store: Store) -> str:
    """A text that changes whenever a study begins or ends, a trial begins, a step is stored, or a schedule's night goes on."""
    with store.reading() as session:
        counts = [session.scalar(select(func.max(column))) for column in (StudyRow.id, TrialRow.id, StepRow.id)]
        running = session.scalars(select(StudyRow.id).where(StudyRow.state == "running").order_by(StudyRow.id)).all()
        nights = _schedules_token(session)
    return f"{counts}|{list(running)}|{nights}"


def schedules_token(store: Store) -> str:
    """A text that changes whenever a schedule is added, changed or removed, or a night of one begins, learns something or ends."""
    with store.reading() as session:
        return _schedules_token(session)


def _schedules_token(session: Any) -> str:
    # A night changes only while it is due or runs, and becomes one of those first; the others need not be read.
    about = session.execute(select(func.count(), func.max(ScheduleRow.updated_at)).select_from(ScheduleRow)).one()
    newest = session.scalar(select(func.max(NightRow.id)))
    active = session.execute(
        select(
            NightRow.id,
            NightRow.state,
            NightRow.attempts,
            NightRow.study_id,
            NightRow.canary.is_(null()),
            NightRow.verdict.is_(null()),
        )
        .where(NightRow.state.in_(_ACTIVE_NIGHTS))
        .order_by(NightRow.id)
    ).all()
    return f"{tuple(about)}|{newest}|{[tuple(row) for row in active]}"


def _summaries(session: Any, ids: Sequence[int]) -> list[StudySummary]:
    if not ids:
        return []
    counted = select(TrialRow.study_id, func.count()).where(TrialRow.study_id.in_(ids)).group_by(TrialRow.study_id)
    counts = {row[0]: row[1] for row in session.execute(counted)}
    rows = {row.id: row for row in session.execute(select(*_STUDY).where(StudyRow.id.in_(ids)))}
    return [
        StudySummary(
            id=row.id,
            name=row.name,
            created_at=_utc(row.created_at),
            updated_at=_utc(row.updated_at),
            state=row.state,
            workload=row.workload,
            fingerprint=row.workload_fingerprint,
            n_gpus=row.n_gpus,
            simulated=row.simulated,
            verdict=row.verdict or {},
            trials=counts.get(row.id, 0),
        )
        for row in (rows[i] for i in ids if i in rows)
    ]


def _trials(session: Any, query: Select[Any]) -> list[TrialSummary]:
    rows = session.execute(query).all()
    sums: dict[int, Any] = {}
    ids = [row.id for row in rows]
    for at in range(0, len(ids), 500):
        disturbed = and_(StepRow.invalid.is_not(None), StepRow.settling.is_(False))
        counted = and_(StepRow.invalid.is_(None), StepRow.settling.is_(False))
        found = session.execute(
            select(
                StepRow.trial_id,
                func.sum(case((StepRow.settling, 1), else_=0)),
                func.sum(case((disturbed, 1), else_=0)),
                func.sum(case((counted, 1), else_=0)),
                func.sum(case((StepRow.settling, StepRow.seconds), else_=0.0)),
                func.sum(case((counted, StepRow.seconds), else_=0.0)),
            )
            .where(StepRow.trial_id.in_(ids[at : at + 500]))
            .group_by(StepRow.trial_id)
        )
        sums |= {row[0]: row for row in found}
    return [_trial(row, sums.get(row.id)) for row in rows]


def _trial(row: Any, sums: Any) -> TrialSummary:
    _, settling, disturbed, counted, settling_seconds, counted_seconds = sums or (0, 0, 0, 0, 0.0, 0.0)
    return TrialSummary(
        **trial_facts(row),
        id=row.id,
        study_id=row.study_id,
        settling_steps=int(settling),
        counted_steps=int(counted),
        invalid_steps=int(disturbed),
        settling_seconds=settling_seconds,
        counted_seconds=counted_seconds,
    )


def _night(
    study_id: int,
    name: str,
    created_at: datetime,
    state: str,
    own: float | None,
    environment: Mapping[str, Any],
    verdict: Mapping[str, Any] | None,
) -> Night:
    said = verdict or {}
    best, gain = said.get("best_throughput"), said.get("gain")
    return Night(
        study_id=study_id,
        name=name,
        created_at=_utc(created_at),
        state=state,
        # The verdict's gain is the ratio of both levels, so this is the mean over all launches of the user's command.
        baseline=best / (1 + gain) if best and gain is not None and gain > -1 else own,
        best=best,
        noise=said.get("launch_noise"),
        decision=said.get("decision"),
        versions={key: value for key, value in environment.items() if isinstance(value, str)},
    )


def _within(page: int, total: int, size: int) -> int:
    return min(max(1, page), max(1, -(-total // size)))


def _literal(text: str) -> str:
    """The text in LIKE, where `%` and `_` stand for themselves."""
    for special in (_ESCAPE, "%", "_"):
        text = text.replace(special, _ESCAPE + special)
    return text
