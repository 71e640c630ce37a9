"""One night, in a process of its own: canary, verdict on regressions, search with what is left of the window.

The process outlives a service that is killed, and ends itself when its window does; whoever takes the night up after it was
killed goes on with its study.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import autotune
from autotune.launch.setup import capture_environment
from autotune.measure.gpu import gpu_settings
from autotune.measure.gpu_lease import CPU, GpuBusy, GpuLease, Holder
from autotune.measure.job_record import await_orphans
from autotune.redaction import MASK
from autotune.search.first_points import FirstPoint
from autotune.service import reference
from autotune.service.canary import canary_json, host_of, judge_canary
from autotune.service.control import PERSON, SERVICE, alive
from autotune.service.registration import hash_of
from autotune.store import queries, schedules
from autotune.store.records import StudyRecord
from autotune.store.schedules import NightRecord, NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.tuner import wording
from autotune.tuner.canary import Canary, CanarySeen
from autotune.tuner.execute import Outputs, StudyJob, check_places
from autotune.tuner.gpus import Patience
from autotune.tuner.lease import held, new_lease
from autotune.tuner.listener import Listener
from autotune.tuner.prepare import Prepared, launch_environment, open_composer, prepare, read_script
from autotune.tuner.request import RunRequest
from autotune.tuner.resume import check_unchanged, stored_request
from autotune.values import AutotuneError, BadInput, Point
from autotune.verl.compose import Composer

WAIT_SHARE = 0.5
"""Share of a window that a night waits for a busy node; later there would be no time for a verdict."""
ORPHAN_SECONDS = 60.0
WATCH_SECONDS = 1.0
OVERTIME_SECONDS = 900.0
"""How long the running step may go on after the end of the window, before it is cut off."""
SETUP_SECONDS = 600.0
_WINDOW = "the window closed"
_SERVICE = "the service ended"
_PERSON = "stopped by a person"


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that a night has to tell people."""

    kind: Literal["regression", "new_best", "failure"]
    text: str


class Ending:
    """Why and how a night has to stop, told by signals and by the clock on the wall."""

    def __init__(self, until: datetime, now: Callable[[], datetime]) -> None:
        self._until = until
        self._now = now
        self._job: StudyJob | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._hard = False
        self.reason: str | None = None
        """Why it stops; None: it does not."""
        self._thread = threading.Thread(target=self._watch, name="autotune-window", daemon=True)

    def __enter__(self) -> Ending:
        self._previous = {sig: signal.signal(sig, self._signal) for sig in (PERSON, SERVICE)}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        for sig, handler in self._previous.items():
            signal.signal(sig, handler)

    @property
    def left(self) -> float:
        """Seconds until the window closes."""
        return (self._until - self._now()).total_seconds()

    def applies_to(self, job: StudyJob) -> None:
        """From now on it is this job that is stopped."""
        with self._lock:
            self._job = job
        if self.reason is not None:
            job.stop(now=self._hard)

    def _signal(self, signum: int, frame: FrameType | None) -> None:
        # What a service that ends cannot wait for, such as a step of minutes, is measured again.
        again = self.reason is not None
        self._stop(_PERSON if signum == PERSON else _SERVICE, now=again or signum == SERVICE)

    def _stop(self, reason: str, *, now: bool) -> None:
        self.reason = self.reason or reason
        self._hard = self._hard or now
        job = self._job
        if job is not None:
            job.stop(now=now)

    def _watch(self) -> None:
        soft = False
        while not self._done.wait(WATCH_SECONDS):
            # The wall clock: the window is one of the people who want their node back in the morning.
            if self.left <= 0 and not soft:
                soft = True
                self._stop(_WINDOW, now=False)
            if self.left <= -OVERTIME_SECONDS:
                self._stop(_WINDOW, now=True)
                return


