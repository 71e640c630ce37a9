"""The values that every room may import: frozen, slotted, plain. Imports nothing of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean
from typing import Any, TypeAlias

KnobValue: TypeAlias = bool | int | float | str | None
"""What a knob can be set to; `None` is Hydra's `null`."""


class AutotuneError(Exception):
    """Anything autotune itself has to say to its user. The message says what is wrong, where, and what to do next."""


class BadInput(AutotuneError):
    """The user's input cannot be used: exit status 2, and nothing was written."""


class RunFailed(AutotuneError):
    """The input was good but the run did not succeed: exit status 1."""


class FailureClass(str, Enum):
    """Why a verl run did not deliver. The names are stable: they stand in JSON that scripts read."""

    OOM_GPU = "oom_gpu"
    OOM_HOST = "oom_host"
    VLLM_KV_CACHE = "vllm_kv_cache"
    VLLM_STARTUP = "vllm_startup"
    SGLANG_STARTUP = "sglang_startup"
    CONFIG_ASSERTION = "config_assertion"
    CONFIG_HYDRA = "config_hydra"
    NCCL_TIMEOUT = "nccl_timeout"
    HANG_NO_PROGRESS = "hang_no_progress"
    RAY_ACTOR_DIED = "ray_actor_died"
    RAY_RESOURCES = "ray_resources"
    DISK_FULL = "disk_full"
    INTERRUPTED = "interrupted"
    INTERFERENCE = "interference"
    UNKNOWN = "unknown"


class Phase(str, Enum):
    """Where in a verl job something happened."""

    CONFIG = "config"
    RAY_INIT = "ray_init"
    INIT_MODEL = "init_model"
    INIT_ROLLOUT = "init_rollout"
    GEN = "gen"
    OLD_LOG_PROB = "old_log_prob"
    REF = "ref"
    VALUES = "values"
    UPDATE_CRITIC = "update_critic"
    UPDATE_ACTOR = "update_actor"
    WAKE_UP = "wake_up"
    SAVE_CHECKPOINT = "save_checkpoint"
    UNKNOWN = "unknown"


NOT_TRIED = "not tried"
"""How the evidence of a failure ends that was only predicted."""


class TrialState(str, Enum):
    """States of a trial; `measured`, `infeasible`, `failed` and `invalid` are final."""

    QUEUED = "queued"
    RUNNING = "running"
    MEASURED = "measured"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    INVALID = "invalid"


class TrialKind(str, Enum):
    """What a trial is for."""

    BASELINE = "baseline"
    SEARCH = "search"
    CONFIRM = "confirm"
    ANCHOR = "anchor"
    """The user's own command inside a session: what its Points are compared with."""
    CANARY = "canary"
    """The user's own command and the best known setting in turns, for the comparison with earlier nights."""


class Decision(str, Enum):
    """What a study says at its end."""

    BETTER = "better"
    NO_MEANINGFUL_DIFFERENCE = "no_meaningful_difference"
    INDICATIVE = "indicative"
    BASELINE_FAILED = "baseline_failed"
    NOTHING_FITS = "nothing_fits"


class Source(str, Enum):
    """How the seconds of a measurement came about: one whole step, or put together from the probes of a session."""

    WHOLE = "whole"
    COMPOSED = "composed"


