"""Tonight against the nights before."""

from __future__ import annotations

import pytest

from autotune.search.regression import BASE_NIGHTS, NightDecision, PastNight, compare, reference_nights


def night(gen: float = 1.0, update: float = 1.0, tiny: float = 0.001):
    """Three repetitions that differ by one per cent."""
    rows = {"gen": gen, "update_actor": update, "adv": tiny, "step": gen + update + tiny}
    return {"own": {name: [value * noise for noise in (0.99, 1.0, 1.01)] for name, value in rows.items()}}


def steady(count: int, **levels: float) -> list[PastNight]:
    return [PastNight(night(**levels), NightDecision.STEADY) for _ in range(count)]


def test_the_first_night_has_nothing_to_be_compared_with():
    found = compare(night(), [])
    assert (found.decision, found.tests) == (NightDecision.NO_REFERENCE, ())


def test_the_slower_phase_is_named_and_the_other_is_not():
    found = compare(night(gen=1.15), steady(8))
    assert found.decision is NightDecision.REGRESSION
    assert found.phases == ("gen",)
    slower = {test.quantity: test.change for test in found.tests if test.slower}
    assert slower["gen"] == pytest.approx(0.15)
    assert "update_actor" not in slower


def test_a_phase_that_makes_nothing_of_a_step_raises_no_alarm():
    assert compare(night(tiny=0.003), steady(8)).decision is NightDecision.STEADY


def test_one_night_before_is_too_little_to_be_sure_of_a_small_change():
    assert compare(night(gen=1.06), steady(1)).decision is NightDecision.STEADY
    assert compare(night(gen=1.06), steady(20)).decision is NightDecision.REGRESSION


def test_a_change_that_nobody_would_care_about_is_none():
    exact = {"own": {"step": [1.0, 1.0, 1.0]}}
    slower = {"own": {"step": [1.019, 1.019, 1.019]}}
    assert compare(slower, [PastNight(exact, NightDecision.STEADY)] * 40).decision is NightDecision.STEADY


def test_a_night_that_raised_an_alarm_is_no_level_for_later_ones():
    slow = PastNight(night(gen=1.5), NightDecision.REGRESSION)
    found = compare(night(gen=1.5), [*steady(8), slow, slow, slow])
    assert found.decision is NightDecision.REGRESSION, "a slow-down that stays is said every night"


def test_the_level_moves_up_after_two_faster_nights_and_not_after_one():
    fast = PastNight(night(gen=0.8), NightDecision.FASTER)
    assert compare(night(gen=0.8), [*steady(8), fast]).decision is NightDecision.FASTER
    assert compare(night(gen=0.8), [*steady(8), fast, fast]).decision is NightDecision.STEADY
    assert compare(night(), [*steady(8), fast, fast, *steady(3, gen=0.8)]).decision is NightDecision.REGRESSION


def test_the_level_rests_on_its_first_nights_and_noise_on_all():
    base, groups = reference_nights(steady(BASE_NIGHTS + 5))
    assert len(base) == BASE_NIGHTS
    assert [len(group) for group in groups] == [BASE_NIGHTS + 5]


def test_a_subject_or_phase_without_history_is_left_out():
    tonight = {**night(), "best": night()["own"]}
    assert {test.subject for test in compare(tonight, steady(4)).tests} == {"own"}
