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
    """Whether no further step is needed: the last two counted steps agree, or the plan's end is reached."""
    counted = [step for step in settled(steps) if not step.settling and step.tokens is not None]
    if len(counted) >= plan.at_most:
        return True
    if len(counted) < max(2, plan.at_least):
        return len(counted) >= plan.at_least == 1
    last, previous = (speed(step) for step in (counted[-1], counted[-2]))
    return abs(last - previous) <= plan.agreement * max(last, previous)


def speed(step: StepRecord) -> float:
    """Tokens per second of a step, over all GPUs."""
    return (step.tokens or 0) / step.seconds
