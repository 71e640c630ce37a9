"""What the pages work out of trials: trends, effects of knobs, and where the time went. Plain values in, plain values out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, median

from autotune.store.queries import Night, TrialSummary
from autotune.values import KnobValue, Point, Source, TrialKind, TrialState
from autotune.verl.knobs import asleep, catalogue

PHASES = (
    "gen",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "update_weights",
    "rest",
)
"""Phases in the order in which a step runs; `rest` is what no timer covers."""

BEFORE = 5
"""Earlier studies that a study is compared with."""
LEAST_NOISE = 0.01
ASSUMED_NOISE = 0.03
"""Spread between launches where no study has measured it."""
LEAST_DROP = 0.03
"""A smaller drop is not called a regression, however small the noise."""


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """A study in the trend of its workload."""

    night: Night
    low: float | None
    """Lower edge of the band in which the baseline is expected from earlier studies; None: there are none."""
    high: float | None
    drop: float | None
    """How far the baseline lies under the middle of the band, as a fraction; None: within the noise."""
    changed: tuple[str, ...]
    """Versions that differ from the study before, such as `vllm 0.26 → 0.27`."""

    @property
    def regressed(self) -> bool:
        """Whether the user's own command ran slower than noise explains."""
        return self.drop is not None


def trend(nights: Sequence[Night]) -> list[TrendPoint]:
    """Every study of a workload against those before it, oldest first.

    The band is the median baseline of up to five earlier studies, plus and minus twice the noise between launches. A baseline
    more than three times the noise below the middle, and at least 3 %, is a regression.
    """
    points: list[TrendPoint] = []
    for at, night in enumerate(nights):
        earlier = [n for n in nights[:at] if n.baseline is not None][-BEFORE:]
        low = high = drop = None
        if earlier:
            middle = median(n.baseline for n in earlier if n.baseline is not None)
            noises = [n.noise for n in (*earlier, night) if n.noise is not None]
            noise = max(LEAST_NOISE, median(noises) if noises else ASSUMED_NOISE)
            low, high = middle * (1 - 2 * noise), middle * (1 + 2 * noise)
            if night.baseline is not None:
                below = 1 - night.baseline / middle
                drop = below if below > max(3 * noise, LEAST_DROP) else None
        points.append(TrendPoint(night, low, high, drop, _version_changes(nights[at - 1] if at else None, night)))
    return points


def _version_changes(before: Night | None, night: Night) -> tuple[str, ...]:
    if before is None:
        return ()
    names = sorted({*before.versions, *night.versions} - {"workload"})
    return tuple(
        f"{name} {before.versions.get(name, 'none')} → {night.versions.get(name, 'none')}"
        for name in names
        if before.versions.get(name) != night.versions.get(name)
    )


@dataclass(frozen=True, slots=True)
class Effect:
    """What turning one knob did to one phase: means over all measured trials at each value."""

    phase: str
    slowest: KnobValue
    fastest: KnobValue
    slowest_seconds: float
    fastest_seconds: float
    expected: bool
    """Whether the catalogue says that the knob touches this phase; otherwise the difference came along by chance."""

    @property
    def change(self) -> float:
        """From the slowest value to the fastest, as a fraction; negative means less time."""
        return self.fastest_seconds / self.slowest_seconds - 1 if self.slowest_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class KnobEffects:
    """One knob of a study."""

    key: str
    importance: float | None
    """Share of the variance of step seconds that the knob's value alone explains (epsilon squared); None: too few trials."""
    values: tuple[KnobValue, ...]
    trials: int
    effects: Mapping[str, Effect]


def knob_effects(trials: Sequence[TrialSummary], release: str) -> list[KnobEffects]:
    """Knobs that took at least two values among the measured trials, the most important first.

    Trials in which a knob has no effect (micro-batches under dynamic batching) do not count for it.
    """
    knobs = catalogue(release)
    measured = [t for t in trials if t.state is TrialState.MEASURED and t.step_seconds]
    values = {t.number: t.point.as_dict() for t in measured}
    found = []
    for key in sorted({key for point in values.values() for key in point}):
        awake = [t for t in measured if key in values[t.number] and not asleep(key, values[t.number])]
        groups: dict[tuple[str, KnobValue], list[TrialSummary]] = {}
        for t in awake:
            value = values[t.number][key]
            groups.setdefault((type(value).__name__, value), []).append(t)
        if len(groups) < 2:
            continue
        touched = {phase.value for phase in knobs[key].phases} if key in knobs else set()
        effects = {}
        for phase in ("step", *PHASES):
            means = {
                setting: fmean(seconds)
                for (_, setting), members in groups.items()
                if (seconds := [s for t in members if (s := _seconds(t, phase)) is not None])
            }
            if len(means) < 2:
                continue
            slow, fast = max(means, key=lambda v: means[v]), min(means, key=lambda v: means[v])
            if means[slow] > 0:
                effects[phase] = Effect(
                    phase, slow, fast, means[slow], means[fast], phase == "step" or phase in touched
                )
        importance = explained([[math.log(t.step_seconds or 1.0) for t in members] for members in groups.values()])
        found.append(KnobEffects(key, importance, tuple(_in_order([v for _, v in groups])), len(awake), effects))
    return sorted(found, key=lambda k: (-(k.importance or 0.0), k.key))


def explained(groups: Sequence[Sequence[float]]) -> float | None:
    """Share of the variance that the grouping explains, corrected for chance (epsilon squared), 0 to 1.

    None where there are no more values than groups, so that nothing is left to tell chance by.
    """
    values = [value for group in groups for value in group]
    if len(values) <= len(groups) or len(groups) < 2:
        return None
    mean = fmean(values)
    total = sum((value - mean) ** 2 for value in values)
    if total <= 0:
        return 0.0
    within = sum((value - middle) ** 2 for group in groups if group for middle in [fmean(group)] for value in group)
    noise = within / (len(values) - len(groups))
    return min(1.0, max(0.0, (total - within - (len(groups) - 1) * noise) / total))


