"""The knob catalogue: what autotune may turn, what it costs to turn it, and what it can do to the training.

Facts are those of verl 0.9.1; `source` names the file and line there. `catalogue(release)` adjusts them for 0.7.1 and 0.8.0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from packaging.version import InvalidVersion, Version

from autotune.values import KnobValue, Phase
from autotune.verl import keys
from autotune.verl.config import FlatConfig, flag
from autotune.verl.workload import Workload


class Cost(str, Enum):
    """What it takes to change a knob in a running job."""

    LIVE = "live"
    """Between two steps."""
    ENGINE = "engine"
    """vLLM bakes it in: a new launch, or a new engine."""
    LAUNCH = "launch"
    """The trainer bakes it in: a new launch."""


class Safety(str, Enum):
    """What a knob can do to what the model learns."""

    NEUTRAL = "neutral"
    """The same mathematics; only the order of float sums differs."""
    NUMERIC = "numeric"
    """The same algorithm with other numerics; tuned with `--allow numeric` only."""
    SEMANTIC = "semantic"
    """Changes the training; never tuned."""


class Direction(str, Enum):
    """How GPU memory moves when the knob is turned along its ladder."""

    MORE = "more"
    LESS = "less"
    NONE = "none"


class Unit(str, Enum):
    """What a rung of the ladder counts."""

    PLAIN = "plain"
    SEQUENCES = "sequences"
    """Multiples of the longest trajectory (prompt limit + response limit), in tokens."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to turn."""

    key: str
    """Hydra key of release 0.9.1 (or a name of ours for what is not a key: `hook.fast_poll`)."""
    default: KnobValue
    ladder: tuple[KnobValue, ...]
    phases: tuple[Phase, ...]
    """Phases of a step that feel it."""
    cost: Cost
    safety: Safety
    memory: Direction
    rule: str
    """Its constraint, in words; `rules.py` enforces it."""
    source: str
    """Where verl (or vLLM) reads it."""
    unit: Unit = Unit.PLAIN
    tied: tuple[str, ...] = ()
    """Keys that must carry the same value; they follow by interpolation unless the launch sets them."""
    follows: str | None = None
    """Key whose value this one takes by interpolation unless it is set."""
    live_below: bool = False
    """True: a value smaller than the running engine's can be had while it runs, whatever `cost` says of a larger one."""
    absent_from_schema: bool = False
    """True: not in verl's YAML; an override needs `+`."""


_TRAIN = (Phase.UPDATE_ACTOR,)
_ALL_TRAINER = (Phase.OLD_LOG_PROB, Phase.REF, Phase.UPDATE_ACTOR)
_POWERS = tuple(2**i for i in range(8))

