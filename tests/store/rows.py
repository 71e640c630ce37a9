"""Studies, trials and steps to store, and processes to store them at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from autotune.store.store import Store
from autotune.values import Point, StepRecord, TrialKind


def new_study(store: Store, name: str = "first", **changed: Any) -> int:
    """The id of a new study."""
    fields: dict[str, Any] = {
        "name": name,
        "workload": "Qwen3-8B GRPO on gsm8k",
        "workload_fingerprint": "f" * 64,
        "script_path": "run.sh",
        "script_text": "python3 -m verl.trainer.main_ppo\n",
        "launch": {"entrypoint": "verl.trainer.main_ppo"},
        "config": {"data": {"train_batch_size": 64}},
        "space": {"knobs": []},
        "settings": {"trials": 20},
        "environment": {"verl": "0.9.1"},
        "n_gpus": 8,
        "simulated": False,
    }
    return store.create_study(**{**fields, **changed})


def new_trial(store: Store, study: int, **changed: Any) -> int:
    """The number of a new, queued trial."""
    fields: dict[str, Any] = {
        "kind": TrialKind.SEARCH,
        "point": Point.of({"rollout.tp": 2}),
        "overrides": ["rollout.tp=2"],
        "origin": "sampler",
        "optuna_number": None,
        "simulated": False,
    }
    return store.add_trial(study, **{**fields, **changed})


def running_trial(store: Store, study: int, **changed: Any) -> int:
    """The number of a new trial whose launch has begun."""
    number = new_trial(store, study, **changed)
    store.start_trial(study, number, run_dir=f"out/{number}")
    return number


def step(number: int, seconds: float = 10.0, **changed: Any) -> StepRecord:
    """A step of 4000 tokens."""
    fields: dict[str, Any] = {"tokens": 4000, "phases": {"gen": seconds / 2, "update_actor": seconds / 4}}
    return StepRecord(step=number, seconds=seconds, **{**fields, **changed})


def at_once(work: Callable[[], Any], processes: int) -> list[Any]:
    """What `work` returned in processes of their own that begin it at the same time; a failure in one fails the test."""
    fork = multiprocessing.get_context("fork")
    start, results = fork.Barrier(processes), fork.SimpleQueue()

    def run() -> None:
        start.wait(60)
        results.put(work())

    workers = [fork.Process(target=run) for _ in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(90)
    assert [worker.exitcode for worker in workers] == [0] * processes
    return [results.get() for _ in workers]
