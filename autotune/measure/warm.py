"""The warm runner: one verl launch measures many Points; what it cannot change while it runs goes to a cold runner."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from autotune.measure.cold import ColdJob, merged_echo
from autotune.measure.composed import composed
from autotune.measure.runner import (
    Event,
    Limits,
    Order,
    Outcome,
    Runner,
    StageSeen,
    StepPlan,
    StepSeen,
)
from autotune.measure.session import FROZEN, INTERRUPTED, WHOLE, Session, SessionStep, StepFailed, Work
from autotune.measure.window import enough, settled
from autotune.values import Failure, FailureClass, KnobValue, Measurement, Phase, Point, Source, StepRecord
from autotune.verl import keys
from autotune.verl.config import FlatConfig, integer
from autotune.verl.knobs import Knob
from autotune.verl.live import (
    ENGINE_LIMITS,
    GENERATION_KEYS,
    EngineSeat,
    is_live,
    predicted_kv_blocks,
    session_overrides,
    session_settings,
    session_unsupported,
)

BASELINE_EVERY = 10
"""Points after which the baseline is measured again."""
LOSS_TOLERANCE = 1e-5
"""Absolute in the loss, relative in the gradient norm: what a session that took no harm repeats on frozen work."""
_Generation: TypeAlias = tuple[tuple[str, KnobValue], ...]
_GRADIENT = ("session/actor/loss/", "session/actor/grad_norm/", "session/critic/loss/", "session/critic/grad_norm/")


@dataclass(frozen=True, slots=True)
class BaselineVisit:
    """The baseline, measured at some place of a session."""

    session: str
    place: int
    """Points that this session had measured before."""
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Price:
    """What a move costs, mean seconds of those made so far; nan: none was made."""

    launch: float
    """From the command to the session's first order."""
    first_step: float
    """The first step of a launch, over what a later one takes."""
    whole_step: float
    frozen_step: float


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps that were made for one Point, in order, and what was seen in them."""

    made: tuple[StepRecord, ...]
    """Settling ones marked; put together with generation where they were frozen."""
    last: SessionStep


class WarmRunner(Runner):
    """Measures Points in a session that it opens when the first one comes.

    The first act of a session is the baseline, whole. A Point whose generation settings have been seen in this session is
    then measured on frozen work: its training phases are measured, everything else is taken from those whole steps
    (`Source.COMPOSED`). Other Points run whole steps.

    After a Point that failed, and every `baseline_every` Points, the baseline comes first; a session that no longer repeats
    it after a failure is ended and started again. A session that dies takes only the Point with it that was running.
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
    ) -> None:
        """
        Args:
            job: the user's command.
            cold: gets the Points that need a launch of their own; the session is ended before.
            baseline: the user's own Point.
            configure: the flat configuration of a Point, interpolated followers included.
            folder: where sessions put their logs.
            ceilings: largest planned values of the engine's limits. A Point above them has the session started again.
            knobs: catalogue of the release.
            verl_version: None: as the reference release.
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
        self.unsupported: str | None = session_unsupported(job.config, verl_version)
        """Why there will be no session, so that every Point goes to the cold runner; None: there will."""
        self.baselines: list[BaselineVisit] = []
        """Every measurement of the baseline, for the drift of a session (`autotune.search.drift`)."""
        self.measured: list[tuple[str, int, str]] = []
        """(session, place, label of the order) of every Point that a session measured."""
        self._stop_soon = threading.Event()
        self._stop_now = threading.Event()
        self._session: Session | None = None
        self._sessions = 0
        self._place = 0
        self._since_baseline = 0
        self._doubt: StepFailed | None = None
        self._whole: dict[_Generation, tuple[tuple[StepRecord, ...], dict[str, KnobValue]]] = {}
        self._frozen_baseline: StepRecord | None = None
        self._spent: dict[str, list[float]] = {"launch": [], "first": [], WHOLE: [], FROZEN: []}

    # -- the seam --------------------------------------------------------------------------------------------------------

    def stop(self, *, now: bool) -> None:
        (self._stop_now if now else self._stop_soon).set()
        self._cold.stop(now=now)

    def close(self) -> None:
        self._end_session()
        self._cold.close()

    def is_live(self, point: Point) -> bool:
        """Whether a session measures this Point; the largest limits among the Points planned are no obstacle."""
        if self.unsupported is not None:
            return False
        for key, value in self._too_much.items():
            wanted = integer(point.as_dict(), key)
            if wanted is not None and wanted >= value and wanted > (integer(self._job.config, key) or 0):
                return False  # no engine started with so much
        changes = point.changes_from(self._baseline)
        return is_live(changes, utilisation=self._utilisation(), knobs=self._knobs)

    @property
    def price(self) -> Price:
        """What moves have cost so far."""

        def mean(name: str) -> float:
            spent = self._spent[name]
            return sum(spent) / len(spent) if spent else math.nan

        return Price(mean("launch"), mean("first"), mean(WHOLE), mean(FROZEN))

    def measure(self, order: Order, watch: Callable[[Event], None]) -> Outcome:
        if order.fresh or not self.is_live(order.point):
            self.retire(order.plan)
            return self._cold.measure(order, watch)
        order.run_dir.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        outcome = self._measure(order, watch)
        if self._session is not None and (self._session.lost or self._stop_now.is_set()):
            self._end_session()
        if outcome is None:
            return self._cold.measure(order, watch)
        if isinstance(outcome, Failure):
            return outcome
        self._place += 1
        self._since_baseline += 1
        self.measured.append((outcome.session or "", self._place - 1, order.label))
        return replace(outcome, wall_seconds=time.monotonic() - begin)

    def retire(self, plan: StepPlan) -> None:
        """Ends the session, after a last visit to the baseline if Points were measured since the one before."""
        if self._session is not None and self._since_baseline and not self._stopping():
            self._visit(plan, None)
        self._end_session()

    # -- a session -------------------------------------------------------------------------------------------------------

    def _measure(self, order: Order, watch: Callable[[Event], None]) -> Measurement | Failure | None:
        """What the session measured; None: no session can be had."""
        begin = time.monotonic()
        first = self._ready(order, watch)
        session = self._session
        if session is None or isinstance(first, Failure):
            return first if isinstance(first, Failure) else None
        self._point_out(order, session)
        if first is not None and order.point == self._baseline:
            watch(StageSeen("stopping"))
            return first
        watch(StageSeen("stepping"))
        blocks = self._blocks(order.point)
        if isinstance(blocks, Failure):
            return blocks
        config = self._configure(order.point)
        settings = session_settings(config, kv_blocks=blocks, fast_poll=self._polls_fast(order.point))
        generation = _generation(order.point)
        found = self._steps(order, watch, settings, FROZEN if generation in self._whole else WHOLE, generation)
        if isinstance(found, StepFailed):
            if found.survived:
                self._doubt = found
            return found.failure
        watch(StageSeen("stopping"))
        return self._measurement(order.point, found, generation, config, begin)

    def _ready(self, order: Order, watch: Callable[[Event], None]) -> Measurement | Failure | None:
        """Sees to a session that measures as it did at its start.

        Returns:
            The baseline's measurement where it was made on the way; why there is no session that measures; None: nothing was
            measured, and where there is no session either, none can be had.
        """
        if self._stopping():
            return INTERRUPTED
        self._raise_ceilings(order.point)
        if self._session is not None and self._doubt is not None and not self._repeats(order.plan):
            self._end_session()
        if self._session is None:
            watch(StageSeen("starting"))
            self._open()
            if self._session is None:
                return INTERRUPTED if self._stopping() else None
        elif self._since_baseline < self._every:
            return None
        tell = watch if order.point == self._baseline else None
        if tell is not None:
            watch(StageSeen("stepping"))
        found = self._visit(order.plan, tell)
        if not isinstance(found, Failure):
            return found
        self._end_session()
        # What befell the baseline is no property of another Point: that one is tried again.
        return found if order.point == self._baseline else replace(found, retryable=True)

    def _open(self) -> None:
        """Opens a session. Where the largest limits are too much for an engine, one with the user's own is tried; where that
        does not start either, there will be no session any more."""
        while self._session is None and self.unsupported is None and not self._stopping():
            self._sessions += 1
            overrides = session_overrides(self._job.config, self._ceilings)
            session = Session(
                self._job, overrides, folder=self._folder / f"session-{self._sessions:02d}", limits=self._limits
            )
            failure = session.open(self._stop_now.is_set)
            if failure is None:
                self._session = session
                self._spent["launch"].append(session.startup_seconds)
                self._place = self._since_baseline = 0
                self._doubt = None
                self._whole.clear()
                self._frozen_baseline = None
            elif self._ceilings:
                self._too_much = {
                    key: min(value, self._too_much.get(key, value)) for key, value in self._ceilings.items()
                }
                self._ceilings = {}
            elif failure.failure_class is not FailureClass.INTERRUPTED:
                self.unsupported = f"a session did not start ({failure.evidence}); see {session.log}"

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close(now=self._stop_now.is_set())
            self._session = None
        self._doubt = None

    def _raise_ceilings(self, point: Point) -> None:
        """A Point above the limits that the engine was started with needs a session that starts with more."""
        above = False
        for key in ENGINE_LIMITS:
            value = integer(point.as_dict(), key)
            own = integer(self._job.config, key) or 0
            if value is not None and value > max(own, self._ceilings.get(key, 0)):
                self._ceilings[key] = value
                above = True
        if above and self._session is not None:
            self._end_session()

    # -- the baseline ----------------------------------------------------------------------------------------------------

    def _visit(self, plan: StepPlan, watch: Callable[[Event], None] | None) -> Measurement | Failure:
        """Measures the baseline whole, and once more on frozen work for the comparison of gradients."""
        begin = time.monotonic()
        session = self._session
        assert session is not None
        generation = _generation(self._baseline)
        config = self._configure(self._baseline)
        settings = session_settings(config, kv_blocks=None, fast_poll=self._polls_fast(self._baseline))
        order = Order("baseline", self._baseline, (), session.folder, plan)
        self._whole.pop(generation, None)
        found = self._steps(order, watch, settings, WHOLE, generation)
        if isinstance(found, StepFailed):
            return found.failure
        measurement = self._measurement(self._baseline, found, generation, config, begin)
        self.baselines.append(BaselineVisit(session.id, self._place, measurement))
        self._since_baseline = 0
        if self._frozen_baseline is None:
            seen = session.step(FROZEN, settings, stopped=self._stop_now.is_set)
            if isinstance(seen, StepFailed):
                return seen.failure
            self._frozen_baseline = seen.record
        return measurement

    def _repeats(self, plan: StepPlan) -> bool:
        """Whether the session still does what it did before a Point failed in it: the same gradient on the same work."""
        doubt, self._doubt = self._doubt, None
        session, before = self._session, self._frozen_baseline
        assert session is not None
        if before is None or session.lost:
            return False
        if doubt is not None and doubt.in_generation:
            self._since_baseline = self._every  # generation may have suffered: the baseline is measured whole first
        settings = session_settings(
            self._configure(self._baseline), kv_blocks=None, fast_poll=self._polls_fast(self._baseline)
        )
        again = session.step(FROZEN, settings, stopped=self._stop_now.is_set)
        return isinstance(again, SessionStep) and same_gradient(before, again.record)

    # -- steps -----------------------------------------------------------------------------------------------------------

    def _steps(
        self,
        order: Order,
        watch: Callable[[Event], None] | None,
        settings: Mapping[str, object],
        work: Work,
        generation: _Generation,
    ) -> _Steps | StepFailed:
        """Steps until two agree. The first one after a change settles and is not counted."""
        session = self._session
        assert session is not None
        made: list[StepRecord] = []
        while True:
            if self._stopping():
                return StepFailed(INTERRUPTED, survived=True)
            begin = time.monotonic()
            seen = session.step(work, settings, stopped=self._stop_now.is_set)
            if isinstance(seen, StepFailed):
                return seen
            self._spent["first" if session.steps == 1 else work].append(time.monotonic() - begin)
            record = composed(seen.record, self._whole[generation][0]) if work == FROZEN else seen.record
            made.append(record)
            if watch is not None:
                watch(StepSeen(settled(made)[-1]))
            if enough(made, order.plan):
                return _Steps(settled(made), seen)

    def _measurement(
        self, point: Point, steps: _Steps, generation: _Generation, config: FlatConfig, begin: float
    ) -> Measurement:
        session = self._session
        assert session is not None
        frozen = generation in self._whole
        if not frozen:
            counted = tuple(step for step in steps.made if not step.settling)
            self._whole[generation] = (counted, self._engine_echo(point, steps.last))
        trainers = merged_echo(steps.last.trainers)
        fixed = {key: value for key, value in session.echo().items() if key not in LIVE_KEYS}
        now = time.monotonic()
        return Measurement(
            steps=steps.made,
            world_size=self._job.world_size,
            source=Source.COMPOSED if frozen else Source.WHOLE,
            engine="cold" if self._as_started(config, point) else "live",
            session=session.id,
            startup_seconds=session.startup_seconds if not self.baselines else 0.0,
            echo={**fixed, **self._whole[generation][1], **trainers},
            gpus=session.sampler.usage(begin, now),
            simulated=self._job.simulated,
        )

    # -- the engine ------------------------------------------------------------------------------------------------------

    def _utilisation(self) -> float | None:
        value = self._baseline.as_dict().get(keys.GPU_MEMORY, self._job.config.get(keys.GPU_MEMORY))
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def _blocks(self, point: Point) -> int | Failure | None:
        """KV blocks that the Point's memory share would give; None: the engine's own."""
        wanted = point.as_dict().get(keys.GPU_MEMORY)
        started = self._utilisation()
        if not isinstance(wanted, (int, float)) or started is None or wanted >= started:
            return None
        assert self._session is not None
        seats = [seat for seat in self._session.seats if seat is not None]
        if len(seats) < len(self._session.seats) or not seats:
            return Failure(
                FailureClass.UNKNOWN,
                Phase.INIT_ROLLOUT,
                "Measure this Point in a launch of its own.",
                "the engine did not say how large its KV cache is",
                False,
            )
        return kv_blocks_for(seats, float(wanted))

    def _polls_fast(self, point: Point) -> bool:
        return point.as_dict().get(keys.FAST_POLL) is True

    def _as_started(self, config: FlatConfig, point: Point) -> bool:
        """Whether the engine was started with exactly the limits of this Point."""
        session = self._session
        assert session is not None
        limits = {"max_num_seqs": keys.MAX_NUM_SEQS, "max_num_batched_tokens": keys.MAX_BATCHED_TOKENS}
        same = all(session.started_at.get(name) == integer(config, key) for name, key in limits.items())
        return same and self._blocks(point) is None

    def _engine_echo(self, point: Point, seen: SessionStep) -> dict[str, KnobValue]:
        """Limits in effect by knob key, and what the engines did under them; the worst replica counts."""
        blocks = self._blocks(point)
        reports: list[dict[str, KnobValue]] = []
        for engine in seen.engines:
            report: dict[str, KnobValue] = {
                keys.MAX_NUM_SEQS: engine["max_num_seqs"],
                keys.MAX_BATCHED_TOKENS: engine["max_num_batched_tokens"],
            }
            if isinstance(blocks, int):
                got = engine["kv_blocks"] == blocks
                report[keys.GPU_MEMORY] = point[keys.GPU_MEMORY] if got else f"{engine['kv_blocks']} KV blocks"
            else:
                report[keys.GPU_MEMORY] = engine["gpu_memory_utilization"]
            reports.append(report)
        echo = merged_echo(reports)
        if seen.poll_seconds is not None:
            echo[keys.FAST_POLL] = seen.poll_seconds < 1.0
        for name, worst in _WORST.items():
            told = [engine[name] for engine in seen.engines if name in engine]
            if told:
                echo[f"engine.{name}"] = worst(told)
        echo["engine.equal_work"] = seen.equal_work
        return echo

    def _point_out(self, order: Order, session: Session) -> None:
        """Leaves in the order's folder where its session is: the log of its steps is the session's."""
        told = {"session": session.id, "log": str(session.log), "point": order.point.as_dict()}
        (order.run_dir / "session.json").write_text(json.dumps(told, indent=1), encoding="utf-8")

    def _stopping(self) -> bool:
        return self._stop_now.is_set() or self._stop_soon.is_set()


_WORST: Mapping[str, Callable[[Sequence[int]], int]] = {
    "kv_blocks": min,
    "least_free": min,
    "largest_batch": max,
    "largest_tokens": max,
    "refused": max,
    "preempted": max,
    "failed_resets": max,
}
"""What a scheduler tells of a Point, and which of several replicas' numbers is shown."""
LIVE_KEYS = frozenset({*GENERATION_KEYS, keys.DYNAMIC, keys.ACTOR_MICRO_BATCH, keys.ACTOR_TOKENS}) | {
    keys.LOG_PROB_DYNAMIC,
    keys.LOG_PROB_MICRO_BATCH,
    keys.LOG_PROB_TOKENS,
    keys.REF_DYNAMIC,
    keys.REF_MICRO_BATCH,
    keys.REF_TOKENS,
    keys.CRITIC_TOKENS,
}
"""Keys whose values at the start of a session say nothing of its Points."""


