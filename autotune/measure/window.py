"""Which steps of a launch count, and when there are enough of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.measure.runner import StepPlan
from autotune.values import StepRecord

SETTLING = 1
"""Steps at the start of a launch that hold compilation, first allocations and the start of the generation workers."""


def settled(steps: Sequence[StepRecord]) -> tuple[StepRecord, ...]:
    """The steps of one launch with the settling ones marked."""
    return tuple(replace(step, settling=place < SETTLING) for place, step in enumerate(steps))


def enough(steps: Sequence[StepRecord], plan: StepPlan) -> bool:
    """Whether no further step is needed: the last two counted steps agree, or the plan's end is reached.

    A disturbed step is made once more. If that one is disturbed, too, its place in the plan stays empty; the plan ends when
    too few places are left, or when nothing but empty ones came first.
    """
    rated = [step for step in settled(steps) if not step.settling and step.tokens is not None]
    counted = [step for step in rated if step.invalid is None]
    empty = _empty_places(rated)
    if len(counted) + empty >= plan.at_most or empty > plan.at_most - plan.at_least:
        return True
    if not counted and empty >= plan.at_least:
        return True
    if len(counted) < max(2, plan.at_least):
        return len(counted) >= plan.at_least == 1
    last, previous = (speed(step) for step in (counted[-1], counted[-2]))
    return abs(last - previous) <= plan.agreement * max(last, previous)


def _empty_places(rated: Sequence[StepRecord]) -> int:
    """How often a step and the one that repeated it were both disturbed."""
    empty, repeating = 0, False
    for step in rated:
        if step.invalid is None:
            repeating = False
        else:
            empty += repeating
            repeating = not repeating
    return empty


def speed(step: StepRecord) -> float:
    """Tokens per second of a step, over all GPUs."""
    return (step.tokens or 0) / step.seconds
