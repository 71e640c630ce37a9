"""`autotune`: the command and its sub-commands."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

import autotune
from autotune.cli import console as terminal
from autotune.measure.job_record import sweep
from autotune.values import AutotuneError

COMMANDS = {
    "run": "Finds the fastest settings for a verl training command.",
    "resume": "Goes on with a study that was stopped or killed.",
    "studies": "Lists the studies, oldest first.",
    "show": "Shows a study: its verdict, its phases, every launch.",
    "best": "Prints the best settings of a study.",
    "export": "Writes the report and the files of a study anew.",
    "parse": "Shows what a launch script passes to verl.",
    "logs": "Steps, speed and failure of a verl run, from its log.",
    "dashboard": "Shows every study as web pages, live while one runs.",
    "schedule": "Checks and tunes jobs every night.",
    "serve": "Runs schedules in their windows, and serves the dashboard.",
    "night": "",
}
"""The sub-commands and their lines in the help; one without a line is not listed. Each is in the module of its name."""


class Later(TyperCommand):
    """Stands for a sub-command until it is asked for; only then is its module imported, and with it what it alone needs.

    With all of them imported, the help took two seconds to appear.
    """

    def make_context(self, *args: Any, **more: Any) -> Any:
        """The context of the sub-command itself."""
        assert self.name is not None
        module = import_module(f"autotune.cli.{self.name}")
        found = getattr(module, "app", None)
        if found is None:
            found = typer.Typer(add_completion=False, rich_markup_mode=None)
            found.command(self.name)(getattr(module, self.name))
        return get_command(found).make_context(*args, **more)


app = typer.Typer(
    name="autotune",
    help="Finds the fastest settings for a verl training command without changing what it learns.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name, _line in COMMANDS.items():
    app.command(_name, cls=Later, help=_line, hidden=not _line)(lambda: None)


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
