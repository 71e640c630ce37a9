"""The JSON objects of `autotune studies` and `autotune show`, from records. Scripts rely on these shapes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import asdict
from typing import Any

from autotune.store.queries import TrialSummary
from autotune.store.records import StudyRecord, TrialRecord, own_command
from autotune.store.sessions import sessions_of


def studies_json(studies: Sequence[StudyRecord], interrupted: Container[str] = ()) -> dict[str, Any]:
    """`{"studies": […]}`, in the order given.

    Args:
        interrupted: names of studies that say they run, but whose tuner is gone.
    """
    return {
        "studies": [
            {
                "name": study.name,
                "workload": study.workload,
                "created": study.created_at.isoformat(),
                "trials": study.trials,
                "best": (study.verdict or {}).get("best_number"),
                "gain": (study.verdict or {}).get("gain"),
                "state": "interrupted" if study.name in interrupted else study.state,
                "simulated": study.simulated,
            }
            for study in studies
        ]
    }


def show_json(study: StudyRecord, trials: Sequence[TrialRecord], *, interrupted: bool = False) -> dict[str, Any]:
    """One study with everything that was measured.

    Args:
        interrupted: whether it says that it runs, but its tuner is gone.
    """
    verdict = dict(study.verdict) if study.verdict else None
    best = verdict.get("best_number") if verdict else None
    shown = [trial_json(trial) for trial in trials]
    own = own_command(trials)
    return {
        "study": study.name,
        "workload": study.workload,
        "state": "interrupted" if interrupted else study.state,
        "simulated": study.simulated,
        "baseline": None if own is None else trial_json(own),
        "best": next((trial for trial in shown if trial["number"] == best), None),
        "verdict": verdict,
        "trials": shown,
        "sessions": [asdict(session) for session in sessions_of(trials)],
        "environment": dict(study.environment),
    }


def trial_json(trial: TrialRecord) -> dict[str, Any]:
    """One trial."""
    return {**trial_line_json(trial), "echo": dict(trial.echo), "run_dir": trial.run_dir}


def trial_line_json(trial: TrialRecord | TrialSummary) -> dict[str, Any]:
    """One trial in a list: without what verl reported to be in effect, and without its folder."""
    return {
        "number": trial.number,
        "kind": trial.kind.value,
        "state": trial.state.value,
        "origin": trial.origin,
        "point": trial.point.as_dict(),
        "throughput": trial.throughput,
        "step_seconds": trial.step_seconds,
        "mfu": trial.mfu,
        "phases": dict(trial.phases),
        "memory": trial.memory_gb,
        "failure": dict(trial.failure) if trial.failure else None,
        "session": trial.session,
        "source": trial.source,
        "work": trial.work,
        "engine": trial.engine,
        "settling_steps": trial.settling_steps,
        "counted_steps": trial.counted_steps,
        "invalid_steps": trial.invalid_steps,
        "startup_seconds": trial.startup_seconds,
        "wall_seconds": trial.wall_seconds,
        "simulated": trial.simulated,
    }
