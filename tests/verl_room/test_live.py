"""What a session can change, what it is told, and which jobs have none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.verl import keys
from autotune.verl.knobs import CATALOGUE, Cost
from autotune.verl.live import (
    GENERATION_KEYS,
    TRAINING_KEYS,
    EngineSeat,
    capture_sizes,
    default_capture_sizes,
    is_live,
    predicted_kv_blocks,
    session_overrides,
    session_settings,
    session_unsupported,
)
from tests.jobs import config

FACTS = {
    "gpu_memory_utilization": 0.1,
    "kv_bytes": 1_197_473_792,
    "pool_blocks": 2284,
    "total_memory": 20_361_015_296,
    "longest": 1,
}


def test_every_live_knob_of_the_catalogue_belongs_to_generation_or_to_training():
    live = {knob.key for knob in CATALOGUE if knob.cost is Cost.LIVE}
    assert live <= GENERATION_KEYS | TRAINING_KEYS
    assert not GENERATION_KEYS & TRAINING_KEYS


@pytest.mark.parametrize(
    ("changes", "live"),
    [
        ({}, True),
        ({keys.ACTOR_MICRO_BATCH: 8, keys.MAX_NUM_SEQS: 512, keys.FAST_POLL: True}, True),
        ({keys.GPU_MEMORY: 0.4}, True),
        ({keys.GPU_MEMORY: 0.6}, False),
        ({keys.TENSOR_PARALLEL: 1}, False),
        ({keys.ACTOR_MICRO_BATCH: 8, keys.TENSOR_PARALLEL: 1}, False),
        ({f"{keys.ACTOR}.fsdp_config.param_offload": True}, False),
        ({"some.key": 1}, False),
    ],
)
def test_a_change_is_live_when_all_of_it_is(changes, live):
    assert is_live(changes, utilisation=0.5) is live


def test_a_memory_share_is_not_live_in_an_engine_of_unknown_share():
    assert not is_live({keys.GPU_MEMORY: 0.4})


def test_kv_blocks_follow_the_share_on_a_line_through_the_running_engine():
    seat = EngineSeat.of(FACTS)
    assert seat is not None
    assert predicted_kv_blocks(seat, 0.1) == 2283  # all but vLLM's null block
    per_block = FACTS["kv_bytes"] / FACTS["pool_blocks"]
    at_eight = predicted_kv_blocks(seat, 0.08)
    assert at_eight == pytest.approx(2283 - 0.02 * FACTS["total_memory"] / per_block, abs=1)
    assert predicted_kv_blocks(seat, 0.01) < 1  # vLLM would not start


@given(st.floats(0.01, 1.0), st.floats(0.0, 1.0))
def test_a_larger_share_never_means_fewer_blocks(share, more):
    seat = EngineSeat(0.5, 10 << 30, 5000, 80 << 30, 8)
    assert predicted_kv_blocks(seat, min(1.0, share + more)) >= predicted_kv_blocks(seat, share)


@pytest.mark.parametrize("missing", list(FACTS))
def test_an_engine_that_says_too_little_has_no_seat(missing):
    assert EngineSeat.of({name: value for name, value in FACTS.items() if name != missing}) is None
    assert EngineSeat.of({**FACTS, missing: None}) is None


def test_each_phase_is_told_its_own_batching():
    fixed = session_settings(config(), kv_blocks=None, fast_poll=False)
    assert fixed["phases"]["update_actor"]["micro_batch_size_per_gpu"] == 2
    assert fixed["phases"]["old_log_prob"]["micro_batch_size_per_gpu"] == 4
    assert fixed["phases"]["update_actor"]["use_dynamic_bsz"] is False
    assert "values" not in fixed["phases"]
    assert fixed["poll_seconds"] is None
    dynamic = config(**{keys.DYNAMIC: True, keys.LOG_PROB_DYNAMIC: True, keys.ACTOR_TOKENS: 4096})
    told = session_settings(dynamic, kv_blocks=77, fast_poll=True)
    assert told["phases"]["update_actor"]["max_token_len_per_gpu"] == 4096
    assert told["phases"]["old_log_prob"]["use_dynamic_bsz"] is True
    assert told["engine"] == {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "kv_blocks": 77}
    assert told["poll_seconds"] < 1.0


def test_the_critics_one_budget_goes_to_both_of_its_phases():
    told = session_settings(config(**{keys.CRITIC_TOKENS: 9000}), kv_blocks=None, fast_poll=False)
    assert told["phases"]["values"] == told["phases"]["update_critic"]
    assert told["phases"]["values"] == {"use_dynamic_bsz": True, "max_token_len_per_gpu": 9000}


def test_a_session_learns_nothing_and_starts_with_the_largest_limits():
    flat = config(
        **{
            "critic.optim.lr": 1e-5,
            "algorithm.kl_ctrl.type": "adaptive",
            f"{keys.ROLLOUT}.agent.default_agent_loop": "single_turn_agent",
        }
    )
    overrides = session_overrides(flat, {keys.MAX_NUM_SEQS: 1024, keys.MAX_BATCHED_TOKENS: 512})
    assert f"{keys.ACTOR}.optim.lr=0.0" in overrides
    assert "critic.optim.lr=0.0" in overrides
    assert "algorithm.kl_ctrl.type=fixed" in overrides
    assert f"{keys.ROLLOUT}.agent.default_agent_loop=autotune_replay" in overrides
    assert f"{keys.MAX_NUM_SEQS}=1024" in overrides
    assert f"{keys.MAX_BATCHED_TOKENS}=8192" in overrides  # the user's own is larger
    assert not any(keys.GPU_MEMORY in override for override in overrides)  # the engine starts with the baseline's


def test_limits_that_vllm_would_refuse_together_are_not_asked_for():
    flat = config(**{keys.MAX_BATCHED_TOKENS: 128, keys.MAX_NUM_SEQS: 64})
    overrides = session_overrides(flat, {keys.MAX_NUM_SEQS: 512})
    assert f"{keys.MAX_BATCHED_TOKENS}=512" in overrides


def test_a_loop_of_several_turns_is_left_alone():
    flat = config(**{f"{keys.ROLLOUT}.agent.default_agent_loop": "tool_agent"})
    assert not any("agent_loop" in override for override in session_overrides(flat, {}))


@pytest.mark.parametrize(
    ("changes", "version", "said"),
    [
        ({}, "0.8.0", "0.8.0"),
        ({keys.USE_V1: False}, "0.9.1", "old trainer"),
        ({keys.V1_MODE: "separate_async"}, "0.9.1", "separate_async"),
        ({f"{keys.ROLLOUT}.name": "sglang"}, "0.9.1", "sglang"),
        ({keys.ACTOR_STRATEGY: "megatron"}, "0.9.1", "megatron"),
        ({"trainer.nnodes": 2}, "0.9.1", "one host"),
        ({f"{keys.ROLLOUT}.engine_kwargs.vllm.scheduler_cls": "mine.Scheduler"}, "0.9.1", "own vLLM scheduler"),
        ({keys.FILTER_GROUPS: True}, "0.9.1", "filter groups"),
    ],
)
def test_a_job_that_no_session_can_measure_is_told_why(changes, version, said):
    assert said in str(session_unsupported(config(**changes), version))


@pytest.mark.parametrize("version", ["0.9.1", "0.9.0", "0.9.1+double", None])
def test_a_plain_job_of_the_reference_release_has_sessions(version):
    assert session_unsupported(config(), version) is None


VLLM = f"{keys.ROLLOUT}.engine_kwargs.vllm"
LIMITS = {keys.MAX_NUM_SEQS: 512, keys.MAX_BATCHED_TOKENS: 8192}


@pytest.mark.parametrize(
    ("sequences", "tokens", "sizes"),
    [
        (1, 8192, [1, 2]),
        (4, 8192, [1, 2, 4, 8]),
        (10, 8192, [1, 2, 4, 8, 16]),
        (10, 18, [1, 2, 4, 8, 16, 18]),
        (64, 8192, [1, 2, 4, *range(8, 129, 8)]),
        (128, 8192, [1, 2, 4, *range(8, 256, 8), 256]),
        (150, 8192, [1, 2, 4, *range(8, 256, 8), 256, 272, 288]),
        (1024, 8192, [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]),
        (1024, 300, [1, 2, 4, *range(8, 256, 8), 256, 272, 288, 300]),
    ],
)
def test_graphs_are_captured_for_the_sizes_that_vllm_chooses(sequences, tokens, sizes):
    assert default_capture_sizes(sequences, tokens) == sizes


@given(st.integers(1, 600), st.integers(1, 600), st.integers(1, 64), st.integers(1, 64))
def test_a_sessions_graphs_reach_as_far_as_those_of_any_point_below_its_ceilings(sequences, fewer, tokens, less):
    tokens, less = 16 * tokens, 16 * less
    ceilings = {keys.MAX_NUM_SEQS: 600, keys.MAX_BATCHED_TOKENS: 1024}
    own = config(**{keys.MAX_NUM_SEQS: sequences, keys.MAX_BATCHED_TOKENS: tokens})
    sizes = capture_sizes(own, ceilings)
    assert sizes == sorted(set(sizes))
    assert set(default_capture_sizes(sequences, tokens)) <= set(sizes)
    assert max(sizes) >= max(default_capture_sizes(fewer, less))


@pytest.mark.parametrize(
    "own",
    [
        {f"{keys.ROLLOUT}.enforce_eager": True},
        {"trainer.device": "cpu"},
        {f"{keys.ROLLOUT}.cudagraph_capture_sizes": [1, 2, 4]},
        {f"{VLLM}.cudagraph_capture_sizes": [1, 2, 4]},
        {f"{VLLM}.max-cudagraph-capture-size": 64},
        {f"{VLLM}.compilation_config.max_cudagraph_capture_size": 64},
        {f"{VLLM}.compilation_config": '{"cudagraph_mode": "NONE"}'},
        {f"{VLLM}.speculative_config.method": "ngram"},
        {f"{VLLM}.performance_mode": "interactivity"},
        {"actor_rollout_ref.model.mtp.enable": True, "actor_rollout_ref.model.mtp.enable_rollout": True},
    ],
)
def test_sizes_that_are_not_ours_to_set_stay_as_they_are(own):
    assert capture_sizes(config(), LIMITS) is not None
    assert capture_sizes(config(**own), LIMITS) is None
    assert not any("cudagraph" in override for override in session_overrides(config(**own), LIMITS))


def test_other_arguments_of_vllm_leave_the_sizes_to_us():
    own = {f"{VLLM}.compilation_config.cudagraph_mode": "PIECEWISE", f"{VLLM}.disable_mm_preprocessor_cache": True}
    assert capture_sizes(config(**own, **{f"{VLLM}.max_cudagraph_capture_size": None}), LIMITS) is not None


def test_sizes_are_unknown_where_a_limit_is():
    assert capture_sizes(config(), {keys.MAX_NUM_SEQS: 512, keys.MAX_BATCHED_TOKENS: 0}) is None


def test_a_session_says_which_graphs_its_engine_captures():
    overrides = session_overrides(config(**{keys.MAX_NUM_SEQS: 4}), {keys.MAX_NUM_SEQS: 10})
    assert f"++{keys.ROLLOUT}.cudagraph_capture_sizes=[1,2,4,8,16]" in overrides
