"""The files that a study leaves beside best.sh: report.md, best.yaml, trials.parquet."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from autotune.store.frames import trials_frame
from autotune.store.records import StudyRecord, TrialRecord, gain_of, own_command
from autotune.store.store import Store
from autotune.tuner import wording
from autotune.values import KnobValue, TrialKind, TrialState
from autotune.verl import keys
from autotune.verl.knobs import Knob, catalogue

_TOLD = 400
"""Characters of a failure that a cell of a table shows; the log has the rest."""


def write_outputs(
    store: Store, study: StudyRecord, trials: Sequence[TrialRecord], out: Path, *, changes: Mapping[str, KnobValue]
) -> list[Path]:
    """Writes the files, each whole or not at all; returns their paths.

    Args:
        changes: overrides in which best.sh differs from the user's script.
    """
    header = "# What the best settings change in the user's command. Empty: nothing.\n"
    texts = {
        "best.yaml": header + yaml.safe_dump(dict(changes), sort_keys=True, allow_unicode=True),
        "report.md": report_markdown(study, trials, changes),
    }
    paths = [replace_file(out / name, text) for name, text in texts.items()]
    parquet = out / "trials.parquet"
    temporary = out / ".trials.parquet.new"
    try:
        trials_frame(store, study).to_parquet(temporary, index=False)
        os.replace(temporary, parquet)
    finally:
        temporary.unlink(missing_ok=True)
    return [*paths, parquet]


def replace_file(path: Path, text: str, *, mode: int = 0o644) -> Path:
    """Writes a text file whole or not at all, with these permissions from its first byte on."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as sink:
        sink.write(text)
    os.chmod(temporary, mode)
    os.replace(temporary, path)
    return path


def report_markdown(study: StudyRecord, trials: Sequence[TrialRecord], changes: Mapping[str, KnobValue]) -> str:
    """The study as Markdown, verdict first; ready for a pull request."""
    verdict = study.verdict or {}
    baseline = own_command(trials)
    best = next((t for t in trials if t.number == verdict.get("best_number")), None)
    parts = [f"# autotune: {_plain(study.name)}", ""]
    if study.simulated:
        parts += ["> **SIMULATED**: every figure here was made by a double of verl, none was measured.", ""]
    parts += [f"**{_plain(wording.verdict(verdict)) if verdict else 'The study has no verdict yet.'}**", ""]
    parts += [f"Workload: {_plain(study.workload)}", ""]
    if baseline is not None and baseline.throughput is not None:
        parts += _comparison(baseline, best)
    if verdict.get("hook_gain") is not None:
        parts += [
            f"Of that, the fast generation poll (`autotune_hooks.py`) alone: {wording.gain(verdict['hook_gain'])}, measured once.",
            "",
        ]
    if verdict.get("best_range"):
        low, high = verdict["best_range"]
        parts += [
            f"One more launch of the best setting is expected at {wording.number(low)} to {wording.number(high)} tokens/s/GPU (95 %).",
            "",
        ]
    parts += _changed(study, changes)
    parts += _equivalence(verdict)
    if verdict:
        parts += ["## Does it still fit on a long night?", "", _plain(wording.memory(verdict)), ""]
    parts += _trials(trials)
    parts += _method(study, trials, verdict)
    return "\n".join(parts).rstrip() + "\n"


def _comparison(baseline: TrialRecord, best: TrialRecord | None) -> list[str]:
    other = best if best is not None and best.number != 0 else None
    rows = [
        ("tokens/s/GPU", wording.number(baseline.throughput), wording.number(other.throughput) if other else "–"),
        (
            "seconds a step",
            wording.number(baseline.step_seconds, 2),
            wording.number(other.step_seconds, 2) if other else "–",
        ),
        ("MFU of the actor update", _mfu(baseline.mfu), _mfu(other.mfu) if other else "–"),
        (
            "trainer's peak memory, GiB",
            wording.number(baseline.memory_gb),
            wording.number(other.memory_gb) if other else "–",
        ),
    ]
    lines = ["## Before and after", "", f"One trial each: t000 and {f't{other.number:03d}' if other else 'none'}.", ""]
    lines += _table(("", "your command", "best"), rows)
    phases = sorted(
        {*baseline.phases, *(other.phases if other else {})}, key=lambda name: -baseline.phases.get(name, 0.0)
    )
    lines += ["Seconds by phase (share of the step):", ""]
    lines += _table(
        ("phase", "your command", "best"),
        [(name, _share(baseline, name), _share(other, name) if other else "–") for name in phases],
    )
    return lines


def _changed(study: StudyRecord, changes: Mapping[str, KnobValue]) -> list[str]:
    lines = ["## What best.sh changes", ""]
    if not changes:
        return [*lines, "Nothing: it is your script as it was.", ""]
    knobs = catalogue(str(study.environment.get("verl", "")))
    rows = []
    for key, value in changes.items():
        before = wording.value(study.config[key]) if key in study.config else "not set"
        rows.append((key, before, wording.value(value), _touches(key, knobs)))
    return [*lines, *_table(("key", "from", "to", "phases it touches"), rows)]


