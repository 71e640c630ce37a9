"""`autotune export`: a study's trials and report as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from autotune.cli import console as terminal
from autotune.cli.storage import DEFAULT_STORAGE, chosen_study, open_existing
from autotune.dashboard.report import write_report
from autotune.tuner.execute import check_writable
from autotune.tuner.outcome import write_outputs
from autotune.values import BadInput


def export(
    study: Annotated[str | None, typer.Argument(help="Name of the study.", show_default="the newest")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files.", show_default="autotune-export/STUDY")
    ] = None,
    storage: Annotated[str, typer.Option(help="Database URL.")] = DEFAULT_STORAGE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as one JSON object.")] = False,
) -> None:
    """Writes report.html, report.md, best.yaml and trials.parquet of a study."""
    try:
        store = open_existing(storage)
        record = chosen_study(store, study)
        folder = out or Path("autotune-export") / record.name
        check_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except BadInput as error:
        terminal.refuse(str(error), as_json=as_json)
    emitted = (record.verdict or {}).get("emitted") or {"overrides": {}, "changed": []}
    changes = {key: emitted["overrides"][key] for key in emitted["changed"]}
    files = write_outputs(store, record, store.trials(record.id), folder, changes=changes)
    files.append(write_report(store, record.name, folder))
    if as_json:
        terminal.print_json({"files": [str(path) for path in files]})
        return
    for path in files:
        terminal.out.print(escape(str(path)), soft_wrap=True)
