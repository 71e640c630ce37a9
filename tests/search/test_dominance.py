"""What cannot fit is not launched; what could fit is never refused."""

from __future__ import annotations

from autotune.search.dominance import Misfit, dominated
from autotune.values import Failure, FailureClass, Phase, Point
from autotune.verl import keys
from autotune.verl.knobs import catalogue

KNOBS = catalogue("0.9.1")
OWN = {
    keys.DYNAMIC: False,
    keys.ACTOR_MICRO_BATCH: 4,
    keys.LOG_PROB_MICRO_BATCH: 4,
    keys.MAX_NUM_SEQS: 64,
    keys.MAX_BATCHED_TOKENS: 8192,
    keys.GPU_MEMORY: 0.5,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    keys.FAST_POLL: False,
}


def misfit(failure_class, phase, **values):
    named = {getattr(keys, name): value for name, value in values.items()}
    return Misfit(Point.of({**OWN, **named}), Failure(failure_class, phase, "", "", False))


def refused(misfits, **values):
    named = {getattr(keys, name): value for name, value in values.items()}
    return dominated(Point.of({**OWN, **named}), misfits, KNOBS) is not None


OOM = [misfit(FailureClass.OOM_GPU, Phase.UPDATE_ACTOR, ACTOR_MICRO_BATCH=16)]


def test_a_larger_micro_batch_in_the_same_phase_will_not_fit_either():
    assert refused(OOM, ACTOR_MICRO_BATCH=32)
    assert refused(OOM, ACTOR_MICRO_BATCH=16, LOG_PROB_MICRO_BATCH=1)
    assert refused(OOM, ACTOR_MICRO_BATCH=16, FAST_POLL=True)


def test_a_smaller_one_or_a_smaller_engine_may_fit():
    assert not refused(OOM, ACTOR_MICRO_BATCH=8)
    assert not refused(OOM, ACTOR_MICRO_BATCH=16, GPU_MEMORY=0.3)


def test_other_batching_is_another_matter():
    assert not refused(OOM, ACTOR_MICRO_BATCH=16, DYNAMIC=True)


def test_turning_checkpointing_off_needs_more_memory():
    key = "actor_rollout_ref.model.enable_gradient_checkpointing"
    off = Point.of({**OWN, keys.ACTOR_MICRO_BATCH: 16, key: False})
    assert dominated(off, OOM, KNOBS) is not None
    failed_off = [Misfit(off, OOM[0].failure)]
    assert dominated(Point.of({**OWN, keys.ACTOR_MICRO_BATCH: 16, key: True}), failed_off, KNOBS) is None


KV = [misfit(FailureClass.VLLM_KV_CACHE, Phase.INIT_ROLLOUT, GPU_MEMORY=0.3)]


def test_less_memory_for_the_engine_leaves_no_more_cache():
    assert refused(KV, GPU_MEMORY=0.2)
    assert refused(KV, GPU_MEMORY=0.3, ACTOR_MICRO_BATCH=1)
    assert refused(KV, GPU_MEMORY=0.3, MAX_BATCHED_TOKENS=16384)
    assert not refused(KV, GPU_MEMORY=0.4)
    assert not refused(KV, GPU_MEMORY=0.3, MAX_BATCHED_TOKENS=1024)


def test_failures_that_say_nothing_about_memory_refuse_nothing():
    other = [misfit(FailureClass.RAY_ACTOR_DIED, Phase.UNKNOWN, ACTOR_MICRO_BATCH=16)]
    assert not refused(other, ACTOR_MICRO_BATCH=32)