def _touches(key: str, knobs: Mapping[str, Knob]) -> str:
    """Phases of a step that feel a key of the emitted script: a knob's, one that is tied to a knob, or the hook's."""
    if key in (keys.SAMPLER_PATH, keys.SAMPLER_NAME):
        return "gen (the poll for its end)"
    knob = knobs.get(key) or next((knob for knob in knobs.values() if key in knob.tied), None)
    return ", ".join(phase.value for phase in knob.phases) if knob else "not known"


def _equivalence(verdict: Mapping[str, Any]) -> list[str]:
    parts = verdict.get("equivalent") or {}
    return [
        "## Does it train the same?",
        "",
        f"- Configuration differs in allowed tuning keys alone: {wording.equivalence(parts.get('config'))}",
        f"- Same loss and gradient norm on the same batch: {wording.equivalence(parts.get('gradient'))}",
        f"- Same trajectory over several optimiser steps: {wording.equivalence(parts.get('trajectory'))}",
        "",
    ]


def _trials(trials: Sequence[TrialRecord]) -> list[str]:
    first = own_command(trials)
    baseline = first.point if first is not None else None
    rows = []
    for trial in trials:
        against = wording.gain(gain_of(trial, trials))
        changed = wording.changes(trial.point.changes_from(baseline)) if baseline is not None else ""
        told = "" if trial.failure is None else _told(trial.failure)
        kind = "again" if trial.kind is TrialKind.CONFIRM else ""
        badge = "SIMULATED " if trial.simulated else ""
        state = f"{badge}{trial.state.value} {kind}".strip()
        rows.append(
            (
                f"t{trial.number:03d}",
                state,
                wording.number(trial.throughput),
                against,
                wording.number(trial.step_seconds, 2),
                changed,
                told,
            )
        )
    return ["## Every trial", "", *_table(("trial", "", "tokens/s/GPU", "gain", "s/step", "changed", "failure"), rows)]


def _told(failure: Mapping[str, Any]) -> str:
    evidence = str(failure["evidence"])
    shown = evidence if len(evidence) <= _TOLD else f"{evidence[:_TOLD]}…"
    return f"{failure['class']} in {failure['phase']}: {shown} What helps: {failure['remedy']}"


def _machine(study: StudyRecord, trials: Sequence[TrialRecord]) -> str:
    if str(study.config.get("trainer.device")) == "cpu":
        return f"{study.n_gpus} rank{'s' if study.n_gpus > 1 else ''} on the CPU"
    names = sorted({str(gpu["name"]) for trial in trials for gpu in trial.gpus})
    return f"{study.n_gpus} × {', '.join(names) or 'GPU (model not read)'}"


def _where(measured: Sequence[TrialRecord]) -> str:
    """How many trials were measured in launches of their own, and how many share one."""
    sessions = {trial.session for trial in measured if trial.session is not None}
    shared = sum(trial.session is not None for trial in measured)
    parts = []
    own = len(measured) - shared
    if own or not shared:
        parts.append(
            f"{own} measured in {'a launch of verl of its own' if own == 1 else 'launches of verl of their own'}"
        )
    if shared:
        one = len(sessions) == 1
        parts.append(
            f"{shared} measured in {len(sessions)} session{'' if one else 's'} (one launch of verl {'' if one else 'each, '}for many settings)"
        )
    return " and ".join(parts)


def _method(study: StudyRecord, trials: Sequence[TrialRecord], verdict: Mapping[str, Any]) -> list[str]:
    measured = [t for t in trials if t.state is TrialState.MEASURED]
    counted = sum(t.counted_steps for t in measured)
    settling = sum(t.settling_steps for t in measured)
    versions = ", ".join(f"{name} {value}" for name, value in study.environment.items() if isinstance(value, str))
    noise = verdict.get("launch_noise")
    lines = [
        "## How it was measured",
        "",
        f"- {len(trials)} trials, one per row above: {_where(measured)}.",
        f"- {counted} steps counted, {settling} left out while a launch or a new setting settled.",
        "- Tokens/s/GPU: prompt and response tokens of the counted steps over their seconds, per GPU. The whole batch, every phase.",
        "- The gain compares launches of your command with launches made of the best setting after it was chosen.",
        f"- Points refused by arithmetic or by verl's own validation before a launch: {verdict.get('refused', 0)}.",
        f"- Ran on {_plain(_machine(study, trials))}. Versions: {_plain(versions)}.",
    ]
    if noise is not None:
        lines.append(
            f"- Launches of the same setting differ by {noise:.1%} (standard deviation, at least what their steps make)."
        )
    theft = wording.theft(verdict)
    if theft is not None:
        lines.append(f"- {theft}")
    if str(study.config.get("trainer.device")) == "cpu":
        lines.append("- On a CPU: CUDA graphs, sleep and wake-up memory, NCCL and torch.compile were not measured.")
    return [*lines, ""]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _cell(text: str) -> str:
    """Text that cannot leave its cell."""
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Text that stays text: on one line, without Markdown, HTML or control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    line = re.sub(r"[\\`*\[\]~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", lambda found: "\\" + found[0], line)
    return line.replace("&", "&amp;").replace("<", "&lt;")


def _mfu(value: float | None) -> str:
    return "not computable" if value is None else f"{value:.1%}"


def _share(trial: TrialRecord, phase: str) -> str:
    seconds = trial.phases.get(phase)
    if seconds is None:
        return "–"
    return f"{seconds:.2f} ({seconds / trial.step_seconds:.0%})" if trial.step_seconds else f"{seconds:.2f}"
