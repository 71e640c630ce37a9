"""Studies filled in by hand for tests of what is stored and shown. Every one is labelled simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.store.store import Store
from autotune.values import (
    Failure,
    FailureClass,
    KnobValue,
    Measurement,
    Phase,
    Point,
    StepRecord,
    TrialKind,
    TrialState,
)
from autotune.verl import keys

BASELINE = Point.of({keys.MAX_NUM_SEQS: 8, keys.ACTOR_MICRO_BATCH: 1, keys.FAST_POLL: False})
FASTER = Point.of({keys.MAX_NUM_SEQS: 64, keys.ACTOR_MICRO_BATCH: 4, keys.FAST_POLL: False})
CHANGES: dict[str, KnobValue] = {keys.ACTOR_MICRO_BATCH: 4, keys.MAX_NUM_SEQS: 64}


def step(
    number: int, seconds: float, *, tokens: int | None = 1000, settling: bool = False, mfu: float | None = None
) -> StepRecord:
    """A step of which 60 % is generation and 30 % the update."""
    phases = {"gen": 0.6 * seconds, "update_actor": 0.3 * seconds}
    return StepRecord(number, seconds, tokens, phases, mfu, 1.5, settling, {"timing_s/step": seconds})


def measurement(seconds: float, *, mfu: float | None = None) -> Measurement:
    """One settling step of twice the length and two counted ones of `seconds` each."""
    return Measurement(
        steps=(step(1, 2 * seconds, settling=True, mfu=mfu), step(2, seconds, mfu=mfu), step(3, seconds, mfu=mfu)),
        world_size=2,
        startup_seconds=30.0,
        wall_seconds=60.0,
        echo={keys.MAX_NUM_SEQS: 8},
        simulated=True,
    )


def failure(evidence: str = "torch.OutOfMemoryError: CUDA out of memory") -> Failure:
    """A Point that does not fit."""
    return Failure(FailureClass.OOM_GPU, Phase.UPDATE_ACTOR, "Lower the micro-batch.", evidence, False)


def add_study(store: Store, name: str = "night", **changes: Any) -> int:
    """A running study without trials."""
    values: dict[str, Any] = {
        "name": name,
        "workload": "tiny · grpo · 4×2 · 64 tokens · CPU",
        "workload_fingerprint": "0123456789abcdef",
        "script_path": "train.sh",
        "script_text": "python3 -m verl.trainer.main_ppo",
        "launch": {"entrypoint": "verl.trainer.main_ppo", "arguments": []},
        "config": {keys.MAX_NUM_SEQS: 8, keys.ACTOR_MICRO_BATCH: 1, "trainer.device": "cpu"},
        "space": {"name": "demo_cpu", "dimensions": {}, "fixed": {}},
        "settings": {"baseline": BASELINE.as_dict(), "out": "/nowhere"},
        "environment": {"verl": "0.9.1", "autotune": "0.1.0"},
        "n_gpus": 2,
        "simulated": True,
    }
    return store.create_study(**{**values, **changes})


def add_trial(
    store: Store,
    study: int,
    point: Point = BASELINE,
    kind: TrialKind = TrialKind.SEARCH,
    outcome: Measurement | Failure | None = None,
    *,
    state: TrialState | None = None,
    origin: str = "tpe",
) -> int:
    """A trial that is running (no outcome), was measured or failed; returns its number."""
    number = store.add_trial(
        study, kind=kind, point=point, overrides=["a=1"], origin=origin, optuna_number=None, simulated=True
    )
    store.start_trial(study, number, run_dir=f"/runs/t{number:03d}")
    if isinstance(outcome, Measurement):
        store.finish_trial(study, number, state or TrialState.MEASURED, measurement=outcome, failure=None)
    elif outcome is not None:
        store.finish_trial(study, number, state or TrialState.INFEASIBLE, measurement=None, failure=outcome)
    return number


def verdict(**changes: Any) -> dict[str, Any]:
    """`better` by half, with everything that a study stores."""
    overrides = {**BASELINE.as_dict(), **CHANGES}
    return {
        "decision": "better",
        "gain": 0.5,
        "hook_gain": None,
        "interval": [0.4, 0.6],
        "launches": 4,
        "equivalent": {"config": True, "gradient": None, "trajectory": None},
        "reason": "the whole interval lies above zero",
        "best_number": 3,
        "best_throughput": 375.0,
        "best_range": [360.0, 390.0],
        "launch_noise": 0.01,
        "refused": 2,
        "emitted": {"overrides": overrides, "changed": sorted(CHANGES)},
        **changes,
    }


def finished_study(store: Store, name: str = "night", *, end: Mapping[str, Any] | None = None, **changes: Any) -> int:
    """Baseline, a Point that does not fit, a faster one, and the faster one once more; decided as `better`."""
    study = add_study(store, name, **changes)
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0), origin="the user's own command")
    add_trial(store, study, Point.of({**BASELINE.as_dict(), keys.ACTOR_MICRO_BATCH: 128}), outcome=failure())
    add_trial(store, study, FASTER, outcome=measurement(1.25))
    add_trial(store, study, FASTER, TrialKind.CONFIRM, measurement(4 / 3), origin="the best Point once more")
    store.set_verdict(study, verdict() if end is None else end)
    store.set_study_state(study, "finished")
    return study
