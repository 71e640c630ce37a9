"""What nights are compared with, and how it moves: up, once a gain was confirmed; never down by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from autotune.search.regression import Levels, NightDecision, PastNight
from autotune.store.schedules import NightRecord
from autotune.values import Decision, KnobValue, Point


def known_best(reference: Mapping[str, Any] | None, own: Point, script_hash: str) -> Point | None:
    """The best setting of earlier nights, where it still is one of tonight's search space.

    None: there is none, or the script has changed since, or the space has other knobs now.
    """
    if not reference or reference.get("script_hash") != script_hash or not reference.get("point"):
        return None
    point = Point.of(reference["point"])
    return point if point.as_dict().keys() == own.as_dict().keys() else None


def moved_up(
    reference: Mapping[str, Any] | None,
    *,
    verdict: Mapping[str, Any],
    point: Point | None,
    known: Point | None,
    gain_tonight: float | None,
    study: str,
    slot: str,
    script_hash: str,
) -> dict[str, Any] | None:
    """The reference after a night; None: it stays.

    Only a setting that was confirmed as better than the user's command, and is surely better than the best one known, takes
    that one's place: the lower end of its interval must lie above what the known one gains tonight.

    Args:
        verdict: of tonight's study.
        point: the best Point of that study.
        known: the best setting when the night began.
        gain_tonight: of `known` over the user's command, as tonight's canary measured it; None: it was not measured.
    """
    interval = verdict.get("interval")
    if point is None or point == known or verdict.get("decision") != Decision.BETTER.value or not interval:
        return None
    if known is not None:
        level = gain_tonight if gain_tonight is not None else (reference or {}).get("gain")
        if level is not None and interval[0] <= level:
            return None
    emitted = verdict.get("emitted") or {}
    overrides: Mapping[str, KnobValue] = emitted.get("overrides") or {}
    return {
        **({"since": (reference or {}).get("since")} if (reference or {}).get("since") else {}),
        "point": point.as_dict(),
        "overrides": {key: overrides[key] for key in emitted.get("changed", ()) if key in overrides},
        "gain": verdict.get("gain"),
        "interval": list(interval),
        "study": study,
        "slot": slot,
        "script_hash": script_hash,
    }


def comparable_history(
    nights: Sequence[NightRecord],
    canary: Mapping[str, Any],
    *,
    script_hash: str,
    simulated: bool,
    since: str | None,
) -> list[PastNight]:
    """The earlier nights that did tonight's work in tonight's way, oldest first.

    Args:
        nights: oldest first.
        canary: what tonight measured.
        since: ISO 8601 of the moment at which somebody accepted a change; nights before it are history.
    """
    found = []
    for night in nights:
        past, verdict = night.canary, night.verdict
        if past is None or verdict is None or night.simulated is not simulated or night.script_hash != script_hash:
            continue
        if since is not None and night.planned_at.isoformat() < since:
            continue
        if past["how"] != canary["how"] or past["own"]["point"] != canary["own"]["point"]:
            continue
        levels = levels_of(past)
        best, now = past.get("best"), canary.get("best")
        if best is None or now is None or best["point"] != now["point"]:
            levels = {subject: level for subject, level in levels.items() if subject != "best"}
        if levels:
            decision = verdict["decision"]
            judged = decision in (NightDecision.REGRESSION.value, NightDecision.FASTER.value)
            found.append(PastNight(levels, NightDecision(decision) if judged else NightDecision.STEADY))
    return found


def levels_of(canary: Mapping[str, Any]) -> Levels:
    """The figures of a canary as they are compared; subjects that could not be measured are left out."""
    return {
        subject: canary[subject]["seconds"]
        for subject in ("own", "best")
        if canary.get(subject) and canary[subject].get("seconds") and not canary[subject].get("failure")
    }


def gain_of_best(canary: Mapping[str, Any] | None) -> float | None:
    """How much faster the best setting was than the user's command, over the pairs of a canary; None: not measured."""
    own, best = (canary or {}).get("own"), (canary or {}).get("best")
    if not own or not best or not own["throughput"] or not best["throughput"]:
        return None
    return math.exp(fmean(map(math.log, best["throughput"])) - fmean(map(math.log, own["throughput"]))) - 1


def changes_between(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between the environments of two nights, one sentence each."""
    told = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old != new:
            told.append(f"{name}: {old if old is not None else 'none'} → {new if new is not None else 'none'}")
    return told
