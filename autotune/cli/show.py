"""`autotune show`: one study, verdict first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from autotune.cli import console as terminal
from autotune.cli.progress import phase_bars
from autotune.cli.storage import DEFAULT_STORAGE, chosen_study, open_existing
from autotune.store.json_shapes import show_json
from autotune.store.records import StudyRecord, TrialRecord, gain_of, own_command
from autotune.tuner import wording
from autotune.tuner.lease import interrupted
from autotune.values import BadInput, TrialKind, TrialState


def show(
    study: Annotated[str | None, typer.Argument(help="Name of the study.", show_default="the newest")] = None,
    storage: Annotated[str, typer.Option(help="Database URL.")] = DEFAULT_STORAGE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Shows a study: its verdict, the phases before and after, every launch."""
    try:
        store = open_existing(storage)
        record = chosen_study(store, study)
    except BadInput as error:
        terminal.refuse(str(error), as_json=as_json)
    trials = store.trials(record.id)
    if as_json:
        terminal.print_json(show_json(record, trials, interrupted=interrupted(record)))
        return
    print_study(record, trials)


def print_study(study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
    """The study on the terminal."""
    console = terminal.out
    verdict = study.verdict or {}
    gone = interrupted(study)
    badge = f" {terminal.SIMULATED}" if study.simulated else ""
    console.print(
        f"[bold]{escape(study.name)}[/]{badge} · {'interrupted' if gone else study.state} · {escape(study.workload)}"
    )
    if gone:
        console.print(f"Its tuner is gone; go on with: autotune resume {escape(shlex.quote(study.name))}", style="dim")
    console.print(f"[bold]{escape(wording.verdict(verdict))}[/]" if verdict else "no verdict yet")
    if verdict.get("hook_gain") is not None:
        console.print(f"Of that, the fast generation poll alone: {wording.gain(verdict['hook_gain'])} (measured once).")
    parts = verdict.get("equivalent") or {}
    told = ", ".join(f"{name}: {wording.equivalence(parts.get(name))}" for name in ("config", "gradient", "trajectory"))
    console.print(f"Trains the same? {told}", style="dim")
    if verdict:
        console.print(wording.memory(verdict), style="dim")
    theft = wording.theft(verdict)
    if theft is not None:
        console.print(theft, style="dim")
    own = own_command(trials)
    best = next((t for t in trials if t.number == verdict.get("best_number")), None)
    for title, trial in (("your command", own), ("best", None if best == own else best)):
        if trial is not None and trial.step_seconds:
            console.print(
                f"\n{title} (t{trial.number:03d}): {wording.number(trial.step_seconds, 2)} s/step, {wording.number(trial.throughput)} tokens/s/GPU"
            )
            console.print(phase_bars(trial.phases, trial.step_seconds))
    console.print(trials_table(trials))
    for trial in trials:
        if trial.failure is not None:
            console.print(
                f"[red]t{trial.number:03d}[/] {escape(trial.failure['class'])} in {escape(trial.failure['phase'])}: {escape(trial.failure['evidence'])}"
            )
            console.print(f"     {escape(trial.failure['remedy'])}", style="dim")


def trials_table(trials: Sequence[TrialRecord]) -> Table:
    """Every launch, one per row."""
    table = Table("trial", "state", "tokens/s/GPU", "gain", "s/step", "MFU", "steps", "changed from your command")
    own = own_command(trials)
    for trial in trials:
        state = trial.state.value + {TrialKind.CONFIRM: " again", TrialKind.ANCHOR: " in session"}.get(trial.kind, "")
        colour = (
            ""
            if trial.state is TrialState.MEASURED
            else "red"
            if trial.state in (TrialState.INFEASIBLE, TrialState.FAILED, TrialState.INVALID)
            else "cyan"
        )
        gain = wording.gain(gain_of(trial, trials))
        table.add_row(
            f"t{trial.number:03d}",
            f"[{colour}]{state}[/]" if colour else state,
            wording.number(trial.throughput),
            gain,
            wording.number(trial.step_seconds, 2),
            "–" if trial.mfu is None else f"{trial.mfu:.1%}",
            f"{trial.counted_steps}+{trial.settling_steps}",
            escape(wording.changes(trial.point.changes_from(own.point if own else trials[0].point))),
        )
    return table
