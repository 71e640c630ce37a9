"""Where commands print: results on stdout, everything else on stderr; and how they end."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import typer
from rich.console import Console

OK, RUN_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

SIMULATED = "[bold yellow]SIMULATED[/]"
"""Stands beside whatever a double of verl made."""

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout, and nothing else."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def refuse(message: str, *, status: int = BAD_INPUT, as_json: bool = False, code: str = "BAD_INPUT") -> NoReturn:
    """Ends the command with one clear sentence on stderr, and with a JSON object on stdout where that was asked for."""
    if as_json:
        print_json({"error": {"code": code, "line": None, "message": message}})
    err.print(f"[bold red]error[/] {_plain(message)}", soft_wrap=True)
    raise typer.Exit(status)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
