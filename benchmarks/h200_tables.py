"""The tables of docs/benchmarks.md, as Markdown, from what the courses on H200 GPUs wrote down.

python benchmarks/h200_tables.py [benchmarks/data/h200/records.jsonl]
python benchmarks/h200_tables.py benchmarks/data/h200/longest.jsonl          that, beside.jsonl and launches*.jsonl: of h200_bias.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from autotune.measure.replay import Recorded, read_recordings  # noqa: E402
from autotune.values import Failure, FailureClass, Measurement, StepRecord  # noqa: E402

RECORDS = ROOT / "benchmarks" / "data" / "h200" / "records.jsonl"
GIB = 2**30
PHASES = ("gen", "old_log_prob", "ref", "update_actor", "update_weights", "rest")


def row(cells: Iterable[object]) -> str:
    """A line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A whole table."""
    return "\n".join([row(head), row("---" for _ in head), *map(row, rows)])


def seconds(measured: Measurement, phase: str) -> float:
    """Mean seconds of a phase, or of the step."""
    return measured.step_seconds if phase == "step" else measured.phase_seconds.get(phase, 0.0)


def points(recordings: Sequence[Recorded]) -> str:
    """Every outcome of the session."""
    rows = []
    for recorded in recordings:
        found = recorded.outcome
        if recorded.fresh:
            continue
        if isinstance(found, Failure):
            rows.append([recorded.label, f"{found.failure_class.value} in {found.phase.value}", *[""] * 8])
            continue
        echo = found.echo
        rows.append(
            [
                recorded.label,
                f"{found.throughput:,.0f}",
                f"{found.step_seconds:.2f}",
                *(f"{seconds(found, phase):.2f}" for phase in ("gen", "old_log_prob", "ref", "update_actor")),
                "" if found.memory_gb is None else f"{found.memory_gb:.1f}",
                echo.get("engine.largest_batch", ""),
                echo.get("engine.preempted", ""),
            ]
        )
    head = [
        "Point",
        "tokens/s",
        "step s",
        "gen",
        "old_log_prob",
        "ref",
        "update_actor",
        "GiB",
        "largest batch",
        "preempted",
    ]
    return table(head, rows)


def against(live: Measurement, cold: Measurement) -> list[list[str]]:
    """Both and their difference, by phase; the difference of seconds per token too, since launches draw other prompts."""
    rows = []
    tokens = [fmean(step.tokens or 0 for step in measured.counted) for measured in (live, cold)]
    for phase in ("step", *PHASES):
        ours, theirs = seconds(live, phase), seconds(cold, phase)
        if theirs == 0.0:
            continue
        per_token = (ours / tokens[0]) / (theirs / tokens[1]) - 1
        rows.append([phase, f"{ours:.2f}", f"{theirs:.2f}", f"{ours - theirs:+.2f}", f"{per_token:+.1%}"])
    rows.append(["tokens of a step", f"{tokens[0]:,.0f}", f"{tokens[1]:,.0f}", f"{tokens[0] - tokens[1]:+,.0f}", ""])
    return rows


def arms(lines: Sequence[dict[str, Any]], label: str) -> dict[str, list[StepRecord]]:
    """Counted steps of a Point of `h200_bias.py`: probes as they were made, whole steps of the session, those of its launch."""
    found: dict[str, list[StepRecord]] = {}
    since: list[dict[str, Any]] = []
    for line in lines:
        if line["kind"] == "cold-step" and line["label"] == label:
            found.setdefault("launch", []).append(StepRecord(**line["step"]))
        if line["kind"] == "step":
            since.append(line)
        elif line["kind"] == "point":
            if line["label"] == label and not line["fresh"]:
                for step in since:
                    name = {"frozen": "training probe", "generation": "generation probe"}.get(step["work"], "whole")
                    found.setdefault(name, []).append(StepRecord(**step["step"]))
            since = []
    return {name: steps[1:] for name, steps in found.items()}


def beside(lines: Sequence[dict[str, Any]], label: str) -> str:
    """Seconds of a Point by phase, of every way in which it was measured; ranges over the counted steps."""

    def cell(steps: Sequence[StepRecord] | None, phase: str) -> str:
        if not steps or (phase != "rest" and phase not in steps[0].phases):
            return ""
        values = [step.rest_seconds if phase == "rest" else step.phases[phase] for step in steps]
        return f"{fmean(values):.2f} ({min(values):.2f}–{max(values):.2f})"

    ways = arms(lines, label)
    rows = []
    for phase in PHASES:
        probe = ways.get("generation probe") if phase == "gen" else ways.get("training probe")
        rows.append([phase, *(cell(steps, phase) for steps in (probe, ways.get("whole"), ways.get("launch")))])
    return table(["phase", "probes", "whole steps of the session", "launch of its own"], rows)


def throughputs(recordings: Sequence[Recorded]) -> str:
    """Tokens a second of every outcome."""
    rows = []
    for recorded in recordings:
        found = recorded.outcome
        if isinstance(found, Failure):
            rows.append([recorded.label, "launch" if recorded.fresh else "session", found.failure_class.value, ""])
            continue
        how = "launch" if recorded.fresh else f"session, {found.source.value}"
        rows.append([recorded.label, how, f"{found.throughput:,.0f}", f"{found.step_seconds:.2f}"])
    return table(["Point", "measured in", "tokens/s", "step s"], rows) + "\n"


def longest(lines: Sequence[dict[str, Any]]) -> str:
    """What was predicted and taken with every trajectory at its limit."""
    rows = []
    for line in lines:
        if line["kind"] != "longest":
            continue
        found = line["found"]
        peak = f"{found['peak'] / GIB:.1f}" if found.get("peak") else str(found)
        refused = "refused" if line["refused"] else "let pass"
        rows.append([line["label"], f"{line['predicted'] / GIB:.1f}", refused, peak, f"{line['wall']:.1f}"])
    return table(["Point", "predicted GiB", "by the rule", "reserved GiB", "s"], rows)


def undisturbed_or_not(lines: Sequence[dict[str, Any]], label: str) -> Measurement:
    """A launch that was refused because too many of its steps were disturbed, with all steps but the settling one."""
    steps = [StepRecord(**line["step"]) for line in lines if line["kind"] == "cold-step" and line["label"] == label]
    return Measurement(tuple(replace(step, invalid=None) for step in steps), 1)


def main() -> None:
    """Prints them all."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    recordings = read_recordings(path)
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.resolve() != RECORDS:
        for label in dict.fromkeys(line["label"] for line in lines if line["kind"] in ("point", "cold-step")):
            print(f"### {label}\n\n{beside(lines, label)}\n")
        print(throughputs(recordings))
        print(longest(lines))
        for line in lines:
            if line["kind"] == "disturbed":
                print(f"\n{line['at']:.0f} s: a step of {line['seconds']:.1f} s was disturbed: {line['by']}")
        return
    print("### Points of the session\n")
    print(points(recordings))
    live = {recorded.label: recorded.outcome for recorded in recordings if not recorded.fresh}
    for recorded in recordings:
        ours, theirs = live.get(recorded.label), recorded.outcome
        if isinstance(theirs, Failure) and recorded.fresh and theirs.failure_class is FailureClass.INTERFERENCE:
            print(f"\n{recorded.label} in a launch of its own does not count: {theirs.evidence}")
            theirs = undisturbed_or_not(lines, recorded.label)
        if recorded.fresh and isinstance(ours, Measurement) and isinstance(theirs, Measurement):
            print(f"\n### {recorded.label}: session − launch of its own\n")
            print(table(["phase", "session s", "launch s", "difference", "per token"], against(ours, theirs)))
            print(
                f"\nlaunch: {theirs.startup_seconds:.0f} s to the end of its first step, {theirs.wall_seconds:.0f} s in all"
            )
        elif recorded.fresh:
            print(f"\n### {recorded.label}: {theirs if isinstance(theirs, Failure) else 'no session measurement'}")
    for line in lines:
        if line["kind"] in ("prices", "repeats", "cut", "error"):
            print("\n" + json.dumps({name: value for name, value in line.items() if name != "at"}))


if __name__ == "__main__":
    main()
