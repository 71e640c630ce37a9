"""Decisions from launches: never better than the evidence."""

from __future__ import annotations

import math
import random

import pytest

from autotune.search.verdict import LaunchSample, judge, launch_noise
from autotune.values import Decision


def launch(throughput, steps=3):
    return LaunchSample(throughput, tuple(throughput * (1 + 0.001 * i) for i in range(steps)))


def test_a_large_gain_over_tight_launches_is_better_with_an_interval_around_it():
    said = judge([launch(100), launch(101)], [launch(150)], selected_on=[launch(151)])
    assert said.decision is Decision.BETTER
    assert said.interval.low < said.gain < said.interval.high
    assert said.interval.low > 0
    assert said.best_range.low < 150 < said.best_range.high


def test_launches_that_differ_as_much_as_the_gain_decide_nothing():
    said = judge([launch(100), launch(130)], [launch(125)], selected_on=[launch(128)])
    assert said.decision is Decision.NO_MEANINGFUL_DIFFERENCE
    assert said.interval.low < 0 < said.interval.high


def test_the_launches_that_made_a_point_the_best_do_not_enter_its_gain():
    lucky = judge([launch(100), launch(101)], [launch(110)], selected_on=[launch(200)])
    assert lucky.gain == pytest.approx(110 / math.sqrt(100 * 101) - 1)


def test_a_winner_never_measured_again_is_indicative_only():
    said = judge([launch(100)], [], selected_on=[launch(150)])
    assert said.decision is Decision.INDICATIVE
    assert said.interval is None
    assert said.gain == pytest.approx(0.5)


def test_single_launches_have_no_interval():
    assert judge([launch(100)], [launch(150)]).decision is Decision.INDICATIVE


def test_one_counted_step_is_indicative():
    said = judge([launch(100, steps=1)], [launch(150, steps=1)], selected_on=[launch(151, steps=1)])
    assert said.decision is Decision.INDICATIVE


def test_a_certain_but_tiny_gain_is_not_worth_a_change():
    same = [LaunchSample(100.0, (100.0, 100.0))] * 3
    said = judge(same, [LaunchSample(100.5, (100.5, 100.5))] * 3)
    assert said.decision is Decision.NO_MEANINGFUL_DIFFERENCE


def test_without_repeated_launches_nothing_is_known_about_noise():
    assert launch_noise([[launch(100)], [launch(200)]]) is None


def test_noise_between_launches_is_pooled_over_points():
    deviation, freedom = launch_noise([[launch(100), launch(110)], [launch(200), launch(220), launch(210)]])
    assert freedom == 3
    assert 0.03 < deviation < 0.1


def test_equal_points_are_hardly_ever_called_better():
    """Under the null hypothesis, with the winner chosen among ten equal Points, `better` must stay rare (nominally 2.5 %)."""
    dice = random.Random(7)
    wrong = 0
    for _ in range(400):

        def one():
            return launch(100 * math.exp(dice.gauss(0, 0.03)))

        best_found = max((one() for _ in range(10)), key=lambda sample: sample.throughput)
        said = judge([one(), one(), one()], [one(), one()], selected_on=[best_found])
        wrong += said.decision is Decision.BETTER
    assert wrong <= 20
