"""Which steps count, when there are enough, and when a launch hangs."""

from __future__ import annotations

from autotune.measure.runner import Limits, StepPlan
from autotune.measure.watchdog import ERROR_LINE, overdue
from autotune.measure.window import enough, settled
from autotune.values import StepRecord


def steps(*seconds, tokens=1000):
    return [StepRecord(i + 1, s, tokens, {}) for i, s in enumerate(seconds)]


def test_the_first_step_of_a_launch_never_counts():
    assert [s.settling for s in settled(steps(30, 10, 10))] == [True, False, False]


def test_counting_stops_when_two_steps_agree():
    plan = StepPlan(agreement=0.05)
    assert not enough(steps(30, 10), plan)
    assert enough(steps(30, 10, 10.2), plan)
    assert not enough(steps(30, 10, 12), plan)
    assert enough(steps(30, 10, 12, 12.1), plan)


def test_counting_ends_at_the_plans_end_even_without_agreement():
    assert enough(steps(30, 10, 20, 10, 20, 10), StepPlan(at_most=5))
    assert not enough(steps(30, 10, 20, 10, 20), StepPlan(at_most=5))


def test_a_step_without_tokens_does_not_count():
    assert not enough([*steps(30, 10), StepRecord(3, 10, None, {})], StepPlan())


LIMITS = Limits(startup=100, step_floor=50, step_factor=5, after_error=20)


def test_a_launch_may_take_its_time_to_start_but_not_for_ever():
    assert overdue(LIMITS, since_start=99, since_progress=99, longest_step=None, since_error=None) is None
    assert overdue(LIMITS, since_start=101, since_progress=101, longest_step=None, since_error=None)


def test_a_step_may_take_five_times_the_longest_one():
    assert overdue(LIMITS, since_start=900, since_progress=199, longest_step=40, since_error=None) is None
    assert overdue(LIMITS, since_start=900, since_progress=201, longest_step=40, since_error=None)


def test_an_error_without_progress_ends_the_wait_early_but_never_within_two_step_lengths():
    assert overdue(LIMITS, since_start=30, since_progress=30, longest_step=None, since_error=21)
    assert overdue(LIMITS, since_start=300, since_progress=70, longest_step=40, since_error=79) is None
    assert overdue(LIMITS, since_start=300, since_progress=70, longest_step=40, since_error=81)


def test_error_lines_are_those_after_which_verl_goes_nowhere():
    assert ERROR_LINE.search("(pid=1) Traceback (most recent call last):")
    assert not ERROR_LINE.search("step:1 - actor/loss:0.1")
