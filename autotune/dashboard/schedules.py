"""What the pages of schedules and nights show, as plain values for their templates."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from itertools import islice
from statistics import median
from typing import Any
from zoneinfo import ZoneInfo

from autotune.dashboard import figures
from autotune.dashboard.figures import Figure
from autotune.dashboard.tokens import digest
from autotune.service.timing import Timetable
from autotune.store import queries
from autotune.store import schedules as stored
from autotune.store.queries import Page
from autotune.store.schedules import NightRecord, NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.values import BadInput

CHARTED = 365
"""Nights of one schedule that its picture shows."""
STEP = "step"
"""The quantity that stands for all phases together."""
DECISIONS = {
    "steady": "Steady",
    "regression": "Regression",
    "faster": "Faster",
    "no_reference": "Nothing to compare with yet",
    "not_comparable": "Not comparable",
    "failed": "Failed",
}
"""What each decision of a night is called."""
COMPARED = ("steady", "regression", "faster")
"""Decisions of nights that were compared with those before; the others leave an alarm as it stands."""


@dataclass(frozen=True, slots=True)
class Run:
    """A moment at which a schedule is due."""

    at: datetime
    """UTC."""
    local: str
    """The same in the schedule's zone: `Tue 1 Dec, 02:00`."""


@dataclass(frozen=True, slots=True)
class Tested:
    """One quantity of one subject against the nights before."""

    subject: str
    """`own` or `best`."""
    quantity: str
    """A phase, `rest`, or `step` for all of them."""
    change: float | None
    """Of its seconds, as a fraction; positive: slower."""
    band: float | None
    """Changes within ± this are noise."""
    beyond: bool

    @property
    def slower(self) -> bool:
        """Whether it took longer, beyond noise."""
        return self.beyond and (self.change or 0.0) > 0


@dataclass(frozen=True, slots=True)
class NightLine:
    """A night in a list; tokens/s/GPU."""

    night: NightRecord
    own: float | None
    """Of the user's command: median over the pairs of the canary."""
    best: float | None
    """Of the best setting known when the night began, in the same way."""

    @property
    def kind(self) -> str:
        """The decision of its verdict, a key of `DECISIONS`; empty: it has none."""
        return str((self.night.verdict or {}).get("decision", ""))

    @property
    def decision(self) -> str:
        """The same for people."""
        return DECISIONS.get(self.kind, self.kind)

    @property
    def text(self) -> str:
        """The verdict in a sentence; empty: it has none."""
        return str((self.night.verdict or {}).get("text", ""))

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases that its alarm names, the weightiest first; `step` where only the whole step is slower."""
        if not self.night.regressed:
            return ()
        return tuple(map(str, (self.night.verdict or {}).get("phases") or ())) or (STEP,)

    @property
    def tests(self) -> tuple[Tested, ...]:
        """Every quantity that was compared, those beyond their band first."""
        found = [
            Tested(
                str(test.get("subject", "")),
                str(test.get("quantity", "")),
                _figure(test.get("change")),
                _figure(test.get("band")),
                bool(test.get("beyond")),
            )
            for test in (self.night.verdict or {}).get("tests") or ()
        ]
        return tuple(sorted(found, key=lambda test: not test.beyond))

    @property
    def alarms(self) -> tuple[Tested, ...]:
        """The tests behind its alarm, in the order of its phases."""
        order = {name: at for at, name in enumerate(self.phases)}
        named = [test for test in self.tests if test.slower and test.quantity in order]
        return tuple(sorted(named, key=lambda test: order[test.quantity]))

    @property
    def changed(self) -> tuple[str, ...]:
        """What changed on the machine since the nights that it was compared with, one sentence each, without full stops."""
        return tuple(str(said).rstrip(". ") for said in (self.night.verdict or {}).get("environment") or ())

    @property
    def compared(self) -> int | None:
        """With how many nights it was compared."""
        nights = (self.night.verdict or {}).get("nights")
        return nights if isinstance(nights, int) else None


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """A schedule in a list."""

    schedule: ScheduleRecord
    next: Run | None
    """None: it is paused, or never due."""
    newest: NightLine | None
    """Its newest night, whatever came of it."""
    told: NightLine | None
    """The newest one with a verdict."""
    compared: NightLine | None
    """The newest one that could be compared with those before."""

    @property
    def gain(self) -> float | None:
        """Of the best setting over the user's command, as it was confirmed."""
        return _figure((self.schedule.reference or {}).get("gain"))

    @property
    def alarm(self) -> NightLine | None:
        """The night whose alarm stands; None: the last comparison raised none."""
        return self.compared if self.compared is not None and self.compared.night.regressed else None

    @property
    def simulated(self) -> bool:
        """Whether the figures that are shown for it were made by a double of verl."""
        return any(line is not None and line.night.simulated for line in (self.newest, self.told, self.compared))


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Everything about a schedule."""

    line: ScheduleLine
    runs: tuple[Run, ...]
    """The next ones; while it is paused, those that it would have."""
    trouble: str
    """Why it is never due; empty: it is."""
    figure: Figure | None
    charted: int
    """Nights in the picture."""
    nights: Page[NightLine]
    study_id: int | None
    """Of the study that found the best setting."""
    token: str
    simulated: bool

    @property
    def schedule(self) -> ScheduleRecord:
        return self.line.schedule

    @property
    def told(self) -> NightLine | None:
        """The newest night with a verdict."""
        return self.line.told

    @property
    def until(self) -> str:
        """When the window of that night closes, in the schedule's zone; empty: none runs or is due."""
        if self.now is None:
            return ""
        zone = timezone.utc if self.trouble else ZoneInfo(self.schedule.tz)
        return f"{self.now.until.astimezone(zone):%a %-d %b, %H:%M} {'UTC' if self.trouble else self.schedule.tz}"

    @property
    def now(self) -> NightRecord | None:
        """The night that runs or is due."""
        newest = self.line.newest
        active = (NightState.RUNNING, NightState.DUE)
        return newest.night if newest is not None and newest.night.state in active else None

    @property
    def reference(self) -> Mapping[str, Any]:
        """The best setting; empty: no night has found one."""
        found = self.schedule.reference or {}
        return found if found.get("point") else {}

    @property
    def accepted(self) -> datetime | None:
        """When somebody last accepted a change: nights before it are history, and not compared with."""
        since = (self.schedule.reference or {}).get("since")
        return datetime.fromisoformat(since) if isinstance(since, str) else None

    @property
    def named(self) -> str:
        """Its name as a shell takes it."""
        return shlex.quote(self.schedule.name)


