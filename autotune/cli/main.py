"""`autotune`: the command and its sub-commands."""

from __future__ import annotations

from typing import Annotated

import typer

import autotune
from autotune.cli import best, dashboard, export, logs, night, parse, resume, run, schedule, serve, show, studies
from autotune.cli import console as terminal
from autotune.measure.job_record import sweep
from autotune.values import AutotuneError

app = typer.Typer(
    name="autotune",
    help="Finds the fastest settings for a verl training command without changing what it learns.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("resume")(resume.resume)
app.command("studies")(studies.studies)
app.command("show")(show.show)
app.command("best")(best.best)
app.command("export")(export.export)
app.command("parse")(parse.parse)
app.command("logs")(logs.logs)
app.command("dashboard")(dashboard.dashboard)
app.add_typer(schedule.app, name="schedule")
app.command("serve")(serve.serve)
app.command("night", hidden=True)(night.night)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autotune {autotune.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Options before the sub-command."""
    try:
        ended = sweep()
    except AutotuneError as error:
        terminal.refuse(str(error), status=terminal.RUN_FAILED)
    if ended:
        terminal.err.print(
            f"[yellow]note[/] ended {ended} processes of a verl launch whose tuner and supervisor had been killed"
        )


def main() -> None:
    """Entry point of the `autotune` script."""
    app()


if __name__ == "__main__":
    main()
