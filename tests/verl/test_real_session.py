"""One launch of real verl 0.9.1 with real vLLM on the CPU measures many Points: what changes, what must not, what is noticed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from autotune.measure.bench import same_gradient
from autotune.measure.runner import StepPlan
from autotune.measure.session import FROZEN, GENERATION, LIVE, LONGEST, REPLAY, SessionStep, StepFailed
from autotune.values import Failure, FailureClass, Measurement, Phase, Source
from autotune.verl import keys
from autotune.verl.live import session_settings
from autotune.verl.settings import rejected_echo
from tests.verl.demo_stand import DemoStand

pytestmark = [pytest.mark.verl, pytest.mark.timeout(900)]

PLAN = StepPlan(
    at_least=2, at_most=2, crowding=1.0
)  # what is looked at here are values; how long they took does not matter
TURNED = {
    "micro": {"ACTOR_MICRO_BATCH": 16, "LOG_PROB_MICRO_BATCH": 32},
    "dynamic": {"DYNAMIC": True, "ACTOR_TOKENS": 768, "LOG_PROB_TOKENS": 384},
    "sequences": {"MAX_NUM_SEQS": 64, "FAST_POLL": True},
    "tokens": {"MAX_NUM_SEQS": 64, "FAST_POLL": True, "MAX_BATCHED_TOKENS": 128},
    "memory": {"MAX_NUM_SEQS": 64, "FAST_POLL": True, "GPU_MEMORY": None},  # chosen when the engine's size is known
    "both": {"ACTOR_MICRO_BATCH": 16, "LOG_PROB_MICRO_BATCH": 32, "MAX_NUM_SEQS": 64, "FAST_POLL": True},
}


def share_for(stand, blocks):
    """A memory share at which the running engine would have `blocks` KV blocks."""
    (seat,) = stand.warm._bench.session.seats
    per_block = seat.kv_bytes / seat.kv_blocks
    return seat.utilisation - (seat.kv_blocks - 1 - blocks - 0.5) * per_block / seat.total_memory


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    stand = DemoStand(tmp_path_factory.mktemp("session"))
    found = {}
    try:
        found["base"] = stand.warm.measure(stand.order("base", plan=PLAN), lambda event: None)
        assert isinstance(found["base"], Measurement), found["base"]
        points = dict(TURNED)
        points["memory"] = {**points["memory"], "GPU_MEMORY": share_for(stand, 6)}
        found["failing"] = stand.warm.measure(
            stand.order("failing", plan=PLAN, ACTOR_MICRO_BATCH=7), lambda event: None
        )
        for label, values in points.items():
            found[label] = stand.warm.measure(stand.order(label, plan=PLAN, **values), lambda event: None)
        session = stand.warm._bench.session
        plain = session_settings(stand.job.config, kv_blocks=None, fast_poll=False)
        controls = {}
        for name, changed in {
            "same": plain,
            "mini_batch": {**plain, "trainer": {keys.ACTOR_MINI_BATCH: 8}},
            "same_again": plain,
            "deaf": {**plain, "engine": {"max_num_seqs": 9999}},
        }.items():
            controls[name] = session.step(FROZEN, changed, stopped=lambda: False)
        controls["longest"] = session.step(LONGEST, plain, stopped=lambda: False)
        controls["same_after_longest"] = session.step(FROZEN, plain, stopped=lambda: False)
        steps = session.steps
        stand.warm.retire(PLAN)
        yield SimpleNamespace(stand=stand, found=found, points=points, controls=controls, steps=steps, session=session)
    finally:
        stand.warm.close()


def measured(ran):
    return {label: ran.found[label] for label in TURNED}


def test_one_launch_measures_all_points(ran):
    for label, found in measured(ran).items():
        assert isinstance(found, Measurement), (label, found)
        assert found.source is Source.COMPOSED
        assert len(found.counted) == 2
    assert {found.session for found in measured(ran).values()} == {ran.found["base"].session}
    assert ran.found["base"].source is Source.WHOLE
    assert not any(found.simulated for found in measured(ran).values())


def test_what_was_asked_for_is_in_effect(ran):
    for label, values in ran.points.items():
        wanted = ran.stand.point(**values).as_dict()
        asleep = [key for key in (keys.ACTOR_MICRO_BATCH, keys.LOG_PROB_MICRO_BATCH) if values.get("DYNAMIC")]
        assert rejected_echo(wanted, ran.found[label].echo, asleep_keys=asleep) == [], label


def test_limits_bind_where_they_should_and_the_prefix_cache_is_always_reset(ran):
    echo = {label: found.echo for label, found in measured(ran).items()}
    assert ran.found["base"].echo["engine.largest_batch"] == 8
    assert echo["sequences"]["engine.largest_batch"] == 64
    assert echo["tokens"]["engine.largest_tokens"] <= 128
    assert echo["memory"]["engine.kv_blocks"] == 6
    assert echo["memory"]["engine.largest_batch"] <= 6
    assert echo["memory"]["engine.refused"] > 0
    assert all(each["engine.failed_resets"] == 0 for each in echo.values())
    assert all(each["engine.equal_work"] is True for each in echo.values())


def test_every_step_does_the_same_work(ran):
    tokens = {step.tokens for found in [ran.found["base"], *measured(ran).values()] for step in found.steps}
    assert len(tokens) == 1


def test_neutral_points_have_the_same_gradient(ran):
    reference = ran.controls["same"].record
    for label in ("micro", "dynamic", "both"):
        for step in ran.found[label].steps:
            assert same_gradient(reference, step), (label, step.metrics)


def test_a_change_that_is_not_neutral_is_caught(ran):
    before, changed, after = (ran.controls[name].record for name in ("same", "mini_batch", "same_again"))
    assert not same_gradient(before, changed)
    assert same_gradient(before, after)


def test_a_longest_step_trains_on_trajectories_at_their_limits_and_leaves_no_trace(ran):
    config = ran.stand.job.config
    limit = config[keys.MAX_PROMPT] + config[keys.MAX_RESPONSE]
    longest, frozen = ran.controls["longest"], ran.controls["same_after_longest"]
    assert set(longest.lengths) == {limit}
    assert longest.record.tokens == limit * config[keys.TRAIN_BATCH] * config[keys.SAMPLES]
    assert longest.record.phases["update_actor"] > frozen.record.phases["update_actor"]
    assert "update_weights" in longest.record.phases
    assert same_gradient(ran.controls["same_again"].record, frozen.record)


def test_points_of_one_generation_setting_share_its_seconds(ran):
    base, micro, sequences, both = (ran.found[name] for name in ("base", "micro", "sequences", "both"))
    assert micro.phase_seconds["gen"] == pytest.approx(base.phase_seconds["gen"])
    assert both.phase_seconds["gen"] == pytest.approx(sequences.phase_seconds["gen"])
    assert both.phase_seconds["update_actor"] == pytest.approx(micro.phase_seconds["update_actor"])
    for found in (micro, sequences, both):
        assert sum(found.phase_seconds.values()) == pytest.approx(found.step_seconds)


def test_a_point_that_fails_is_told_and_the_session_goes_on(ran):
    failure = ran.found["failing"]
    assert isinstance(failure, Failure)
    assert failure.failure_class is FailureClass.CONFIG_ASSERTION
    assert failure.phase is Phase.UPDATE_ACTOR
    assert not failure.retryable


def test_an_echo_that_disagrees_is_caught(ran):
    deaf = ran.controls["deaf"]
    assert isinstance(deaf, SessionStep)
    in_effect = deaf.engines[0]["max_num_seqs"]
    assert in_effect == 64  # the engine's own ceiling
    assert rejected_echo({keys.MAX_NUM_SEQS: 9999}, {keys.MAX_NUM_SEQS: in_effect})


def test_the_baseline_is_measured_at_both_ends(ran):
    first, last = ran.stand.warm.baselines
    assert (first.place, last.place) == (0, len(TURNED))
    assert last.composed.throughput > 0


def test_peak_memory_is_that_of_the_point(ran):
    for found in measured(ran).values():
        assert found.memory_gb == pytest.approx(max(step.metrics["session/memory_gb/0"] for step in found.steps))


def test_a_session_that_was_ended_takes_no_order(ran):
    assert ran.session.lost
    assert not isinstance(ran.controls["same"], StepFailed)
    assert replace(ran.found["base"]).session == ran.session.id


SLOW_REWARD = """
import os, time

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    time.sleep(0.05)
    with open({path!r}, "a") as sink:
        sink.write(".")
    return 1.0 if ground_truth in solution_str else 0.25