class Night:
    """Runs one night that is due, or goes on with one whose process is gone."""

    def __init__(
        self,
        storage: str,
        night_id: int,
        *,
        listener: Listener,
        announce: Callable[[Alarm, ScheduleRecord, NightRecord], None],
        publish: Callable[[Store, str, Path], None],
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """
        Args:
            announce: told what people must know, at once.
            publish: writes the report of a study (store, name, folder).
        """
        self._storage = storage
        self._listener = listener
        self._announce = announce
        self._publish = publish
        self._now = now
        self._lease = new_lease()
        self._store = Store.open(storage, check=True)
        night = schedules.night(self._store, night_id)
        if night is None:
            raise BadInput(f"there is no night {night_id} in {self._store.url}")
        if night.lease is not None and alive(night.lease):
            raise BadInput(f"the night {night.slot} of {night.schedule!r} runs already: process {night.lease.pid}")
        if not schedules.take_night(self._store, night_id, self._lease, instead_of=night.lease):
            raise BadInput(f"the night {night.slot} of {night.schedule!r} is {night.state.value}; nothing was started")
        self._night = night
        self._schedule = schedules.schedule(self._store, night.schedule)
        self._known: Point | None = None
        self._gain_tonight: float | None = None

    def run(self) -> NightState:
        """Runs it to its end, whatever that is, and stores that."""
        with Ending(self._night.until, self._now) as ending:
            try:
                state, reason = self._measured(ending)
            except GpuBusy as busy:
                state, reason = NightState.SKIPPED, f"the node was busy: {busy}"
                if ending.reason in (_PERSON, _SERVICE):
                    state, reason = self._stopped(ending.reason)
            except AutotuneError as error:
                state, reason = NightState.FAILED, str(error)
            schedules.end_night(self._store, self._night.id, state, reason, lease=self._lease)
            night = schedules.night(self._store, self._night.id) or self._night
            if state is NightState.FAILED:
                self._announce(Alarm("failure", reason), self._schedule, night)
        self._store.close()
        return state

    def _measured(self, ending: Ending) -> tuple[NightState, str]:
        if ending.left <= 0:
            return NightState.SKIPPED, "its window had closed before it began"
        schedule = self._schedule
        try:
            os.chdir(str(schedule.request["cwd"]))
        except OSError as error:
            raise BadInput(f"the folder of the schedule cannot be entered: {error}") from error
        script_hash = hash_of(Path(schedule.script_path))
        if script_hash != schedule.script_hash:
            self._listener.said(
                f"{schedule.script_path} has changed since it was registered; its figures are not compared with earlier "
                f"nights (autotune schedule accept {schedule.name} says that this is wanted)"
            )
        await_orphans(ORPHAN_SECONDS, say=self._listener.said)
        request, resumed = self._request()
        request = replace(
            request,
            setup_env={}
            if request.setup is None
            else capture_environment(request.setup, timeout_s=SETUP_SECONDS, env=request.env),
        )
        launch = read_script(request)
        env = launch_environment(request, launch)
        composer, python = open_composer(request, launch, env)
        with composer:
            prepared = prepare(request, composer, launch, python, env)
            if resumed is not None:
                try:
                    check_unchanged(resumed, prepared)
                except BadInput as changed:
                    self._listener.said(f"The study of the last night is not taken up again: {changed}")
                    resumed = None
                    prepared = replace(prepared, request=self._fresh(request))
            check_places(prepared.request)
            schedules.tell_night(
                self._store,
                self._night.id,
                script_hash=script_hash,
                simulated=prepared.request.simulated,
                environment={**environment_of(prepared), "script": script_hash[:12]},
            )
            return self._study(prepared, composer, ending, resumed, script_hash)

    def _study(
        self, prepared: Prepared, composer: Composer, ending: Ending, resumed: StudyRecord | None, script_hash: str
    ) -> tuple[NightState, str]:
        request = prepared.request
        self._known = reference.known_best(self._schedule.reference, prepared.space.baseline, script_hash)
        if self._known is not None and self._known not in [first.point for first in prepared.first]:
            first = FirstPoint(self._known, "the best setting of earlier nights")
            prepared = replace(prepared, first=(first, *prepared.first))
        patience = Patience(self._listener.said)
        waits_until = time.monotonic() + max(0.0, ending.left) * WAIT_SHARE

        def wait(busy: GpuBusy) -> bool:
            return ending.reason is None and time.monotonic() < waits_until and patience(busy)

        # On the CPU there are no GPUs to hold; two nights on the same cores would slow each other down.
        cores = [CPU] if prepared.job.on_cpu else []
        with GpuLease.acquire(cores, Holder.of_this_process(request.study), wait=wait):
            canary = Canary(self._known, self._schedule.pairs, lambda seen: self._judge(seen, prepared, script_hash))
            job = StudyJob(
                prepared,
                composer,
                self._listener,
                resumed=resumed,
                canary=None if self._night.canary is not None else canary,
                deadline=time.monotonic() + ending.left,
                patience=wait,
            )
            schedules.tell_night(self._store, self._night.id, study_id=job.study_id)
            ending.applies_to(job)
            outputs = job.run()
        self._publish(self._store, outputs.study, request.out)
        if outputs.stopped:
            return self._stopped(ending.reason or _PERSON)
        if outputs.verdict["decision"] == "baseline_failed":
            return NightState.FAILED, str(outputs.verdict["reason"])
        self._move_up(outputs, script_hash)
        return NightState.FINISHED, ""

    @staticmethod
    def _stopped(reason: str) -> tuple[NightState, str]:
        return (NightState.STOPPED if reason == _PERSON else NightState.UNFINISHED), reason

    def _judge(self, seen: CanarySeen, prepared: Prepared, script_hash: str) -> None:
        """Stores what the canary says, and raises the alarm while the night goes on."""
        canary = canary_json(seen, prepared.space.baseline)
        before = schedules.nights(self._store, self._schedule.id, most=120)
        night = schedules.night(self._store, self._night.id) or self._night
        environment = {**night.environment, **host_of(seen)}
        verdict = judge_canary(
            canary,
            [past for past in before if past.id != night.id and past.planned_at <= night.planned_at],
            environment=environment,
            script_hash=script_hash,
            simulated=prepared.request.simulated,
            since=(self._schedule.reference or {}).get("since"),
        )
        self._gain_tonight = reference.gain_of_best(canary)
        schedules.tell_night(self._store, night.id, canary=canary, verdict=verdict, environment=environment)
        self._listener.said(verdict["text"])
        if verdict["decision"] in ("regression", "failed"):
            told = schedules.night(self._store, night.id) or night
            alarm = Alarm("regression" if told.regressed else "failure", verdict["text"])
            self._announce(alarm, self._schedule, told)

    def _move_up(self, outputs: Outputs, script_hash: str) -> None:
        record = self._store.study(outputs.study)
        number = outputs.verdict.get("best_number")
        best = None if number is None else queries.trial(self._store, record.id, int(number))
        moved = reference.moved_up(
            schedules.schedule(
                self._store, self._schedule.name
            ).reference,  # somebody may have accepted a change meanwhile
            verdict=record.verdict or {},
            point=None if best is None else best.point,
            known=self._known,
            gain_tonight=self._gain_tonight,
            study=outputs.study,
            slot=self._night.slot,
            script_hash=script_hash,
        )
        if moved is None or best is None:
            return
        schedules.change_schedule(self._store, self._schedule.id, reference=moved)
        low, high = moved["interval"]
        changed = wording.changes(best.point.changes_from(Point.of((record.settings or {})["baseline"])))
        text = f"Faster than your command by {moved['gain']:+.1%} (95 % interval {low:+.1%} to {high:+.1%}): {changed}"
        night = schedules.night(self._store, self._night.id) or self._night
        self._announce(Alarm("new_best", text), self._schedule, night)

    # -- requests --------------------------------------------------------------------------------------------------------

    def _request(self) -> tuple[RunRequest, StudyRecord | None]:
        """What to run: the study that the last night left open, or a new one."""
        left = self._left_open()
        if left is not None:
            given = {name: os.environ[name] for name in _masked(left.settings.get("request")) if name in os.environ}
            try:
                return stored_request(left, storage=self._storage, env=given, setup=None), left
            except BadInput as error:
                self._listener.said(f"The study of the last night is not taken up again: {error}")
        return self._fresh(request_of(self._schedule, self._storage, os.environ)), None

    def _left_open(self) -> StudyRecord | None:
        """The study of the newest night that has one, where that night did not come to its end."""
        for night in reversed(schedules.nights(self._store, self._schedule.id)):
            if night.study_id is None:
                continue
            study = queries.study_by_id(self._store, night.study_id)
            open_ = night.state in (NightState.UNFINISHED, NightState.RUNNING)
            if study is not None and open_ and study.state in ("running", "stopped") and not held(study):
                return study
            return None
        return None

    def _fresh(self, request: RunRequest) -> RunRequest:
        """The request of a new study of this night, under a name and in a folder of its own."""
        day = re.sub(r"[^0-9T-]", "", self._night.slot.removeprefix("manual "))[:15].rstrip("-T")
        taken = {study.name for study in self._store.studies()}
        name, count = f"{self._schedule.name}-{day}", 2
        while name in taken:
            name, count = f"{self._schedule.name}-{day}-{count}", count + 1
        base = Path(str(self._schedule.request["out"]))
        # With the same seed every night would propose the same Points.
        return replace(request, study=name, out=base / name, seed=request.seed + self._night.id)


def request_of(schedule: ScheduleRecord, storage: str, env: Mapping[str, str]) -> RunRequest:
    """The request of a schedule; what was not stored because it is secret is taken from the service's environment.

    Raises:
        BadInput: a secret is not there, or another release stored the schedule.
    """
    try:
        request = RunRequest.from_json(schedule.request, storage=storage)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"the schedule {schedule.name!r} was stored by another release of autotune ({error}); remove it and add it again"
        ) from error
    missing = [name for name in _masked(schedule.request) if name not in env]
    if missing:
        raise BadInput(
            f"{', '.join(missing)} must be in the environment of autotune serve (the EnvironmentFile of its unit): "
            "secrets are not stored"
        )
    return replace(request, env={name: env[name] if MASK in value else value for name, value in request.env.items()})


def _masked(shown: Any) -> list[str]:
    """Names of the variables whose values were not stored."""
    env = shown.get("env", {}) if isinstance(shown, Mapping) else {}
    return [name for name, value in env.items() if MASK in str(value)]


def environment_of(prepared: Prepared) -> dict[str, str]:
    """What tonight's speed depends on beside the settings: versions, driver, clocks, host."""
    return {
        **{name: str(version) for name, version in prepared.stack.versions().items()},
        **gpu_settings(),
        "autotune": autotune.__version__,
        "kernel": platform.release(),
        "host": platform.node(),
    }
