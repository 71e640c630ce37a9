"""The JSON of `autotune studies` and `autotune show`: the keys that scripts rely on, and values that JSON can hold."""

from __future__ import annotations

import json
import math

from autotune.store.json_shapes import show_json, studies_json
from autotune.store.store import Store
from autotune.values import Failure, FailureClass, Measurement, Phase, Point, TrialKind, TrialState
from tests.store.rows import new_study, new_trial, running_trial, step

STUDY_KEYS = {"name", "workload", "created", "trials", "best", "gain", "state"}
SHOW_KEYS = {"study", "baseline", "best", "verdict", "trials", "sessions"}
TRIAL_KEYS = {
    "number",
    "state",
    "point",
    "throughput",
    "mfu",
    "phases",
    "memory",
    "failure",
    "session",
    "source",
    "work",
    "engine",
    "settling_steps",
    "simulated",
}
VERDICT = {
    "decision": "better",
    "gain": 0.25,
    "hook_gain": None,
    "interval": [0.2, 0.3],
    "launches": 3,
    "equivalent": {"config": True, "gradient": None, "trajectory": None},
    "best_number": 1,
}


def measured(seconds: float) -> Measurement:
    return Measurement(steps=(step(1, 30.0, settling=True), step(2, seconds, mfu=0.4, memory_gb=60.0)), world_size=8)


def finished_study(store: Store) -> int:
    """A baseline, a faster trial, one that ran out of memory, and one in the queue."""
    study = new_study(store, "first")
    baseline = running_trial(store, study, kind=TrialKind.BASELINE, point=Point.of({}), overrides=[])
    store.finish_trial(study, baseline, TrialState.MEASURED, measurement=measured(10.0), failure=None)
    best = running_trial(store, study, point=Point.of({"rollout.tp": 2, "compile": True, "limit": None}))
    store.finish_trial(study, best, TrialState.MEASURED, measurement=measured(8.0), failure=None)
    failed = running_trial(store, study)
    failure = Failure(FailureClass.OOM_GPU, Phase.GEN, "a smaller share", "CUDA out of memory", False)
    store.finish_trial(study, failed, TrialState.INFEASIBLE, measurement=None, failure=failure)
    new_trial(store, study, simulated=True)
    store.set_verdict(study, VERDICT)
    store.set_study_state(study, "finished")
    return study


def test_show_has_the_agreed_shape(store: Store) -> None:
    study = finished_study(store)
    shown = json.loads(json.dumps(show_json(store.study("first"), store.trials(study)), allow_nan=False))
    assert shown.keys() >= SHOW_KEYS
    assert all(trial.keys() >= TRIAL_KEYS for trial in shown["trials"])
    assert shown["study"] == "first"
    assert shown["verdict"] == VERDICT
    assert shown["baseline"] == shown["trials"][0]
    assert shown["best"] == shown["trials"][1]
    assert [trial["number"] for trial in shown["trials"]] == [0, 1, 2, 3]
    assert [trial["state"] for trial in shown["trials"]] == ["measured", "measured", "infeasible", "queued"]
    assert [trial["simulated"] for trial in shown["trials"]] == [False, False, False, True]


def test_show_tells_what_a_trial_delivered(sqlite_store: Store) -> None:
    study = finished_study(sqlite_store)
    trial = show_json(sqlite_store.study("first"), sqlite_store.trials(study))["trials"][1]
    assert trial["point"] == {"compile": True, "limit": None, "rollout.tp": 2}
    assert (trial["throughput"], trial["mfu"], trial["memory"]) == (4000 / 8.0 / 8, 0.4, 60.0)
    assert trial["phases"] == {"gen": 4.0, "update_actor": 2.0, "rest": 2.0}
    assert (trial["source"], trial["work"], trial["engine"]) == ("whole", "full", "cold")
    assert (trial["settling_steps"], trial["counted_steps"], trial["failure"]) == (1, 1, None)


def test_show_tells_why_a_trial_failed(sqlite_store: Store) -> None:
    study = finished_study(sqlite_store)
    trial = show_json(sqlite_store.study("first"), sqlite_store.trials(study))["trials"][2]
    assert trial["failure"] == {
        "class": "oom_gpu",
        "phase": "gen",
        "remedy": "a smaller share",
        "evidence": "CUDA out of memory",
        "retryable": False,
    }
    assert (trial["throughput"], trial["phases"]) == (None, {})


def test_show_of_a_study_that_has_just_begun(sqlite_store: Store) -> None:
    study = new_study(sqlite_store, "first")
    shown = show_json(sqlite_store.study("first"), sqlite_store.trials(study))
    assert (shown["baseline"], shown["best"], shown["verdict"], shown["trials"]) == (None, None, None, [])


def test_a_measurement_without_counted_steps_is_valid_json(sqlite_store: Store) -> None:
    study = new_study(sqlite_store, "first")
    number = running_trial(sqlite_store, study)
    only_settling = Measurement(steps=(step(1, settling=True, mfu=math.nan),), world_size=8)
    sqlite_store.finish_trial(study, number, TrialState.INVALID, measurement=only_settling, failure=None)
    trial = json.loads(json.dumps(show_json(sqlite_store.study("first"), sqlite_store.trials(study)), allow_nan=False))[
        "trials"
    ][0]
    assert (trial["throughput"], trial["step_seconds"], trial["mfu"], trial["phases"]) == (None, None, None, {})


def test_studies_has_the_agreed_shape_oldest_first(store: Store) -> None:
    finished_study(store)
    new_study(store, "a second", simulated=True)
    shown = json.loads(json.dumps(studies_json(store.studies()), allow_nan=False))
    assert shown.keys() == {"studies"}
    first, second = shown["studies"]
    assert first.keys() >= STUDY_KEYS
    assert (first["name"], first["trials"], first["best"], first["gain"]) == ("first", 4, 1, 0.25)
    assert (first["state"], first["workload"], first["simulated"]) == ("finished", "Qwen3-8B GRPO on gsm8k", False)
    assert (second["name"], second["trials"], second["best"], second["gain"]) == ("a second", 0, None, None)
    assert (second["state"], second["simulated"]) == ("running", True)
    assert first["created"].endswith("+00:00")
    assert first["created"] <= second["created"]
