"""What a trial is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from autotune.store.records import Visits, gain_of
from autotune.values import TrialKind, TrialState


@dataclass(frozen=True)
class Trial:
    """What the comparison asks of a trial."""

    number: int
    kind: TrialKind
    throughput: float | None
    session: str | None = None
    source: str | None = "whole"
    state: TrialState = TrialState.MEASURED


class Study:
    """Trials in the order in which a study stores them."""

    def __init__(self) -> None:
        self.trials = [Trial(0, TrialKind.BASELINE, 100.0)]

    def point(self, throughput: float, session: str | None = "s", source: str = "composed") -> Trial:
        self.trials.append(Trial(len(self.trials), TrialKind.SEARCH, throughput, session, source))
        return self.trials[-1]

    def visit(self, throughput: float, session: str = "s") -> list[int]:
        """A visit is stored twice: on whole steps, which are a little faster here, and put together from probes."""
        for level, source in ((throughput * 1.1, "whole"), (throughput, "composed")):
            self.trials.append(Trial(len(self.trials), TrialKind.ANCHOR, level, session, source))
        return [self.trials[-2].number, self.trials[-1].number]

    def around(self, trial: Trial) -> list[int]:
        return [anchor.number for anchor in Visits(self.trials).around(trial)]

    def gain(self, trial: Trial) -> float | None:
        return gain_of(trial, self.trials)


@pytest.fixture
def study():
    return Study()


def test_a_launch_of_its_own_is_compared_with_the_users_command_in_one(study):
    alone = study.point(150.0, None, "whole")
    study.visit(50.0)
    assert study.gain(alone) == pytest.approx(0.5)
    assert study.around(alone) == []


def test_a_point_between_two_visits_is_compared_with_both(study):
    study.point(80.0)
    first = study.visit(80.0)
    middle = study.point(100.0)
    study.point(90.0)
    second = study.visit(120.0)
    study.point(90.0)
    study.visit(10.0)
    assert study.around(middle) == [first[1], second[1]]
    assert study.gain(middle) == pytest.approx(0.0)


def test_a_host_that_became_slower_for_good_moves_no_gain(study):
    """Half as fast from the second visit on: the same Point gains the same before and after."""
    early = study.point(120.0)
    study.visit(100.0)
    inside = [study.point(120.0) for _ in range(3)]
    late = study.point(60.0)
    study.visit(50.0)
    later = study.point(60.0)
    study.point(60.0)
    study.visit(50.0)
    assert study.gain(later) == pytest.approx(0.2)
    assert study.gain(late) == pytest.approx(0.2)  # its own order made the second visit first
    assert study.gain(inside[0]) == pytest.approx(120 / 75 - 1)  # in this stretch the drift is seen, and measured again
    assert study.gain(early) == study.gain(inside[0])


def test_the_visit_that_ends_a_session_comes_after_its_last_point(study):
    study.point(80.0)
    first = study.visit(80.0)
    last = study.point(80.0)
    final = study.visit(40.0)
    assert study.around(last) == [first[1], final[1]]


def test_both_visits_behind_a_point_surround_it(study):
    """Its own order made one, the end of the session right after it the other."""
    study.point(80.0)
    study.visit(10.0)
    last = study.point(80.0)
    before = study.visit(70.0)
    after = study.visit(90.0)
    assert study.around(last) == [before[1], after[1]]
    assert study.gain(last) == pytest.approx(0.0)


def test_whole_steps_are_compared_with_whole_steps(study):
    study.point(80.0)
    first = study.visit(80.0)
    whole = study.point(110.0, source="whole")
    final = study.visit(120.0)
    assert study.around(whole) == [first[0], final[0]]
    assert study.gain(whole) == pytest.approx(110 / 110 - 1)


def test_visits_of_another_session_are_not_compared_with(study):
    one = study.point(80.0, "one")
    study.visit(80.0, "one")
    two = study.point(80.0, "two")
    study.visit(40.0, "two")
    assert study.gain(one) == pytest.approx(0.0)
    assert study.gain(two) == pytest.approx(1.0)


def test_without_a_visit_nothing_is_known(study):
    assert study.gain(study.point(80.0)) is None
