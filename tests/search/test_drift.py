"""When a session no longer measures what it measured at its start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.drift import LEAST_SPREAD, Visit, differs, drifted, spread, to_measure_again


def visit(place, *seconds):
    return Visit(place, seconds)


def test_a_session_that_stays_the_same_is_trusted():
    visits = [visit(0, 10.0, 10.2), visit(10, 10.1, 9.9), visit(20, 10.3, 10.1)]
    assert drifted(visits) == ()
    assert to_measure_again(visits, range(20)) == ()


def test_points_between_the_last_good_and_the_first_bad_visit_are_measured_again():
    visits = [visit(0, 10.0, 10.1), visit(10, 10.1, 10.0), visit(20, 13.0, 13.1), visit(30, 13.1, 13.0)]
    assert drifted(visits) == ((10, 20),)
    assert to_measure_again(visits, range(30)) == tuple(range(10, 20))


def test_a_session_that_recovers_has_drifted_twice():
    visits = [visit(0, 10.0, 10.1), visit(10, 14.0, 14.1), visit(20, 10.0, 10.1)]
    assert drifted(visits) == ((0, 10), (10, 20))


def test_noise_within_the_visits_widens_what_counts_as_the_same():
    quiet = [visit(0, 10.0, 10.1), visit(5, 11.5, 11.6)]
    noisy = [visit(0, 10.0, 12.0), visit(5, 11.5, 13.5)]
    assert drifted(quiet) == ((0, 5),)
    assert drifted(noisy) == ()


def test_visits_with_no_point_between_them_accuse_none():
    assert drifted([visit(4, 10.0, 10.1), visit(4, 14.0, 14.1)]) == ()
    assert drifted([]) == ()


def test_steps_that_happen_to_agree_leave_some_room():
    assert spread([visit(0, 10.0, 10.0)]) == LEAST_SPREAD
    assert spread([visit(0, 10.0)]) == LEAST_SPREAD
    assert not differs(visit(0, 10.0, 10.0), visit(1, 10.2, 10.2), LEAST_SPREAD)


@pytest.mark.parametrize("seconds", [(), (0.0,), (-1.0, 2.0)])
def test_a_visit_without_time_is_refused(seconds):
    with pytest.raises(ValueError, match="visit"):
        Visit(0, seconds)


STEPS = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=4)


@given(st.lists(STEPS, min_size=1, max_size=6), st.floats(0.01, 100.0))
def test_the_unit_of_time_does_not_matter(groups, unit):
    one = [Visit(10 * place, tuple(seconds)) for place, seconds in enumerate(groups)]
    other = [Visit(v.place, tuple(s * unit for s in v.seconds)) for v in one]
    assert spread(one) == pytest.approx(spread(other), rel=1e-6)
    assert len(to_measure_again(one, range(60))) % 10 == 0  # whole stretches between visits


@given(st.lists(STEPS, min_size=1, max_size=6))
def test_points_measured_after_the_last_visit_are_never_accused(groups):
    visits = [Visit(10 * place, tuple(seconds)) for place, seconds in enumerate(groups)]
    assert to_measure_again(visits, [visits[-1].place, visits[-1].place + 3]) == ()
