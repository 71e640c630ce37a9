"""What can be changed in a running verl job, and in whose words: from a Point to the settings of a session.

Facts are those of verl 0.9.1 with the v1 trainer; the session itself is `autotune.inside.session_trainer`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.values import KnobValue
from autotune.verl import keys
from autotune.verl.config import FlatConfig, flag, integer
from autotune.verl.knobs import CATALOGUE, Cost, Knob, release_of

SESSION_RELEASES = ("0.9",)
"""Releases (major.minor) whose v1 trainer the session was written for."""
SESSION_MODE = "autotune_session"
SCHEDULER = "autotune.inside.scheduler.live_scheduler"
REPLAY_LOOP = "autotune_replay"
ENGINE_LIMITS = (keys.MAX_NUM_SEQS, keys.MAX_BATCHED_TOKENS)
"""Engine limits that a session can lower; it starts with the largest that will be wanted."""
GENERATION_KEYS = frozenset({*ENGINE_LIMITS, keys.GPU_MEMORY, keys.FAST_POLL})
"""Live knobs that move generation and nothing else."""
TRAINING_KEYS = frozenset(
    {keys.DYNAMIC, keys.ACTOR_MICRO_BATCH, keys.ACTOR_TOKENS, keys.CRITIC_TOKENS}
    | {keys.LOG_PROB_DYNAMIC, keys.LOG_PROB_MICRO_BATCH, keys.LOG_PROB_TOKENS}
    | {keys.REF_DYNAMIC, keys.REF_MICRO_BATCH, keys.REF_TOKENS}
)
"""Live knobs that move the trainer's phases and nothing else."""
FAST_POLL_SECONDS = 0.05
"""As in `autotune.inside.hooks`."""
_SCHEDULER_KEY = f"{keys.ROLLOUT}.engine_kwargs.vllm.scheduler_cls"
_VLLM = f"{keys.ROLLOUT}.engine_kwargs.vllm"
_MTP = "actor_rollout_ref.model.mtp"
_CAPTURE_SIZES = f"{keys.ROLLOUT}.cudagraph_capture_sizes"
_AGENT_LOOP = f"{keys.ROLLOUT}.agent.default_agent_loop"
_KNOBS = {knob.key: knob for knob in CATALOGUE}


