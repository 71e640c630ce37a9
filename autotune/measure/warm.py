"""The warm runner: one verl launch measures many Points; what it cannot change while it runs goes to a cold runner."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from autotune.measure.bench import Bench, LongestStep, Setting
from autotune.measure.cold import ColdJob
from autotune.measure.runner import Event, Limits, Order, Outcome, Runner, StageSeen, StepPlan
from autotune.measure.session import FROZEN, GENERATION, INTERRUPTED, REPLAY, WHOLE, Reward, Session, StepFailed
from autotune.values import Failure, FailureClass, Measurement, MemoryCheck, Point
from autotune.verl import keys
from autotune.verl.config import FlatConfig, integer
from autotune.verl.knobs import Knob
from autotune.verl.live import ENGINE_LIMITS, is_live, session_overrides, session_unsupported
from autotune.verl.loads import DeviceMemory, Loads, Peak

BASELINE_EVERY = 10
"""Points after which the baseline is measured again."""
MemoryRule: TypeAlias = Callable[[Loads, Sequence[Peak], DeviceMemory], Failure | None]
"""The failure that a setting is expected to end with, given what others took; None: it may be tried."""
SeatRule: TypeAlias = Callable[
    [Measurement, Measurement, Mapping[str, int], Mapping[str, int], int], tuple[str, Mapping[str, int] | None] | None
]
"""From the baseline in a launch of its own and in a session just started, the limits of the session's engine and the user's
own, and how often it was started again for this: None, or a sentence for the user and the limits to start it again with (None:
go on)."""


@dataclass(frozen=True, slots=True)
class BaselineVisit:
    """The baseline, measured at some place of a session."""

    session: str
    place: int
    """Points that this session had measured before."""
    measurement: Measurement
    """On whole steps."""
    composed: Measurement
    """Put together from probes like every other Point: the difference is what composing does to the figures."""


@dataclass(frozen=True, slots=True)
class PointPlace:
    """Where in which session a Point was measured."""

    session: str
    place: int
    label: str
    """Of its order."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a move costs, mean seconds over those that were made; nan: none was."""

    launch: float
    """From the command until the session takes its first order."""
    first_step: float
    whole_step: float
    frozen_step: float
    generation_step: float


