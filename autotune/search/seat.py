"""Whether a session's engine is the one that the user's own command gets: pure comparison of two measurements of that command.

A session starts its engine with the largest limits that will be wanted, and vLLM sizes its cache, its buffers and its CUDA
graphs by them. Where that shows in the user's own command, the session is started again with smaller limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from autotune.values import Measurement, StepRecord
from autotune.verl import keys

ERRORS = 3.0
"""A difference within so many standard errors is noise."""
LEAST = 0.05
"""Relative; two steps that happen to agree must not make a launch of their own differ from every session."""
LEAST_OF_STEP = 0.01
"""Of the whole step; a phase of a tenth of a second decides nothing."""
POLL_SECONDS = 2.0
"""verl's own poll sees the end of generation so late at most: that much of a difference is chance."""
AT_MOST = 2
"""How often a session is started again with smaller limits; a launch costs minutes."""
KV_BLOCKS = "engine.kv_blocks"
_MEMORY = "memory in use"
_BLOCKS = "KV blocks"
_TRAINING = ("old_log_prob", "ref", "values", "update_critic", "update_actor")
"""Phases in which no engine runs: where they differ, the host does, and generation differs with it."""
_TOKENLESS = frozenset({"update_weights"})
"""Phases whose seconds do not grow with the tokens of a step."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not in the session what it was in a launch of its own."""

    what: str
    own: float
    inside: float
    unit: str

    @property
    def change(self) -> float:
        """Relative."""
        return self.inside / self.own - 1

    def __str__(self) -> str:
        return f"{self.what} {self.inside:,.4g}{self.unit} instead of {self.own:,.4g}{self.unit} ({self.change:+.0%})"


def differences(own: Measurement, inside: Measurement) -> list[Difference]:
    """What differs beyond noise, the largest first.

    Seconds are compared by phase, at the tokens of the session's steps: a launch of its own trains on other prompts.

    Args:
        own: the user's command in a launch of its own.
        inside: the same at the start of a session, on whole steps.
    """
    found = _phases(own, inside)
    for what, unit, one, other in (
        (_BLOCKS, "", own.echo.get(KV_BLOCKS), inside.echo.get(KV_BLOCKS)),
        (_MEMORY, " GiB", _resident(own), _resident(inside)),
    ):
        if not isinstance(one, (int, float)) or not isinstance(other, (int, float)) or min(one, other) <= 0:
            continue
        if abs(other / one - 1) > LEAST:
            found.append(Difference(what, one, other, unit))
    return sorted(found, key=lambda difference: -abs(difference.change))


def reseat(
    own: Measurement, inside: Measurement, ceilings: Mapping[str, int], users: Mapping[str, int], before: int
) -> tuple[str, Mapping[str, int] | None] | None:
    """What to do about a session that has just been started.

    Args:
        ceilings: limits that its engine was started with.
        users: the user's own.
        before: how often it was started again for this.

    Returns:
        None: it measures as a launch of its own does. Else a sentence for the user, and the limits to start again with, half-way
        to the user's own; None in their place: go on with it.
    """
    found = differences(own, inside)
    if not found:
        return None
    told = "; ".join(str(difference) for difference in found[:3])
    text = f"In the session your own command does not run as it does by itself: {told}."
    lower = {key: users.get(key, 0) + max(0, value - users.get(key, 0)) // 2 for key, value in ceilings.items()}
    host = _host(own, inside)
    helps = any(_is_the_engines(difference, host) for difference in found)
    if helps and before < AT_MOST and any(lower[key] < value for key, value in ceilings.items()):
        names = ", ".join(f"{key.rsplit('.', 1)[-1]} {value:,}" for key, value in lower.items())
        return f"{text} The session is started again with an engine of smaller limits ({names}).", lower
    return (
        f"{text} The search goes on: what it finds in a session is compared with your own command in the same session.",
        None,
    )


def _is_the_engines(difference: Difference, host: float) -> bool:
    """Whether an engine of smaller limits could mend a difference."""
    if difference.what == "gen":
        beyond = difference.inside - difference.own * max(1.0, host)
        return beyond > max(LEAST * difference.own, POLL_SECONDS)
    return difference.what == _BLOCKS or (difference.what == _MEMORY and difference.change > 0)


def _host(own: Measurement, inside: Measurement) -> float:
    """How much longer training takes in the session, which has nothing to do with its engine."""
    before = sum(own.phase_seconds.get(name, 0.0) for name in _TRAINING) / _tokens(own)
    after = sum(inside.phase_seconds.get(name, 0.0) for name in _TRAINING) / _tokens(inside)
    return after / before if before > 0 and after > 0 else 1.0


def _tokens(measurement: Measurement) -> float:
    return fmean(step.tokens or 1 for step in measurement.counted) if measurement.counted else 1.0


def _phases(own: Measurement, inside: Measurement) -> list[Difference]:
    if not own.counted or not inside.counted:
        return []
    tokens = fmean(step.tokens or 0 for step in inside.counted)
    step_seconds = inside.step_seconds
    quantum = 0.0 if inside.echo.get(keys.FAST_POLL) is True else POLL_SECONDS
    names = sorted({name for step in own.counted for name in step.phases})
    samples = {name: (_seconds(own.counted, name, tokens), _seconds(inside.counted, name, tokens)) for name in names}
    noise = _spread([group for pair in samples.values() for group in pair])
    found = []
    for name, (one, other) in samples.items():
        before, after = fmean(one), fmean(other)
        if before <= 0 or after <= 0:
            continue
        spread = max(noise, _spread([one, other]))
        error = spread * math.sqrt(1 / len(one) + 1 / len(other))
        apart = abs(after - before)
        least = max(LEAST_OF_STEP * step_seconds, quantum if name == "gen" else 0.0)
        if apart > least and apart / before > max(LEAST, ERRORS * error):
            found.append(Difference(name, before, after, " s"))
    return found


def _seconds(steps: Sequence[StepRecord], phase: str, tokens: float) -> list[float]:
    """Seconds of a phase, each as if its step had had so many tokens."""
    return [
        step.phases.get(phase, 0.0) * (1.0 if phase in _TOKENLESS or not step.tokens else tokens / step.tokens)
        for step in steps
    ]


def _spread(groups: Sequence[Sequence[float]]) -> float:
    """Relative standard deviation within the groups, pooled."""
    repeated = [[math.log(value) for value in group] for group in groups if len(group) > 1 and min(group) > 0]
    freedom = sum(len(group) - 1 for group in repeated)
    return math.sqrt(sum(variance(group) * (len(group) - 1) for group in repeated) / freedom) if freedom else 0.0


def _resident(measurement: Measurement) -> float | None:
    """GiB in use on the fullest GPU, by everybody."""
    return max((gpu.peak_memory_bytes / 2**30 for gpu in measurement.gpus), default=None)
