"""The launches of a study: as its tuner holds them, and as they are read back from the store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.store.records import TrialRecord
from autotune.store.store import Store
from autotune.values import (
    Failure,
    FailureClass,
    GpuUsage,
    Measurement,
    Phase,
    Point,
    Source,
    StepRecord,
    TrialKind,
    TrialState,
)

RETRIES = 1
"""How often a Point is launched again after a failure that is not its own."""
CAUSE_UNKNOWN = frozenset({FailureClass.UNKNOWN, FailureClass.RAY_ACTOR_DIED})
"""Failures whose log does not say why, such as a process that something killed: only a second one is the Point's."""
LOST_AT_MOST = 5
"""How often a Point is launched again after launches that were killed or stopped: one that takes its host down with it
would otherwise be tried for ever."""
_UNTOLD = Failure(FailureClass.UNKNOWN, Phase.UNKNOWN, "", "", False)
"""Of a trial that ended without a reason."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch that has ended."""

    number: int
    optuna_number: int | None
    kind: TrialKind
    point: Point
    outcome: Measurement | Failure
    state: TrialState
    wall_seconds: float
    """NaN where it is not known."""

    @property
    def throughput(self) -> float | None:
        """Tokens/s/GPU; None where nothing was measured."""
        return self.outcome.throughput if isinstance(self.outcome, Measurement) else None

    @property
    def session(self) -> str | None:
        """The session that measured it; None: it had a launch of its own, or measured nothing."""
        return self.outcome.session if isinstance(self.outcome, Measurement) else None

    @property
    def source(self) -> str | None:
        """How its seconds came about; None where nothing was measured."""
        return self.outcome.source.value if isinstance(self.outcome, Measurement) else None

    @property
    def not_tried(self) -> bool:
        """Whether arithmetic refused it when its turn came, at no cost."""
        return isinstance(self.outcome, Failure) and self.outcome.not_tried

    @property
    def lost(self) -> bool:
        """Whether it was killed or stopped, so that nothing is known about its Point."""
        return isinstance(self.outcome, Failure) and self.outcome.failure_class is FailureClass.INTERRUPTED


def may_repeat(attempts: Sequence[Launched]) -> bool:
    """Whether a Point that was launched like this may be launched once more; never after a failure of its own."""
    if not attempts:
        return True
    last = attempts[-1].outcome
    if not isinstance(last, Failure) or not (last.retryable or last.failure_class in CAUSE_UNKNOWN):
        return False
    lost = sum(attempt.lost for attempt in attempts)
    return lost <= LOST_AT_MOST and len(attempts) - lost <= RETRIES


def stored_launches(store: Store, study_id: int) -> list[Launched]:
    """The launches of a study that have ended, by number."""
    return [
        Launched(
            trial.number,
            trial.optuna_number,
            trial.kind,
            trial.point,
            _outcome(trial, store.steps(study_id, trial.number)),
            trial.state,
            math.nan if trial.wall_seconds is None else trial.wall_seconds,
        )
        for trial in store.trials(study_id)
        if trial.state not in (TrialState.QUEUED, TrialState.RUNNING)
    ]


def _outcome(trial: TrialRecord, steps: Sequence[StepRecord]) -> Measurement | Failure:
    if trial.state is not TrialState.MEASURED:
        return Failure.from_json(trial.failure) if trial.failure else _UNTOLD
    return Measurement(
        steps=tuple(steps),
        world_size=trial.world_size or 1,
        source=Source(trial.source),
        work=trial.work or "full",
        engine=trial.engine or "cold",
        session=trial.session,
        startup_seconds=math.nan if trial.startup_seconds is None else trial.startup_seconds,
        wall_seconds=math.nan if trial.wall_seconds is None else trial.wall_seconds,
        echo=trial.echo,
        gpus=tuple(GpuUsage(**gpu) for gpu in trial.gpus),
        simulated=trial.simulated,
    )
