"""`autotune resume`: go on with a study whose tuner was stopped or killed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from autotune.cli import console as terminal
from autotune.cli.options import seconds_of
from autotune.cli.pairs import pairs
from autotune.cli.run import tune
from autotune.cli.setup import run_setup
from autotune.cli.storage import DEFAULT_STORAGE, absolute_storage, open_existing
from autotune.tuner.execute import check_places
from autotune.tuner.resume import folder_of, resumable, stored_request
from autotune.values import AutotuneError, BadInput


def resume(
    study: Annotated[
        str | None, typer.Argument(help="Name of the study.", show_default="the newest unfinished one")
    ] = None,
    storage: Annotated[str, typer.Option(help="Database URL of the study.")] = DEFAULT_STORAGE,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Points to measure in all.", show_default="as it began")
    ] = None,
    time_budget: Annotated[
        str | None, typer.Option(help="Time for everything, what is spent included.", show_default="as it began")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="A variable whose value was not stored.")
    ] = None,
    setup: Annotated[
        str | None, typer.Option(help="The set-up command, where it was not stored.", show_default="as it began")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the set-up command runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Goes on with a study that was stopped or killed, to the end of its budget; nothing that was measured is lost."""
    try:
        store = open_existing(storage)
        record = resumable(store, study)
        store.close()
        variables = pairs(env, "--env")
        request = stored_request(record, storage=absolute_storage(storage), env=variables, setup=setup)
        if trials is not None:
            request = replace(request, trials=trials)
        if time_budget is not None:
            request = replace(request, time_budget=seconds_of(time_budget))
        _enter(folder_of(record))
        check_places(request)
        request = replace(request, setup_env=run_setup(request.setup, dict(request.env), yes=yes, dry_run=False))
        status = tune(request, dry_run=False, as_json=as_json, resumed=record)
    except BadInput as error:
        terminal.refuse(str(error), as_json=as_json)
    except AutotuneError as error:
        terminal.refuse(str(error), status=terminal.RUN_FAILED, as_json=as_json, code="RUN_FAILED")
    raise typer.Exit(status)


def _enter(folder: str | None) -> None:
    """Relative paths of the script mean something only in the folder in which the study was started."""
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            raise BadInput(f"the study was started in {folder}, which cannot be entered: {error.strerror}") from error