@dataclass(frozen=True, slots=True)
class EngineSeat:
    """The engine as a session started it: what decides which memory shares can be had from it live."""

    utilisation: float
    """`gpu_memory_utilization` of its start."""
    kv_bytes: int
    kv_blocks: int
    """Blocks of its pool, one of which is vLLM's null block."""
    total_memory: int
    """Bytes that the share is a share of: the GPU's, or on the CPU build those of the host (or its container)."""
    longest: int
    """Blocks of one sequence of `max_model_len` tokens."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> EngineSeat | None:
        """From what the engine said of itself; None where it did not say enough."""
        try:
            seat = cls(
                float(facts["gpu_memory_utilization"]),
                int(facts["kv_bytes"]),
                int(facts["pool_blocks"]),
                int(facts["total_memory"]),
                int(facts["longest"]),
            )
        except (KeyError, TypeError, ValueError):
            return None
        return seat if seat.kv_blocks > 0 and seat.kv_bytes > 0 else None


def predicted_kv_blocks(seat: EngineSeat, utilisation: float) -> int:
    """Blocks that an engine started with another memory share would have for requests; 0 or less: it would not start.

    vLLM gives the cache what its share leaves over weights, activations and CUDA graphs, none of which depends on the
    share (v1/worker/gpu_worker.py and cpu_worker.py, `determine_available_memory`). So the line through all starts has the
    slope total memory ÷ bytes of a block, and one start fixes its place:
        blocks(u) = blocks(u₀) − (u₀ − u) · total memory ÷ bytes of a block
    """
    per_block = seat.kv_bytes / seat.kv_blocks
    fewer = (seat.utilisation - utilisation) * seat.total_memory / per_block
    return math.floor(seat.kv_blocks - fewer + 1e-6) - 1


def is_live(
    changes: Mapping[str, KnobValue], *, utilisation: float | None = None, knobs: Mapping[str, Knob] | None = None
) -> bool:
    """Whether these changed values can be measured in a running session.

    Args:
        changes: knob key → value, as far as it differs from the session's.
        utilisation: `gpu_memory_utilization` that the session's engine started with; None: that knob is not live. A
            smaller share is had by admission; a larger one needs an engine started with it.
        knobs: catalogue of the release; None: that of 0.9.1.
    """
    known = _KNOBS if knobs is None else knobs
    for key, value in changes.items():
        knob = known.get(key)
        if knob is None:
            return False
        if knob.cost is Cost.LIVE and key in GENERATION_KEYS | TRAINING_KEYS:
            continue
        smaller = isinstance(value, (int, float)) and utilisation is not None and value <= utilisation
        if not (knob.live_below and smaller):
            return False
    return True


def session_unsupported(config: FlatConfig, verl_version: str | None) -> str | None:
    """Why this job cannot be measured in a session, so that every Point needs a launch of its own; None: it can."""
    release = release_of(verl_version)
    if f"{release.major}.{release.minor}" not in SESSION_RELEASES:
        return f"verl {verl_version} has another trainer than {' or '.join(SESSION_RELEASES)}"
    if not flag(config, keys.USE_V1):
        return "the old trainer (trainer.use_v1=False) takes no changes while it runs"
    if (mode := config.get(keys.V1_MODE, "sync")) != "sync":
        return f"trainer.v1.trainer_mode={mode} trains and generates at the same time"
    if not str(config.get(keys.ACTOR_STRATEGY, "")).startswith("fsdp"):
        return f"{keys.ACTOR_STRATEGY}={config.get(keys.ACTOR_STRATEGY)} was not tried with live changes"
    if (engine := config.get(f"{keys.ROLLOUT}.name")) != "vllm":
        return f"live limits need vLLM, and the job generates with {engine}"
    if (integer(config, "trainer.nnodes") or 1) > 1:
        return "the session and its controller talk through a socket on one host"
    if config.get(_SCHEDULER_KEY) is not None:
        return "the job brings its own vLLM scheduler"
    if flag(config, keys.FILTER_GROUPS) or flag(config, "trainer.v1.sampler.sync_refill_failed_groups"):
        return "filter groups make steps of unequal work"
    return None


def session_overrides(config: FlatConfig, ceilings: Mapping[str, int]) -> list[str]:
    """Hydra arguments that make the user's command a session; none of them reaches an emitted script.

    The learning rates are 0 and adaptive KL is held, so that every step starts from the same state.

    Args:
        config: the composed configuration of the user's command.
        ceilings: largest values that will be wanted of `ENGINE_LIMITS`.
    """
    overrides = [f"{keys.V1_MODE}={SESSION_MODE}", f"{keys.ACTOR}.optim.lr=0.0"]
    if "critic.optim.lr" in config:
        overrides.append("critic.optim.lr=0.0")
    if config.get("algorithm.kl_ctrl.type") == "adaptive":
        overrides.append("algorithm.kl_ctrl.type=fixed")
    if config.get(_AGENT_LOOP) == "single_turn_agent":
        overrides.append(f"{_AGENT_LOOP}={REPLAY_LOOP}")
    overrides.append(f"++{_SCHEDULER_KEY}={SCHEDULER}")
    limits = {key: max(ceilings.get(key, 0), integer(config, key) or 0) for key in ENGINE_LIMITS}
    if limits[keys.MAX_NUM_SEQS] > limits[keys.MAX_BATCHED_TOKENS] > 0:
        limits[keys.MAX_BATCHED_TOKENS] = limits[keys.MAX_NUM_SEQS]  # vLLM refuses less (config/scheduler.py:286)
    overrides += [f"{key}={value}" for key, value in limits.items() if value > 0]
    sizes = capture_sizes(config, limits)
    if sizes is not None:
        overrides.append(f"++{_CAPTURE_SIZES}=[{','.join(map(str, sizes))}]")
    return overrides


def default_capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> list[int]:
    """Batch sizes for which vLLM captures CUDA graphs when nobody says otherwise, ascending.

    As in vLLM 0.27.1, vllm/config/vllm.py:1831-1884 (`_set_cudagraph_sizes`): up to the least of twice `max_num_seqs`, 512 and
    `max_num_batched_tokens`: 1, 2, 4, then every 8 below 256, then every 16; and `max_num_batched_tokens` itself where it is
    no more than that. Without speculative decoding, and in the mode `balanced`.
    """
    largest = min(2 * max_num_seqs, 512, max_num_batched_tokens)
    sizes = {size for size in (1, 2, 4) if size <= largest}
    sizes |= set(range(8, min(largest + 1, 256), 8)) | set(range(256, largest + 1, 16))
    if max_num_batched_tokens <= largest:
        sizes.add(max_num_batched_tokens)
    return sorted(sizes)


def capture_sizes(config: FlatConfig, limits: Mapping[str, int]) -> list[int] | None:
    """CUDA graph sizes of a session's engine: those that vLLM would capture at the user's own limits, and those at `limits`.

    vLLM pads a batch to the next captured size and runs one above the largest eagerly (config/vllm.py:1816-1819). Said
    explicitly, the sizes are the same in every session with these ceilings, whatever another vLLM's default is, and the
    graphs of a live Point reach at least as far as those of its own launch would (up to an odd `max_num_batched_tokens`).
    The other way round stays: a launch with smaller limits captures less, and runs larger mixed batches eagerly that the
    session has a graph for. Not measured: the CPU has no graphs.

    verl hands `rollout.cudagraph_capture_sizes` on inside vLLM's `compilation_config` (vllm_async_server.py:307-324).

    Args:
        config: the composed configuration of the user's command.
        limits: `ENGINE_LIMITS` that the engine is started with.

    Returns:
        None where the sizes are not ours to set: `enforce_eager` (vLLM empties the list, config/vllm.py:1425-1430), sizes or a
        largest size of the user's own (the two must agree, :1904-1911), or what makes vLLM's own sizes others than
        `default_capture_sizes` (speculative decoding, a performance mode, a `compilation_config` as text, a job on the CPU);
        or a limit is unknown.
    """
    if flag(config, f"{keys.ROLLOUT}.enforce_eager") or config.get("trainer.device") == "cpu":
        return None
    if config.get(_CAPTURE_SIZES) or (flag(config, f"{_MTP}.enable") and flag(config, f"{_MTP}.enable_rollout")):
        return None
    for key, value in config.items():
        name = key.replace("-", "_")
        if name.startswith(f"{_VLLM}.") and value is not None and _decides_sizes(name.removeprefix(f"{_VLLM}."), value):
            return None
    at_start = [limits.get(key, 0) for key in ENGINE_LIMITS]
    if min(at_start) < 1:
        return None
    own = [integer(config, key) or most for key, most in zip(ENGINE_LIMITS, at_start, strict=True)]
    return sorted({*default_capture_sizes(*own), *default_capture_sizes(*at_start)})


def _decides_sizes(name: str, value: Any) -> bool:
    """Whether an argument of vLLM's, by its name below `engine_kwargs.vllm`, has a say in the sizes."""
    if name.startswith("speculative_config") or name in ("performance_mode", "optimization_level"):
        return True
    if name == "compilation_config":
        return isinstance(value, str)  # JSON that may hold anything
    return name.rpartition(".")[2] in ("cudagraph_capture_sizes", "max_cudagraph_capture_size")


