"""Trials and steps as pandas frames, for analysis and for `trials.parquet`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from autotune.store.records import StudyRecord
from autotune.store.store import Store
from autotune.values import KnobValue

if TYPE_CHECKING:
    import pandas as pd


def trials_frame(store: Store, study: StudyRecord) -> pd.DataFrame:
    """One row per trial: its facts, a column per knob, and `phase_<name>_s` for mean seconds by phase.

    A knob's column has the type of its values (nullable); text where the knob took values of several types.
    """
    import pandas as pd  # here: half a second that only the end of a study needs

    trials = store.trials(study.id)
    rows = []
    for trial in trials:
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
                "invalid_steps": trial.invalid_steps,
                "startup_s": trial.startup_seconds,
                "wall_s": trial.wall_seconds,
                "failure_class": failure.get("class"),
                "failure_phase": failure.get("phase"),
                "failure_evidence": failure.get("evidence"),
                "started_at": trial.started_at,
                "ended_at": trial.ended_at,
                **{f"phase_{name}_s": seconds for name, seconds in trial.phases.items()},
            }
        )
    frame: pd.DataFrame = pd.DataFrame(rows)
    points = [trial.point.as_dict() for trial in trials]
    for key in sorted({key for point in points for key in point}):
        values = [point.get(key) for point in points]
        kind = _column_type(values)
        cells: list[Any] = [str(value) if kind == "string" and value is not None else value for value in values]
        frame[key] = pd.Series(cells, dtype="object").astype(kind)
    return frame


def _column_type(values: Sequence[KnobValue]) -> Literal["boolean", "Int64", "Float64", "string"]:
    """The nullable type that holds these values without changing one; Parquet has no columns of mixed types."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int} and all(abs(int(value)) < 2**63 for value in values if value is not None):
        return "Int64"
    if kinds and kinds <= {int, float}:
        return "Float64"
    return "string"


def steps_frame(store: Store, study: StudyRecord) -> pd.DataFrame:
    """One row per step of every trial, with `phase_<name>_s` columns."""
    import pandas as pd

    rows = []
    for trial in store.trials(study.id):
        rows += [
            {
                "number": trial.number,
                "step": step.step,
                "settling": step.settling,
                "invalid": step.invalid,
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