CATALOGUE: tuple[Knob, ...] = (
    Knob(
        keys.DYNAMIC, False, (False, True), _ALL_TRAINER, Cost.LIVE, Safety.NEUTRAL, Direction.NONE,
        "must equal rollout.log_prob_use_dynamic_bsz; token budgets take the place of micro-batch sizes",
        "workers/engine_workers.py:616", tied=(keys.LOG_PROB_DYNAMIC, keys.REF_DYNAMIC),
    ),
    Knob(
        keys.ACTOR_MICRO_BATCH, None, _POWERS, _TRAIN, Cost.LIVE, Safety.NEUTRAL, Direction.MORE,
        "divides ppo_mini_batch_size·n ÷ data-parallel ranks; ignored with dynamic batching",
        "workers/engine/utils.py:125",
    ),
    Knob(
        keys.ACTOR_TOKENS, 16384, (1, 2, 3, 4, 6, 8, 12, 16), _TRAIN, Cost.LIVE, Safety.NEUTRAL, Direction.MORE,
        "budget × sequence parallelism ≥ longest trajectory; used with dynamic batching only",
        "utils/seqlen_balancing.py:384", unit=Unit.SEQUENCES,
    ),
    Knob(
        keys.LOG_PROB_MICRO_BATCH, None, _POWERS, (Phase.OLD_LOG_PROB,), Cost.LIVE, Safety.NEUTRAL, Direction.MORE,
        "divides train_batch_size·n ÷ data-parallel ranks; ignored with dynamic batching",
        "workers/engine/utils.py:125",
    ),
    Knob(
        keys.LOG_PROB_TOKENS, None, (1, 2, 4, 8, 16, 32), (Phase.OLD_LOG_PROB,), Cost.LIVE, Safety.NEUTRAL, Direction.MORE,
        "budget × sequence parallelism ≥ longest trajectory; used with dynamic batching only",
        "utils/seqlen_balancing.py:384", unit=Unit.SEQUENCES, follows=keys.ACTOR_TOKENS,
    ),
    Knob(
        keys.REF_MICRO_BATCH, None, _POWERS, (Phase.REF,), Cost.LIVE, Safety.NEUTRAL, Direction.MORE,
        "divides train_batch_size·n ÷ data-parallel ranks; needs a reference model; ignored with dynamic batching",
        "workers/engine/utils.py:125",
    ),
    Knob(
        keys.REF_TOKENS, None, (1, 2, 4, 8, 16, 32), (Phase.REF,), Cost.LIVE, Safety.NEUTRAL, Direction.MORE,
        "budget × sequence parallelism ≥ longest trajectory; needs a reference model and dynamic batching",
        "utils/seqlen_balancing.py:384", unit=Unit.SEQUENCES, follows=keys.ACTOR_TOKENS,
    ),
    Knob(
        keys.CRITIC_TOKENS, 32768, (1, 2, 4, 8, 16, 32), (Phase.VALUES, Phase.UPDATE_CRITIC), Cost.LIVE, Safety.NEUTRAL,
        Direction.MORE, "the v1 trainer's one token budget for values and critic update; needs a critic",
        "trainer/ppo/v1/trainer_base.py:266", unit=Unit.SEQUENCES, absent_from_schema=True,
    ),
    Knob(
        keys.GPU_MEMORY, 0.5, (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9), (Phase.GEN,), Cost.ENGINE, Safety.NEUTRAL, Direction.MORE,
        "share of all GPU memory that vLLM may hold; must be free at start and at wake-up",
        "vllm v1/worker/utils.py:410", live_below=True,
    ),
    Knob(
        keys.MAX_NUM_SEQS, 256, (8, 16, 32, 64, 128, 256, 512, 1024), (Phase.GEN,), Cost.LIVE, Safety.NEUTRAL, Direction.MORE,
        "at most max_num_batched_tokens; more than the sequences of one replica has no effect",
        "vllm config/scheduler.py:286",
    ),
    Knob(
        keys.MAX_BATCHED_TOKENS, 8192, (512, 1024, 2048, 4096, 8192, 16384, 32768), (Phase.GEN,), Cost.LIVE, Safety.NEUTRAL,
        Direction.MORE, "at least max_num_seqs; at least max_model_len where chunked prefill is off",
        "vllm config/scheduler.py:273",
    ),
    Knob(
        keys.TENSOR_PARALLEL, 2, (1, 2, 4, 8), (Phase.GEN,), Cost.ENGINE, Safety.NEUTRAL, Direction.LESS,
        "divides the world size; smaller means more replicas", "workers/engine_workers.py:655",
    ),
    Knob(
        f"{keys.ROLLOUT}.enforce_eager", False, (True, False), (Phase.GEN,), Cost.ENGINE, Safety.NEUTRAL, Direction.MORE,
        "False captures CUDA graphs, which stay resident", "workers/rollout/vllm_rollout/vllm_async_server.py:325",
    ),
    Knob(
        f"{keys.ACTOR}.fsdp_config.param_offload", False, (True, False), _ALL_TRAINER, Cost.LAUNCH, Safety.NEUTRAL, Direction.MORE,
        "FSDP only; turning it off needs 4 bytes per parameter and shard", "workers/engine/base.py:314",
    ),
    Knob(
        f"{keys.ACTOR}.fsdp_config.optimizer_offload", False, (True, False), _TRAIN, Cost.LAUNCH, Safety.NEUTRAL, Direction.MORE,
        "FSDP only; turning it off needs 8 bytes per parameter and shard", "workers/engine/base.py:314",
    ),
    Knob(
        f"{keys.ACTOR}.fsdp_config.reshard_after_forward", True, (True, False), _ALL_TRAINER, Cost.LAUNCH, Safety.NEUTRAL,
        Direction.MORE, "False keeps the unsharded parameters until the backward pass", "workers/engine/fsdp/utils.py:56",
    ),
    Knob(
        f"{keys.ACTOR}.fsdp_config.forward_prefetch", False, (False, True), _ALL_TRAINER, Cost.LAUNCH, Safety.NEUTRAL,
        Direction.MORE, "static graphs only; holds one more layer", "utils/fsdp_utils.py:602",
    ),
    Knob(
        f"{keys.MODEL}.enable_gradient_checkpointing", True, (True, False), _TRAIN, Cost.LAUNCH, Safety.NEUTRAL, Direction.MORE,
        "False keeps all activations", "workers/engine/fsdp/transformer_impl.py:335",
    ),
    Knob(
        f"{keys.ROLLOUT}.free_cache_engine", True, (True, False), (Phase.GEN,), Cost.LAUNCH, Safety.NEUTRAL, Direction.MORE,
        "False keeps the KV pool while the trainer works", "workers/engine_workers.py:780",
    ),
    Knob(
        f"{keys.ACTOR}.fsdp_config.use_torch_compile", True, (True, False), _ALL_TRAINER, Cost.LAUNCH, Safety.NUMERIC, Direction.NONE,
        "compiles the entropy function only", "workers/engine/fsdp/transformer_impl.py:183",
    ),
    Knob(
        f"{keys.MODEL}.use_fused_kernels", False, (False, True), _ALL_TRAINER, Cost.LAUNCH, Safety.NUMERIC, Direction.LESS,
        "scalar temperature only; patches the model", "workers/engine/fsdp/transformer_impl.py:323",
    ),
    Knob(
        keys.ACTOR_STRATEGY, "fsdp", ("fsdp", "fsdp2"), _ALL_TRAINER, Cost.LAUNCH, Safety.NUMERIC, Direction.LESS,
        "fsdp or fsdp2", "workers/config/engine.py:306",
    ),
    Knob(
        keys.FAST_POLL, False, (False, True), (Phase.GEN,), Cost.LIVE, Safety.NEUTRAL, Direction.NONE,
        "v1 trainer with the stock sampler; not with DAPO filter groups", "trainer/ppo/v1/replay_buffer.py:144",
    ),
)  # fmt: skip

