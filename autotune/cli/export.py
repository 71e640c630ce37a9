"""`autotune export`: a study's trials and report as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from autotune.cli import console as terminal
from autotune.cli.storage import DEFAULT_STORAGE, chosen_study, open_existing
from autotune.tuner.execute import check_writable
from autotune.tuner.outcome import write_outputs
from autotune.values import BadInput


def export(
    study: Annotated[str | None, typer.Argument(help="Name of the study.", show_default="the newest")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path(),
    storage: Annotated[str, typer.Option(help="Database URL.")] = DEFAULT_STORAGE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as one JSON object.")] = False,
) -> None:
    """Writes report.md, best.yaml and trials.parquet of a study."""
    try:
        store = open_existing(storage)
        record = chosen_study(store, study)
        check_writable(out)
        out.mkdir(parents=True, exist_ok=True)
    except BadInput as error:
        terminal.refuse(str(error), as_json=as_json)
    emitted = (record.verdict or {}).get("emitted") or {"overrides": {}, "changed": []}
    changes = {key: emitted["overrides"][key] for key in emitted["changed"]}
    files = write_outputs(store, record, store.trials(record.id), out, changes=changes)
    if as_json:
        terminal.print_json({"files": [str(path) for path in files]})
        return
    for path in files:
        terminal.out.print(escape(str(path)), soft_wrap=True)
