"""What a launch trains: the facts that decide which settings are possible, and a fingerprint to find it again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from autotune.values import BadInput
from autotune.verl import keys
from autotune.verl.config import FlatConfig, flag, integer

_NEVER_TUNED = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.lora_rank",
    "algorithm.adv_estimator",
    "data.train_files",
    keys.TRAIN_BATCH,
    keys.MAX_PROMPT,
    keys.MAX_RESPONSE,
    keys.SAMPLES,
    keys.ACTOR_MINI_BATCH,
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.multi_turn.enable",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Shape of one training job. Sequence counts are trajectories, lengths are tokens."""

    model: str
    algorithm: str
    rollout_engine: str
    nodes: int
    gpus_per_node: int
    train_batch: int
    """Prompts per step."""
    mini_batch: int
    """Prompts per optimiser step."""
    samples: int
    """Responses per prompt (`rollout.n`)."""
    max_prompt: int
    max_response: int
    sequence_parallel: int
    uses_reference: bool
    uses_critic: bool
    uses_v1: bool
    on_cpu: bool
    fingerprint: str

    @property
    def world_size(self) -> int:
        """GPUs of the trainer pool."""
        return self.nodes * self.gpus_per_node

    @property
    def data_parallel(self) -> int:
        """Ranks that hold different samples (FSDP: world size ÷ sequence parallelism)."""
        return max(1, self.world_size // self.sequence_parallel)

    @property
    def max_sequence(self) -> int:
        """Longest trajectory: prompt limit + response limit, tokens."""
        return self.max_prompt + self.max_response

    @property
    def trajectories(self) -> int:
        """Trajectories per step over all GPUs."""
        return self.train_batch * self.samples

    @property
    def label(self) -> str:
        """One short line for tables."""
        name = self.model.rstrip("/").rsplit("/", 1)[-1]
        where = "CPU" if self.on_cpu else f"{self.world_size} GPU" + ("s" if self.world_size > 1 else "")
        return f"{name} · {self.algorithm} · {self.train_batch}×{self.samples} · {self.max_sequence} tokens · {where}"


def workload_of(config: FlatConfig) -> Workload:
    """The workload of a composed configuration.

    Raises:
        BadInput: a number that every verl job needs is missing.
    """

    def need(key: str) -> int:
        value = integer(config, key)
        if value is None or value < 1:
            raise BadInput(
                f"{key} is {config.get(key)!r} in the composed configuration; autotune needs a positive whole number. "
                f"Set it in the script or with --set {key}=…"
            )
        return value

    estimator = str(config.get("algorithm.adv_estimator"))
    critic_enabled = config.get("critic.enable")
    identity = {key: config.get(key) for key in _NEVER_TUNED}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    return Workload(
        model=str(config.get("actor_rollout_ref.model.path")),
        algorithm=estimator,
        rollout_engine=str(config.get("actor_rollout_ref.rollout.name")),
        nodes=need("trainer.nnodes"),
        gpus_per_node=need("trainer.n_gpus_per_node"),
        train_batch=need(keys.TRAIN_BATCH),
        mini_batch=need(keys.ACTOR_MINI_BATCH),
        samples=need(keys.SAMPLES),
        max_prompt=need(keys.MAX_PROMPT),
        max_response=need(keys.MAX_RESPONSE),
        sequence_parallel=max(
            integer(config, f"{keys.ACTOR}.ulysses_sequence_parallel_size") or 1,
            integer(config, f"{keys.ACTOR}.fsdp_config.ulysses_sequence_parallel_size") or 1,
        ),
        uses_reference=flag(config, f"{keys.ACTOR}.use_kl_loss") or flag(config, "algorithm.use_kl_in_reward"),
        uses_critic=estimator == "gae" if critic_enabled is None else bool(critic_enabled),
        uses_v1=flag(config, keys.USE_V1),
        on_cpu=config.get("trainer.device") == "cpu",
        fingerprint=digest[:16],
    )


def describe(workload: Workload) -> dict[str, object]:
    """The workload as plain JSON values."""
    return asdict(workload)