def session_settings(config: FlatConfig, *, kv_blocks: int | None, fast_poll: bool) -> dict[str, Any]:
    """What a session is told so that its next step runs this configuration.

    Args:
        config: the flat configuration of the Point, interpolated followers included.
        kv_blocks: blocks that requests may have; None: all.
    """

    def batching(dynamic: str | None, micro: str | None, tokens: str | None) -> dict[str, Any]:
        on = True if dynamic is None else flag(config, dynamic)
        found: dict[str, Any] = {"use_dynamic_bsz": on}
        for name, key in (("max_token_len_per_gpu", tokens), ("micro_batch_size_per_gpu", micro)):
            value = None if key is None else integer(config, key)
            if value is not None:
                found[name] = value
        return found

    reference = batching(keys.REF_DYNAMIC, keys.REF_MICRO_BATCH, keys.REF_TOKENS)
    phases = {
        "update_actor": batching(keys.DYNAMIC, keys.ACTOR_MICRO_BATCH, keys.ACTOR_TOKENS),
        "old_log_prob": batching(keys.LOG_PROB_DYNAMIC, keys.LOG_PROB_MICRO_BATCH, keys.LOG_PROB_TOKENS),
        "ref": reference,
    }
    if integer(config, keys.CRITIC_TOKENS) is not None and flag(config, "critic.fsdp.use_dynamic_bsz", True):
        # The v1 trainer copies this one budget into both of the critic's (trainer_base.py:266-268).
        phases["values"] = phases["update_critic"] = batching(None, None, keys.CRITIC_TOKENS)
    engine = {
        "max_num_seqs": integer(config, keys.MAX_NUM_SEQS),
        "max_num_batched_tokens": integer(config, keys.MAX_BATCHED_TOKENS),
        "kv_blocks": kv_blocks,
    }
    return {
        "phases": phases,
        "engine": {name: value for name, value in engine.items() if value is not None},
        "poll_seconds": FAST_POLL_SECONDS if fast_poll else None,
    }
