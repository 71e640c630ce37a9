"""What a canary measured and what it means, in the form in which nights keep it.

`NightRecord.canary` is an object:

- `how`: `session` (whole steps of both settings in turns, in one launch of verl) or `launches` (a launch for each of them);
- `pairs`: how many pairs were measured;
- `own`, `best`: the user's command, and the best setting known when the night began (null: none was). Each has its `point`, the
  `throughput` of every pair (tokens/s/GPU), and `seconds`: by quantity (a phase, `rest`, or `step` for all of them) the seconds
  per thousand tokens of every pair; and `failure`, null or why it could not be measured.

`NightRecord.verdict` is an object:

- `decision`: `steady`, `regression`, `faster`, `no_reference` (no night to compare with yet), `not_comparable` (measured in
  another way, or with another script, than every night before) or `failed` (the user's command, or the best setting, could not be
  measured);
- `text`: one sentence for people;
- `phases`: the phases that an alarm names, the weightiest first;
- `tests`: one object for each `subject` (`own`, `best`) and `quantity` with its `change` (of its seconds, as a fraction: 0.06 is
  slower by 6 %), the `band` in which changes are noise, and whether it lies `beyond` it;
- `nights`: how many nights it was compared with;
- `environment`: what changed since those nights, one sentence each.

`ScheduleRecord.reference` is an object: the best setting's `point`, the `overrides` that its script changes (by key), its `gain`
over the user's command when it was confirmed, the `study` that found it, the `slot` of that night, and `script_hash`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from autotune.measure.interference import told_theft
from autotune.search.regression import STEP, NightDecision, Regression, compare
from autotune.service.reference import changes_between, comparable_history, levels_of
from autotune.store.schedules import NightRecord
from autotune.tuner.canary import CanarySeen
from autotune.values import Failure, Measurement, Point

_NAMED = {"own": "your command", "best": "the best setting"}


def canary_json(seen: CanarySeen, own: Point) -> dict[str, Any]:
    """What a canary measured, in the form in which it is kept."""
    shown: dict[str, Any] = {
        "how": "session" if seen.live else "launches",
        "pairs": sum(isinstance(outcome, Measurement) for outcome in seen.own_outcomes),
        "own": _subject(own, seen.own_outcomes),
        "best": None if seen.best is None else _subject(seen.best, seen.best_outcomes),
    }
    return shown


def _subject(point: Point, outcomes: Sequence[Measurement | Failure]) -> dict[str, Any]:
    measured = [outcome for outcome in outcomes if isinstance(outcome, Measurement)]
    failure = next((outcome for outcome in outcomes if isinstance(outcome, Failure)), None)
    rows = [seconds_of(measurement) for measurement in measured]
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        "point": point.as_dict(),
        "throughput": [measurement.throughput for measurement in measured],
        "seconds": {name: [row.get(name, 0.0) for row in rows] for name in names},
        "failure": None if failure is None else failure.to_json(),
    }


def seconds_of(measurement: Measurement) -> dict[str, float]:
    """Seconds per thousand tokens by phase, and of the whole step."""
    tokens = sum(step.tokens or 0 for step in measurement.counted) / max(1, len(measurement.counted)) / 1000
    if tokens <= 0:
        return {}
    return {
        STEP: measurement.step_seconds / tokens,
        **{name: seconds / tokens for name, seconds in measurement.phase_seconds.items()},
    }


def host_of(seen: CanarySeen) -> dict[str, str]:
    """What the host did while the canary was measured: CPU time that the hypervisor took, to 5 % of what was wanted."""
    outcomes = [*seen.own_outcomes, *seen.best_outcomes]
    shares = [told_theft(outcome.echo) for outcome in outcomes if isinstance(outcome, Measurement)]
    told = [share for share in shares if share]
    return {"CPU time taken by the hypervisor": f"about {round(20 * median(told)) * 5} %"} if told else {}


def judge_canary(
    canary: Mapping[str, Any],
    nights: Sequence[NightRecord],
    *,
    environment: Mapping[str, Any],
    script_hash: str,
    simulated: bool,
    since: str | None,
) -> dict[str, Any]:
    """The verdict of a night, in the form in which it is kept.

    Args:
        nights: earlier ones of the schedule, oldest first.
        environment: what tonight found.
        since: when somebody last accepted a change (ISO 8601).
    """
    before = next((night.environment for night in reversed(nights) if night.environment and not night.regressed), {})
    changed = changes_between(before, environment) if before else []
    for subject in ("own", "best"):
        failure = (canary.get(subject) or {}).get("failure")
        if failure is not None:
            text = f"{_NAMED[subject].capitalize()} could not be measured: {failure['class']} in {failure['phase']}."
            return _verdict("failed", text, None, changed)
    history = comparable_history(nights, canary, script_hash=script_hash, simulated=simulated, since=since)
    found = compare(levels_of(canary), history)
    if found.decision is NightDecision.NO_REFERENCE:
        if any(night.canary is not None for night in nights):
            return _verdict(
                "not_comparable",
                "No night before did this work in this way; tonight's figures are what later nights are compared with.",
                found,
                changed,
            )
        return _verdict("no_reference", "The first night: there is nothing to compare it with yet.", found, changed)
    return _verdict(found.decision.value, _told(found), found, changed)


def _verdict(decision: str, text: str, found: Regression | None, changed: Sequence[str]) -> dict[str, Any]:
    return {
        "decision": decision,
        "text": text,
        "phases": [] if found is None else list(found.phases),
        "tests": [
            {
                "subject": test.subject,
                "quantity": test.quantity,
                "change": test.change,
                "band": test.band,
                "beyond": test.slower or test.faster,
            }
            for test in (() if found is None else found.tests)
        ],
        "nights": 0 if found is None else found.nights,
        "environment": list(changed),
    }


def _told(found: Regression) -> str:
    nights = f"{found.nights} {'night' if found.nights == 1 else 'nights'} before"
    if found.decision is NightDecision.REGRESSION:
        worst: dict[str, float] = {}
        for test in found.tests:
            if test.slower:
                worst[test.quantity] = max(worst.get(test.quantity, 0.0), test.change)
        named = [f"{name} by {worst[name]:.1%}" for name in found.phases] or [f"the whole step by {worst[STEP]:.1%}"]
        who = " and ".join(_NAMED[s] for s in dict.fromkeys(test.subject for test in found.tests if test.slower))
        return f"Slower than {nights}, beyond their noise: {', '.join(named)} ({who})."
    if found.decision is NightDecision.FASTER:
        named = list(dict.fromkeys(test.quantity for test in found.tests if test.faster))
        return f"Faster than {nights}, beyond their noise: {', '.join(named)}."
    return f"As fast as {nights}, within noise."
