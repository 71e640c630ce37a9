"""From a Point to the overrides that verl is given."""

from __future__ import annotations

from autotune.values import Point
from autotune.verl import keys
from autotune.verl.knobs import Safety, catalogue, inapplicable, safety_in
from autotune.verl.settings import baseline_point, canonical, changed_keys, configuration, rejected_echo
from tests.jobs import config, job

KNOBS = catalogue("0.9.1")
TUNED = [
    KNOBS[key]
    for key in (
        keys.DYNAMIC,
        keys.ACTOR_MICRO_BATCH,
        keys.ACTOR_TOKENS,
        keys.LOG_PROB_TOKENS,
        keys.MAX_NUM_SEQS,
        keys.FAST_POLL,
    )
]


def baseline(**changes):
    return baseline_point(TUNED, config(**changes))


def changed(values, user_keys=(), own=None):
    own = own or baseline()
    return changed_keys(Point.of({**own.as_dict(), **values}), own, KNOBS, user_keys=user_keys)


def test_the_users_own_point_changes_nothing():
    assert changed({}) == {}


def test_a_knob_that_is_asleep_is_never_written():
    assert changed({keys.ACTOR_TOKENS: 4096}) == {}
    assert changed({keys.ACTOR_MICRO_BATCH: 8, keys.DYNAMIC: True}) == {keys.DYNAMIC: True}


def test_points_that_verl_cannot_tell_apart_are_equal():
    own = baseline()
    one = canonical(Point.of({**own.as_dict(), keys.ACTOR_TOKENS: 4096}), own)
    assert one == own


def test_a_follower_keeps_its_own_value_when_its_leader_moves():
    written = changed({keys.DYNAMIC: True, keys.ACTOR_TOKENS: 4096})
    assert written == {keys.DYNAMIC: True, keys.ACTOR_TOKENS: 4096, keys.LOG_PROB_TOKENS: 16384}


def test_a_tied_key_is_written_only_where_the_user_has_set_it():
    assert keys.LOG_PROB_DYNAMIC not in changed({keys.DYNAMIC: True})
    assert changed({keys.DYNAMIC: True}, user_keys={keys.LOG_PROB_DYNAMIC})[keys.LOG_PROB_DYNAMIC] is True


def test_the_hook_is_no_key_of_verl():
    assert changed({keys.FAST_POLL: True}) == {}


def test_the_composed_configuration_moves_tied_and_following_keys_along():
    flat = configuration(config(), {keys.DYNAMIC: True, keys.ACTOR_TOKENS: 4096}, KNOBS, user_keys=())
    assert flat[keys.LOG_PROB_DYNAMIC] is True
    assert flat[keys.LOG_PROB_TOKENS] == 4096
    kept = configuration(config(), {keys.ACTOR_TOKENS: 4096}, KNOBS, user_keys={keys.LOG_PROB_TOKENS})
    assert kept[keys.LOG_PROB_TOKENS] == 16384


def test_a_value_that_never_took_effect_is_found():
    assert rejected_echo({keys.MAX_NUM_SEQS: 64}, {keys.MAX_NUM_SEQS: 64}) == []
    assert rejected_echo({keys.GPU_MEMORY: 0.5}, {keys.GPU_MEMORY: 0.5, "other": 1}) == []
    (said,) = rejected_echo({keys.MAX_NUM_SEQS: 64}, {keys.MAX_NUM_SEQS: 256})
    assert "64" in said
    assert "256" in said


def test_batching_is_semantic_where_the_loss_depends_on_the_micro_batch():
    normed = config(actor_rollout_ref__actor__loss_agg_mode="seq-mean-token-sum-norm")
    assert safety_in(KNOBS[keys.ACTOR_MICRO_BATCH], normed) is Safety.SEMANTIC
    assert safety_in(KNOBS[keys.MAX_NUM_SEQS], normed) is Safety.NEUTRAL
    scaled = {**normed, "actor_rollout_ref.actor.loss_scale_factor": 1536}
    assert safety_in(KNOBS[keys.ACTOR_MICRO_BATCH], scaled) is Safety.NEUTRAL


def test_before_0_8_batching_moves_the_gradient_and_there_is_no_poll_to_hook():
    old = catalogue("0.7.1")
    assert old[keys.DYNAMIC].safety is Safety.NUMERIC
    assert keys.FAST_POLL not in old
    assert "actor_rollout_ref.actor.use_torch_compile" in old
    assert catalogue("0.8.0")[keys.DYNAMIC].safety is Safety.NEUTRAL


def test_the_hook_is_left_away_where_the_job_has_a_sampler_of_its_own():
    hook = KNOBS[keys.FAST_POLL]
    assert inapplicable(hook, config(), job()) is None
    assert inapplicable(hook, config(**{keys.SAMPLER_PATH.replace(".", "__"): "/my/sampler.py"}), job())
    assert inapplicable(hook, config(**{keys.FILTER_GROUPS.replace(".", "__"): True}), job())
    off = {keys.USE_V1.replace(".", "__"): False}
    assert inapplicable(hook, config(**off), job(**off))
