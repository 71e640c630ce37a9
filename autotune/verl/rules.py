"""Rules that refuse a Point by arithmetic, before anything is launched.

Each models what verl 0.9.1 or vLLM would do, and names the failure that it prevents. They read a flat configuration with
the Point's values already in place; numbers that are absent are never guessed: a rule that cannot decide says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autotune.values import Refusal
from autotune.verl import keys
from autotune.verl.config import FlatConfig, flag, integer
from autotune.verl.workload import Workload

Check = Callable[[FlatConfig, Workload], Iterator[Refusal]]


def mini_batch_divides(config: FlatConfig, job: Workload) -> Iterator[Refusal]:
    """verl asserts at the first update that every rank gets the same share of a mini-batch (engine_workers.py:267)."""
    sequences = job.mini_batch * job.samples
    if sequences % job.data_parallel:
        yield Refusal(
            "MINI_BATCH_DIVIDES",
            f"ppo_mini_batch_size·n = {sequences} sequences do not divide over {job.data_parallel} data-parallel ranks; "
            "verl stops at the first update",
            (keys.ACTOR_MINI_BATCH,),
        )


def micro_batch_divides(config: FlatConfig, job: Workload) -> Iterator[Refusal]:
    """verl asserts in the middle of the step that micro-batches divide a rank's share (engine/utils.py:125)."""
    if flag(config, keys.DYNAMIC):
        return
    per_rank_mini = job.mini_batch * job.samples // job.data_parallel
    per_rank_batch = job.trajectories // job.data_parallel
    wanted = [
        (keys.ACTOR_MICRO_BATCH, per_rank_mini, "a rank's mini-batch"),
        (keys.LOG_PROB_MICRO_BATCH, per_rank_batch, "a rank's batch"),
    ]
    if job.uses_reference:
        wanted.append((keys.REF_MICRO_BATCH, per_rank_batch, "a rank's batch"))
    for key, share, what in wanted:
        micro = integer(config, key)
        if micro is None:
            if config.get(key.replace("_per_gpu", "")) is None:
                yield Refusal(
                    "MICRO_BATCH_SET", f"{key} is not set and dynamic batching is off; verl needs one of them", (key,)
                )
        elif micro < 1 or share % micro:
            yield Refusal(
                "MICRO_BATCH_DIVIDES", f"{key}={micro} does not divide the {share} sequences of {what}", (key,)
            )


def token_budget_holds_longest(config: FlatConfig, job: Workload) -> Iterator[Refusal]:
    """A trajectory longer than the budget stops the run whenever it first appears (seqlen_balancing.py:384)."""
    wanted = []
    if flag(config, keys.DYNAMIC):
        wanted += [keys.ACTOR_TOKENS, keys.LOG_PROB_TOKENS] + ([keys.REF_TOKENS] if job.uses_reference else [])
    if job.uses_critic and job.uses_v1 and keys.CRITIC_TOKENS in config:
        wanted.append(keys.CRITIC_TOKENS)
    for key in wanted:
        budget = integer(config, key)
        if budget is not None and budget * job.sequence_parallel < job.max_sequence:
            yield Refusal(
                "TOKEN_BUDGET",
                f"{key}={budget} × sequence parallelism {job.sequence_parallel} is less than the longest trajectory "
                f"({job.max_prompt} + {job.max_response} = {job.max_sequence} tokens)",
                (key,),
            )


def dynamic_flags_agree(config: FlatConfig, job: Workload) -> Iterator[Refusal]:
    """verl asserts that the actor and the rollout's log-probs batch alike (engine_workers.py:616)."""
    rollout = config.get(keys.LOG_PROB_DYNAMIC)
    if rollout is not None and bool(rollout) != flag(config, keys.DYNAMIC):
        yield Refusal(
            "DYNAMIC_FLAGS",
            f"{keys.LOG_PROB_DYNAMIC}={rollout} differs from {keys.DYNAMIC}={flag(config, keys.DYNAMIC)}; verl asserts that they agree",
            (keys.DYNAMIC, keys.LOG_PROB_DYNAMIC),
        )


