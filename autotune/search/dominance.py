"""A Point that asks for at least as much memory as one that did not fit will not fit either. For memory only, never for speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.values import Failure, FailureClass, KnobValue, Phase, Point, Refusal
from autotune.verl import keys
from autotune.verl.knobs import Cost, Direction, Knob, asleep


@dataclass(frozen=True, slots=True)
class Misfit:
    """A Point that was launched and did not fit."""

    point: Point
    failure: Failure


def dominated(point: Point, misfits: Sequence[Misfit], knobs: Mapping[str, Knob]) -> Refusal | None:
    """Why a Point cannot fit given what did not, or None.

    Prevents paying a whole launch for a foregone conclusion. Only knobs that can matter for the phase that failed are
    compared; one whose effect on memory has no direction must be equal.
    """
    for misfit in misfits:
        if misfit.failure.failure_class is FailureClass.OOM_GPU:
            compare = _asks_as_much
        elif misfit.failure.failure_class is FailureClass.VLLM_KV_CACHE:
            compare = _leaves_as_little_cache
        else:
            continue
        if compare(point.as_dict(), misfit, knobs):
            return Refusal(
                "DOMINATED",
                f"it needs at least as much memory as a Point that failed with {misfit.failure.failure_class.value} "
                f"in {misfit.failure.phase.value}",
                tuple(point.changes_from(misfit.point)),
            )
    return None


def _asks_as_much(values: Mapping[str, KnobValue], misfit: Misfit, knobs: Mapping[str, Knob]) -> bool:
    theirs = misfit.point.as_dict()
    phase = misfit.failure.phase
    for key, value in values.items():
        knob = knobs.get(key)
        if knob is None or asleep(key, values) or key == keys.FAST_POLL:
            continue
        if phase is not Phase.UNKNOWN and phase not in knob.phases and knob.cost is Cost.LIVE:
            continue  # a size of another phase: nothing of it is held while this one runs
        if not _at_least(knob, value, theirs.get(key)):
            return False
    return True


def _leaves_as_little_cache(values: Mapping[str, KnobValue], misfit: Misfit, knobs: Mapping[str, Knob]) -> bool:
    theirs = misfit.point.as_dict()
    own_share, their_share = values.get(keys.GPU_MEMORY), theirs.get(keys.GPU_MEMORY)
    if not isinstance(own_share, (int, float)) or not isinstance(their_share, (int, float)) or own_share > their_share:
        return False
    engine = [
        key
        for key in values
        if key in knobs and Phase.GEN in knobs[key].phases and key not in (keys.GPU_MEMORY, keys.FAST_POLL)
    ]
    return all(_at_least(knobs[key], values[key], theirs.get(key)) for key in engine)


def _at_least(knob: Knob, value: KnobValue, other: KnobValue) -> bool:
    if type(value) is type(other) and value == other:
        return True
    if knob.memory is Direction.NONE:
        return False
    mine, others = _demand(knob, value), _demand(knob, other)
    return mine is not None and others is not None and mine >= others


def _demand(knob: Knob, value: KnobValue) -> float | None:
    """Where a value stands in the direction of more memory; None: it cannot be told."""
    sign = 1.0 if knob.memory is Direction.MORE else -1.0
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return sign * value
    return sign * knob.ladder.index(value) if value in knob.ladder else None
