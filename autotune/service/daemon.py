"""The service's own thread: sees to it that every night that is due runs once, in a process of its own.

The database is the truth about nights. A service that is killed leaves their processes running; the next one finds them there,
and takes up those whose process is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger

from autotune.service.control import SERVICE, STORAGE_VARIABLE, alive, signalled, timetable
from autotune.store import schedules
from autotune.store.records import WrongTransition
from autotune.store.schedules import NightRecord, NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.store.trouble import StoreTrouble
from autotune.values import BadInput

POLL_SECONDS = 1.0
"""How soon a night that somebody asked for, or a process that has ended, is seen."""
ATTEMPTS = 4
"""How often a night is begun: one that takes its process down every time would do so for ever."""
END_SECONDS = 90.0
"""How long a service that ends waits for its nights to clean up."""
_LOG = logging.getLogger(__name__)


class Daemon:
    """Plans nights when they come due and runs them."""

    def __init__(
        self,
        store: Store,
        storage: str,
        *,
        logs: Path,
        announce: Callable[[str, ScheduleRecord, NightRecord], None],
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        env: Mapping[str, str] | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            storage: URL of the store, with its password.
            logs: folder for what the processes of nights print.
            announce: told why a night failed that could not tell so itself.
            env: environment of those processes; None: the service's own.
            beat: called in every round, from the service's thread.
        """
        self._store = store
        self._storage = storage
        self._logs = logs
        self._announce = announce
        self._now = now
        self._beat = beat
        self._env = dict(os.environ if env is None else env)
        self._clock = BackgroundScheduler(timezone=timezone.utc)
        self._armed: dict[int, tuple[str, str, str]] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._started: dict[int, int] = {}
        self._done = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="autotune-nights", daemon=True)

    def start(self) -> None:
        """Begins; nights that were due while no service ran begin now, if their windows are open."""
        self._logs.mkdir(parents=True, exist_ok=True)
        self._clock.start()
        self._thread.start()

    def stop(self) -> None:
        """Ends every night that this host runs, to be taken up again by the next service, and waits until they are gone."""
        self._done.set()
        self._wake.set()
        self._thread.join()
        self._clock.shutdown(wait=False)
        active = schedules.open_nights(self._store, socket.gethostname(), self._now())
        mine = [night for night in active if night.state is NightState.RUNNING and signalled(night, SERVICE)]
        for child in self._children.values():  # those that have not taken their night yet, too
            if child.poll() is None:
                child.send_signal(SERVICE)
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            if not any(alive(night.lease) for night in mine) and all(
                c.poll() is not None for c in self._children.values()
            ):
                return
            time.sleep(0.1)
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)  # its supervisor cleans up after it
                child.wait()

    @property
    def running(self) -> int:
        """How many processes of nights this service started that have not ended."""
        return sum(child.poll() is None for child in self._children.values())

    @property
    def healthy(self) -> bool:
        """Whether its thread is at work."""
        return self._thread.is_alive()

    # -- the loop --------------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._done.is_set():
            self._beat()
            try:
                self._arm()
                self._see_to_nights()
            except StoreTrouble as trouble:
                _LOG.error("the database cannot be used now: %s", trouble)  # the next round may succeed
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()

    def _arm(self) -> None:
        """Sets the clock for every schedule of this host that is new or has changed, and plans what is due already."""
        known = {schedule.id: schedule for schedule in schedules.schedules(self._store)}
        for schedule_id in self._armed.keys() - known.keys():
            self._disarm(schedule_id)
        for schedule in known.values():
            if schedule.host != socket.gethostname():
                continue
            wanted = (schedule.cron, schedule.window, schedule.tz)
            if schedule.state != "active":
                self._disarm(schedule.id)
            elif self._armed.get(schedule.id) != wanted:
                self._armed[schedule.id] = wanted
                self._fire(schedule.id)

    def _disarm(self, schedule_id: int) -> None:
        if self._armed.pop(schedule_id, None) is not None and self._clock.get_job(str(schedule_id)) is not None:
            self._clock.remove_job(str(schedule_id))

    def _fire(self, schedule_id: int) -> None:
        """Plans the night whose window is open, and sets the clock for the next one."""
        found = [schedule for schedule in schedules.schedules(self._store) if schedule.id == schedule_id]
        if not found or found[0].state != "active":
            return
        schedule, now = found[0], self._now()
        try:
            plan = timetable(schedule)
        except BadInput as error:
            _LOG.error("the schedule %s cannot be read: %s", schedule.name, error)
            return
        firing = plan.open_at(now)
        if firing is not None and firing.at >= schedule.created_at:
            schedules.plan_night(self._store, schedule.id, slot=firing.slot, planned_at=firing.at, until=firing.until)
        coming = next(plan.after(now), None)
        if coming is not None:
            self._clock.add_job(
                self._due,
                DateTrigger(coming.at, timezone=timezone.utc),
                args=[schedule.id],
                id=str(schedule.id),
                replace_existing=True,
                misfire_grace_time=None,
            )
        self._wake.set()

    def _due(self, schedule_id: int) -> None:
        # On a thread of the clock: the loop does the work, so that only one of them writes.
        self._armed.pop(schedule_id, None)
        self._wake.set()

    def _see_to_nights(self) -> None:
        for night_id in [i for i, child in self._children.items() if child.poll() is not None]:
            del self._children[night_id]
        now = self._now()
        active = schedules.open_nights(self._store, socket.gethostname(), now)
        busy = {night.schedule_id: night for night in active if night.state is NightState.RUNNING}
        for night in reversed(active):
            if night.id in self._children or alive(night.lease):
                continue
            if night.until <= now:
                self._close(night)
            elif night.state is NightState.UNFINISHED and night.attempts >= ATTEMPTS:
                continue
            elif max(self._started.get(night.id, 0), night.attempts) >= ATTEMPTS:
                self._give_up(night)
            elif night.schedule_id in busy and busy[night.schedule_id].id != night.id:
                other = busy[night.schedule_id]
                if night.state is NightState.DUE:
                    self._end(night, NightState.SKIPPED, f"the night {other.slot} still ran")
            else:
                self._begin(night)
                busy[night.schedule_id] = night

    def _begin(self, night: NightRecord) -> None:
        self._started[night.id] = self._started.get(night.id, 0) + 1
        log = log_of(self._logs, night)
        with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as sink:
            self._children[night.id] = subprocess.Popen(
                [sys.executable, "-m", "autotune.cli.main", "night", str(night.id)],
                env={**self._env, STORAGE_VARIABLE: self._storage, "COLUMNS": "160"},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the service's terminal is for the service
            )

    def _close(self, night: NightRecord) -> None:
        """The window is over and nobody runs the night."""
        if night.state is NightState.DUE:
            self._end(night, NightState.SKIPPED, "its window closed before a service could begin it")
        elif night.state is NightState.RUNNING:
            self._end(night, NightState.UNFINISHED, "its process was gone when the window closed")

    def _give_up(self, night: NightRecord) -> None:
        reason = f"its process ended {ATTEMPTS} times without a result; see {log_of(self._logs, night)}"
        if self._end(night, NightState.FAILED, reason):
            ended = schedules.night(self._store, night.id) or night
            with contextlib.suppress(BadInput):  # removed meanwhile: nobody waits for news of it
                self._announce(reason, schedules.schedule(self._store, night.schedule), ended)

    def _end(self, night: NightRecord, state: NightState, reason: str) -> bool:
        try:
            schedules.end_night(self._store, night.id, state, reason)
        except WrongTransition:
            return False  # its process was faster
        return True


def log_of(folder: Path, night: NightRecord) -> Path:
    """What the processes of a night print."""
    return folder / f"{night.schedule}-{night.id}.log"
