"""`autotune best`: the best settings of a study, as a script, YAML or JSON."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from autotune.cli import console as terminal
from autotune.cli.storage import DEFAULT_STORAGE, chosen_study, open_existing
from autotune.store.records import StudyRecord
from autotune.values import BadInput, RunFailed


class Format(str, Enum):
    """What `best` prints."""

    SH = "sh"
    YAML = "yaml"
    JSON = "json"


def best(
    study: Annotated[str | None, typer.Argument(help="Name of the study.", show_default="the newest")] = None,
    format_: Annotated[Format, typer.Option("--format", help="Script, overrides as YAML, or JSON.")] = Format.SH,
    storage: Annotated[str, typer.Option(help="Database URL.")] = DEFAULT_STORAGE,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Prints the best settings of a study."""
    as_json = as_json or format_ is Format.JSON
    try:
        result = best_json(chosen_study(open_existing(storage), study))
    except BadInput as error:
        terminal.refuse(str(error), as_json=as_json)
    except RunFailed as error:
        terminal.refuse(str(error), status=terminal.RUN_FAILED, as_json=as_json, code="RUN_FAILED")
    if as_json:
        terminal.print_json(result)
    elif format_ is Format.YAML:
        yaml.safe_dump({key: result["overrides"][key] for key in result["changed"]}, sys.stdout, sort_keys=True)
    else:
        sys.stdout.write(result["script"])


def best_json(study: StudyRecord) -> dict[str, Any]:
    """`{"overrides", "changed", "script"}` of a study that has ended.

    Raises:
        RunFailed: it has no verdict yet, or its best.sh is gone.
    """
    if study.verdict is None or "emitted" not in study.verdict:
        raise RunFailed(f"study {study.name!r} has no result yet (it is {study.state})")
    script = Path(study.settings["out"]) / "best.sh"
    if not script.is_file():
        raise RunFailed(
            f"{script}, which the study wrote, is gone; autotune keeps no unredacted script in the database"
        )
    emitted = study.verdict["emitted"]
    return {
        "overrides": emitted["overrides"],
        "changed": emitted["changed"],
        "script": script.read_text(encoding="utf-8"),
    }
