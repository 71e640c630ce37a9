"""Steps put together from probes."""

from __future__ import annotations

import pytest

from autotune.measure.bench import part_of, repeated, same_gradient
from autotune.measure.composed import composed
from autotune.values import StepRecord


def step(seconds, *, metrics=None, **phases):
    return StepRecord(3, seconds, 1000, phases, mfu=0.3, memory_gb=12.0, metrics=metrics or {})


WHOLE = [
    step(20.0, gen=10.0, old_log_prob=3.0, update_actor=6.0, update_weights=0.5),  # rest 0.5
    step(21.0, gen=10.0, old_log_prob=3.0, update_actor=6.0, update_weights=0.7),  # rest 1.3
]


def test_a_composed_step_is_the_sum_of_its_phases_and_the_rest():
    frozen = step(4.0, gen=0.01, old_log_prob=1.0, update_actor=2.0, update_weights=0.8)
    found = composed(frozen, generation=[step(5.0, gen=4.0), step(7.0, gen=6.0)], whole=WHOLE)
    assert found.phases == pytest.approx({"old_log_prob": 1.0, "update_actor": 2.0, "gen": 5.0, "update_weights": 0.8})
    assert found.seconds == pytest.approx(1.0 + 2.0 + 5.0 + 0.8 + 0.9)
    assert found.rest_seconds == pytest.approx(0.9)
    assert (found.step, found.tokens, found.mfu, found.memory_gb) == (3, 1000, 0.3, 12.0)


def test_composing_the_baseline_of_its_own_probes_gives_the_baseline():
    frozen = step(10.0, gen=0.01, old_log_prob=3.0, update_actor=6.0, update_weights=0.6)
    found = composed(frozen, generation=WHOLE, whole=WHOLE)
    assert found.seconds == pytest.approx(20.5)


def test_a_phase_that_only_whole_steps_have_is_theirs():
    whole = [step(20.0, gen=10.0, reward=2.0), step(21.0, gen=10.0, reward=3.0)]
    assert composed(step(4.0, update_actor=2.0), generation=whole, whole=whole).phases["reward"] == 2.5


def test_figures_of_a_step_without_generation_are_not_passed_on():
    frozen = step(4.0, metrics={"perf/throughput": 9e9, "timing_s/gen": 0.01, "actor/loss": 0.5}, gen=0.01, adv=0.1)
    assert composed(frozen, generation=WHOLE, whole=WHOLE).metrics == {"actor/loss": 0.5}


def test_what_is_said_of_rewards_is_that_of_the_generation():
    made = [step(5.0, gen=4.0, metrics={"session/reward/seconds_mean": seconds, "x": 1.0}) for seconds in (0.1, 0.3)]
    found = composed(step(4.0, metrics={"actor/loss": 0.5}, adv=0.1), generation=made, whole=WHOLE)
    assert found.metrics == pytest.approx({"actor/loss": 0.5, "session/reward/seconds_mean": 0.2})


@pytest.mark.parametrize(("generation", "whole"), [([], WHOLE), (WHOLE, [])])
def test_nothing_is_made_up_for_a_probe_that_is_missing(generation, whole):
    with pytest.raises(ValueError, match="nothing"):
        composed(step(4.0), generation=generation, whole=whole)


def gradient(*losses, norm=1.0):
    told = {f"session/actor/loss/{place}": loss for place, loss in enumerate(losses)}
    return step(1.0, metrics={**told, "session/actor/grad_norm/0": norm, "timing_s/step": 1.0})


def test_equal_gradients_may_differ_in_the_last_digits():
    assert same_gradient(gradient(0.1, 0.2), gradient(0.1 + 1e-6, 0.2, norm=1 + 1e-6))


@pytest.mark.parametrize(
    "other",
    [
        gradient(0.1, 0.2001),
        gradient(0.1, 0.2, norm=1.001),
        gradient(0.15),
        gradient(0.1, 0.2, 0.3),
        step(1.0, metrics={"actor/loss": 0.1}),
    ],
)
def test_another_gradient_or_another_number_of_mini_batches_is_noticed(other):
    assert not same_gradient(gradient(0.1, 0.2), other)


def test_no_gradient_at_all_is_not_equal_to_itself():
    nothing = step(1.0, metrics={})
    assert not same_gradient(nothing, nothing)


ON_A_GPU = [gradient(0.1, norm=0.88831), gradient(0.1, norm=0.88835), gradient(0.1, norm=0.88811)]


@pytest.mark.parametrize("norm", [0.88830, 0.88860, 0.88800])
def test_a_gradient_that_never_came_back_exactly_need_not_do_so_after_a_failure(norm):
    assert repeated(ON_A_GPU, gradient(0.1, norm=norm))


@pytest.mark.parametrize(
    "after",
    [gradient(0.1, norm=0.8905), gradient(0.1001, norm=0.88831), gradient(0.1, 0.2, norm=0.88831), step(1.0)],
    ids=["another norm", "another loss", "more mini-batches", "nothing told"],
)
def test_another_gradient_is_no_repetition(after):
    assert not repeated(ON_A_GPU, after)


def test_what_came_back_exactly_has_to_do_so_again():
    exact = [gradient(0.1), gradient(0.1)]
    assert repeated(exact, gradient(0.1))
    assert not repeated(exact, gradient(0.1, norm=1 + 1e-4))


@pytest.mark.parametrize(
    ("batching", "share", "longest", "part"),
    [
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 16}, 4, 9000, {"micro_batch_size_per_gpu": 4}),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 12}, 8, 100, None),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 16384}, 4, 2048, {"max_token_len_per_gpu": 4096}),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 16384}, 16, 2048, None),
        ({"use_dynamic_bsz": True}, 2, 100, None),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": None}, 2, 100, None),
    ],
)
def test_a_part_of_a_batch_divides_it_and_holds_the_longest_trajectory(batching, share, longest, part):
    found = part_of(batching, share, longest=longest)
    assert found == (None if part is None else {**batching, **part})