def _seconds(trial: TrialSummary, phase: str) -> float | None:
    return trial.step_seconds if phase == "step" else trial.phases.get(phase)


def _in_order(values: Sequence[KnobValue]) -> list[KnobValue]:
    return sorted(values, key=sort_key)


def sort_key(value: KnobValue) -> tuple[int, float, str]:
    """Numbers by size before text by letter, `null` first."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, (bool, int, float)):
        return (1, float(value), "")
    return (2, 0.0, value)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a study's time."""

    kind: str
    """`startup`, `settling`, `counted`, `probes`, `stopping`, `whole`, `failed`, `running` or `idle`."""
    begin: float
    """Seconds since the study began."""
    end: float
    number: int | None
    """The trial; None: nothing ran."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Lane:
    """One session, or all cold launches, which are sessions of one trial each."""

    name: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where the time of a study went."""

    seconds: float
    lanes: tuple[Lane, ...]
    totals: Mapping[str, float]
    """Seconds by kind of segment."""


def timeline(trials: Sequence[TrialSummary], now: datetime) -> Timeline | None:
    """The launches on a line of time; None where none has begun.

    Cold launches share a lane; a session has one of its own, where what the Points did not take is the start of the session. A launch whose steps do not fit into the time that it took (a
    double of verl computes its seconds, it does not spend them) stays whole. The time before the first launch and between
    two is idle.
    """
    begun = sorted(
        (t for t in trials if t.started_at is not None and t.kind is not TrialKind.ANCHOR),
        key=lambda t: (t.started_at, t.number),
    )
    if not begun or begun[0].started_at is None:
        return None
    zero = begun[0].started_at
    lanes: dict[str, list[Segment]] = {}
    covered = 0.0
    idle: list[Segment] = []
    for trial in begun:
        assert trial.started_at is not None
        begin = (trial.started_at - zero).total_seconds()
        end = max(begin, ((trial.ended_at or now) - zero).total_seconds())
        if begin > covered + 0.5:
            idle.append(Segment("idle", covered, begin, None))
        covered = max(covered, end)
        lanes.setdefault(trial.session or "", []).extend(_launch(trial, begin, end))
    named = [Lane(name or "launches", tuple(segments)) for name, segments in lanes.items()]
    if idle:
        named[0] = Lane(named[0].name, tuple(sorted((*named[0].segments, *idle), key=lambda s: s.begin)))
    totals: dict[str, float] = {}
    for lane in named:
        for segment in lane.segments:
            totals[segment.kind] = totals.get(segment.kind, 0.0) + segment.seconds
    return Timeline(max(covered, 1e-9), tuple(named), totals)


def _launch(trial: TrialSummary, begin: float, end: float) -> list[Segment]:
    number = trial.number
    if trial.state is TrialState.RUNNING:
        return [Segment("running", begin, end, number)]
    if trial.state not in (TrialState.MEASURED, TrialState.INVALID):
        return [Segment("failed", begin, end, number)]
    if trial.session is not None:
        return _in_session(trial, begin, end)
    first = trial.startup_seconds
    if first is None or first + trial.counted_seconds > (end - begin) * 1.05 + 1.0:
        return [Segment("whole", begin, end, number)]
    # `startup_seconds` ends with the first step, which is a settling one.
    stepping = min(end, begin + max(0.0, first - trial.settling_seconds))
    settled = min(end, stepping + trial.settling_seconds)
    counted = min(end, settled + trial.counted_seconds)
    pieces = [
        Segment("startup", begin, stepping, number),
        Segment("settling", stepping, settled, number),
        Segment("counted", settled, counted, number),
        Segment("stopping", counted, end, number),
    ]
    return [piece for piece in pieces if piece.seconds > 0]


def _in_session(trial: TrialSummary, begin: float, end: float) -> list[Segment]:
    """A Point of a session. Its own seconds begin once the session runs; the first one has waited for that."""
    own = trial.wall_seconds if trial.wall_seconds is not None else end - begin
    ready = max(begin, end - own)
    settled = ready + trial.settling_seconds
    counted = settled + trial.counted_seconds
    pieces = [Segment("startup", begin, ready, trial.number)]
    if counted > end + 0.05 * own + 1.0 or trial.source == Source.COMPOSED.value:
        pieces.append(Segment("probes", ready, end, trial.number))
    else:
        settled, counted = min(settled, end), min(counted, end)
        pieces += [
            Segment("settling", ready, settled, trial.number),
            Segment("counted", settled, counted, trial.number),
            Segment("probes", counted, end, trial.number),
        ]
    return [piece for piece in pieces if piece.seconds > 0.5]


def order_phases(*phases: Mapping[str, float]) -> list[str]:
    """All phases that occur, in the order of a step; unknown ones at the end."""
    names = {name for mapping in phases for name in mapping}
    return [name for name in PHASES if name in names] + sorted(names - set(PHASES))


def levels_of(trials: Sequence[TrialSummary]) -> list[TrialSummary]:
    """What the others are compared with: the user's own command, by itself and inside sessions."""
    return [trial for trial in trials if trial.kind in (TrialKind.BASELINE, TrialKind.ANCHOR)]


def varied_keys(points: Sequence[Point]) -> list[str]:
    """Keys that do not have the same value in all Points."""
    seen: dict[str, set[tuple[str, KnobValue]]] = {}
    for point in points:
        for key, value in point.values:
            seen.setdefault(key, set()).add((type(value).__name__, value))
    return sorted(key for key, values in seen.items() if len(values) > 1)
