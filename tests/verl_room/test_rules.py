"""What verl or vLLM would refuse is refused before a launch, and nothing else is."""

from __future__ import annotations

import pytest

from autotune.verl import keys
from autotune.verl.rules import refusals, warnings
from tests.jobs import config, job


def rules_of(**changes):
    flat = config(**changes)
    return {refusal.rule for refusal in refusals(flat, job(**changes))}


def test_a_sound_configuration_is_not_refused():
    assert rules_of() == set()


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        (keys.ACTOR_MICRO_BATCH, 3, "MICRO_BATCH_DIVIDES"),
        (keys.ACTOR_MICRO_BATCH, 128, "MICRO_BATCH_DIVIDES"),
        (keys.ACTOR_MICRO_BATCH, None, "MICRO_BATCH_SET"),
        (keys.LOG_PROB_MICRO_BATCH, 5, "MICRO_BATCH_DIVIDES"),
        (keys.MAX_NUM_SEQS, 16384, "BATCHED_TOKENS_BELOW_SEQS"),
        (keys.MAX_MODEL_LEN, 2047, "MODEL_LEN"),
        (keys.TENSOR_PARALLEL, 3, "TENSOR_PARALLEL"),
        (keys.GPU_MEMORY, 1.2, "GPU_MEMORY_SHARE"),
        (keys.GPU_MEMORY, 0, "GPU_MEMORY_SHARE"),
        (keys.DYNAMIC, True, "DYNAMIC_FLAGS"),
        (keys.TRAIN_BATCH, 127, "BATCH_DIVIDES_NOT"),
        (keys.ACTOR_MINI_BATCH, 3, "MICRO_BATCH_DIVIDES"),
    ],
)
def test_each_fault_is_named(key, value, rule):
    found = rules_of(**{key.replace(".", "__"): value})
    if rule == "BATCH_DIVIDES_NOT":  # 127·8 sequences do divide over 8 GPUs, so only the log-prob micro-batch is wrong
        assert found == {"MICRO_BATCH_DIVIDES"}
    else:
        assert rule in found


def test_micro_batches_do_not_matter_under_dynamic_batching_but_budgets_do():
    dynamic = {keys.DYNAMIC.replace(".", "__"): True, keys.LOG_PROB_DYNAMIC.replace(".", "__"): True}
    assert rules_of(**dynamic, **{keys.ACTOR_MICRO_BATCH.replace(".", "__"): 3}) == set()
    assert rules_of(**dynamic, **{keys.ACTOR_TOKENS.replace(".", "__"): 2047}) == {"TOKEN_BUDGET"}


def test_sequence_parallelism_stretches_the_token_budget():
    changes = {keys.DYNAMIC: True, keys.LOG_PROB_DYNAMIC: True, keys.ACTOR_TOKENS: 1024, keys.LOG_PROB_TOKENS: 1024}
    parallel = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
    named = {key.replace(".", "__"): value for key, value in changes.items()}
    assert rules_of(**named) == {"TOKEN_BUDGET"}
    assert rules_of(**named, **{parallel.replace(".", "__"): 2}) == set()


def test_prefill_without_chunks_needs_room_for_the_longest_prompt():
    changes = {keys.CHUNKED_PREFILL.replace(".", "__"): False, keys.MAX_BATCHED_TOKENS.replace(".", "__"): 1024}
    assert rules_of(**changes) == {"CHUNKED_PREFILL_OFF"}


def test_too_few_cpus_and_an_unset_model_length_are_said_before_they_cost_a_hang():
    said = warnings(config(**{keys.MAX_MODEL_LEN.replace(".", "__"): None}), job(), cpus=16)
    assert any("3 CPUs per GPU" in text for text in said)
    assert any("max_model_len" in text for text in said)
    assert warnings(config(), job(), cpus=64) == []
