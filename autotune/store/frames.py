"""Trials and steps as pandas frames, for analysis and for `trials.parquet`."""

from __future__ import annotations

import pandas as pd

from autotune.store.records import StudyRecord
from autotune.store.store import Store


def trials_frame(store: Store, study: StudyRecord) -> pd.DataFrame:
    """One row per trial: its facts, a column per knob, and `phase_<name>_s` for mean seconds by phase."""
    rows = []
    for trial in store.trials(study.id):
        failure = trial.failure or {}
        rows.append(
            {
                "study": study.name,
                "number": trial.number,
                "kind": trial.kind.value,
                "state": trial.state.value,
                "origin": trial.origin,
                "simulated": trial.simulated,
                "source": trial.source,
                "work": trial.work,
                "engine": trial.engine,
                "throughput_tok_s_gpu": trial.throughput,
                "step_s": trial.step_seconds,
                "mfu_actor": trial.mfu,
                "memory_gb": trial.memory_gb,
                "settling_steps": trial.settling_steps,
                "counted_steps": trial.counted_steps,
                "startup_s": trial.startup_seconds,
                "wall_s": trial.wall_seconds,
                "failure_class": failure.get("class"),
                "failure_phase": failure.get("phase"),
                "failure_evidence": failure.get("evidence"),
                "started_at": trial.started_at,
                "ended_at": trial.ended_at,
                **{key: None if value is None else str(value) for key, value in trial.point.values},
                **{f"phase_{name}_s": seconds for name, seconds in trial.phases.items()},
            }
        )
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def steps_frame(store: Store, study: StudyRecord) -> pd.DataFrame:
    """One row per step of every trial, with `phase_<name>_s` columns."""
    rows = []
    for trial in store.trials(study.id):
        rows += [
            {
                "number": trial.number,
                "step": step.step,
                "settling": step.settling,
                "seconds": step.seconds,
                "tokens": step.tokens,
                "mfu_actor": step.mfu,
                "memory_gb": step.memory_gb,
                **{f"phase_{name}_s": seconds for name, seconds in step.phases.items()},
            }
            for step in store.steps(study.id, trial.number)
        ]
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame
