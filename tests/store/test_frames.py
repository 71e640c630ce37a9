"""Trials and steps as frames: one row each, a column per knob and per phase, and a parquet file of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from autotune.store.frames import steps_frame, trials_frame
from autotune.store.store import Store
from autotune.values import Failure, FailureClass, Measurement, Phase, Point, TrialState
from tests.store.rows import new_study, new_trial, running_trial, step

FACTS = [
    "study",
    "number",
    "kind",
    "state",
    "origin",
    "simulated",
    "source",
    "work",
    "engine",
    "throughput_tok_s_gpu",
    "step_s",
    "mfu_actor",
    "memory_gb",
    "settling_steps",
    "counted_steps",
    "startup_s",
    "wall_s",
    "failure_class",
    "failure_phase",
    "failure_evidence",
    "started_at",
    "ended_at",
]
OUT_OF_MEMORY = Failure(FailureClass.OOM_GPU, Phase.GEN, "a smaller share", "CUDA out of memory", False)


def three_trials(store: Store) -> None:
    """One measured with two steps, one that ran out of memory after a step, one in the queue."""
    study = new_study(store, "first")
    number = running_trial(store, study, point=Point.of({"rollout.tp": 2, "compile": True}))
    steps = (step(1, 30.0, settling=True), step(2, 10.0, mfu=0.4, memory_gb=60.0))
    measured = Measurement(steps=steps, world_size=8, startup_seconds=90.0, wall_seconds=200.0)
    store.finish_trial(study, number, TrialState.MEASURED, measurement=measured, failure=None)
    number = running_trial(store, study, point=Point.of({"rollout.tp": None}))
    store.add_step(study, number, step(1, 20.0, phases={"gen": 5.0}))
    store.finish_trial(study, number, TrialState.INFEASIBLE, measurement=None, failure=OUT_OF_MEMORY)
    new_trial(store, study, point=Point.of({"rollout.tp": "auto"}))


def test_trials_have_a_column_for_every_fact_knob_and_phase(store: Store) -> None:
    three_trials(store)
    frame = trials_frame(store, store.study("first"))
    assert list(frame.columns) == [
        *FACTS,
        "compile",
        "rollout.tp",
        "phase_gen_s",
        "phase_update_actor_s",
        "phase_rest_s",
    ]
    assert list(frame["number"]) == [0, 1, 2]
    assert list(frame["state"]) == ["measured", "infeasible", "queued"]
    assert list(frame["counted_steps"]) == [1, 1, 0]
    assert list(frame["settling_steps"]) == [1, 0, 0]


def test_a_measured_trial_has_its_figures_and_knobs_as_text(sqlite_store: Store) -> None:
    three_trials(sqlite_store)
    row = trials_frame(sqlite_store, sqlite_store.study("first")).iloc[0]
    assert (row["throughput_tok_s_gpu"], row["step_s"], row["mfu_actor"], row["memory_gb"]) == (50.0, 10.0, 0.4, 60.0)
    assert (row["startup_s"], row["wall_s"]) == (90.0, 200.0)
    assert (row["compile"], row["rollout.tp"]) == ("True", "2")
    assert (row["phase_gen_s"], row["phase_update_actor_s"], row["phase_rest_s"]) == (5.0, 2.5, 2.5)


def test_a_failed_trial_has_its_failure_and_no_figures(sqlite_store: Store) -> None:
    three_trials(sqlite_store)
    row = trials_frame(sqlite_store, sqlite_store.study("first")).iloc[1]
    assert list(row[["failure_class", "failure_phase", "failure_evidence"]]) == ["oom_gpu", "gen", "CUDA out of memory"]
    assert row[["throughput_tok_s_gpu", "mfu_actor", "rollout.tp", "phase_gen_s"]].isna().all()


def test_steps_have_a_row_each_with_seconds_by_phase(sqlite_store: Store) -> None:
    three_trials(sqlite_store)
    frame = steps_frame(sqlite_store, sqlite_store.study("first"))
    assert list(frame.columns) == [
        "number",
        "step",
        "settling",
        "seconds",
        "tokens",
        "mfu_actor",
        "memory_gb",
        "phase_gen_s",
        "phase_update_actor_s",
    ]
    assert list(zip(frame["number"], frame["step"], frame["settling"], frame["seconds"], strict=True)) == [
        (0, 1, True, 30.0),
        (0, 2, False, 10.0),
        (1, 1, False, 20.0),
    ]
    assert list(frame["phase_update_actor_s"].isna()) == [False, False, True]


def test_trials_survive_a_parquet_file(sqlite_store: Store, tmp_path: Path) -> None:
    three_trials(sqlite_store)
    frame = trials_frame(sqlite_store, sqlite_store.study("first"))
    frame.to_parquet(tmp_path / "trials.parquet")
    back = pd.read_parquet(tmp_path / "trials.parquet")
    assert list(back.columns) == list(frame.columns)
    assert list(back["throughput_tok_s_gpu"].dropna()) == [50.0]
    assert list(back["started_at"].dropna()) == list(frame["started_at"].dropna())


def test_a_study_without_trials_gives_empty_frames(sqlite_store: Store) -> None:
    new_study(sqlite_store, "first")
    assert len(trials_frame(sqlite_store, sqlite_store.study("first"))) == 0
    assert len(steps_frame(sqlite_store, sqlite_store.study("first"))) == 0
