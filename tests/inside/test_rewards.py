"""Recorded rewards: which can be given back, what is told of them, and what a trajectory gets."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.inside.rewards import REPLAYED, give_back, table, tally

FOUR = [(0, 0, 1.0, 0.1), (0, 1, 0.0, 0.2), (1, 0, -1.0, 0.3), (1, 1, 0.5, 0.0)]


@given(st.permutations(FOUR))
def test_rewards_are_kept_by_prompt_and_response_in_whatever_order_they_came(rewards):
    assert table(rewards, prompts=2, samples=2) == [[[1.0, 0.1], [0.0, 0.2]], [[-1.0, 0.3], [0.5, 0.0]]]


@pytest.mark.parametrize(
    "rewards",
    [
        FOUR[:3],
        [*FOUR[:3], (1, 2, 0.5, 0.1)],
        [*FOUR[:3], (1, 1, math.nan, 0.1)],
        [*FOUR[:3], (1, 1, 0.5, math.inf)],
        [*FOUR[:3], (1, 1, 0.5, -0.1)],
    ],
)
def test_rewards_with_a_gap_are_not_kept(rewards):
    assert table(rewards, prompts=2, samples=2) is None


def test_calls_and_replays_are_told_apart_and_trajectories_without_either_are_left_out():
    told = tally([0.1, 0.0, 0.4, 0.0], [False, False, True, True])
    assert told == pytest.approx(
        {
            "session/reward/calls": 1.0,
            "session/reward/replayed": 2.0,
            "session/reward/seconds_total": 0.5,
            "session/reward/seconds_mean": 0.5 / 3,
            "session/reward/seconds_max": 0.4,
        }
    )


def test_a_step_without_rewards_has_no_seconds():
    assert set(tally([0.0, 0.0], [False, False]).values()) == {0.0}


def test_a_trajectory_gets_its_recorded_score_once_the_recorded_seconds_are_over(monkeypatch):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    output = SimpleNamespace(reward_score=None, metrics=SimpleNamespace(compute_score=0.0), extra_fields={"turn": 1})
    asyncio.run(give_back(output, 0.75, 3.5))
    assert waited == [3.5]
    assert output.reward_score == 0.75
    assert output.metrics.compute_score >= 0.0
    assert output.extra_fields == {"turn": 1, "reward_extra_info": {}, REPLAYED: True}