def tensor_parallel_divides(config: FlatConfig, job: Workload) -> Iterator[Refusal]:
    """verl refuses a world that does not split into whole engine replicas (engine_workers.py:655)."""
    parallel = (integer(config, keys.TENSOR_PARALLEL) or 1) * (
        integer(config, f"{keys.ROLLOUT}.data_parallel_size") or 1
    )
    if job.world_size % parallel:
        yield Refusal(
            "TENSOR_PARALLEL",
            f"tensor parallelism × rollout data parallelism = {parallel} does not divide {job.world_size} GPUs",
            (keys.TENSOR_PARALLEL,),
        )


def engine_lengths_fit(config: FlatConfig, job: Workload) -> Iterator[Refusal]:
    """vLLM and verl refuse these pairs while the engine starts, minutes into a launch."""
    tokens, seqs, length = (
        integer(config, k) for k in (keys.MAX_BATCHED_TOKENS, keys.MAX_NUM_SEQS, keys.MAX_MODEL_LEN)
    )
    if tokens is not None and seqs is not None and tokens < seqs:
        yield Refusal(
            "BATCHED_TOKENS_BELOW_SEQS",
            f"max_num_batched_tokens={tokens} is less than max_num_seqs={seqs}; vLLM refuses to start",
            (keys.MAX_BATCHED_TOKENS, keys.MAX_NUM_SEQS),
        )
    if length is not None and length < job.max_sequence:
        yield Refusal(
            "MODEL_LEN",
            f"max_model_len={length} is less than prompt + response limit = {job.max_sequence}; responses would be cut",
            (keys.MAX_MODEL_LEN,),
        )
    needed = length or job.max_sequence
    if tokens is not None and not flag(config, keys.CHUNKED_PREFILL, True) and tokens < needed:
        yield Refusal(
            "CHUNKED_PREFILL_OFF",
            f"chunked prefill is off and max_num_batched_tokens={tokens} < max_model_len={needed}; verl 0.9.1 stops with FrozenInstanceError",
            (keys.MAX_BATCHED_TOKENS, keys.CHUNKED_PREFILL),
        )


def utilisation_is_a_share(config: FlatConfig, job: Workload) -> Iterator[Refusal]:
    """vLLM takes a fraction of all memory; 0 or more than 1 stops its start."""
    value = config.get(keys.GPU_MEMORY)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 < value <= 1:
        yield Refusal(
            "GPU_MEMORY_SHARE", f"{keys.GPU_MEMORY}={value} is not a share between 0 and 1", (keys.GPU_MEMORY,)
        )


def even_batch(config: FlatConfig, job: Workload) -> Iterator[Refusal]:
    """Without dynamic batching verl refuses a batch that does not divide over the GPUs (utils/config.py:127)."""
    if not flag(config, keys.DYNAMIC) and job.trajectories % job.world_size:
        yield Refusal(
            "BATCH_DIVIDES",
            f"train_batch_size·n = {job.trajectories} does not divide over {job.world_size} GPUs",
            (keys.TRAIN_BATCH, keys.SAMPLES),
        )


CHECKS: tuple[Check, ...] = (
    even_batch,
    mini_batch_divides,
    micro_batch_divides,
    token_budget_holds_longest,
    dynamic_flags_agree,
    tensor_parallel_divides,
    engine_lengths_fit,
    utilisation_is_a_share,
)


def refusals(config: FlatConfig, job: Workload) -> list[Refusal]:
    """Every reason for which verl or vLLM would refuse this configuration; empty: nothing speaks against a launch."""
    return [refusal for check in CHECKS for refusal in check(config, job)]


def warnings(config: FlatConfig, job: Workload, *, cpus: int | None) -> list[str]:
    """What is wrong with a command without stopping it: said once, before the first launch."""
    said = []
    if job.train_batch % job.mini_batch:
        said.append(
            f"train_batch_size={job.train_batch} is no multiple of ppo_mini_batch_size={job.mini_batch}: verl pads every step with "
            "synthetic rows, which count in its throughput"
        )
    declared = integer(config, "ray_kwargs.ray_init.num_cpus") or cpus
    if declared is not None and declared < 3 * job.gpus_per_node:
        said.append(
            f"verl asks Ray for 3 CPUs per GPU ({3 * job.gpus_per_node} here) and waits for ever if there are fewer; Ray sees {declared}. "
            "Set ray_kwargs.ray_init.num_cpus"
        )
    if config.get(keys.MAX_MODEL_LEN) is None:
        said.append(
            f"rollout.max_model_len is not set: vLLM then reserves KV cache for the model's whole context instead of {job.max_sequence} tokens"
        )
    return said
