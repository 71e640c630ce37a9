"""The user's set-up command, which is run once and only with consent."""

from __future__ import annotations

import sys

import typer
from rich.markup import escape

from autotune.cli import console as terminal
from autotune.values import BadInput


def run_setup(command: str | None, env: dict[str, str], *, yes: bool, dry_run: bool) -> dict[str, str]:
    """What the user's set-up command exports, once the user has agreed to run it.

    Raises:
        BadInput: not agreed to, or nobody can be asked.
    """
    if command is None or dry_run:
        return {}
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput("--setup runs a command in bash; confirm it with --yes where nobody can be asked")
        terminal.err.print(f"--setup runs once in bash: {escape(command)}")
        if not typer.confirm("Run it?", err=True):
            raise BadInput("--setup was not confirmed; nothing was run")
    from autotune.launch import capture_environment  # here: whoever only lists schedules reads no script

    return capture_environment(command, timeout_s=600.0, env=env)
