"""Whether a session still measures what it measured at its start: pure arithmetic on visits to the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

FACTOR = 3.0
"""A change of the baseline by more than this many spreads is drift."""
LEAST_SPREAD = 0.01
"""Relative; two steps that happen to agree must not make every later one look like drift."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The baseline, measured once more."""

    place: int
    """How many Points the session had measured before."""
    seconds: tuple[float, ...]
    """Of each counted step (or of one phase in it)."""

    def __post_init__(self) -> None:
        if not self.seconds or min(self.seconds) <= 0:
            raise ValueError(f"a visit needs the seconds of at least one step, all above zero, not {self.seconds}")


def spread(visits: Sequence[Visit]) -> float:
    """Relative standard deviation of a step within one visit, pooled over the visits; never below `LEAST_SPREAD`."""
    repeated = [[math.log(second) for second in visit.seconds] for visit in visits if len(visit.seconds) > 1]
    freedom = sum(len(group) - 1 for group in repeated)
    if freedom == 0:
        return LEAST_SPREAD
    pooled = sum(variance(group) * (len(group) - 1) for group in repeated) / freedom
    return max(LEAST_SPREAD, math.sqrt(pooled))


def change(before: Visit, after: Visit) -> float:
    """Relative change of the mean seconds, as a logarithm: 0.1 is about 10 % slower."""
    return math.log(fmean(after.seconds) / fmean(before.seconds))


def differs(before: Visit, after: Visit, noise: float) -> bool:
    """Whether two visits differ by more than `FACTOR` spreads."""
    return abs(change(before, after)) > FACTOR * noise


def drifted(visits: Sequence[Visit]) -> tuple[tuple[int, int], ...]:
    """Stretches of a session that cannot be trusted, as (first Point, one behind the last).

    The first visit is the standard. A stretch goes from the last good visit before to the first bad one; the level of the
    bad one is the new standard, so that a session that has become slower for good is told of once.
    """
    if not visits:
        return ()
    noise = spread(visits)
    found = []
    standard = last = visits[0]
    for visit in visits[1:]:
        if differs(standard, visit, noise):
            found.append((last.place, visit.place))
            standard = visit
        last = visit
    return tuple(stretch for stretch in found if stretch[0] < stretch[1])


def to_measure_again(visits: Sequence[Visit], places: Sequence[int]) -> tuple[int, ...]:
    """Those of the Points at `places` that lie in a stretch that cannot be trusted."""
    stretches = drifted(visits)
    return tuple(place for place in places if any(first <= place < behind for first, behind in stretches))
