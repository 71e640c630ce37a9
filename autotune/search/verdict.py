"""From launches to a decision: is the best Point faster than the user's own command, by how much, and how sure is that?

The unit of evidence is the launch. Steps of one launch share its start, its placement and its neighbours, so that the
spread between steps says nothing about the next launch; the interval comes from launches of the same Point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from scipy.special import stdtrit  # a quantile of Student's t; scipy.stats would take half a second to import

from autotune.values import Decision

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class LaunchSample:
    """One measured launch of one Point at full work."""

    throughput: float
    """Tokens/s/GPU over its counted steps."""
    steps: tuple[float, ...]
    """Tokens/s/GPU of each counted step."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval at 95 % confidence."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the launches say. Gains are fractions: 0.25 means a quarter more tokens per second."""

    decision: Decision
    gain: float | None
    interval: Interval | None
    """Of the gain: the ratio of the two Points' long-run throughputs."""
    best_throughput: float | None
    best_range: Interval | None
    """Where the throughput of one more launch of the best Point is expected."""
    launch_noise: float | None
    """Relative standard deviation between launches of the same Point."""
    reason: str


def launch_noise(groups: Sequence[Sequence[LaunchSample]]) -> tuple[float, int] | None:
    """Pooled standard deviation of log-throughput between launches of the same Point, with its degrees of freedom.

    It is never less than what the steps within the launches alone would make; None: no Point was launched twice.
    """
    repeated = [[math.log(launch.throughput) for launch in group] for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in repeated)
    if freedom == 0:
        return None
    between = sum(variance(group) * (len(group) - 1) for group in repeated) / freedom
    within = [
        variance([math.log(step) for step in launch.steps]) / len(launch.steps)
        for group in groups
        for launch in group
        if len(launch.steps) > 1
    ]
    return math.sqrt(max(between, fmean(within) if within else 0.0)), freedom


def judge(
    baseline: Sequence[LaunchSample],
    best: Sequence[LaunchSample],
    *,
    selected_on: Sequence[LaunchSample] = (),
    meaningful: float = 0.01,
) -> Judgement:
    """Compares the launches of the user's command with those of the best Point.

    Args:
        baseline: all launches of the user's command; it was never selected, so that every one counts.
        best: launches of the best Point made after it was chosen.
        selected_on: its launches from the search. They made it the best, so that they flatter it: they tell about the
            spread between launches and are left out of the gain.
        meaningful: gains below this are no meaningful difference even when they are certain.
    """
    if not baseline:
        raise ValueError("judge() needs at least one launch of the baseline")
    if not best:
        if not selected_on:
            return Judgement(
                Decision.NO_MEANINGFUL_DIFFERENCE,
                None,
                None,
                None,
                None,
                None,
                "no Point but the user's own was measured",
            )
        gain = _mean_log(selected_on) - _mean_log(baseline)
        return Judgement(
            Decision.INDICATIVE, math.expm1(gain), None, math.exp(_mean_log(selected_on)), None, None,
            "the best Point was not measured again after it was chosen, so its gain is flattered by the choice",
        )  # fmt: skip
    gain = _mean_log(best) - _mean_log(baseline)
    level = math.exp(_mean_log(best))
    noise = launch_noise([baseline, [*selected_on, *best]])
    if noise is None:
        return Judgement(
            Decision.INDICATIVE, math.expm1(gain), None, level, None, None,
            "no Point was launched twice, so nothing is known about the spread between launches",
        )  # fmt: skip
    deviation, freedom = noise
    reach = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * deviation
    half = reach * math.sqrt(1 / len(baseline) + 1 / len(best))
    interval = Interval(math.expm1(gain - half), math.expm1(gain + half))
    one_more = reach * math.sqrt(1 + 1 / len(best))
    one_launch = Interval(level * math.exp(-one_more), level * math.exp(one_more))
    if min(_counted(baseline), _counted(best)) < 2:
        decision, reason = Decision.INDICATIVE, "fewer than two full steps of each were counted"
    elif interval.low > 0 and math.expm1(gain) >= meaningful:
        decision, reason = Decision.BETTER, "the whole interval lies above zero"
    elif interval.low > 0:
        decision, reason = Decision.NO_MEANINGFUL_DIFFERENCE, f"a gain below {meaningful:.0%} is not worth a change"
    else:
        decision, reason = (
            Decision.NO_MEANINGFUL_DIFFERENCE,
            "the interval holds zero: launches of one Point differ by as much",
        )
    return Judgement(decision, math.expm1(gain), interval, level, one_launch, deviation, reason)


def _mean_log(launches: Sequence[LaunchSample]) -> float:
    return fmean(math.log(launch.throughput) for launch in launches)


def _counted(launches: Sequence[LaunchSample]) -> int:
    return sum(len(launch.steps) for launch in launches)
