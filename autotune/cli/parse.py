"""`autotune parse`: what autotune reads in a launch script. Nothing of it is executed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from autotune.cli import console as terminal
from autotune.cli.pairs import pairs
from autotune.launch import Launch, LaunchError, read_launch
from autotune.values import BadInput


def parse(
    script: Annotated[Path, typer.Argument(help="A launch script.")],
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="A variable that the script would find.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An override behind the script's own.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Shows the verl launch in a script, without running anything."""
    try:
        launch = read_launch(script, env={**os.environ, **pairs(env, "--env")}, set_overrides=pairs(set_, "--set"))
    except LaunchError as error:
        if as_json:
            terminal.print_json({"error": {"code": error.code, "line": error.line, "message": error.message}})
        terminal.err.print(f"[bold red]error[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(terminal.BAD_INPUT) from error
    except BadInput as error:
        terminal.refuse(str(error), as_json=as_json)
    if as_json:
        terminal.print_json(launch_json(launch))
        return
    terminal.out.print(
        f"{escape(launch.launcher)} -m {escape(launch.entrypoint)}"
        + ("" if launch.supported else " (not tuned by autotune)")
    )
    table = Table("line", "key", "value", "type")
    for override in launch.overrides:
        table.add_row(
            str(override.line or "–"), escape(override.key), escape(str(override.value)), type(override.typed).__name__
        )
    terminal.out.print(table)


def launch_json(launch: Launch) -> dict[str, Any]:
    """The object of `autotune parse --json`."""
    return {
        "launcher": launch.launcher,
        "entrypoint": launch.entrypoint,
        "hydra_flags": dict(launch.hydra_flags),
        "overrides": [
            {"op": o.op, "key": o.key, "value": o.value, "typed": o.typed, "line": o.line} for o in launch.overrides
        ],
        "env": dict(launch.env),
        "passthrough": launch.passthrough,
        "wrappers": list(launch.wrappers),
        "unresolved": list(launch.unresolved),
        "lint": [dict(finding) for finding in launch.lint],
    }