"""


@pytest.fixture(scope="module")
def rewarded(tmp_path_factory):
    """A job whose reward takes 50 ms and leaves a dot: the baseline, a Point, then generation steps of both kinds in turns."""
    folder = tmp_path_factory.mktemp("reward")
    dots = folder / "dots"
    stand = DemoStand(folder)
    (folder / "demo" / "reward.py").write_text(SLOW_REWARD.format(path=str(dots)))
    found = {}
    try:
        found["base"] = stand.warm.measure(stand.order("base", plan=PLAN), lambda event: None)
        assert isinstance(found["base"], Measurement), found["base"]
        after_base = dots.stat().st_size
        found["point"] = stand.warm.measure(
            stand.order("point", plan=PLAN, MAX_NUM_SEQS=64, FAST_POLL=True), lambda event: None
        )
        after_point = dots.stat().st_size
        session = stand.warm._bench.session
        settings = session_settings(stand.job.config, kv_blocks=None, fast_poll=True)
        steps = []
        for reward in (LIVE, REPLAY, LIVE, REPLAY):
            before = dots.stat().st_size
            step = session.step(GENERATION, settings, stopped=lambda: False, reward=reward)
            assert isinstance(step, SessionStep), step
            steps.append((reward, dots.stat().st_size - before, step.record))
        yield SimpleNamespace(found=found, after_base=after_base, after_point=after_point, steps=steps)
    finally:
        stand.warm.close()


def test_a_replayed_reward_is_not_called_and_a_live_one_is(rewarded):
    assert rewarded.after_base == 3 * 64  # three whole steps of 16 prompts with 4 responses
    assert rewarded.after_point == rewarded.after_base
    assert [(reward, called) for reward, called, _ in rewarded.steps] == [(LIVE, 64), (REPLAY, 0)] * 2


def test_a_replayed_reward_takes_as_long_as_the_recorded_one(rewarded):
    live, replayed = ([step for kind, _, step in rewarded.steps if kind == which] for which in (LIVE, REPLAY))
    assert {step.metrics["session/reward/calls"] for step in live} == {64.0}
    assert {step.metrics["session/reward/replayed"] for step in replayed} == {64.0}
    for step in (*live, *replayed):
        assert step.metrics["session/reward/seconds_mean"] >= 0.05
    recorded = rewarded.found["base"].counted[-1].metrics["session/reward/seconds_total"]
    for step in replayed:
        assert step.metrics["session/reward/seconds_total"] >= recorded * 0.999
    ratio = min(step.phases["gen"] for step in replayed) / min(step.phases["gen"] for step in live)
    assert 1 / 3 < ratio < 3


def test_a_measurement_says_what_became_of_the_reward(rewarded):
    assert rewarded.found["base"].echo["reward.mode"] == "live"
    point = rewarded.found["point"]
    assert point.echo["reward.mode"] == "replayed"
    assert point.echo["reward.seconds_mean"] >= 0.05
    assert all(step.metrics["session/reward/replayed"] == 64.0 for step in point.counted)
