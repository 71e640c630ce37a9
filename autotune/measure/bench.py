"""What one session has measured, and how it measures the next Point from it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from autotune.measure.cold import disturbed, merged_echo
from autotune.measure.composed import REWARD_METRICS, composed
from autotune.measure.runner import Event, StepPlan, StepSeen
from autotune.measure.session import (
    FROZEN,
    GENERATION,
    INTERRUPTED,
    LIVE,
    LONGEST,
    RECORD,
    REPLAY,
    WHOLE,
    Reward,
    Session,
    SessionStep,
    StepFailed,
    Work,
)
from autotune.measure.window import enough, settled
from autotune.values import Failure, FailureClass, KnobValue, Measurement, Phase, Point, Source, StepRecord
from autotune.verl import keys
from autotune.verl.config import FlatConfig, integer
from autotune.verl.live import GENERATION_KEYS, TRAINING_KEYS, EngineSeat, predicted_kv_blocks, session_settings
from autotune.verl.loads import DeviceMemory, Loads, Peak, loads_of

GRADIENT_TOLERANCE = 1e-5
"""Absolute in the loss, relative in the gradient norm: what a session that took no harm repeats on frozen work."""
MOST_HALVINGS = 6
"""How small a part of a Point's batch is tried at least before its memory is predicted: one in sixty-four."""
NOISE_FACTOR = 3.0
"""Times the spread that repetitions had when nothing was wrong. On a GPU sums are made in any order: on an H200 in bf16 the
loss came back to the last digit and the gradient norm to 5e-4 (docs/benchmarks.md)."""
_Part: TypeAlias = tuple[tuple[str, KnobValue], ...]
"""The values of a Point that one kind of probe depends on."""
Watch: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """A Point as a session gets it."""

    point: Point
    config: FlatConfig
    """Its flat configuration, interpolated followers included."""
    utilisation: float | None
    """`gpu_memory_utilization` that the engine was started with."""


@dataclass(frozen=True, slots=True)
class _Probe:
    """Steps of one kind of work at one setting, the settling one first; and the last of them as it came."""

    steps: tuple[StepRecord, ...]
    last: SessionStep

    @property
    def counted(self) -> tuple[StepRecord, ...]:
        return tuple(step for step in self.steps if not step.settling and step.invalid is None)


@dataclass(frozen=True, slots=True)
class LongestStep:
    """What training at some setting took with every trajectory as long as the job allows: forward, backward, optimiser step,
    and vLLM awake again behind it."""

    tokens: int
    """Of all trajectories."""
    peak: int
    """Most bytes that a rank's allocator had reserved."""
    device: DeviceMemory


