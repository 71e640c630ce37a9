"""`autotune parse`: what a script would launch, without running it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from autotune.cli import console as terminal
from autotune.launch import Launch, LaunchError, read_launch
from autotune.values import BadInput


def parse(
    script: Annotated[
        str, typer.Argument(help="A bash script, a YAML file, a Hydra config, or the command itself in quotes.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, after --.", show_default=False)
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="A variable of the script's environment.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A Hydra override on top of the script's.")
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option(help="Folder that the script would be started in.", show_default="the current one")
    ] = None,
    launch: Annotated[
        int | None, typer.Option(min=1, help="Which launch, where the script has several.", show_default="the only one")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Shows what a launch script passes to verl. Nothing of it is run."""
    try:
        given = _variables(env or [])
        read = read_launch(
            script,
            env={**os.environ, **given},
            set_overrides=set_ or (),
            cwd=None if cwd is None else str(cwd.resolve()),
            args=args or (),
            given=given,
            choose=launch,
        )
    except LaunchError as error:
        if as_json:
            terminal.print_json({"error": {"code": error.code, "line": error.line, "message": _clean(error.message)}})
        terminal.err.print(f"[bold red]error[/] {escape(_clean(error.message))}", soft_wrap=True)
        raise typer.Exit(terminal.BAD_INPUT) from None
    except BadInput as error:
        terminal.refuse(str(error), as_json=as_json)
    if as_json:
        terminal.print_json(_printable(read.to_json()))
    else:
        _show(read)


def _variables(items: list[str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise BadInput(f"--env {item!r}: expected NAME=VALUE")
        pairs[name] = value
    return pairs


def _clean(text: str) -> str:
    """Bytes that were no UTF-8 cannot be printed; they are shown as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _printable(value: object) -> dict[str, object]:
    def walk(item: object) -> object:
        if isinstance(item, str):
            return _clean(item)
        if isinstance(item, list):
            return [walk(one) for one in item]
        if isinstance(item, dict):
            return {_clean(str(key)): walk(one) for key, one in item.items()}
        return item

    return {key: walk(item) for key, item in value.items()} if isinstance(value, dict) else {}


def _show(launch: Launch) -> None:
    console = terminal.out
    wrappers = f" (through {', '.join(launch.wrappers)})" if launch.wrappers else ""
    console.print(
        f"[bold]{escape(_clean(launch.entrypoint))}[/] by {escape(_clean(launch.launcher))}{escape(wrappers)}"
    )
    if launch.unsupported_reason:
        console.print(f"[yellow]not tuned[/] {escape(_clean(launch.unsupported_reason))}")
    for name, value in launch.hydra_flags.items():
        console.print(f"  --{escape(_clean(f'{name} {value}'))}")
    table = Table("line", "override", "value", box=None)
    marks = {"set": "", "add": "+", "force_add": "++", "delete": "~"}
    for override in launch.overrides:
        line = "" if override.line is None else str(override.line)
        table.add_row(line, escape(marks[override.op] + _clean(override.key)), escape(_clean(override.value or "")))
    console.print(table)
    for name, value in launch.env.items():
        console.print(f"  environment {escape(_clean(f'{name}={value}'))}", style="dim")
    for item in launch.unresolved:
        console.print(f"[yellow]only a shell can know[/] {escape(_clean(str(item)))}")
    for finding in launch.lint:
        where = f"line {finding.line}: " if finding.line is not None else ""
        console.print(f"[yellow]{finding.code}[/] {escape(_clean(where + finding.message))}")
    for number, text in launch.not_executed:
        console.print(f"  not run, line {number}: {escape(_clean(text))}", style="dim")
