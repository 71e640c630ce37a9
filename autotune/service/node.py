"""The service of one node: daemon, API and metrics over one database."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from sqlalchemy.engine import make_url

from autotune.measure.job_record import records_folder
from autotune.service.api import MOUNTED_AT, create_api
from autotune.service.control import next_run
from autotune.service.daemon import Daemon
from autotune.service.metrics import metrics_router
from autotune.service.notify import Notifier, failure, link_to
from autotune.service.token import Token
from autotune.store import schedules
from autotune.store.schedules import NightRecord, ScheduleRecord
from autotune.store.store import Store


def utc_now() -> datetime:
    """This moment."""
    return datetime.now(timezone.utc)


class Node:
    """Everything that `autotune serve` runs beside the pages."""

    def __init__(
        self, storage: str, token: Token, *, environment: Mapping[str, str], beat: Callable[[], None] = lambda: None
    ) -> None:
        """
        Args:
            storage: URL of the database, made where it is missing.
            environment: where nights find their secrets, and notifications their addresses.
            beat: called now and then while the service lives.

        Raises:
            BadInput: the database cannot be used.
        """
        self.store = Store.open(storage, check=True)
        self._token = token
        self._environment = environment
        self._notifier = Notifier.from_environment(environment)
        self._logs = logs_of(storage)
        self._daemon = Daemon(self.store, storage, logs=self._logs, announce=self._announce, env=environment, beat=beat)
        self._started = False

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._daemon.stop()
        self.store.close()

    def start(self) -> None:
        """Nights begin from now on."""
        self._started = True
        self._daemon.start()

    def extend(self, app: FastAPI) -> None:
        """Adds the API, the metrics and the state of health to the application of the pages."""
        app.mount(MOUNTED_AT, create_api(self.store, token=self._token, now=utc_now))
        app.include_router(metrics_router(self.store, now=utc_now))

        @app.get("/readyz")
        def ready() -> PlainTextResponse:
            if self._daemon.healthy:
                return PlainTextResponse("ok\n")
            return PlainTextResponse("nights are not looked after: see the service's log\n", status_code=503)

    def told(self) -> list[str]:
        """What whoever starts it should know."""
        now = utc_now()
        mine = [schedule for schedule in schedules.schedules(self.store) if schedule.host == socket.gethostname()]
        coming = sorted((when, schedule.name) for schedule in mine if (when := next_run(schedule, now)) is not None)
        lines = [
            f"{len(mine)} {'schedule' if len(mine) == 1 else 'schedules'} of this node"
            + (f"; next: {coming[0][1]} at {coming[0][0]:%Y-%m-%d %H:%M} UTC" if coming else "")
        ]
        names = self._notifier.addresses
        lines.append(
            f"notifications: {', '.join(names)}" if names else "notifications: none (AUTOTUNE_NOTIFY is not set)"
        )
        lines.append(f"logs of nights: {self._logs}")
        return lines

    def _announce(self, reason: str, schedule: ScheduleRecord, night: NightRecord) -> None:
        self._notifier.send(failure(schedule, night, text=reason, link=link_to(schedule.name, self._environment)))


def logs_of(storage: str) -> Path:
    """Where the processes of nights log: beside a SQLite database, else with the records of jobs."""
    parsed = make_url(storage)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        return Path(parsed.database).resolve().parent / "autotune-out" / "logs"
    return records_folder() / "logs"
