"""What the trials of a study tell of its sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Protocol, TypeVar

from autotune.store.records import Compared
from autotune.values import Source, TrialKind, TrialState


class Timed(Compared, Protocol):
    """What a trial must tell to be placed in time."""

    @property
    def started_at(self) -> datetime | None: ...
    @property
    def ended_at(self) -> datetime | None: ...
    @property
    def wall_seconds(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session: tokens/s/GPU of the user's own command in it, seconds, and numbers of trials."""

    session: str
    points: int
    """Points that it measured, the visits to the user's own command not among them."""
    baseline_throughput: float | None
    """Of the user's own command on whole steps, over all visits."""
    composed_throughput: float | None
    """Of the same, put together from probes like the Points."""
    startup_seconds: float | None
    """From the order for its first Point until it could measure; None: not known."""
    first_trial: int
    last_trial: int


@dataclass(frozen=True, slots=True)
class Visit:
    """A measurement of the user's own command in a session. It was made before its trials were stored."""

    session: str
    number: int
    """Of its first trial."""
    seconds: float
    """That it took, on whole steps and on probes together."""
    stored_at: datetime | None


_Trial = TypeVar("_Trial", bound=Timed)


def sessions_of(trials: Sequence[Timed]) -> list[SessionSummary]:
    """The sessions of a study in the order in which they measured.

    Args:
        trials: of the study, by number.
    """
    members: dict[str, list[Timed]] = {}
    for trial in trials:
        if trial.session is not None:
            members.setdefault(trial.session, []).append(trial)
    return [
        SessionSummary(
            session=session,
            points=sum(t.kind is not TrialKind.ANCHOR and t.state is TrialState.MEASURED for t in own),
            baseline_throughput=_level(own, Source.WHOLE),
            composed_throughput=_level(own, Source.COMPOSED),
            startup_seconds=_startup(session, trials),
            first_trial=own[0].number,
            last_trial=own[-1].number,
        )
        for session, own in members.items()
    ]


def visits_after(trials: Sequence[_Trial]) -> dict[int, list[Visit]]:
    """Visits to the user's own command by the number of the trial that was stored before them.

    They were made while that trial was, before its own Point was measured; or, where that was too short, after it.

    Args:
        trials: of the study, by number.
    """
    found: dict[int, list[Visit]] = {}
    before: int | None = None
    for trial in trials:
        if trial.kind is not TrialKind.ANCHOR:
            before = trial.number
        elif before is not None and trial.session is not None:
            visits = found.setdefault(before, [])
            seconds = trial.wall_seconds or 0.0
            last = visits[-1] if visits else None
            # A visit is stored twice in a row: whole first, then with its probes, whose seconds include those before.
            if trial.source == Source.COMPOSED.value and last is not None and last.session == trial.session:
                visits[-1] = Visit(last.session, last.number, max(last.seconds, seconds), last.stored_at)
            else:
                visits.append(Visit(trial.session, trial.number, seconds, trial.started_at))
    return found


def opener(session: str, trials: Sequence[_Trial]) -> _Trial | None:
    """The trial whose order had the session started; None where that is not known."""
    before: _Trial | None = None
    for trial in trials:
        if trial.session == session and trial.kind is TrialKind.ANCHOR:
            return before if before is not None and before.session == session else None
        if trial.kind is not TrialKind.ANCHOR:
            before = trial
    return None


def _startup(session: str, trials: Sequence[Timed]) -> float | None:
    first = opener(session, trials)
    if first is None or first.started_at is None or first.ended_at is None or first.wall_seconds is None:
        return None
    visits = [visit for visit in visits_after(trials).get(first.number, []) if visit.session == session]
    taken = (first.ended_at - first.started_at).total_seconds()
    # The user's own command on whole steps is what the visit measured, not another measurement.
    itself = first.source == Source.WHOLE.value and any(
        t.kind is TrialKind.ANCHOR and t.source == first.source and t.wall_seconds == first.wall_seconds
        for t in trials
        if t.session == session
    )
    return max(0.0, taken - (0.0 if itself else first.wall_seconds) - sum(visit.seconds for visit in visits[:1]))


def _level(trials: Sequence[Timed], source: Source) -> float | None:
    known = [
        t.throughput
        for t in trials
        if t.kind is TrialKind.ANCHOR and t.source == source.value and t.throughput is not None
    ]
    return fmean(known) if known else None
