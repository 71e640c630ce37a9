"""A runner that serves measurements that were recorded before, so that tests and benchmarks need no GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.measure.outcome_json import outcome_from_json
from autotune.measure.runner import Event, Order, Outcome, Runner, StageSeen, StepSeen
from autotune.values import (
    AutotuneError,
    Failure,
    FailureClass,
    Phase,
    Point,
)

REPLAYED = "replay of "
"""How `Measurement.work` begins where nothing was measured anew: every display shows it in the place of `full`."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One outcome as it was recorded."""

    label: str
    point: Point
    fresh: bool
    """Whether it had a launch of its own."""
    outcome: Outcome


class ReplayRunner(Runner):
    """Answers every order with what was recorded for its Point: never a figure for one that was not measured.

    Orders for a launch of its own (`Order.fresh`) get what such a launch delivered, all others what the session did; where a
    Point was measured several times, the recordings come in their order and the last one is repeated.
    """

    def __init__(self, recordings: list[Recorded], *, origin: str) -> None:
        """
        Args:
            origin: what was recorded where, such as `h200-2026-11-30`; part of `Measurement.work`.
        """
        self._waiting: dict[tuple[Point, bool], list[Outcome]] = {}
        for recorded in recordings:
            self._waiting.setdefault((recorded.point, recorded.fresh), []).append(recorded.outcome)
        self._origin = origin
        self._stopped = False

    def measure(self, order: Order, watch: Callable[[Event], None]) -> Outcome:
        if self._stopped:
            return Failure(FailureClass.INTERRUPTED, Phase.UNKNOWN, "Order it again.", "stopped by the user", True)
        waiting = self._waiting.get((order.point, order.fresh))
        if not waiting:
            return Failure(
                FailureClass.UNKNOWN,
                Phase.UNKNOWN,
                "Replay only what was recorded, or measure the Point.",
                f"{self._origin} has no {'launch' if order.fresh else 'session measurement'} of this Point",
                False,
            )
        outcome = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        watch(StageSeen("starting"))
        if isinstance(outcome, Failure):
            return outcome
        watch(StageSeen("stepping"))
        for step in outcome.steps:
            watch(StepSeen(step))
        watch(StageSeen("stopping"))
        return replace(outcome, work=f"{REPLAYED}{self._origin}")

    def stop(self, *, now: bool) -> None:
        self._stopped = True

    def close(self) -> None:
        """Nothing was started."""


def read_recordings(path: Path) -> list[Recorded]:
    """The measured Points among the JSON lines that `benchmarks/h200_session.py` writes, in order.

    Raises:
        AutotuneError: a line that is no JSON object, or a Point that is not described in full.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            shown = json.loads(line)
            if shown.get("kind") == "point":
                found.append(
                    Recorded(
                        shown["label"], Point.of(shown["point"]), shown["fresh"], outcome_from_json(shown["outcome"])
                    )
                )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AutotuneError(f"{path}:{number} is no recording of a Point ({error!r})") from error
    return found