class WarmRunner(Runner):
    """Measures Points in a session that it opens when the first one comes (`autotune.measure.bench` says how).

    The first act of a session is the baseline, whole; it comes again after `baseline_every` Points and before the session is
    retired. After a Point that failed, the session must repeat the baseline's gradient, or it is ended and started again. A
    session that dies takes only the Point with it that was running.
    """

    def __init__(
        self,
        job: ColdJob,
        cold: Runner,
        *,
        baseline: Point,
        configure: Callable[[Point], FlatConfig],
        folder: Path,
        ceilings: Mapping[str, int] | None = None,
        knobs: Mapping[str, Knob] | None = None,
        verl_version: str | None = None,
        limits: Limits | None = None,
        baseline_every: int = BASELINE_EVERY,
        reward: Reward = REPLAY,
        predicted_oom: MemoryRule | None = None,
        reseat: SeatRule | None = None,
    ) -> None:
        """
        Args:
            job: the user's command.
            cold: gets the Points that need a launch of their own; the session is retired before.
            baseline: the user's own Point.
            configure: the flat configuration of a Point, interpolated followers included.
            folder: where sessions put their logs.
            ceilings: largest planned values of the engine's limits. A Point above them has the session started again.
            knobs: catalogue of the release.
            verl_version: None: as the reference release.
            reward: what generation probes do with the user's reward: `live` or `replay`.
            predicted_oom: asked before a Point starts on several ranks, where running out of memory ends the session. On one
                rank the session survives that, and the Point is tried.
            reseat: asked once a session has measured the baseline, where `expect` has been called.
        """
        self._job = job
        self._cold = cold
        self._baseline = baseline
        self._configure = configure
        self._folder = folder
        self._ceilings = dict(ceilings or {})
        self._too_much: dict[str, int] = {}
        self._knobs = knobs
        self._limits = limits or Limits()
        self._every = baseline_every
        self._reward = reward
        self._predicted_oom = predicted_oom
        self._peaks: list[Peak] = []
        self._reseat = reseat
        self._reseats = 0
        self._seated = False
        self._expected: Measurement | None = None
        self._say: Callable[[str], None] = lambda text: None
        self.unsupported: str | None = session_unsupported(job.config, verl_version)
        """Why there will be no session, so that every Point goes to the cold runner; None: there will."""
        self.baselines: list[BaselineVisit] = []
        """Every measurement of the baseline in a session, for `autotune.search.drift`."""
        self.places: list[PointPlace] = []
        """Every other Point that a session measured, in order."""
        self._stop_soon = threading.Event()
        self._stop_now = threading.Event()
        self._bench: Bench | None = None
        self._place = 0
        self._since_baseline = 0
        self._doubt: StepFailed | None = None
        self._launches: list[float] = []
        self._spent: dict[str, list[float]] = {}

    # -- the seam --------------------------------------------------------------------------------------------------------

    def stop(self, *, now: bool) -> None:
        (self._stop_now if now else self._stop_soon).set()
        self._cold.stop(now=now)

    def close(self) -> None:
        self._end_session()
        self._cold.close()

    def expect(self, measurement: Measurement, say: Callable[[str], None]) -> None:
        """Takes the baseline in a launch of its own, with which sessions are compared that start from now on.

        Args:
            say: is told what the user should know of it.
        """
        self._expected = measurement
        self._say = say

    def is_live(self, point: Point) -> bool:
        """Whether a session measures this Point. Limits above the session's are no obstacle: it is started again with them."""
        if self.unsupported is not None:
            return False
        for key, value in self._too_much.items():
            wanted = integer(point.as_dict(), key)
            if wanted is not None and wanted >= value and wanted > (integer(self._job.config, key) or 0):
                return False  # no engine started with so much
        return is_live(point.changes_from(self._baseline), utilisation=self._utilisation(), knobs=self._knobs)

    @property
    def prices(self) -> Prices:
        """What moves have cost so far."""

        def mean(values: list[float]) -> float:
            return fmean(values) if values else math.nan

        kinds = (self._spent.get(name, []) for name in ("first", WHOLE, FROZEN, GENERATION))
        return Prices(mean(self._launches), *(mean(values) for values in kinds))

    def measure(self, order: Order, watch: Callable[[Event], None]) -> Outcome:
        if order.fresh or not self.is_live(order.point):
            self.retire(order.plan)
            return self._cold.measure(order, watch)
        order.run_dir.mkdir(parents=True, exist_ok=True)
        outcome = self._measure(order, watch)
        if self._bench is not None and (self._bench.session.lost or self._stop_now.is_set()):
            self._end_session()
        return self._cold.measure(order, watch) if outcome is None else outcome

    def revisit(self, plan: StepPlan) -> None:
        """Measures the baseline again if Points were measured since it was last."""
        if self._bench is not None and self._since_baseline and not self._stopping():
            self._visit(plan, None)

    def retire(self, plan: StepPlan) -> None:
        """Ends the session, after a last visit to the baseline."""
        self.revisit(plan)
        self._end_session()

    def longest_seconds(self) -> float | None:
        """About what `longest` takes, seconds; None: nothing would be measured."""
        frozen = self._spent.get(FROZEN, [])
        if self._bench is None or self._bench.device is None or not frozen:
            return None
        return fmean(frozen) * self._bench.stretch(self._setting(self._baseline))

    def longest(self, point: Point) -> MemoryCheck | None:
        """Trains once at a Point with every trajectory as long as the job allows, in the session that is running: whether it
        fits into the GPUs then, too. On several ranks, one that does not fit ends the session.

        Returns:
            None: no session is running, or not one for this Point; or it does not tell how much memory it takes; or the step
            failed for another reason than memory (trajectories with pictures, a process that died, the user).
        """
        bench = self._bench
        device = None if bench is None else bench.device
        if bench is None or device is None or not self.is_live(point) or self._beyond(point):
            return None
        setting, name = self._setting(point), bench.session.id
        rule = self._predicted_oom if self._job.world_size > 1 else None
        while rule is not None:
            refused = rule(bench.longest_loads(setting), bench.peaks, device)
            if refused is None:
                break
            on_the_way = bench.approach_longest(setting, lambda loads: rule(loads, bench.peaks, device) is None)
            if isinstance(on_the_way, StepFailed):
                self._end_session()
                return None
            if on_the_way is None or self._stopping():
                return MemoryCheck(point, name, 0, None, device.outside, device.total, refused)
        found = bench.longest(setting)
        if isinstance(found, LongestStep):
            return MemoryCheck(point, name, found.tokens, found.peak, found.device.outside, found.device.total)
        if found is None:
            return None
        if not found.survived:
            self._end_session()
        elif found.failure is not INTERRUPTED:
            self._doubt = found
        if found.failure.failure_class is not FailureClass.OOM_GPU:
            return None
        return MemoryCheck(point, name, 0, None, device.outside, device.total, found.failure)

    # -- Points ----------------------------------------------------------------------------------------------------------

    def _measure(self, order: Order, watch: Callable[[Event], None]) -> Measurement | Failure | None:
        """What the session measured; None: no session can be had."""
        first = self._ready(order, watch)
        bench = self._bench
        if isinstance(first, Failure) or bench is None:
            return first
        where = {"session": bench.session.id, "log": str(bench.session.log), "point": order.point.as_dict()}
        (order.run_dir / "session.json").write_text(json.dumps(where, indent=1), encoding="utf-8")
        if first is not None and order.point == self._baseline:
            watch(StageSeen("stopping"))
            return first
        too_large = self._too_large(bench, order.point)
        if too_large is not None:
            return too_large
        watch(StageSeen("stepping"))
        found = bench.measure(self._setting(order.point), order.plan, watch, whole=order.whole)
        if isinstance(found, StepFailed):
            if found.survived and found.failure is not INTERRUPTED:
                self._doubt = found
            return found.failure
        watch(StageSeen("stopping"))
        self.places.append(PointPlace(bench.session.id, self._place, order.label))
        self._place += 1
        self._since_baseline += 1
        return found

    def _too_large(self, bench: Bench, point: Point) -> Failure | None:
        """Why the Point is not tried: it would take the session with it.

        A prediction from the baseline alone is a guess, and the better a Point is the farther it lies from the baseline. Where
        it speaks against one, smaller batches are tried first, as large as may be, so that it becomes knowledge.
        """
        rule, device = self._predicted_oom, bench.device
        if rule is None or self._job.world_size == 1 or device is None:
            return None
        setting, baseline = self._setting(point), self._setting(self._baseline)
        while True:
            failure = rule(bench.loads(setting), bench.peaks, device)
            if failure is None or self._stopping():
                return failure
            if not bench.approach(
                setting, baseline, failure.phase.value, lambda loads: rule(loads, bench.peaks, device) is None
            ):
                return failure

    def _ready(self, order: Order, watch: Callable[[Event], None]) -> Measurement | Failure | None:
        """Sees to a session that measures as it did at its start.

        Returns:
            The baseline's measurement where it was made on the way; why there is no session that measures; None: nothing was
            measured, and where there is no session either, none can be had.
        """
        if self._stopping():
            return INTERRUPTED
        if not self.is_live(order.point):
            return None  # not any more: its session was started again with smaller limits
        if self._above_ceilings(order.point) or (self._doubt is not None and not self._unharmed()):
            self._end_session()
        if self._bench is None:
            watch(StageSeen("starting"))
            self._open()
            if self._bench is None:
                return INTERRUPTED if self._stopping() else None
        elif self._since_baseline < self._every:
            return None
        tell = watch if order.point == self._baseline else None
        if tell is not None:
            tell(StageSeen("stepping"))
        found = self._visit(order.plan, tell)
        if not isinstance(found, Failure):
            if self._seat_is_good(found):
                return found
            self._end_session()
            return self._ready(order, watch)
        self._end_session()
        # What befell the baseline is no property of another Point: that one is tried again.
        return found if order.point == self._baseline else replace(found, retryable=True)

    def _visit(self, plan: StepPlan, watch: Callable[[Event], None] | None) -> Measurement | Failure:
        bench = self._bench
        assert bench is not None
        found = bench.baseline(self._setting(self._baseline), plan, watch)
        if isinstance(found, StepFailed):
            return found.failure
        whole, composed = found
        self.baselines.append(BaselineVisit(bench.session.id, self._place, whole, composed))
        self._since_baseline = 0
        return whole

    def _seat_is_good(self, inside: Measurement) -> bool:
        """Whether to go on in a session that was just started; its limits are smaller otherwise."""
        if self._reseat is None or self._expected is None or self._seated:
            return True
        users = {key: integer(self._job.config, key) or 0 for key in self._ceilings}
        ceilings = {key: max(value, users[key]) for key, value in self._ceilings.items()}
        decided = self._reseat(self._expected, inside, ceilings, users, self._reseats)
        if decided is not None:
            self._say(decided[0])
            if decided[1] is not None:
                self._reseats += 1
                for key, value in decided[1].items():
                    self._too_much[key] = min(value + 1, self._too_much.get(key, value + 1))
                self._ceilings = dict(decided[1])
                return False
        self._seated = True
        return True

    def _unharmed(self) -> bool:
        """Whether the session still computes what it did before a Point failed in it. Where that was in generation, the
        baseline is measured whole besides."""
        doubt, self._doubt = self._doubt, None
        if self._bench is None:
            return True
        if doubt is not None and doubt.in_generation:
            self._since_baseline = self._every
        return self._bench.repeats(self._setting(self._baseline))

    # -- sessions --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Opens a session. Where the largest limits are too much for an engine, one with the user's own is tried; where that
        does not start either, there will be no session any more."""
        while self._bench is None and self.unsupported is None and not self._stopping():
            overrides = session_overrides(self._job.config, self._ceilings)
            session = Session(self._job, overrides, folder=self._folder, limits=self._limits)
            failure = session.open(self._stop_now.is_set)
            if failure is None:
                self._launches.append(session.startup_seconds)
                self._place = self._since_baseline = 0
                self._bench = Bench(
                    session,
                    world_size=self._job.world_size,
                    simulated=self._job.simulated,
                    stopping=self._stopping,
                    stop_now=self._stop_now.is_set,
                    reward=self._reward,
                )
                self._bench.spent = self._spent
                self._bench.peaks = self._peaks
            elif self._ceilings:
                self._too_much = {
                    key: min(value, self._too_much.get(key, value)) for key, value in self._ceilings.items()
                }
                self._ceilings = {}
            elif failure.failure_class is not FailureClass.INTERRUPTED:
                self.unsupported = f"a session did not start ({failure.evidence}); see {session.log}"

    def _end_session(self) -> None:
        if self._bench is not None:
            self._bench.session.close(now=self._stop_now.is_set())
            self._bench = None
        self._doubt = None

    def _above_ceilings(self, point: Point) -> bool:
        """Whether the Point is above the limits that the engine was started with; the next one starts with more."""
        beyond = self._beyond(point)
        if beyond:
            self._ceilings.update(beyond)
            self._seated = False
        return bool(beyond)

    def _beyond(self, point: Point) -> dict[str, int]:
        """Limits of the Point that are above those that the engine was started with."""
        found: dict[str, int] = {}
        for key in ENGINE_LIMITS:
            value = integer(point.as_dict(), key)
            own = integer(self._job.config, key) or 0
            if value is not None and value > max(own, self._ceilings.get(key, 0)):
                found[key] = value
        return found

    def _setting(self, point: Point) -> Setting:
        return Setting(point, self._configure(point), self._utilisation())

    def _utilisation(self) -> float | None:
        value = self._baseline.as_dict().get(keys.GPU_MEMORY, self._job.config.get(keys.GPU_MEMORY))
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def _stopping(self) -> bool:
        return self._stop_now.is_set() or self._stop_soon.is_set()
