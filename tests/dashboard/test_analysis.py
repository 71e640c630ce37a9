"""What pages work out of trials: pure, on plain values."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from autotune.dashboard.analysis import explained, knob_effects, timeline, trend
from autotune.dashboard.figures import best_figure, figure_json, parallel_figure, strips_figure, told, tradeoff_figure
from autotune.dashboard.pages import fastest, gains_of
from autotune.store.queries import Night, TrialSummary
from autotune.values import Point, TrialKind, TrialState
from autotune.verl import keys

ZERO = datetime(2026, 1, 1, 22, tzinfo=timezone.utc)


def night(at: int, baseline: float | None, **changes: Any) -> Night:
    values: dict[str, Any] = {
        "study_id": at, "name": f"night-{at}", "created_at": ZERO + timedelta(days=at), "state": "finished",
        "baseline": baseline, "best": None, "noise": 0.01, "decision": None, "versions": {"verl": "0.9.1"},
    }  # fmt: skip
    return Night(**{**values, **changes})


def trial(number: int, begin: float = 0.0, end: float | None = 100.0, **changes: Any) -> TrialSummary:
    values: dict[str, Any] = {
        "id": number + 1, "study_id": 1, "number": number, "kind": TrialKind.SEARCH, "state": TrialState.MEASURED,
        "point": Point.of({keys.MAX_NUM_SEQS: 64}), "origin": "tpe", "source": "whole", "work": "full", "engine": "cold",
        "session": None, "simulated": True, "started_at": ZERO + timedelta(seconds=begin),
        "ended_at": None if end is None else ZERO + timedelta(seconds=end), "startup_seconds": 60.0, "wall_seconds": 100.0,
        "throughput": 100.0, "mfu": None, "step_seconds": 10.0, "memory_gb": None, "phases": {"gen": 6.0, "update_actor": 4.0},
        "failure": None, "settling_steps": 1, "counted_steps": 2, "invalid_steps": 0, "settling_seconds": 20.0, "counted_seconds": 30.0,
    }  # fmt: skip
    return TrialSummary(**{**values, **changes})


# -- trends


def test_a_drop_beyond_the_noise_is_a_regression_and_names_what_changed():
    points = trend([*(night(i, 100.0 + i % 2) for i in range(5)), night(5, 92.0, versions={"verl": "0.9.2"})])
    assert [p.regressed for p in points] == [False] * 5 + [True]
    assert points[-1].drop == pytest.approx(0.08)
    assert points[-1].changed == ("verl 0.9.1 → 0.9.2",)


def test_a_drop_within_the_noise_is_none():
    points = trend([*(night(i, 100.0, noise=0.05) for i in range(5)), night(5, 92.0, noise=0.05)])
    assert not points[-1].regressed
    assert (points[-1].low, points[-1].high) == (pytest.approx(90.0), pytest.approx(110.0))


def test_a_small_drop_is_none_however_small_the_noise():
    assert not trend([night(0, 100.0, noise=0.0001), night(1, 97.5, noise=0.0001)])[-1].regressed


def test_the_first_night_and_a_night_without_a_baseline_are_compared_with_nothing():
    points = trend([night(0, None), night(1, 100.0), night(2, None), night(3, 80.0)])
    assert [p.low is None for p in points] == [True, True, False, False]
    assert [p.regressed for p in points] == [False, False, False, True]


def test_a_lasting_change_of_speed_is_marked_until_it_is_the_usual_one():
    points = trend([*(night(i, 100.0) for i in range(5)), *(night(i, 80.0) for i in range(5, 12))])
    assert [p.regressed for p in points][5:] == [True, True, True, False, False, False, False]


# -- knobs


def test_importance_is_that_of_the_knob_that_moves_the_step():
    dice = random.Random(1)
    trials = []
    for number in range(40):
        seqs, tokens = dice.choice([64, 128]), dice.choice([4096, 8192])
        seconds = (10.0 if seqs == 64 else 5.0) * dice.gauss(1.0, 0.01)
        trials.append(
            trial(
                number,
                point=Point.of({keys.MAX_NUM_SEQS: seqs, keys.MAX_BATCHED_TOKENS: tokens}),
                step_seconds=seconds,
                phases={"gen": seconds - 2, "update_actor": 2.0},
            )
        )
    first, second = knob_effects(trials, "0.9.1")
    assert first.key == keys.MAX_NUM_SEQS
    assert first.importance is not None
    assert second.importance is not None
    assert first.importance > 0.95
    assert second.importance < 0.1
    effect = first.effects["gen"]
    assert (effect.slowest, effect.fastest, effect.expected) == (64, 128, True)
    assert effect.change == pytest.approx(-0.625, abs=0.02)
    assert not first.effects["update_actor"].expected


def test_a_knob_that_is_asleep_does_not_count():
    def at(number: int, dynamic: bool, micro: int) -> TrialSummary:
        return trial(number, point=Point.of({keys.DYNAMIC: dynamic, keys.ACTOR_MICRO_BATCH: micro}))

    found = knob_effects([at(0, False, 1), at(1, True, 2), at(2, True, 4)], "0.9.1")
    assert [effect.key for effect in found] == [keys.DYNAMIC]


def test_launches_that_failed_tell_nothing_about_speed():
    slow = trial(1, point=Point.of({keys.MAX_NUM_SEQS: 128}), state=TrialState.INVALID, step_seconds=1.0)
    assert knob_effects([trial(0), slow], "0.9.1") == []


def test_what_chance_explains_is_no_importance():
    assert explained([[1.0], [2.0]]) is None
    assert explained([[1.0, 1.0], [1.0, 1.0]]) == 0.0
    assert explained([[1.0, 1.01], [2.0, 2.01]]) == pytest.approx(1.0, abs=0.01)
    dice = random.Random(3)
    shares = [explained([[dice.gauss(0, 1) for _ in range(5)] for _ in range(4)]) or 0.0 for _ in range(200)]
    assert sum(shares) / len(shares) < 0.12


# -- time


def test_a_launch_is_cut_into_startup_settling_counted_and_stopping():
    line = timeline([trial(0)], ZERO)
    assert line is not None
    assert [(s.kind, s.begin, s.end) for s in line.lanes[0].segments] == [
        ("startup", 0.0, 40.0),
        ("settling", 40.0, 60.0),
        ("counted", 60.0, 90.0),
        ("stopping", 90.0, 100.0),
    ]
    assert sum(line.totals.values()) == line.seconds == 100.0


def test_time_between_launches_is_idle():
    line = timeline([trial(0, 0, 100), trial(1, 130, 230)], ZERO)
    assert line is not None
    assert line.totals["idle"] == 30.0
    assert line.seconds == 230.0


def test_seconds_that_were_not_spent_are_not_drawn():
    line = timeline([trial(0, 0, 5)], ZERO)
    assert line is not None
    assert [s.kind for s in line.lanes[0].segments] == ["whole"]


def test_failed_and_running_launches_are_shown_as_what_they_are():
    failed = trial(0, 0, 50, state=TrialState.INFEASIBLE)
    running = trial(1, 50, None, state=TrialState.RUNNING, throughput=None)
    line = timeline([failed, running], ZERO + timedelta(seconds=80))
    assert line is not None
    assert [(s.kind, s.seconds) for s in line.lanes[0].segments] == [("failed", 50.0), ("running", 30.0)]


def test_every_session_has_a_lane_of_its_own():
    line = timeline([trial(0, session="a"), trial(1, 100, 200, session="b"), trial(2, 200, 300, session="a")], ZERO)
    assert line is not None
    assert [lane.name for lane in line.lanes] == ["a", "b"]


def test_the_first_point_of_a_session_has_waited_for_its_start():
    first = trial(0, 0, 300, session="a", startup_seconds=None, wall_seconds=60.0)
    second = trial(1, 300, 340, session="a", startup_seconds=None, wall_seconds=40.0, source="composed")
    line = timeline([first, second], ZERO)
    assert line is not None
    assert [(s.kind, s.begin, s.end) for s in line.lanes[0].segments] == [
        ("startup", 0.0, 240.0),
        ("settling", 240.0, 260.0),
        ("counted", 260.0, 290.0),
        ("probes", 290.0, 300.0),
        ("probes", 300.0, 340.0),
    ]


def test_what_a_session_measured_of_the_users_command_takes_no_time_of_its_own():
    line = timeline([trial(0), trial(1, 100, 100, kind=TrialKind.ANCHOR, session="a")], ZERO)
    assert line is not None
    assert {s.number for lane in line.lanes for s in lane.segments} == {0}


def test_the_fastest_is_compared_with_the_users_command_in_the_same_session():
    trials = [
        trial(0, kind=TrialKind.BASELINE, throughput=100.0),
        trial(1, kind=TrialKind.ANCHOR, session="a", throughput=200.0),
        trial(2, session="a", throughput=210.0),
        trial(3, throughput=120.0),
        trial(4, throughput=900.0, state=TrialState.INVALID),
    ]
    best, gain = fastest(trials)
    assert best is not None
    assert best.number == 3
    assert gain == pytest.approx(0.2)
    assert gains_of(trials, trials) == {
        0: None, 1: None, 2: pytest.approx(0.05), 3: pytest.approx(0.2), 4: pytest.approx(8.0),
    }  # fmt: skip
    assert fastest(trials[:2]) == (None, None)


def test_nothing_launched_is_no_timeline():
    assert timeline([trial(0, started_at=None)], ZERO) is None


# -- pictures


def test_failures_are_shown_as_failures():
    bad = trial(1, state=TrialState.INFEASIBLE, throughput=None, failure={"class": "oom_gpu", "phase": "gen"})
    for figure in (
        best_figure([trial(0), bad], told([trial(0), bad]), over="trials", n_gpus=8),
        tradeoff_figure([trial(0, memory_gb=40.0), bad], told([trial(0, memory_gb=40.0), bad])),
    ):
        (lane,) = [data for data in figure["data"] if data["name"] == "did not run"]
        assert len(lane["x"]) == 1
        assert "oom_gpu in gen" in lane["text"][0]


def test_failures_lie_inside_the_picture():
    bad = [trial(n, state=TrialState.INFEASIBLE, throughput=None, failure={}) for n in range(1, 6)]
    figure = tradeoff_figure([trial(0, memory_gb=40.0), *bad], told([trial(0, memory_gb=40.0), *bad]))
    low, high = figure["layout"]["xaxis"]["range"]
    assert all(low < x < high for data in figure["data"] for x in data["x"])


def test_gpu_minutes_count_every_gpu():
    figure = best_figure(
        [trial(0, 0, 60), trial(1, 60, 180, throughput=200.0)],
        told([trial(0, 0, 60), trial(1, 60, 180, throughput=200.0)]),
        over="minutes",
        n_gpus=8,
    )
    assert figure["data"][0]["x"] == [8.0, 24.0]
    assert figure["data"][0]["y"] == [100.0, 200.0]


def test_pictures_do_not_depend_on_figures_that_are_missing():
    odd = [
        trial(0, state=TrialState.QUEUED, started_at=None, ended_at=None, throughput=None, phases={}),
        trial(1, state=TrialState.RUNNING, ended_at=None, throughput=None, phases={}, point=Point.of({"other": None})),
    ]
    for figure in (
        best_figure(odd, told(odd), over="minutes", n_gpus=1),
        tradeoff_figure(odd, told(odd)),
        strips_figure(odd, []),
        parallel_figure(odd),
    ):
        assert figure_json(figure).startswith("{")


def test_a_figure_cannot_leave_its_script_element():
    assert "</script>" not in figure_json({"text": "</script><script>alert(1)</script>"})
