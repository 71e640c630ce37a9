"""Is tonight slower than the nights before, in which phase, and is that more than noise?

Every night measures the same settings several times in turns. What is compared is the logarithm of seconds per thousand
tokens, by phase: a change of 0.06 is six per cent more time for the same work. How much nights differ by themselves is learned
from the nights before; until there are enough of them, from the spread inside a night, with the wide quantiles of few degrees
of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import fmean, variance
from typing import TypeAlias

from scipy.special import stdtrit  # a quantile of Student's t; scipy.stats would take half a second to import

STEP = "step"
"""Quantity that stands for all phases together."""
FALSE_ALARMS = 0.05
"""Chance of an alarm without cause in `NIGHTS` nights, over all quantities together."""
NIGHTS = 30
LEAST = 0.02
"""Changes below this are of no interest even when they are certain."""
LEAST_SHARE = 0.02
"""A phase that makes less of a step than this is not looked at: nobody would notice."""
BASE_NIGHTS = 10
"""Nights at the start of a level that define it. Later ones only tell about noise: a level that followed every night would
creep along with a slow regression and never see it."""
SURE_AFTER = 2
"""Faster nights in a row after which the level moves up."""
PRIOR_FREEDOM = 3.0
"""How many nights the first guess of the spread between nights counts for."""
PRIOR_DEVIATION = 0.01
DIFFERENCES_WORTH = 2 / 3
"""Degrees of freedom that a difference of neighbours tells, against one that a deviation from the mean would (von Neumann)."""

Levels: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]
"""By subject (`own`, `best`) and quantity (a phase, or `step`): seconds per thousand tokens of every repetition."""


class NightDecision(str, Enum):
    """What a night says against those before."""

    STEADY = "steady"
    REGRESSION = "regression"
    FASTER = "faster"
    NO_REFERENCE = "no_reference"


@dataclass(frozen=True, slots=True)
class PastNight:
    """A night before, as far as it can be compared with tonight."""

    levels: Levels
    decision: NightDecision


@dataclass(frozen=True, slots=True)
class Test:
    """One quantity of one subject against the nights before."""

    subject: str
    quantity: str
    change: float
    """Of its seconds, as a fraction; positive: slower."""
    band: float
    """Changes within ± this are noise."""

    @property
    def slower(self) -> bool:
        """Whether it took longer, beyond noise."""
        return self.change > self.band

    @property
    def faster(self) -> bool:
        """Whether it took less time, beyond noise."""
        return self.change < -self.band


@dataclass(frozen=True, slots=True)
class Regression:
    """What was found."""

    decision: NightDecision
    phases: tuple[str, ...]
    """Phases that an alarm names, the one farthest beyond its band first; empty where only the whole step is slower."""
    tests: tuple[Test, ...]
    nights: int
    """How many nights the level rests on."""


def compare(tonight: Levels, history: Sequence[PastNight]) -> Regression:
    """Compares a night with those before.

    Args:
        history: nights that did the same work in the same way, oldest first.
    """
    base, clean = reference_nights(history)
    looked_at = [
        (subject, quantity)
        for subject, quantities in tonight.items()
        for quantity in quantities
        if _weighs(quantities, quantity) and any(_known(night, subject, quantity) for night in base)
    ]
    if not looked_at:
        return Regression(NightDecision.NO_REFERENCE, (), (), 0)
    level_of_alarm = FALSE_ALARMS / NIGHTS / len(looked_at)
    tests = tuple(_test(subject, quantity, tonight, base, clean, level_of_alarm) for subject, quantity in looked_at)
    slower = sorted((test for test in tests if test.slower), key=lambda test: -test.change / test.band)
    if slower:
        names = tuple(dict.fromkeys(test.quantity for test in slower if test.quantity != STEP))
        return Regression(NightDecision.REGRESSION, names, tests, len(base))
    decision = NightDecision.FASTER if any(test.faster for test in tests) else NightDecision.STEADY
    return Regression(decision, (), tests, len(base))


def reference_nights(history: Sequence[PastNight]) -> tuple[list[Levels], list[list[Levels]]]:
    """The nights that define the level, and those that tell about noise, grouped by the level that they belong to.

    A night that raised an alarm defines nothing. Faster nights become the new level once they come in a row, so that a gain
    is defended, and a single lucky night is not. Slower nights never do.
    """
    groups: list[list[Levels]] = [[]]
    lucky: list[Levels] = []
    for night in history:
        if night.decision is NightDecision.REGRESSION:
            lucky = []
        elif night.decision is NightDecision.FASTER:
            lucky.append(night.levels)
            if len(lucky) >= SURE_AFTER:
                groups.append(lucky)
                lucky = []
        else:
            lucky = []
            groups[-1].append(night.levels)
    return groups[-1][:BASE_NIGHTS], [group for group in groups if group]


def _test(
    subject: str,
    quantity: str,
    tonight: Levels,
    base: Sequence[Levels],
    groups: Sequence[Sequence[Levels]],
    tail: float,
) -> Test:
    known = [night for night in base if _known(night, subject, quantity)]
    reference = fmean(_level(night[subject][quantity]) for night in known)
    change = _level(tonight[subject][quantity]) - reference
    deviation, freedom = _spread(
        [[night[subject][quantity] for night in group if _known(night, subject, quantity)] for group in groups],
        tonight[subject][quantity],
    )
    reach = float(stdtrit(freedom, 1 - tail)) * deviation * math.sqrt(1 + 1 / len(known))
    return Test(subject, quantity, math.expm1(change), max(LEAST, math.expm1(reach)))


def _spread(groups: Sequence[Sequence[Sequence[float]]], tonight: Sequence[float]) -> tuple[float, float]:
    """Standard deviation between nights of a mean over their repetitions, and its degrees of freedom.

    It comes from what nights differ from the night before, so that a level which creeps does not pass for noise; and it is
    never less than what the repetitions inside a night make of it.
    """
    differences: list[float] = []
    for group in groups:
        levels = [_level(samples) for samples in group]
        differences += [later - earlier for earlier, later in pairwise(levels)]
    freedom = DIFFERENCES_WORTH * len(differences)
    squares = freedom * fmean(d * d / 2 for d in differences) if differences else 0.0
    inside = [
        variance([math.log(sample) for sample in samples]) / len(samples)
        for samples in (*(samples for group in groups for samples in group), tonight)
        if len(samples) > 1
    ]
    within = fmean(inside) if inside else 0.0
    guess = max(within, PRIOR_DEVIATION**2)
    between = (PRIOR_FREEDOM * guess + squares) / (PRIOR_FREEDOM + freedom)
    return math.sqrt(max(within, between)), PRIOR_FREEDOM + freedom


def _weighs(quantities: Mapping[str, Sequence[float]], quantity: str) -> bool:
    whole = quantities.get(STEP)
    samples = quantities[quantity]
    if not samples or min(samples) <= 0:
        return False
    return quantity == STEP or not whole or fmean(samples) >= LEAST_SHARE * fmean(whole)


def _known(night: Levels, subject: str, quantity: str) -> bool:
    samples = night.get(subject, {}).get(quantity, ())
    return len(samples) > 0 and min(samples) > 0


def _level(samples: Iterable[float]) -> float:
    return fmean(math.log(sample) for sample in samples)
