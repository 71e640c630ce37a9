"""Whether nights find a slow-down, and keep quiet otherwise. Simulated: a model of noise in place of a trainer."""

from __future__ import annotations

import pytest

from benchmarks.nights import campaign, season

pytestmark = pytest.mark.slow


def test_a_phase_that_is_slower_by_six_per_cent_is_found_and_named_and_clean_nights_are_quiet():
    score = campaign(seeds=50)
    assert score.found >= 0.90 * score.seeds, score
    assert score.quiet >= 0.95 * score.seeds, score


def test_nights_that_differ_more_widen_the_band_instead_of_crying_wolf():
    score = campaign(seeds=20, by=0.0, noise=0.02, between=0.03)
    assert score.quiet >= 0.95 * score.seeds, score


def test_a_slow_creep_is_seen_although_no_two_nights_differ_by_much():
    phase, verdicts = season(3, nights=45, slow_night=None, by=0.0, noise=0.01, between=0.001, creep=0.002)
    alarms = [verdict for verdict in verdicts if verdict["decision"] == "regression"]
    assert alarms, "0.2 % a night make 9 % in 45 nights"
    assert alarms[-1]["phases"][0] == phase