class Bench:
    """Measures Points in one session.

    A step is a sum of phases, and a live knob moves either generation or training: a Point is composed of a generation probe
    and a training probe, each made once for all Points that share it. The rest is that of the baseline's whole steps. Where responses cannot be given recorded lengths (several turns, tools), no two generations do the same work, and
    Points are measured on whole steps.
    """

    def __init__(
        self,
        session: Session,
        *,
        world_size: int,
        simulated: bool,
        stopping: Callable[[], bool],
        stop_now: Callable[[], bool],
        reward: Reward = REPLAY,
    ) -> None:
        """
        Args:
            reward: what generation probes do with the user's reward. Whole steps always call it.
            stopping: whether the user wants an end after the step that is running.
            stop_now: whether the user wants an end in the middle of it.
        """
        self.session = session
        self._world_size = world_size
        self._simulated = simulated
        self._stopping = stopping
        self._stop_now = stop_now
        self._reward = reward
        self._whole: tuple[StepRecord, ...] = ()
        self._generations: dict[_Part, _Probe] = {}
        self._trainings: dict[_Part, _Probe] = {}
        self._done: set[Point] = set()
        self._gradients: tuple[StepRecord, ...] = ()
        self._equal_work = True
        self.spent: dict[str, list[float]] = {}
        """Seconds of every step that was ordered, by kind of work; `first`: the first one of the session."""
        self.peaks: list[Peak] = []
        """What every training step took, with the tokens of its micro-batches."""
        self.device: DeviceMemory | None = None
        """Of the tightest GPU; None: there is none, or nothing is known of it yet."""
        self._lengths: tuple[int, ...] = ()

    def baseline(
        self, setting: Setting, plan: StepPlan, watch: Watch | None
    ) -> tuple[Measurement, Measurement] | StepFailed:
        """Measures the baseline whole, then its training on frozen work. What was measured before is not composed with any
        more.

        Returns:
            The baseline on whole steps; and put together as other Points are, so that what composing does to the figures shows.
        """
        begin = time.monotonic()
        settings = self._settings(setting)
        assert not isinstance(settings, Failure)
        probe = self._probe(WHOLE, setting, settings, plan, watch, lambda record: record, RECORD)
        if isinstance(probe, StepFailed):
            return probe
        self._generations.clear()
        self._trainings.clear()
        self._done.clear()
        self._whole = probe.counted
        self._equal_work = probe.last.equal_work
        self._generations[_part(setting.point, GENERATION_KEYS)] = probe
        measurement = self._measurement(setting, probe.steps, probe, probe, Source.WHOLE, begin)
        training = self._training(setting, settings, plan, None)
        if isinstance(training, StepFailed):
            return training
        self._gradients = self._gradients or training.steps
        steps = [self._compose(step, probe) for step in training.steps]
        return measurement, self._measurement(setting, steps, probe, training, Source.COMPOSED, begin)

    def measure(
        self, setting: Setting, plan: StepPlan, watch: Watch, *, whole: bool = False
    ) -> Measurement | StepFailed:
        """Measures a Point, making the probes that are not there yet.

        Args:
            whole: on whole steps, all of them new.
        """
        begin = time.monotonic()
        settings = self._settings(setting)
        if isinstance(settings, Failure):
            return StepFailed(settings, survived=True)
        if whole or not self._equal_work:
            probe = self._probe(WHOLE, setting, settings, plan, watch, lambda record: record)
            if isinstance(probe, StepFailed):
                return probe
            return self._measurement(setting, probe.steps, probe, probe, Source.WHOLE, begin)
        place = _part(setting.point, GENERATION_KEYS)
        if place not in self._generations:
            probe = self._probe(GENERATION, setting, settings, plan, None, lambda record: record, self._reward)
            if isinstance(probe, StepFailed):
                return probe
            self._generations[place] = probe
        generation = self._generations[place]
        known = self._trainings.get(_part(setting.point, TRAINING_KEYS))
        fresh = known is None or setting.point in self._done  # what is asked for again is measured again
        training = self._training(setting, settings, plan, watch) if known is None or fresh else known
        if isinstance(training, StepFailed):
            return training
        steps = tuple(self._compose(step, generation) for step in training.steps)
        for step in () if fresh else steps:
            watch(StepSeen(step))
        self._done.add(setting.point)
        return self._measurement(setting, steps, generation, training, Source.COMPOSED, begin)

    def repeats(self, setting: Setting) -> bool:
        """Whether the baseline on frozen work still gives the gradient of the session's start, after a Point failed in it."""
        settings = self._settings(setting)
        if not self._gradients or self.session.lost or isinstance(settings, Failure):
            return False
        again = self.session.step(FROZEN, settings, stopped=self._stop_now)
        return isinstance(again, SessionStep) and repeated(self._gradients, again.record)

    def loads(self, setting: Setting) -> Loads:
        """Tokens by phase that training at a Point holds at once; empty where that cannot be told."""
        settings = self._settings(setting)
        return {} if isinstance(settings, Failure) else self._loads(setting.config, settings)

    def approach(self, setting: Setting, baseline: Setting, phase: str, fits: Callable[[Loads], bool]) -> bool:
        """Takes one frozen step in which one phase alone has half of what a Point wants, or a quarter, as much as `fits`: how
        memory grows there is then known, and need not be guessed from the baseline. It counts for nothing else.

        Returns:
            Whether something was learnt.
        """
        wanted, own = self._settings(setting), self._settings(baseline)
        if isinstance(wanted, Failure) or isinstance(own, Failure) or phase not in wanted["phases"]:
            return False
        before = self._loads(baseline.config, own)
        for halvings in range(1, MOST_HALVINGS + 1):
            batching = part_of(wanted["phases"][phase], 2**halvings, longest=max(self._lengths, default=0))
            if batching is None:
                return False
            settings = {**own, "phases": {**own["phases"], phase: batching}}
            loads = self._loads(baseline.config, settings)
            if phase not in loads or phase not in before or loads[phase].least <= before[phase].least:
                return False
            if not any(peak.loads == loads for peak in self.peaks) and fits(loads):
                seen = self.session.step(FROZEN, settings, stopped=self._stop_now)
                if not isinstance(seen, SessionStep):
                    return False
                self._remember(baseline.config, settings, FROZEN, seen)
                return True
        return False

    def longest_loads(self, setting: Setting) -> Loads:
        """As `loads`, with every trajectory as long as the job allows; empty where the limits are not known."""
        settings = self._settings(setting)
        return {} if isinstance(settings, Failure) else self._longest_loads(setting.config, settings)

    def _longest_loads(self, config: FlatConfig, settings: Mapping[str, Any]) -> Loads:
        limit = limit_of(config)
        if limit is None:
            return {}
        return loads_of(settings["phases"], [limit] * len(self._lengths), config, self._world_size)

    def stretch(self, setting: Setting) -> float:
        """How many times as many tokens a longest step has as a frozen one; 1 where that is not known."""
        limit = limit_of(setting.config)
        return 1.0 if limit is None or not self._lengths else limit * len(self._lengths) / sum(self._lengths)

    def longest(self, setting: Setting) -> LongestStep | StepFailed | None:
        """Trains once with every trajectory as long as the job allows; None: it did, and nothing told how much memory."""
        settings = self._settings(setting)
        if isinstance(settings, Failure):
            return StepFailed(settings, survived=True)
        return self._train_longest(setting, settings)

    def approach_longest(self, setting: Setting, fits: Callable[[Loads], bool]) -> LongestStep | StepFailed | None:
        """Trains once with every trajectory as long as the job allows and half of what the setting has in each phase, or a
        quarter …, as much as `fits`: what is far from all that was run is a bad guess, and what is twice as much is a good one.

        Returns:
            None: nothing was learnt, since what fits was run before, or nothing fits.
        """
        settings, limit = self._settings(setting), limit_of(setting.config)
        if isinstance(settings, Failure) or limit is None:
            return None
        for halvings in range(1, MOST_HALVINGS + 1):
            phases = {name: smaller(batching, halvings, limit) for name, batching in settings["phases"].items()}
            part = {**settings, "phases": phases}
            loads = self._longest_loads(setting.config, part)
            if any(peak.loads == loads for peak in self.peaks):
                return None
            if fits(loads):
                return self._train_longest(setting, part)
        return None

    def _train_longest(self, setting: Setting, settings: Mapping[str, Any]) -> LongestStep | StepFailed | None:
        seen = self.session.step(LONGEST, settings, stopped=self._stop_now, patience=max(1.0, self.stretch(setting)))
        if isinstance(seen, StepFailed):
            return seen
        self.device = seen.device or self.device
        if seen.peak_bytes is None or self.device is None:
            return None
        loads = loads_of(settings["phases"], seen.lengths, setting.config, self._world_size)
        self.peaks.append(Peak(loads, seen.peak_bytes))
        return LongestStep(sum(seen.lengths), seen.peak_bytes, self.device)

    def _loads(self, config: FlatConfig, settings: Mapping[str, Any]) -> Loads:
        return loads_of(settings["phases"], self._lengths, config, self._world_size)

    def _remember(self, config: FlatConfig, settings: Mapping[str, Any], work: Work, seen: SessionStep) -> None:
        """Keeps what a step took. One that only generates trains nothing, and says nothing about training."""
        self._lengths = seen.lengths or self._lengths
        self.device = seen.device or self.device
        loads = self._loads(config, settings)
        if work != GENERATION and loads and seen.peak_bytes is not None:
            self.peaks.append(Peak(loads, seen.peak_bytes))

    # -- probes ----------------------------------------------------------------------------------------------------------

    def _training(
        self, setting: Setting, settings: Mapping[str, Any], plan: StepPlan, watch: Watch | None
    ) -> _Probe | StepFailed:
        generation = self._generations[_part(setting.point, GENERATION_KEYS)]
        probe = self._probe(FROZEN, setting, settings, plan, watch, lambda record: self._compose(record, generation))
        if not isinstance(probe, StepFailed):
            self._trainings[_part(setting.point, TRAINING_KEYS)] = probe
        return probe

    def _compose(self, frozen: StepRecord, generation: _Probe) -> StepRecord:
        return composed(frozen, generation=generation.counted, whole=self._whole)

    def _probe(
        self,
        work: Work,
        setting: Setting,
        settings: Mapping[str, Any],
        plan: StepPlan,
        watch: Watch | None,
        shown: Callable[[StepRecord], StepRecord],
        reward: Reward = LIVE,
    ) -> _Probe | StepFailed:
        """Steps until two agree, as they are `shown`. The first one after a change settles and is not counted."""
        made: list[StepRecord] = []
        told: list[StepRecord] = []
        while True:
            if self._stopping():
                return StepFailed(INTERRUPTED, survived=True)
            begin = time.monotonic()
            seen = self.session.step(work, settings, stopped=self._stop_now, crowding=plan.crowding, reward=reward)
            if isinstance(seen, StepFailed):
                return seen
            spent = "first" if self.session.steps == 1 else work
            self.spent.setdefault(spent, []).append(time.monotonic() - begin)
            self._remember(setting.config, settings, work, seen)
            made.append(seen.record)
            told.append(shown(seen.record))
            if watch is not None:
                watch(StepSeen(settled(told)[-1]))
            if enough(told, plan):
                probe = _Probe(settled(made), seen)
                if len(probe.counted) < min(plan.at_least, len(made) - 1):
                    return StepFailed(disturbed(made[1:]), survived=True)
                return probe

    def _measurement(
        self,
        setting: Setting,
        steps: Sequence[StepRecord],
        generation: _Probe,
        training: _Probe,
        source: Source,
        begin: float,
    ) -> Measurement:
        fixed = {key: value for key, value in self.session.echo().items() if key not in GENERATION_KEYS | TRAINING_KEYS}
        blocks = self._blocks(setting)
        return Measurement(
            steps=tuple(steps),
            world_size=self._world_size,
            source=source,
            engine="cold" if self._as_started(setting, blocks) else "live",
            session=self.session.id,
            startup_seconds=math.nan,
            wall_seconds=time.monotonic() - begin,
            echo={
                **fixed,
                **engine_echo(generation.last, setting.point, blocks if isinstance(blocks, int) else None),
                **merged_echo(training.last.trainers),
            },
            gpus=self.session.sampler.usage(begin, time.monotonic()),
            simulated=self._simulated,
        )

    # -- the engine ------------------------------------------------------------------------------------------------------

    def _settings(self, setting: Setting) -> dict[str, Any] | Failure:
        blocks = self._blocks(setting)
        if isinstance(blocks, Failure):
            return blocks
        fast = setting.point.as_dict().get(keys.FAST_POLL) is True
        return session_settings(setting.config, kv_blocks=blocks, fast_poll=fast)

    def _blocks(self, setting: Setting) -> int | Failure | None:
        """KV blocks that the Point's memory share would give; None: the engine's own."""
        wanted = setting.point.as_dict().get(keys.GPU_MEMORY)
        if not isinstance(wanted, (int, float)) or setting.utilisation is None or wanted >= setting.utilisation:
            return None
        seats = [seat for seat in self.session.seats if seat is not None]
        if not seats or len(seats) < len(self.session.seats):
            return Failure(
                FailureClass.UNKNOWN,
                Phase.INIT_ROLLOUT,
                "Measure this Point in a launch of its own.",
                "the engine did not say how large its KV cache is",
                False,
            )
        return kv_blocks_for(seats, float(wanted))

    def _as_started(self, setting: Setting, blocks: int | Failure | None) -> bool:
        """Whether the engine was started with exactly the limits of this Point."""
        limits = {"max_num_seqs": keys.MAX_NUM_SEQS, "max_num_batched_tokens": keys.MAX_BATCHED_TOKENS}
        started = self.session.started_at
        return blocks is None and all(started.get(name) == integer(setting.config, key) for name, key in limits.items())


