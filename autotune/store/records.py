"""What the store gives back: frozen records, plain values."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from autotune.values import AutotuneError, Point, TrialKind, TrialState

TRANSITIONS: Mapping[TrialState, frozenset[TrialState]] = {
    TrialState.QUEUED: frozenset({TrialState.RUNNING, TrialState.INFEASIBLE, TrialState.FAILED}),
    TrialState.RUNNING: frozenset({TrialState.MEASURED, TrialState.INFEASIBLE, TrialState.FAILED, TrialState.INVALID}),
    TrialState.MEASURED: frozenset(),
    TrialState.INFEASIBLE: frozenset(),
    TrialState.FAILED: frozenset(),
    TrialState.INVALID: frozenset(),
}
"""The only ways in which a trial changes its state."""


class LeaseTaken(AutotuneError):
    """Somebody else took the study: two tuners would measure its Points twice."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who runs a study. It is kept by renewing it, and free once nobody does."""

    token: str
    """Unique to one tuner's hold on one study."""
    host: str
    boot: str
    """Boot of the host, and namespace of pids: a pid means nothing in another one."""
    pid: int
    start: int
    """Clock ticks from the boot to the start of the process."""


class WrongTransition(AutotuneError, ValueError):
    """A trial was to leave a final state, or to skip one: it would have been told twice, or never run."""


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study as stored; times in UTC."""

    id: int
    name: str
    created_at: datetime
    updated_at: datetime
    state: str
    """`running`, `finished`, `stopped` or `failed`."""
    workload: str
    workload_fingerprint: str
    script_path: str
    script_text: str
    n_gpus: int
    simulated: bool
    launch: Mapping[str, Any]
    config: Mapping[str, Any]
    space: Mapping[str, Any]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    verdict: Mapping[str, Any] | None
    lease: Lease | None
    """Who runs it; None: nobody."""
    lease_age: float | None
    """Seconds since the lease was renewed, by the database's clock."""
    trials: int
    """How many trials it has."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial as stored; seconds, GiB, tokens/s/GPU; times in UTC."""

    number: int
    optuna_number: int | None
    kind: TrialKind
    state: TrialState
    point: Point
    overrides: tuple[str, ...]
    origin: str
    source: str | None
    work: str | None
    engine: str | None
    session: str | None
    simulated: bool
    started_at: datetime | None
    ended_at: datetime | None
    startup_seconds: float | None
    wall_seconds: float | None
    world_size: int | None
    throughput: float | None
    mfu: float | None
    step_seconds: float | None
    memory_gb: float | None
    phases: Mapping[str, float]
    echo: Mapping[str, Any]
    gpus: tuple[Mapping[str, Any], ...]
    failure: Mapping[str, Any] | None
    run_dir: str | None
    settling_steps: int
    counted_steps: int
    invalid_steps: int
    """Steps that were disturbed and therefore not counted."""


class Compared(Protocol):
    """What a trial must tell to be compared with the user's own command."""

    @property
    def number(self) -> int: ...
    @property
    def kind(self) -> TrialKind: ...
    @property
    def state(self) -> TrialState: ...
    @property
    def throughput(self) -> float | None: ...
    @property
    def session(self) -> str | None: ...
    @property
    def source(self) -> str | None: ...


_Trial = TypeVar("_Trial", bound=Compared)


def own_command(trials: Sequence[_Trial]) -> _Trial | None:
    """The trial of the user's own command as it is: the measured one, where an earlier launch of it was lost."""
    own = [trial for trial in trials if trial.kind is TrialKind.BASELINE]
    return next((trial for trial in own if trial.state is TrialState.MEASURED), own[-1] if own else None)


def gain_of(trial: Compared, trials: Sequence[Compared]) -> float | None:
    """How much faster a trial was than the user's own command, as a fraction; None: it is that command, or not known.

    What a session measured is compared with the user's command in the same session, measured in the same way and around the
    same time: inside a session every figure is a little off, and a host may become slower or faster while it runs.

    Args:
        trials: of the same study; of those, the user's own command and what sessions measured of it are enough.
    """
    return gains_of([trial], trials)[trial.number]


def gains_of(compared: Sequence[Compared], trials: Sequence[Compared]) -> dict[int, float | None]:
    """`gain_of` for many trials of one study, by number."""
    own, visits = own_command(trials), Visits(trials)
    return {trial.number: _gain(trial, own, visits) for trial in compared}


def _gain(trial: Compared, own: Compared | None, visits: Visits[Compared]) -> float | None:
    if own is None or trial.number == own.number or not trial.throughput or trial.kind is TrialKind.ANCHOR:
        return None
    levels = [own.throughput] if trial.session is None else [other.throughput for other in visits.around(trial)]
    known = [level for level in levels if level]
    return trial.throughput / (sum(known) / len(known)) - 1 if known else None


class Visits(Generic[_Trial]):
    """What sessions measured of the user's own command, ready to be asked for each of their trials."""

    def __init__(self, trials: Sequence[_Trial]) -> None:
        """
        Args:
            trials: of one study, all visits among them.
        """
        self._numbers: dict[str, list[int]] = {}
        self._visits: dict[tuple[str, str | None], list[_Trial]] = {}
        for trial in sorted(trials, key=lambda trial: trial.number):
            if trial.kind is TrialKind.ANCHOR and trial.session is not None:
                self._numbers.setdefault(trial.session, []).append(trial.number)
                self._visits.setdefault((trial.session, trial.source), []).append(trial)

    def around(self, trial: Compared) -> list[_Trial]:
        """The visits that a trial's session made last before the trial and first after it, measured in the same way; one where
        the session made none on the other side, none for a launch of its own.

        A visit is stored behind the trial in whose order it was made, although it was made before that trial's own Point. Only
        the one that ends a session comes after the Point that it is stored behind.
        """
        if trial.session is None:
            return []
        visits = self._visits.get((trial.session, trial.source), [])
        place = bisect_left(visits, trial.number, key=lambda visit: visit.number)
        after = bisect_right(visits, trial.number, key=lambda visit: visit.number)
        left = len(visits) - after
        if left > 0 and (left > 1 or place == 0) and self._stored_behind(trial, visits[after]):
            place, after = after + 1, after + 1
        return [*visits[max(0, place - 1) : place], *visits[after : after + 1]]

    def _stored_behind(self, trial: Compared, visit: Compared) -> bool:
        """Whether nothing but visits was stored between the two."""
        numbers = self._numbers[trial.session or ""]
        between = bisect_left(numbers, visit.number) - bisect_right(numbers, trial.number)
        return between == visit.number - trial.number - 1