def _generation(point: Point) -> _Generation:
    return tuple((key, value) for key, value in point.values if key in GENERATION_KEYS)


def kv_blocks_for(seats: Sequence[EngineSeat], utilisation: float) -> int | Failure:
    """KV blocks of the tightest replica at another memory share; the failure with which vLLM would refuse to start."""
    blocks = min(predicted_kv_blocks(seat, utilisation) for seat in seats)
    longest = max(seat.longest for seat in seats)
    if blocks >= longest:
        return blocks
    return Failure(
        FailureClass.VLLM_KV_CACHE,
        Phase.INIT_ROLLOUT,
        f"Raise {keys.GPU_MEMORY}, or lower max_model_len.",
        f"at {utilisation} vLLM would have {max(0, blocks)} KV blocks, and one sequence of the greatest length needs {longest} "
        "(predicted from the running engine, not tried)",
        False,
    )


def same_gradient(before: StepRecord, after: StepRecord) -> bool:
    """Whether two frozen steps have the same loss and gradient norm in every mini-batch, within `LOSS_TOLERANCE`."""
    names = [name for name in before.metrics if name.startswith(_GRADIENT)]
    if not names or names != [name for name in after.metrics if name.startswith(_GRADIENT)]:
        return False
    for name in names:
        one, other = before.metrics[name], after.metrics[name]
        scale = 1.0 if "/loss/" in name else max(abs(one), abs(other), 1e-12)
        if abs(one - other) > LOSS_TOLERANCE * scale:
            return False
    return True
