"""`autotune studies`: every study of a database."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from autotune.cli import console as terminal
from autotune.cli.storage import DEFAULT_STORAGE, open_existing
from autotune.store.json_shapes import studies_json
from autotune.tuner import wording
from autotune.tuner.lease import interrupted
from autotune.values import BadInput


def studies(
    storage: Annotated[str, typer.Option(help="Database URL.")] = DEFAULT_STORAGE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Lists the studies, oldest first."""
    try:
        found = open_existing(storage).studies()
    except BadInput as error:
        terminal.refuse(str(error), as_json=as_json)
    gone = {study.name for study in found if interrupted(study)}
    if as_json:
        terminal.print_json(studies_json(found, gone))
        return
    table = Table("study", "created (UTC)", "state", "trials", "gain", "workload")
    for study in found:
        verdict = study.verdict or {}
        name = escape(study.name) + (f" {terminal.SIMULATED}" if study.simulated else "")
        shown = (
            wording.gain(verdict.get("gain"))
            if verdict.get("decision") == "better"
            else str(verdict.get("decision", "–")).replace("_", " ")
        )
        table.add_row(
            name,
            f"{study.created_at:%Y-%m-%d %H:%M}",
            "interrupted" if study.name in gone else study.state,
            str(study.trials),
            shown,
            escape(study.workload),
        )
    terminal.out.print(table)
    if gone:
        terminal.out.print("Go on with the newest interrupted study: autotune resume", style="dim")
