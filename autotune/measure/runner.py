"""The seam between the tuner and whatever measures: one base class, plain values in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from autotune.values import Failure, Measurement, Point, StepRecord


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How many steps make a measurement. The first step of a launch always settles and is never counted."""

    at_least: int = 2
    at_most: int = 5
    agreement: float = 0.05
    """Counting stops when the last two steps' tokens/s differ by no more than this share."""
    crowding: float = 0.25
    """Share of all CPUs from which on other programs disturb a step, on CPU jobs alone and only while no CPU is idle."""

    @property
    def most_steps(self) -> int:
        """Steps that a launch has to be able to take: the settling one, and every other one twice if it is disturbed."""
        return 1 + 2 * self.at_most

    def __post_init__(self) -> None:
        if not 1 <= self.at_least <= self.at_most:
            raise ValueError(f"a plan needs 1 ≤ at_least ≤ at_most, not {self.at_least} and {self.at_most}")


@dataclass(frozen=True, slots=True)
class Limits:
    """When a launch counts as hung, seconds of wall time. A broken verl often neither exits nor prints."""

    startup: float = 1800.0
    """From the command to the end of the first step."""
    step_floor: float = 300.0
    """Least time allowed for a step."""
    step_factor: float = 5.0
    """Times the longest step seen so far."""
    after_error: float = 180.0
    """After a Python traceback in the log without any later progress (or twice the longest step, if that is more)."""
    after_oom: float = 30.0
    """In a session of several ranks, after one of them printed that it ran out of GPU memory: the others wait for it in a
    collective, and nothing that was ordered will come."""
    exit: float = 60.0
    """From the last step until verl must have ended by itself."""
    terminate: float = 20.0
    """From SIGTERM until SIGKILL."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a runner is asked to measure."""

    label: str
    """Short name, such as `t003`; safe in file names."""
    point: Point
    overrides: tuple[str, ...]
    """Hydra arguments that make the user's command run this Point."""
    run_dir: Path
    """Folder for the log, metrics and echo of this launch; the runner creates it."""
    plan: StepPlan
    fresh: bool = False
    """True: in a launch of its own, with the engine started at these values; finalists are confirmed so."""
    whole: bool = False
    """True: on whole steps made for this order, even where a session could put the Point together from what it knows."""


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A step was finished."""

    step: StepRecord


@dataclass(frozen=True, slots=True)
class StageSeen:
    """The launch entered another stage: `starting`, `stepping`, `stopping`."""

    stage: str


Event: TypeAlias = StepSeen | StageSeen
Outcome: TypeAlias = Measurement | Failure


class Runner(ABC):
    """Measures Points. One at a time; `close` gives back whatever it holds."""

    @abstractmethod
    def measure(self, order: Order, watch: Callable[[Event], None]) -> Outcome:
        """Measures one Point.

        Args:
            order: what to measure.
            watch: called in order, from the calling thread, while the measurement runs.

        Returns:
            A measurement with at least `order.plan.at_least` counted steps, or why there is none. A fault of the
            configuration or of the host is a value, never an exception.
        """

    @abstractmethod
    def stop(self, *, now: bool) -> None:
        """Asks the running measurement to end, from a signal handler or another thread.

        Args:
            now: False: after the step that is running, True: at once. `measure` then returns a Failure of class
                `interrupted`, with everything cleaned up.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends what the runner started; calling it again does nothing."""