def limit_of(config: FlatConfig) -> int | None:
    """Tokens of the longest trajectory that the job allows; None: not known."""
    prompt, response = integer(config, keys.MAX_PROMPT), integer(config, keys.MAX_RESPONSE)
    return None if prompt is None or response is None else prompt + response


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


def engine_echo(seen: SessionStep, point: Point, blocks: int | None) -> dict[str, KnobValue]:
    """Limits in effect by knob key, and what the engines did under them (`engine.…`), so that a limit that never bound is
    seen: `engine.largest_batch` below `max_num_seqs`, `engine.refused` 0.

    Args:
        blocks: KV blocks that were asked for in the place of the Point's memory share; None: none were.
    """
    reports: list[dict[str, KnobValue]] = []
    for engine in seen.engines:
        share = engine["gpu_memory_utilization"]
        if blocks is not None:
            share = point[keys.GPU_MEMORY] if engine["kv_blocks"] == blocks else f"{engine['kv_blocks']} KV blocks"
        reports.append(
            {
                keys.MAX_NUM_SEQS: engine["max_num_seqs"],
                keys.MAX_BATCHED_TOKENS: engine["max_num_batched_tokens"],
                keys.GPU_MEMORY: share,
            }
        )
    echo = merged_echo(reports)
    if seen.poll_seconds is not None:
        echo[keys.FAST_POLL] = seen.poll_seconds < 1.0
    for name, worst in _WORST.items():
        told = [engine[name] for engine in seen.engines if name in engine]
        if told:
            echo[f"engine.{name}"] = worst(told)
    echo["engine.equal_work"] = seen.equal_work
    return {**echo, **reward_echo(seen)}