DEAD_KEYS: dict[str, str] = {
    f"{keys.ACTOR}.grad_clip": f"{keys.ACTOR}.optim.clip_grad",
    "critic.grad_clip": "critic.optim.clip_grad",
    f"{keys.ACTOR}.use_torch_compile": f"{keys.ACTOR}.fsdp_config.use_torch_compile",
    f"{keys.REF}.use_torch_compile": f"{keys.REF}.fsdp_config.use_torch_compile",
    f"{keys.REF}.fsdp_config.param_offload": "nothing: the FSDP reference model is always offloaded",
    "critic.use_dynamic_bsz": "nothing: the engine always batches the critic dynamically",
    "critic.ppo_micro_batch_size_per_gpu": keys.CRITIC_TOKENS,
    "critic.ppo_max_token_len_per_gpu": keys.CRITIC_TOKENS,
    "critic.forward_max_token_len_per_gpu": keys.CRITIC_TOKENS,
    "critic.forward_micro_batch_size_per_gpu": keys.CRITIC_TOKENS,
    "critic.ulysses_sequence_parallel_size": "critic.fsdp.ulysses_sequence_parallel_size",
    "trainer.balance_batch": "nothing: the v1 trainer always balances",
    f"{keys.ROLLOUT}.multi_stage_wake_up": "nothing",
    f"{keys.ROLLOUT}.over_sample_rate": "nothing",
}
"""Keys that verl 0.9.1 accepts and never reads (FSDP, v1 trainer), with what is read instead."""

_BATCHING = (
    keys.DYNAMIC,
    keys.ACTOR_MICRO_BATCH,
    keys.ACTOR_TOKENS,
)
_MICRO = (keys.ACTOR_MICRO_BATCH, keys.LOG_PROB_MICRO_BATCH, keys.REF_MICRO_BATCH)
_BUDGETS = (keys.ACTOR_TOKENS, keys.LOG_PROB_TOKENS, keys.REF_TOKENS)


def release_of(version: str | None) -> Version:
    """The release that a version string names; an unreadable one counts as the reference release 0.9.1."""
    try:
        return Version(Version(version or "").base_version)
    except InvalidVersion:
        return Version("0.9.1")


