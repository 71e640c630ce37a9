"""What a study knows of its sessions: which Points they take, and how their figures compare with launches of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autotune.measure.bench import same_gradient
from autotune.measure.warm import BaselineVisit, PointPlace
from autotune.search.drift import Visit, to_measure_again
from autotune.store.records import gain_of, own_command
from autotune.tuner.launched import Launched
from autotune.tuner.prepare import Prepared
from autotune.tuner.request import RewardCalls, RunnerName
from autotune.tuner.wording import short_key
from autotune.values import Measurement, Point, Source, StepRecord, TrialKind
from autotune.verl import keys
from autotune.verl.config import integer
from autotune.verl.knobs import Cost
from autotune.verl.live import ENGINE_LIMITS, session_unsupported

FP32_TOLERANCE = 1e-5
BF16_TOLERANCE = 1e-3
"""Loss (absolute) and gradient norm (relative) of one batch differ by no more between packings that train the same."""


def session_ceilings(prepared: Prepared) -> dict[str, int]:
    """The engine limits with which a session starts: the largest that the space holds."""
    ceilings: dict[str, int] = {}
    for dimension in prepared.space.dimensions:
        if dimension.key in ENGINE_LIMITS:
            ceilings[dimension.key] = max(int(choice) for choice in dimension.choices if isinstance(choice, (int, str)))
    own = {key: integer(prepared.config, key) or 0 for key in ENGINE_LIMITS}
    return {key: max(value, own[key]) for key, value in ceilings.items()}


def plan_of(prepared: Prepared) -> list[str]:
    """How the Points of a study will be measured, in sentences for people."""
    request = prepared.request
    if request.runner is RunnerName.COLD:
        return ["Every Point is measured in a launch of its own (--runner cold)."]
    reason = session_unsupported(prepared.config, prepared.stack.verl)
    if reason is not None:
        return [f"Every Point needs a launch of its own: {reason}."]
    knobs = prepared.knobs
    names = [dimension.key for dimension in prepared.space.dimensions]
    live = [key for key in names if knobs[key].cost is Cost.LIVE]
    below = [key for key in names if knobs[key].live_below]
    dear = [key for key in names if key not in live and key not in below]
    told = [
        f"One launch of verl measures many Points: {_names(live)} change while it runs"
        + (f", and so does {_names(below)} below your own value." if below else ".")
    ]
    told.append(
        "Your reward is called in whole steps; probes of generation replay its scores and seconds (--reward live calls it there)."
        if request.reward is RewardCalls.REPLAY
        else "Your reward is called in every step that generates (--reward live)."
    )
    if dear:
        told.append(
            f"A launch of their own, after those: Points that change {_names(dear)}"
            + (f", or that raise {_names(below)}." if below else ".")
        )
    told.append(
        f"Your command is launched as it is at the start; at the end it and the best Point are launched "
        f"{request.confirmations} more times each."
    )
    return told


def _names(keys_: Sequence[str]) -> str:
    return ", ".join(short_key(key) for key in keys_)


def comparable(run: Launched, launched: Sequence[Launched]) -> float:
    """Tokens/s/GPU of a measured launch, at the level of the user's command in a launch of its own; nan: nothing was measured.

    Inside a session every figure is a little off (composing, the engine's larger limits); relative to the user's command in
    the same session it is not.
    """
    measured = math.nan if run.throughput is None else run.throughput
    own = own_command(launched)
    if run.session is None or own is None or own.throughput is None:
        return measured
    gain = gain_of(run, launched)
    return measured if gain is None else own.throughput * (1 + gain)


def adrift(visits: Sequence[BaselineVisit], places: Sequence[PointPlace]) -> frozenset[str]:
    """Labels of the orders whose figures lie in a stretch of their session that cannot be trusted."""
    labels: set[str] = set()
    for session in {visit.session for visit in visits}:
        seen = [
            Visit(visit.place, tuple(step.seconds for step in visit.measurement.counted))
            for visit in visits
            if visit.session == session and visit.measurement.counted
        ]
        inside = [place for place in places if place.session == session]
        again = set(to_measure_again(seen, [place.place for place in inside]))
        labels |= {place.label for place in inside if place.place in again}
    return frozenset(labels)


def gradient_equal(launched: Sequence[Launched], winner: Point, config: Mapping[str, object]) -> bool | None:
    """Part (b) of equivalence: loss and gradient norm of every mini-batch on the same frozen trajectories.

    None: the winner and the user's command were not both trained on them in one session.
    """
    tolerance = FP32_TOLERANCE if _trains_in_fp32(config) else BF16_TOLERANCE
    found: list[bool] = []
    for run in launched:
        outcome = run.outcome
        if run.point != winner or not isinstance(outcome, Measurement) or outcome.session is None:
            continue
        anchor = _frozen_baseline(launched, outcome.session)
        if anchor is not None and outcome.source is Source.COMPOSED and outcome.counted:
            found.append(same_gradient(anchor, outcome.counted[-1], tolerance))
    return all(found) if found else None


def _frozen_baseline(launched: Sequence[Launched], session: str) -> StepRecord | None:
    """The last frozen step of the user's command in a session."""
    for run in reversed(launched):
        outcome = run.outcome
        if run.kind is not TrialKind.ANCHOR or not isinstance(outcome, Measurement):
            continue
        if outcome.session == session and outcome.source is Source.COMPOSED and outcome.counted:
            return outcome.counted[-1]
    return None


def _trains_in_fp32(config: Mapping[str, object]) -> bool:
    kind = config.get(f"{keys.ACTOR}.fsdp_config.mixed_precision.param_dtype", "bf16")
    return str(kind) in ("fp32", "float32")
