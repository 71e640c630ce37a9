"""What is proposed next, and when there is nothing left to propose."""

from __future__ import annotations

import optuna
import pytest

from autotune.search.first_points import FirstPoint
from autotune.search.space import Dimension, Space
from autotune.tuner.proposals import Proposer
from autotune.values import Point, Refusal
from autotune.verl import keys
from autotune.verl.knobs import catalogue

SEQS, BATCH = (8, 16, 64), (1, 2)
OWN = Point.of({keys.MAX_NUM_SEQS: 8, keys.ACTOR_MICRO_BATCH: 1})
SPACE = Space((Dimension(keys.MAX_NUM_SEQS, SEQS), Dimension(keys.ACTOR_MICRO_BATCH, BATCH)), OWN)


def too_large(point: Point) -> list[Refusal]:
    large = point.as_dict() == {keys.MAX_NUM_SEQS: 64, keys.ACTOR_MICRO_BATCH: 2}
    return [Refusal("too_large", "does not fit", (keys.ACTOR_MICRO_BATCH,))] if large else []


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), direction="maximize")


def test_every_point_of_a_small_space_is_proposed_once_and_then_the_sampler_is_left_alone(study):
    first = FirstPoint(Point.of({keys.MAX_NUM_SEQS: 16, keys.ACTOR_MICRO_BATCH: 2}), "a guess")
    proposer = Proposer(study, SPACE, [first], too_large, catalogue())
    proposer.measured(proposer.take(proposer.baseline()), 1.0)
    proposed = []
    while (proposal := proposer.next()) is not None:
        proposed.append(proposal.point)
        proposer.measured(proposal, 1.0)
    assert proposed[0] == first.point
    assert len(proposed) == len(set(proposed)) == SPACE.size - 2
    assert [point for point, _ in proposer.refused] == [
        Point.of({keys.MAX_NUM_SEQS: 64, keys.ACTOR_MICRO_BATCH: 2}),
    ]
    asked = len(study.trials)
    assert proposer.next() is None
    assert len(study.trials) == asked
