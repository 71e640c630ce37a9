"""A node with schedules over the double of verl, and a service whose nights are real processes. Every figure is simulated."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from autotune.measure.gpu_lease import FOLDER_VARIABLE
from autotune.measure.runner import StepPlan
from autotune.service.control import run_now
from autotune.service.daemon import Daemon
from autotune.service.registration import hash_of
from autotune.store import schedules
from autotune.store.schedules import NightRecord, NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.tuner.request import RunRequest
from autotune.values import TrialState
from tests.fakes.launches import environment, write_script

ROOT = Path(__file__).resolve().parents[2]
ENDED = frozenset(
    {NightState.FINISHED, NightState.SKIPPED, NightState.STOPPED, NightState.FAILED, NightState.UNFINISHED}
)


class Node:
    """A folder with a script, a database and schedules."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = write_script(folder)
        self.storage = f"sqlite:///{folder / 'trials.db'}"
        self.store = Store.open(self.storage)
        self.told: list[str] = []

    def add(self, name: str, *, pairs: int = 2, trials: int = 4, **changes: Any) -> ScheduleRecord:
        """A schedule whose window is open all day, but which comes due at no time soon."""
        request = RunRequest(
            script=self.script,
            out=self.folder / "nights" / name,
            storage=self.storage,
            study="",
            trials=trials,
            confirmations=1,
            plan=StepPlan(at_least=2, at_most=2),
        )
        request = replace(request, **{k: v for k, v in changes.items() if k in RunRequest.__slots__})
        shown = {**request.to_json(), "cwd": str(self.folder)}
        return schedules.add_schedule(
            self.store,
            name=name,
            host=socket.gethostname(),
            cron=changes.get("cron", "0 2 29 2 *"),
            tz=changes.get("tz", "UTC"),
            window=changes.get("window", "01:00-00:59"),
            pairs=pairs,
            script_path=str(self.script),
            script_hash=hash_of(self.script),
            request=shown,
        )

    def daemon(self, *, now: Callable[[], datetime] | None = None, **faults: str) -> Daemon:
        """A service whose nights run the double with these faults.

        Args:
            now: its clock; None: the real one.
        """
        return Daemon(
            self.store,
            self.storage,
            logs=self.folder / "logs",
            announce=lambda text, schedule, night: self.told.append(text),
            env=self.env(**faults),
            now=now or (lambda: datetime.now(timezone.utc)),
        )

    def env(self, **faults: str) -> dict[str, str]:
        """Environment of the processes of nights."""
        env = environment(**faults)
        # Leases of its own: whoever else measures on this host is nothing to these tests.
        leases = str(self.folder / "leases")
        return {**env, "PYTHONPATH": f"{ROOT}{os.pathsep}{env['PYTHONPATH']}", FOLDER_VARIABLE: leases}

    def ask(self, schedule: ScheduleRecord, *, seconds: float = 3600.0) -> NightRecord:
        """A night that is due now."""
        return run_now(self.store, schedule, datetime.now(timezone.utc), length=timedelta(seconds=seconds))

    def night(self, night: NightRecord) -> NightRecord:
        """The night as it is now."""
        found = schedules.night(self.store, night.id)
        assert found is not None
        return found

    def until(self, condition: Callable[[], bool], what: str, *, seconds: float = 90.0) -> None:
        """Waits for a condition; the logs of the nights say why it did not come."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text() for path in sorted((self.folder / "logs").glob("*.log")))
                raise AssertionError(f"waited {seconds} s for {what}; {self.told}\n{logs}")
            time.sleep(0.1)

    def ended(self, night: NightRecord, *, seconds: float = 90.0) -> NightRecord:
        """The night once it has ended."""
        self.until(lambda: self.night(night).state in ENDED, f"the end of {night.slot}", seconds=seconds)
        return self.night(night)

    def verdict(self, night: NightRecord) -> Mapping[str, Any]:
        """What its canary says."""
        found = self.night(night).verdict
        assert found is not None
        return found

    def measured(self, night: NightRecord) -> int:
        """How many trials of its study have ended."""
        study = self.night(night).study_id
        if study is None:
            return 0
        return sum(trial.state not in (TrialState.RUNNING, TrialState.QUEUED) for trial in self.store.trials(study))

    def ended_for_good(self, night: NightRecord, *, seconds: float = 90.0) -> NightRecord:
        """The night once it is in a state from which it does not come back."""
        final = ENDED - {NightState.UNFINISHED}
        self.until(lambda: self.night(night).state in final, f"the end of {night.slot}", seconds=seconds)
        return self.night(night)

    def log(self, night: NightRecord) -> str:
        """What its process printed."""
        return (self.folder / "logs" / f"{night.schedule}-{night.id}.log").read_text()