@dataclass(frozen=True, slots=True)
class Point:
    """A choice of knob values, hashable: pairs of (key, value), sorted by key.

    `1`, `1.0` and `True` are different values of a knob; the pairs keep their Python type.
    """

    values: tuple[tuple[str, KnobValue], ...]

    @classmethod
    def of(cls, values: Mapping[str, KnobValue]) -> Point:
        """The Point with these values; the order of the mapping does not matter."""
        return cls(tuple(sorted(values.items())))

    def as_dict(self) -> dict[str, KnobValue]:
        """The values by key."""
        return dict(self.values)

    def __getitem__(self, key: str) -> KnobValue:
        return self.as_dict()[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self._typed() == other._typed()

    def __hash__(self) -> int:
        return hash(self._typed())

    def _typed(self) -> tuple[tuple[str, str, KnobValue], ...]:
        return tuple((key, type(value).__name__, value) for key, value in self.values)

    def changes_from(self, other: Point) -> dict[str, KnobValue]:
        """The values that differ from `other`, keys that only one of them has included (with this Point's value)."""
        theirs = {key: (kind, value) for key, kind, value in other._typed()}
        return {key: value for key, kind, value in self._typed() if theirs.get(key) != (kind, value)}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A Point that arithmetic refuses before any launch."""

    rule: str
    """Stable name of the rule, such as `MICRO_BATCH_DIVIDES`."""
    message: str
    """What is wrong and what to do, with the numbers."""
    keys: tuple[str, ...] = ()
    """The keys whose values are at fault."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a launch did not deliver a measurement (`evidence` is the decisive line of its log, redacted)."""

    failure_class: FailureClass
    phase: Phase
    remedy: str
    evidence: str
    retryable: bool
    """True: not a property of the configuration (left-over memory, a missing node, a time limit)."""

    @property
    def not_tried(self) -> bool:
        """Whether arithmetic foresaw it and nothing was started: later measurements may prove it wrong."""
        return self.evidence.endswith(NOT_TRIED)

    @property
    def is_infrastructure(self) -> bool:
        """Whether the sampler must not learn from it."""
        return self.retryable

    @classmethod
    def from_json(cls, shown: Mapping[str, Any]) -> Failure:
        """The failure behind `to_json`.

        Raises:
            KeyError, ValueError, TypeError: it is none.
        """
        return cls(
            FailureClass(shown["class"]),
            Phase(shown["phase"]),
            str(shown["remedy"]),
            str(shown["evidence"]),
            bool(shown["retryable"]),
        )

    def to_json(self) -> dict[str, Any]:
        """The object of `failure` in the JSON of `autotune logs` and `autotune show`."""
        return {
            "class": self.failure_class.value,
            "phase": self.phase.value,
            "remedy": self.remedy,
            "evidence": self.evidence,
            "retryable": self.retryable,
        }


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """Whether a Point fits into its GPUs when every trajectory is as long as the job allows, as a session tried it: forward,
    backward, optimiser step, and vLLM awake again behind it. Memory in bytes, on the fullest GPU."""

    point: Point
    session: str
    tokens: int
    """Of all trajectories of the step."""
    peak: int | None
    """Most that the trainer's allocator had reserved; None: it failed before that could be read."""
    outside: int
    """In use besides, while the trainer worked."""
    device: int
    failure: Failure | None = None
    """Why the step could not be done, or was not tried; None: it was done."""

    @property
    def used(self) -> int | None:
        """What was in use at most; None: not known."""
        return None if self.peak is None else self.peak + self.outside

    def to_json(self) -> dict[str, Any]:
        """As in `verdict.memory` of the JSON of `autotune show`; memory in GiB."""
        return {
            "fits": self.failure is None,
            "used": None if self.used is None else self.used / 2**30,
            "device": self.device / 2**30,
            "tokens": self.tokens,
            "session": self.session,
            "failure": None if self.failure is None else self.failure.to_json(),
        }


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training step as verl reported it."""

    step: int
    seconds: float
    """Wall seconds of the step, validation and checkpoints taken out."""
    tokens: int | None
    """Prompt and response tokens of all trajectories of the step, over all GPUs."""
    phases: Mapping[str, float]
    """Seconds by phase: `gen`, `old_log_prob`, `ref`, `values`, `adv`, `update_critic`, `update_actor`, `update_weights`."""
    mfu: float | None = None
    """Model FLOPs utilisation of the actor update as a fraction (`perf/mfu/actor`); None: not computable."""
    memory_gb: float | None = None
    """Peak GiB that the trainer's allocator had reserved on rank 0 since its process started."""
    settling: bool = False
    """A settling step is never counted: it holds compilation, first allocations or actor start-up."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Every numeric metric of the step under verl's own name."""
    invalid: str | None = None
    """What disturbed the step (a foreign process, throttling, stolen CPU), so that it does not count; None: nothing."""

    @property
    def rest_seconds(self) -> float:
        """Seconds of the step that no phase timer covers (data, dispatch, balancing)."""
        return max(0.0, self.seconds - sum(self.phases.values()))


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """What NVML saw on one GPU while a launch was measured (means over samples; peak for memory)."""

    index: int
    name: str
    utilisation: float
    """Fraction of the time in which a kernel ran."""
    power_watts: float
    clock_mhz: float
    peak_memory_bytes: int
    throttled: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one launch delivered for one Point."""

    steps: tuple[StepRecord, ...]
    world_size: int
    """GPUs (or stand-ins for them) that the job trained on."""
    source: Source = Source.WHOLE
    work: str = "full"
    """`full`: the user's own batch; anything else names the part of it that was measured."""
    engine: str = "cold"
    """`cold`: the engine was started with exactly these values; `live`: they were changed while it ran."""
    session: str | None = None
    """Id of the session that measured it; None: it had a launch of its own."""
    startup_seconds: float = math.nan
    """From the command to the end of the first step."""
    wall_seconds: float = math.nan
    """From the command until every process of the job was gone."""
    echo: Mapping[str, KnobValue] = field(default_factory=dict)
    """Values that verl and vLLM themselves reported to be in effect, by knob key."""
    gpus: tuple[GpuUsage, ...] = ()
    simulated: bool = False
    """True: made by a double or a simulator; every display must say so."""

    @property
    def counted(self) -> tuple[StepRecord, ...]:
        """The steps that a figure may use: not settling, undisturbed, with a token count."""
        return tuple(s for s in self.steps if not s.settling and s.invalid is None and s.tokens is not None)

    @property
    def settling_steps(self) -> int:
        """How many steps were left out at the start."""
        return sum(s.settling for s in self.steps)

    @property
    def throughput(self) -> float:
        """Tokens/s/GPU: tokens over seconds of all counted steps, per GPU."""
        seconds = sum(s.seconds for s in self.counted)
        tokens = sum(s.tokens or 0 for s in self.counted)
        return tokens / seconds / self.world_size if seconds > 0 else math.nan

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a counted step."""
        return fmean(s.seconds for s in self.counted) if self.counted else math.nan

    @property
    def mfu(self) -> float | None:
        """Mean `perf/mfu/actor` of the counted steps; None where it is not computable."""
        known = [s.mfu for s in self.counted if s.mfu is not None]
        return fmean(known) if known else None

    @property
    def memory_gb(self) -> float | None:
        """The trainer's peak reserved GiB."""
        known = [s.memory_gb for s in self.steps if s.memory_gb is not None]
        return max(known) if known else None

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Mean seconds by phase over the counted steps, and `rest` for what no timer covers."""
        if not self.counted:
            return {}
        names = {name for s in self.counted for name in s.phases}
        means = {name: fmean(s.phases.get(name, 0.0) for s in self.counted) for name in sorted(names)}
        return {**means, "rest": fmean(s.rest_seconds for s in self.counted)}