def catalogue(version: str | None = None) -> dict[str, Knob]:
    """The knobs of a verl release by key.

    Before 0.8.0 the trainer weighted a micro-batch by its share of sequences, so that batching moved the gradient
    a little: those knobs are `numeric` there. The generation poll came with the v1 trainer of 0.9.
    """
    release = release_of(version)
    knobs = {knob.key: knob for knob in CATALOGUE}
    if release < Version("0.9"):
        del knobs[keys.FAST_POLL]
        del knobs[keys.CRITIC_TOKENS]
    if release < Version("0.8"):
        for key in _BATCHING:
            knobs[key] = replace(knobs[key], safety=Safety.NUMERIC)
        old = knobs.pop(f"{keys.ACTOR}.fsdp_config.use_torch_compile")
        key = f"{keys.ACTOR}.use_torch_compile"
        knobs[key] = replace(old, key=key, source="workers/actor/dp_actor.py:88 (0.7.1)")
    return knobs


def safety_in(knob: Knob, config: FlatConfig) -> Safety:
    """The safety class of a knob under this configuration.

    Two settings of the loss make micro-batching visible to the gradient: `seq-mean-token-sum-norm` without a scale
    factor divides by the padded width of a micro-batch, and the `clip_cov`/`kl_cov` losses pick tokens per micro-batch
    (verl trainer/ppo/core_algos.py:1189, 1818, 1902).
    """
    if knob.key in _BATCHING:
        normed = (
            config.get(f"{keys.ACTOR}.loss_agg_mode") == "seq-mean-token-sum-norm"
            and config.get(f"{keys.ACTOR}.loss_scale_factor") is None
        )
        picks = config.get(f"{keys.ACTOR}.policy_loss.loss_mode") in ("clip_cov", "kl_cov")
        batch_norm = flag(config, "algorithm.rollout_correction.bypass_mode") and flag(
            config, "algorithm.rollout_correction.rollout_is_batch_normalize"
        )
        if normed or picks or batch_norm:
            return Safety.SEMANTIC
    return knob.safety


def inapplicable(knob: Knob, config: FlatConfig, workload: Workload) -> str | None:
    """Why a knob can have no effect for this job whatever the other knobs say, or None."""
    fsdp = str(config.get(keys.ACTOR_STRATEGY, "")).startswith("fsdp")
    if knob.key in (keys.REF_MICRO_BATCH, keys.REF_TOKENS) and not workload.uses_reference:
        return "the job has no reference model"
    if knob.key == keys.CRITIC_TOKENS and not (workload.uses_critic and workload.uses_v1):
        return "the job has no critic in the v1 trainer"
    if (".fsdp_config." in knob.key or knob.key == keys.ACTOR_STRATEGY) and not fsdp:
        return "the actor is not trained with FSDP"
    if knob.key == keys.FAST_POLL:
        if not workload.uses_v1 or config.get(keys.V1_MODE, "sync") != "sync":
            return "only the v1 trainer in sync mode polls for the end of generation"
        if config.get(keys.SAMPLER_PATH):
            return "the job brings its own sampler"
        if flag(config, keys.FILTER_GROUPS) or flag(config, "trainer.v1.sampler.sync_refill_failed_groups"):
            return "filter groups and refilling live in the stock sampler"
    if workload.rollout_engine != "vllm" and knob.key in (keys.MAX_BATCHED_TOKENS,):
        return f"{workload.rollout_engine} does not read it"
    if workload.on_cpu and knob.key in _NOT_ON_CPU:
        return "it has no meaning without a GPU"
    return None


_NOT_ON_CPU = frozenset(
    {
        f"{keys.ROLLOUT}.enforce_eager",
        f"{keys.ROLLOUT}.free_cache_engine",
        f"{keys.ACTOR}.fsdp_config.param_offload",
        f"{keys.ACTOR}.fsdp_config.optimizer_offload",
        f"{keys.ACTOR}.fsdp_config.use_torch_compile",
        f"{keys.MODEL}.use_fused_kernels",
        keys.TENSOR_PARALLEL,
    }
)


def asleep(key: str, values: FlatConfig) -> bool:
    """Whether the knob has no effect at these values of the others (micro-batches under dynamic batching, and so on)."""
    dynamic = flag(values, keys.DYNAMIC)
    return (key in _MICRO and dynamic) or (key in _BUDGETS and not dynamic)