def reward_echo(seen: SessionStep) -> dict[str, KnobValue]:
    """How the rewards of a step that generated came about (`reward.…`): called or replayed, how many, and the seconds that
    their trajectories waited for them, many of them at the same time."""
    told: dict[str, KnobValue] = {
        f"reward.{name.removeprefix(REWARD_METRICS)}": value
        for name, value in seen.record.metrics.items()
        if name.startswith(REWARD_METRICS)
    }
    if told:
        told["reward.mode"] = "replayed" if told.get("reward.replayed") else "live"
    if seen.reward_called_because is not None:
        told["reward.called_because"] = seen.reward_called_because
    return told


def part_of(batching: Mapping[str, Any], share: int, *, longest: int) -> dict[str, Any] | None:
    """How a phase is batched with a part of the tokens at once; None: it cannot be divided so far.

    Args:
        longest: tokens of the longest trajectory, which has to fit into a token budget.
    """
    name = "max_token_len_per_gpu" if batching.get("use_dynamic_bsz") else "micro_batch_size_per_gpu"
    whole = batching.get(name)
    if not whole or (name == "micro_batch_size_per_gpu" and whole % share):
        return None
    if batching.get("use_dynamic_bsz") and whole // share < longest:
        return None
    return {**batching, name: whole // share}


def smaller(batching: Mapping[str, Any], halvings: int, longest: int) -> Mapping[str, Any]:
    """How a phase is batched with a part of the tokens at once, as near to 1 in 2 ** `halvings` as it can be divided."""
    for fewer in range(halvings, 0, -1):
        part = part_of(batching, 2**fewer, longest=longest)
        if part is not None:
            return part
    return batching


def _part(point: Point, known: frozenset[str]) -> _Part:
    return tuple((key, value) for key, value in point.values if key in known)


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


_COMPARED = ("session/actor/loss/", "session/actor/grad_norm/", "session/critic/loss/", "session/critic/grad_norm/")


def same_gradient(before: StepRecord, after: StepRecord, tolerance: float = GRADIENT_TOLERANCE) -> bool:
    """Whether two frozen steps have the same loss (absolute) and gradient norm (relative) in every mini-batch.

    Another number of mini-batches is another gradient.
    """
    names = sorted(name for name in before.metrics if name.startswith(_COMPARED))
    if not names or names != sorted(name for name in after.metrics if name.startswith(_COMPARED)):
        return False
    for name in names:
        one, other = before.metrics[name], after.metrics[name]
        scale = 1.0 if "/loss/" in name else max(abs(one), abs(other), 1e-12)
        if abs(one - other) > tolerance * scale:
            return False
    return True


def repeated(before: Sequence[StepRecord], after: StepRecord) -> bool:
    """Whether a frozen step gives the loss and gradient norm that the same work gave before, as exactly as it repeated itself
    then: within `NOISE_FACTOR` times the spread of `before` of the nearest of them, and never less than `GRADIENT_TOLERANCE`."""
    names = [name for name in before[-1].metrics if name.startswith(_COMPARED)]
    for name in names:
        values = [step.metrics[name] for step in before if name in step.metrics]
        seen = after.metrics.get(name)
        scale = 1.0 if "/loss/" in name else max(map(abs, values))
        allowed = max(GRADIENT_TOLERANCE * scale, NOISE_FACTOR * (max(values) - min(values)))
        if seen is None or min(abs(seen - value) for value in values) > allowed:
            return False
    return bool(names) and len(names) == sum(name.startswith(_COMPARED) for name in after.metrics)
