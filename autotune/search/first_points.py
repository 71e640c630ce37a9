"""The Points tried before any sampler has something to learn from."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.search.space import Space
from autotune.values import KnobValue, Point
from autotune.verl import keys
from autotune.verl.settings import canonical
from autotune.verl.workload import Workload

GENEROUS_MICRO_BATCH = 16
"""Where fixed micro-batches usually stop gaining; a guess to start from, never a limit."""


@dataclass(frozen=True, slots=True)
class FirstPoint:
    """A Point with the reason for which it is tried."""

    point: Point
    reason: str


def first_points(space: Space, job: Workload, *, engines: int, asked: list[Point]) -> list[FirstPoint]:
    """Where to start: the hook alone, what the space file asks for, then two recipes. Every Point once, the user's never.

    Args:
        engines: rollout engines that share the trajectories of a step.
        asked: Points of the space file's `try_first`.
    """
    hook = space.with_values({keys.FAST_POLL: True})
    candidates = [FirstPoint(hook, "the generation poll alone")]
    candidates += [
        FirstPoint(space.with_values({keys.FAST_POLL: True}, p), "asked for by the space file") for p in asked
    ]
    candidates.append(
        FirstPoint(
            space.with_values(_wide(space, job, engines), hook), "all sequences admitted, micro-batches of a good size"
        )
    )
    if keys.DYNAMIC in space:
        candidates.append(
            FirstPoint(
                space.with_values({**_wide(space, job, engines), **_dynamic(space, job)}, hook),
                "dynamic batching, three sequences a batch",
            )
        )
    seen = {canonical(space.baseline, space.baseline)}
    chosen = []
    for candidate in candidates:
        known = canonical(candidate.point, space.baseline)
        if known not in seen:
            seen.add(known)
            chosen.append(FirstPoint(known, candidate.reason))
    return chosen


def _wide(space: Space, job: Workload, engines: int) -> dict[str, KnobValue]:
    values: dict[str, KnobValue] = {}
    if keys.MAX_NUM_SEQS in space:
        admitted = [
            c
            for c in space.dimension(keys.MAX_NUM_SEQS).choices
            if isinstance(c, int) and c * engines >= job.trajectories
        ]
        values[keys.MAX_NUM_SEQS] = min(admitted, default=space.dimension(keys.MAX_NUM_SEQS).choices[-1])
    for key, size in (
        (keys.ACTOR_MICRO_BATCH, GENEROUS_MICRO_BATCH),
        (keys.LOG_PROB_MICRO_BATCH, 2 * GENEROUS_MICRO_BATCH),
        (keys.REF_MICRO_BATCH, 2 * GENEROUS_MICRO_BATCH),
    ):
        if key in space:
            values[key] = space.nearest(key, size)
    return values


def _dynamic(space: Space, job: Workload) -> dict[str, KnobValue]:
    values: dict[str, KnobValue] = {keys.DYNAMIC: True}
    for key, sequences in ((keys.ACTOR_TOKENS, 3), (keys.LOG_PROB_TOKENS, 6), (keys.REF_TOKENS, 6)):
        if key in space:
            values[key] = space.nearest(key, sequences * job.max_sequence / job.sequence_parallel)
    return values