def lines(store: Store, now: datetime | None = None) -> list[ScheduleLine]:
    """Every schedule with its newest nights; as many queries for one as for a hundred."""
    moment = now or datetime.now(timezone.utc)
    found = stored.schedules(store)
    if not found:
        return []
    newest, told = stored.last_nights(store), stored.last_nights(store, list(DECISIONS))
    compared = stored.last_nights(store, COMPARED)
    return [
        ScheduleLine(
            schedule,
            next(iter(_runs(schedule, moment, most=1)), None) if schedule.state == "active" else None,
            _line(newest.get(schedule.id)),
            _line(told.get(schedule.id)),
            _line(compared.get(schedule.id)),
        )
        for schedule in found
    ]


def schedules(store: Store) -> dict[str, Any]:
    """The list of schedules."""
    return {"token": digest(queries.schedules_token(store)), "schedules": lines(store)}


def schedule(store: Store, name: str, *, page: int = 1) -> SchedulePage | None:
    """The page of a schedule; None where there is none of that name."""
    if (
        len(name) > stored.NAME_LENGTH or "\0" in name
    ):  # PostgreSQL takes no NUL, and looking for near names takes its time
        return None
    token = digest(queries.schedules_token(store))
    try:
        record = stored.schedule(store, name)
    except BadInput:
        return None
    recent = [NightLine(night, *levels(night)) for night in stored.nights(store, record.id, most=CHARTED)]
    shown = [line for line in recent if line.own is not None or line.best is not None]
    runs: tuple[Run, ...] = ()
    trouble = ""
    try:
        runs = _runs_or_why(record, datetime.now(timezone.utc), most=3)
    except BadInput as error:
        trouble = str(error)
    listed = stored.nights_page(store, record.id, page=page)
    study = record.reference.get("study") if record.reference else None
    told = next((line for line in reversed(recent) if line.night.verdict), None)
    compared = next((line for line in reversed(recent) if line.kind in COMPARED), None)
    return SchedulePage(
        line=ScheduleLine(
            record,
            runs[0] if runs and record.state == "active" else None,
            recent[-1] if recent else None,
            told,
            compared,
        ),
        runs=runs,
        trouble=trouble,
        figure=figures.nights_figure(shown) if len(shown) > 1 else None,
        charted=len(shown),
        nights=Page(
            tuple(NightLine(night, *levels(night)) for night in listed.rows), listed.total, listed.number, listed.size
        ),
        study_id=queries.study_id(store, study) if isinstance(study, str) else None,
        token=token,
        simulated=any(line.night.simulated for line in recent),
    )


def levels(night: NightRecord) -> tuple[float | None, float | None]:
    """Tokens/s/GPU of the user's command and of the best setting in a night: medians over the pairs of its canary."""
    canary = night.canary or {}
    return _level(canary.get("own")), _level(canary.get("best"))


def slot_text(slot: str) -> str:
    """A slot as people read it: `2026-11-30 02:00`, `by hand, 2026-11-30 09:15 UTC`."""
    found = re.fullmatch(r"(manual )?(\d{4}-\d\d-\d\d)T(\d\d:\d\d)\S*", slot)
    if found is None:
        return slot
    return f"by hand, {found[2]} {found[3]} UTC" if found[1] else f"{found[2]} {found[3]}"


def _line(night: NightRecord | None) -> NightLine | None:
    return None if night is None else NightLine(night, *levels(night))


def _level(side: Any) -> float | None:
    speeds: Sequence[float] = side.get("throughput") or () if isinstance(side, Mapping) else ()
    return median(speeds) if speeds else None


def _figure(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _runs(schedule: ScheduleRecord, now: datetime, *, most: int) -> tuple[Run, ...]:
    try:
        return _runs_or_why(schedule, now, most=most)
    except BadInput:
        return ()  # its page says why


def _runs_or_why(schedule: ScheduleRecord, now: datetime, *, most: int) -> tuple[Run, ...]:
    """The next firings.

    Raises:
        BadInput: the cron expression, the window or the zone cannot be read on this host.
    """
    timetable, zone = _timetable(schedule.cron, schedule.window, schedule.tz), ZoneInfo(schedule.tz)
    return tuple(
        Run(firing.at, f"{firing.at.astimezone(zone):%a %-d %b, %H:%M}")
        for firing in islice(timetable.after(now), most)
    )


@lru_cache(maxsize=256)
def _timetable(cron: str, window: str, tz: str) -> Timetable:
    return Timetable(cron, window, tz)
