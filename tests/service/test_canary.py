"""What a canary measured, in words and in the form in which it is kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from autotune.service.canary import canary_json, host_of, judge_canary
from autotune.service.reference import changes_between, gain_of_best, known_best, moved_up
from autotune.store.schedules import NightRecord, NightState
from autotune.tuner.canary import CanarySeen
from autotune.values import Measurement, Point, StepRecord
from tests.studies import failure

OWN, BEST = Point.of({"micro": 2}), Point.of({"micro": 16})
BEGIN = datetime(2026, 3, 1, 2, tzinfo=timezone.utc)


def measured(seconds: float, *, tokens: int = 2000) -> Measurement:
    steps = tuple(StepRecord(n, seconds, tokens, {"gen": 0.6 * seconds, "update_actor": 0.3 * seconds}) for n in (1, 2))
    return Measurement(steps, 2, simulated=True)


def seen(own: float = 2.0, best: float | None = 1.0, *, live: bool = True) -> CanarySeen:
    ours = tuple(measured(own * noise) for noise in (0.99, 1.0, 1.01))
    theirs = () if best is None else tuple(measured(best * noise) for noise in (0.99, 1.0, 1.01))
    return CanarySeen(None if best is None else BEST, live, ours, theirs)


def record(number: int, canary: dict[str, Any], verdict: dict[str, Any], **changes: Any) -> NightRecord:
    when = BEGIN + timedelta(days=number)
    values: dict[str, Any] = {
        "id": number,
        "schedule": "qwen",
        "schedule_id": 1,
        "slot": f"{when:%Y-%m-%dT%H:%M}",
        "state": NightState.FINISHED,
        "reason": "",
        "planned_at": when,
        "until": when + timedelta(hours=4),
        "started_at": when,
        "ended_at": when,
        "attempts": 1,
        "lease": None,
        "study_id": 1,
        "study": "qwen-1",
        "script_hash": "s",
        "simulated": True,
        "environment": {"verl": "0.9.0", "NVIDIA driver": "580"},
        "canary": canary,
        "verdict": verdict,
    }
    return NightRecord(**{**values, **changes})


def judged(canary: dict[str, Any], nights: list[NightRecord], **changes: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "environment": {"verl": "0.9.1", "NVIDIA driver": "580"},
        "script_hash": "s",
        "simulated": True,
        "since": None,
    }
    return judge_canary(canary, nights, **{**asked, **changes})


def history(count: int = 6) -> list[NightRecord]:
    nights: list[NightRecord] = []
    for number in range(count):
        canary = canary_json(seen(), OWN)
        nights.append(record(number, canary, judged(canary, nights)))
    return nights


def test_seconds_are_for_the_same_work_whatever_the_responses_were():
    short = canary_json(CanarySeen(None, True, (measured(2.0),), ()), OWN)
    long = canary_json(CanarySeen(None, True, (measured(4.0, tokens=4000),), ()), OWN)
    assert short["own"]["seconds"]["gen"] == pytest.approx(long["own"]["seconds"]["gen"])
    assert short["own"]["seconds"]["step"] == [1.0]


def test_an_alarm_says_which_phase_by_how_much_and_what_has_changed():
    verdict = judged(canary_json(seen(own=2.6), OWN), history())
    assert verdict["decision"] == "regression"
    assert set(verdict["phases"]) == {"gen", "update_actor", "rest"}
    assert "gen by 30.0%" in verdict["text"]
    assert "your command" in verdict["text"]
    assert "the best setting" not in verdict["text"]
    assert verdict["environment"] == ["verl: 0.9.0 → 0.9.1"]


def test_nights_of_another_kind_script_or_level_are_not_compared_with():
    nights = history()
    assert judged(canary_json(seen(own=2.6, live=False), OWN), nights)["decision"] == "not_comparable"
    assert judged(canary_json(seen(own=2.6), OWN), nights, script_hash="t")["decision"] == "not_comparable"
    assert judged(canary_json(seen(own=2.6), OWN), nights, simulated=False)["decision"] == "not_comparable"
    accepted = (BEGIN + timedelta(days=30)).isoformat()
    assert judged(canary_json(seen(own=2.6), OWN), nights, since=accepted)["decision"] == "not_comparable"
    assert judged(canary_json(seen(own=2.6), OWN), [])["decision"] == "no_reference"


def test_a_setting_that_no_longer_runs_is_a_failure_not_a_regression():
    broken = CanarySeen(BEST, True, (measured(2.0),), (failure(),))
    verdict = judged(canary_json(broken, OWN), history())
    assert verdict["decision"] == "failed"
    assert "The best setting could not be measured: oom_gpu" in verdict["text"]


def test_the_gain_of_the_best_setting_is_over_all_pairs():
    assert gain_of_best(canary_json(seen(own=2.0, best=1.0), OWN)) == pytest.approx(1.0)
    assert gain_of_best(canary_json(seen(best=None), OWN)) is None
    assert gain_of_best(None) is None


REFERENCE = {"point": BEST.as_dict(), "overrides": {"micro": 16}, "gain": 0.5, "script_hash": "s"}
BETTER = {
    "decision": "better",
    "gain": 0.9,
    "interval": [0.8, 1.0],
    "emitted": {"overrides": {"micro": 32, "other": 1}, "changed": ["micro"]},
}


def moved(verdict: dict[str, Any], *, point: Point, known: Point | None = BEST, tonight: float | None = 0.5):
    return moved_up(
        REFERENCE, verdict=verdict, point=point, known=known, gain_tonight=tonight, study="n", slot="x", script_hash="s"
    )


def test_the_reference_moves_up_only_when_that_is_sure_and_never_down():
    better = Point.of({"micro": 32})
    found = moved(BETTER, point=better)
    assert found is not None
    assert (found["point"], found["overrides"], found["gain"]) == ({"micro": 32}, {"micro": 32}, 0.9)
    assert moved({**BETTER, "decision": "indicative"}, point=better) is None
    assert moved({**BETTER, "interval": [0.45, 1.3]}, point=better) is None, "the known one gains as much tonight"
    assert moved({**BETTER, "interval": [0.1, 0.2]}, point=better, tonight=None) is None, (
        "its gain when it was confirmed"
    )
    assert moved(BETTER, point=BEST) is None, "it is the one that is known"
    assert moved({**BETTER, "interval": [0.1, 0.2]}, point=better, known=None) is not None


def test_the_best_setting_of_another_script_or_space_is_not_measured():
    assert known_best(REFERENCE, OWN, "s") == BEST
    assert known_best(REFERENCE, OWN, "t") is None
    assert known_best(REFERENCE, Point.of({"micro": 2, "other": 1}), "s") is None
    assert known_best(None, OWN, "s") is None


def test_what_changed_in_an_environment_is_named():
    assert changes_between({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == ["b: 2 → 3", "c: none → 4"]


def test_what_the_hypervisor_took_is_part_of_a_nights_environment():
    stolen = [replace(measured(2.0), echo={"host.cpu_stolen": share}) for share in (0.11, 0.164, 0.18)]
    told = host_of(CanarySeen(BEST, True, (stolen[0], stolen[1]), (stolen[2], failure())))
    assert told == {"CPU time taken by the hypervisor": "about 15 %"}
    assert host_of(CanarySeen(None, True, (measured(2.0),), ())) == {}
