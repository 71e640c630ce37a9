"""What a user asks for with `autotune run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from autotune.measure.runner import Limits, StepPlan
from autotune.verl.knobs import Safety


class Objective(str, Enum):
    """What makes a Point better. On equal work all of them rank alike."""

    THROUGHPUT = "throughput"
    """Tokens/s/GPU of whole steps."""
    ACTOR_MFU = "actor-mfu"
    """`perf/mfu/actor`: model FLOPs utilisation of the actor update alone, blind to generation."""


class SamplerName(str, Enum):
    """Which sampler proposes Points once the first ones are measured."""

    TPE = "tpe"
    GP = "gp"
    RANDOM = "random"


class RunnerName(str, Enum):
    """How Points are measured."""

    AUTO = "auto"
    """In sessions where the job allows it: one launch measures many Points."""
    COLD = "cold"
    """Every Point in a launch of its own."""


class RewardCalls(str, Enum):
    """What the generation probes of a session do with the user's reward; whole steps and launches always call it."""

    LIVE = "live"
    REPLAY = "replay"
    """They wait as long as it took in the baseline's last whole step, and take the score of then."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Everything that decides a study, as the command line says it."""

    script: Path
    out: Path
    storage: str
    study: str
    space: str = "grpo_fsdp_vllm"
    gpus: int | None = None
    """GPUs per the user; None: as many as the script trains on."""
    python: str | None = None
    trials: int = 30
    """Points measured by the search, the user's own included."""
    confirmations: int = 2
    """Times that the user's command and the best Point are launched once more at the end."""
    time_budget: float | None = None
    """Seconds for everything."""
    objective: Objective = Objective.THROUGHPUT
    sampler: SamplerName = SamplerName.TPE
    runner: RunnerName = RunnerName.AUTO
    reward: RewardCalls = RewardCalls.REPLAY
    allow: tuple[Safety, ...] = (Safety.NEUTRAL,)
    hooks: bool = True
    seed: int = 0
    set_overrides: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    setup: str | None = None
    """The user's `--setup` command."""
    setup_env: Mapping[str, str] = field(default_factory=dict)
    """What it exported."""
    plan: StepPlan = field(default_factory=StepPlan)
    limits: Limits = field(default_factory=Limits)
    wait: bool = False
    """Wait for GPUs that are busy instead of refusing."""
    simulated: bool = False
    """True where the interpreter runs a double of verl; every figure is then labelled."""

    def to_json(self) -> dict[str, Any]:
        """Everything that another process needs to go on with the study, but what the setup command exported: that may
        hold secrets, and the command is run again. The caller redacts it."""
        shown = asdict(self)
        for name in ("storage", "setup_env"):
            del shown[name]
        return {
            **shown,
            "cwd": str(Path.cwd()),
            "script": str(self.script.resolve()),
            "out": str(self.out.resolve()),
            "objective": self.objective.value,
            "sampler": self.sampler.value,
            "runner": self.runner.value,
            "reward": self.reward.value,
            "allow": [safety.value for safety in self.allow],
        }

    @classmethod
    def from_json(cls, shown: Mapping[str, Any], *, storage: str) -> RunRequest:
        """The request behind `to_json`.

        Raises:
            KeyError: it was stored by a release that knew less, or more.
        """
        kept = {name: value for name, value in shown.items() if name != "cwd"}
        unknown = kept.keys() - set(cls.__slots__)
        if unknown:
            raise KeyError(", ".join(sorted(unknown)))
        return cls(
            **{
                **kept,
                "storage": storage,
                "script": Path(kept["script"]),
                "out": Path(kept["out"]),
                "objective": Objective(kept["objective"]),
                "sampler": SamplerName(kept["sampler"]),
                "runner": RunnerName(kept["runner"]),
                "reward": RewardCalls(kept.get("reward", RewardCalls.LIVE)),  # what releases without the choice did
                "allow": tuple(Safety(value) for value in kept["allow"]),
                "plan": StepPlan(**kept["plan"]),
                "limits": Limits(**kept["limits"]),
            }
        )
