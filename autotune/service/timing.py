"""When a schedule runs: cron expressions and windows read as wall time of one zone, whatever its clocks do.

Everything here is arithmetic on moments that the caller gives; nothing asks what time it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from functools import cached_property
from itertools import chain, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

from autotune.values import BadInput

LONGEST = 100
"""Characters of an expression, a window or the name of a zone; more is no honest one."""
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True)
class Firing:
    """One moment at which a schedule is due, and until when it may run."""

    slot: str
    """The wall time that the cron expression names, such as `2026-11-30T02:00`. A night is known by it, so that an hour
    which comes twice runs once."""
    at: datetime
    """UTC."""
    until: datetime
    """UTC; not after `at` where a change of the clocks leaves nothing of the window."""


@dataclass(frozen=True)
class Timetable:
    """A cron expression and a window in one time zone.

    A wall time that the clocks skip is the moment right after the gap; one that comes twice is the first of both.
    """

    cron: str
    window: str
    tz: str

    def __post_init__(self) -> None:
        """
        Raises:
            BadInput: the expression, the window or the zone cannot be read, or the expression names moments outside the window.
        """
        for option, text in (("--cron", self.cron), ("--window", self.window), ("--tz", self.tz)):
            if len(text) > LONGEST or not text.isascii() or not text.isprintable():
                raise BadInput(f"{option} {text[:LONGEST]!r} cannot be read: at most {LONGEST} plain ASCII characters")
        start, end = self._bounds
        walls = self._walls(datetime(2000, 1, 1))
        first = next(walls, None)
        if first is None:
            raise BadInput(f"--cron {self.cron!r} never comes due")
        # Every day on which it is due, it is due at the same times.
        for wall in chain([first], takewhile(lambda wall: wall.date() == first.date(), walls)):
            if not _inside(wall.time(), start, end):
                raise BadInput(
                    f"--cron {self.cron!r} is due at {wall:%H:%M}, outside the window {self.window}; a run would have no time"
                )
        self._moment(first)

    def after(self, moment: datetime) -> Iterator[Firing]:
        """Firings after a moment, in order."""
        local = moment.astimezone(self._zone).replace(tzinfo=None)
        # Near a change of the clocks wall times are not in the order of moments: begin earlier and drop what was before.
        for wall in self._walls(local - timedelta(hours=4)):
            firing = self._firing(wall)
            if firing.at > moment:
                yield firing

    def open_at(self, moment: datetime) -> Firing | None:
        """The latest firing at or before a moment whose window is open then."""
        latest = None
        for firing in self.after(moment - timedelta(hours=26)):
            if firing.at > moment:
                break
            if firing.until > moment:
                latest = firing
        return latest

    @property
    def longest(self) -> timedelta:
        """Length of the window on an ordinary day."""
        start, end = self._bounds
        day = datetime(2026, 1, 1)
        length = datetime.combine(day, end) - datetime.combine(day, start)
        return length if length > timedelta(0) else length + timedelta(days=1)

    def _firing(self, wall: datetime) -> Firing:
        _, end = self._bounds
        day = wall.date() if wall.time() < end else wall.date() + timedelta(days=1)
        return Firing(f"{wall:%Y-%m-%dT%H:%M}", self._moment(wall), self._moment(datetime.combine(day, end)))

    def _moment(self, wall: datetime) -> datetime:
        """The moment of a wall time."""
        moment = wall.replace(tzinfo=self._zone, fold=0).astimezone(timezone.utc)
        if moment.astimezone(self._zone).replace(tzinfo=None) == wall:
            return moment
        # Skipped by the clocks: both readings of it lie around the gap, and the change itself between them.
        low, high = sorted((moment, wall.replace(tzinfo=self._zone, fold=1).astimezone(timezone.utc)))
        offset = low.astimezone(self._zone).utcoffset()
        while high - low > timedelta(seconds=1):
            middle = low + (high - low) / 2
            low, high = (middle, high) if middle.astimezone(self._zone).utcoffset() == offset else (low, middle)
        return high.replace(microsecond=0)

    def _walls(self, after: datetime) -> Iterator[datetime]:
        """Wall times that the expression names, without a zone, from a minute after `after` on."""
        last = after.replace(tzinfo=timezone.utc)
        while True:
            start = last + timedelta(seconds=1)
            found = [
                wall for trigger in self._triggers if (wall := trigger.get_next_fire_time(None, start)) is not None
            ]
            if not found:
                return
            last = min(found)
            yield last.replace(tzinfo=None)

    @cached_property
    def _triggers(self) -> tuple[CronTrigger, ...]:
        fields = self.cron.split()
        if len(fields) != 5:
            raise BadInput(
                f'--cron {self.cron!r} needs five fields: minute, hour, day of month, month, day of week, such as "0 2 * * *"'
            )
        minute, hour, day, month, weekday = fields
        named = _weekdays(weekday, self.cron)
        # As in cron: where both days are restricted, either of them will do; a field that begins with a star restricts nothing
        # in this sense, so that */2 holds together with the other one.
        either = not day.startswith("*") and not weekday.startswith("*")
        days = [(day, None), ("*", named)] if either else [(day, named)]
        try:
            return tuple(
                CronTrigger(minute=minute, hour=hour, day=d, month=month, day_of_week=w, timezone=timezone.utc)
                for d, w in days
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise BadInput(f"--cron {self.cron!r} cannot be read: {error}") from error

    @cached_property
    def _bounds(self) -> tuple[time, time]:
        found = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)", self.window.strip())
        if found is None:
            raise BadInput(f"--window {self.window!r} is none: write HH:MM-HH:MM, such as 02:00-06:00 or 22:30-05:00")
        start, end = time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4]))
        if start == end:
            raise BadInput(f"--window {self.window!r} has no length")
        return start, end

    @cached_property
    def _zone(self) -> ZoneInfo:
        try:
            return ZoneInfo(self.tz)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise BadInput(
                f"--tz {self.tz!r} is no time zone; write its IANA name, such as Europe/Berlin or UTC"
            ) from error


def _inside(moment: time, start: time, end: time) -> bool:
    return start <= moment < end if start < end else moment >= start or moment < end


def _weekdays(field: str, cron: str) -> str | None:
    """The day-of-week field with names, since the trigger counts from Monday and cron from Sunday; None: every day."""
    if field == "*":
        return None
    days: set[int] = set()
    for part in field.lower().split(","):
        found = re.fullmatch(r"(\*|\w+)(?:-(\w+))?(?:/(\d+))?", part)
        low = 0 if found is None or found[1] == "*" else _weekday(found[1])
        if found is None or low is None or (found[1] == "*" and found[2]):
            raise BadInput(f"--cron {cron!r} cannot be read: {part!r} is no day of the week (0-7 or sun-sat)")
        every = int(found[3]) if found[3] else 1
        last = 6 if found[1] == "*" or (found[3] and not found[2]) else low
        high = _weekday(found[2]) if found[2] else last
        if high is not None and high < low and high == 0:
            high = 7  # sun as the end of the week
        if high is None or high < low or every < 1:
            raise BadInput(f"--cron {cron!r} cannot be read: {part!r} is no range of days")
        days |= {day % 7 for day in range(low, high + 1, every)}
    return ",".join(_DAYS[day] for day in sorted(days))


def _weekday(text: str) -> int | None:
    if text in _DAYS:
        return _DAYS.index(text)
    return int(text) if re.fullmatch("[0-7]", text) else None
