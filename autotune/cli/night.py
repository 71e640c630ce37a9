"""`autotune night`: the process of one night. The service starts it; nobody types it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import console as terminal
from autotune.cli.progress import Progress
from autotune.store.schedules import NightRecord, NightState, ScheduleRecord
from autotune.store.store import Store
from autotune.values import AutotuneError, BadInput


def night(night_id: Annotated[int, typer.Argument(help="Id of a night that is due.")]) -> None:
    """Runs one night of a schedule."""
    # Imported here: no other command should wait for what sends messages and draws reports.
    from autotune.dashboard.report import write_report
    from autotune.service.control import STORAGE_VARIABLE
    from autotune.service.night import Alarm, Night
    from autotune.service.notify import VARIABLE, Notifier, link_to, message_of

    notifier = Notifier.from_environment(os.environ)
    storage = os.environ.pop(STORAGE_VARIABLE, None)
    os.environ.pop(VARIABLE, None)  # whatever verl starts needs neither of them

    def announce(alarm: Alarm, schedule: ScheduleRecord, told: NightRecord) -> None:
        terminal.out.print(f"{alarm.kind}: {alarm.text}", markup=False)
        link = link_to(schedule.name, os.environ)
        for problem in notifier.send(message_of(alarm.kind, alarm.text, schedule, told, link=link)):
            terminal.out.print(f"not notified: {problem}", markup=False)

    def publish(store: Store, study: str, out: Path) -> None:
        terminal.out.print(str(write_report(store, study, out)), markup=False, soft_wrap=True)

    try:
        if storage is None:
            raise BadInput(f"{STORAGE_VARIABLE} is not set; nights are started by autotune serve")
        with Progress(terminal.out) as progress:
            state = Night(
                storage,
                night_id,
                listener=progress,
                announce=announce,
                publish=lambda store, study, out: terminal.out.print(
                    str(write_report(store, study, out)), markup=False
                ),
            ).run()
    except BadInput as error:
        terminal.refuse(str(error))
    except AutotuneError as error:
        terminal.refuse(str(error), status=terminal.RUN_FAILED)
    raise typer.Exit(terminal.RUN_FAILED if state is NightState.FAILED else terminal.OK)
