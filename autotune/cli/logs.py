"""`autotune logs`: what a verl run did, and why it ended."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import IO, Annotated, BinaryIO, get_args

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.cli import console as terminal
from autotune.tuner import wording as words
from autotune.verl.failures import EndedBy
from autotune.verl.log_report import LogReader, LogReport, StepRow
from autotune.verl.metrics import PHASES, LoggedStep

_BLOCK = 1 << 20
_POLL_SECONDS = 0.5
_SHOWN_ROWS = 20
_SPARK = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 60
_QUOTED = 240
_IN_MEMORY = 16 << 20
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


class Ended(str, Enum):
    """How the run was ended from outside."""

    WATCHDOG = "watchdog"
    TIME_LIMIT = "time_limit"
    SIGNAL = "signal"
    USER = "user"


def logs(
    file: Annotated[
        str, typer.Argument(help="A console log or a JSONL file of metrics; - reads standard input.", metavar="FILE")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep reading while the file grows; Ctrl-C ends.")
    ] = False,
    exit_code: Annotated[
        int | None, typer.Option(help="Exit status of the run, where you know it.", show_default="not known")
    ] = None,
    ended_by: Annotated[
        Ended | None, typer.Option(help="What ended the run from outside.", show_default="nothing")
    ] = None,
) -> None:
    """Steps, speed and failure of a verl run, from its console log or its file of metrics (0.1 to 0.9.1)."""
    ended: EndedBy | None = next(
        (way for way in get_args(EndedBy) if ended_by is not None and way == ended_by.value), None
    )
    if follow and as_json:
        terminal.refuse("--follow shows a growing log to people; leave it out for --json", as_json=True)
    with _open(file, as_json=as_json) as source:
        if follow:
            _follow(source, exit_code=exit_code, ended_by=ended)
        elif as_json:
            _print_json(source, exit_code=exit_code, ended_by=ended)
        else:
            terminal.out.print(_shown(_read(source, LogReader(), exit_code=exit_code, ended_by=ended)))


def _open(file: str, *, as_json: bool) -> BinaryIO:
    """The file to read; ends the command where it is none that can be read as a log."""
    if file == "-":
        return sys.stdin.buffer
    path = Path(file)
    try:
        if path.is_dir():
            inside = sorted(
                entry.name for entry in path.iterdir() if entry.suffix in (".log", ".jsonl", ".out", ".txt")
            )
            hint = f": name one of its files, such as {path / inside[0]}" if inside else ""
            terminal.refuse(f"{file} is a directory, not a log{hint}", as_json=as_json)
        source = path.open("rb")
    except FileNotFoundError:
        terminal.refuse(f"{file} does not exist", as_json=as_json)
    except OSError as error:
        terminal.refuse(f"{file} cannot be read: {error.strerror}", as_json=as_json)
    head = source.read(8192)
    source.seek(0) if source.seekable() else None
    if head[:2] == b"\x1f\x8b":
        terminal.refuse(f"{file} is compressed: zcat {file} | autotune logs -", as_json=as_json)
    if b"\x00" in head:
        terminal.refuse(
            f"{file} is a binary file, not a log (for UTF-16: iconv -f UTF-16 -t UTF-8 {file} | autotune logs -)",
            as_json=as_json,
        )
    return source


def _blocks(source: BinaryIO) -> Iterator[bytes]:
    while block := source.read(_BLOCK):
        yield block


def _read(source: BinaryIO, reader: LogReader, *, exit_code: int | None, ended_by: EndedBy | None) -> LogReport:
    for block in _blocks(source):
        reader.feed(block)
    reader.close()
    return reader.report(exit_code=exit_code, ended_by=ended_by)


# -- JSON ----------------------------------------------------------------------------------------------------------------


def _print_json(source: BinaryIO, *, exit_code: int | None, ended_by: EndedBy | None) -> None:
    """One object. Steps go through a temporary file once they are many: a log can hold more of them than memory should."""
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, mode="w+", encoding="utf-8") as spool:
        count = 0

        def keep(step: LoggedStep) -> None:
            nonlocal count
            spool.write(",\n    " if count else "\n    ")
            spool.write(_step_json(step))
            count += 1

        report = _read(source, LogReader(keep), exit_code=exit_code, ended_by=ended_by)
        spool.seek(0)
        _write_json(spool, report)


def _write_json(steps: IO[str], report: LogReport) -> None:
    rest = {
        "score": report.score.to_json(),
        "failure": None if report.failure is None else report.failure.to_json(),
        "warnings": list(report.warnings),
        "hints": dict(report.hints),
        "runs": report.runs,
        "finished": report.finished,
    }
    sys.stdout.write('{\n  "steps": [')
    while text := steps.read(_BLOCK):
        sys.stdout.write(text)
    body = json.dumps(rest, ensure_ascii=False, indent=2, allow_nan=False)
    sys.stdout.write("\n  ],\n" + body[2:] + "\n")


def _step_json(step: LoggedStep) -> str:
    try:
        metrics = _ENCODER.encode(step.metrics)
    except ValueError:  # nan and inf are no JSON
        metrics = _ENCODER.encode({name: _json_number(value) for name, value in step.metrics.items()})
    only = ', "validation_only": true' if all(name.startswith("val") for name in step.metrics) else ""
    return f'{{"step": {step.step}, "metrics": {metrics}{only}}}'


def _json_number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# -- for people ----------------------------------------------------------------------------------------------------------


def _follow(source: BinaryIO, *, exit_code: int | None, ended_by: EndedBy | None) -> None:
    """Shows the log as it grows, until Ctrl-C, or until a pipe is closed. A file that was written anew is read from its start."""
    reader = LogReader()
    regular = source.seekable()
    read = 0
    try:
        with Live(console=terminal.out, auto_refresh=False, vertical_overflow="visible") as live:
            while True:
                if regular and source.seek(0, 2) < read:
                    reader, read = LogReader(), 0
                if regular:
                    source.seek(read)
                quiet = True
                for block in _blocks(source):
                    quiet = False
                    read += len(block)
                    reader.feed(block)
                if quiet:
                    reader.settle()
                live.update(_shown(reader.report(exit_code=exit_code, ended_by=ended_by)), refresh=True)
                if quiet and not regular:
                    return
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return


def _shown(report: LogReport) -> RenderableType:
    parts: list[RenderableType] = []
    if report.rows:
        parts.append(_table(report))
        parts.append(_speed(report))
    else:
        parts.append(Text("No training step in this log."))
    parts.extend(Text(f"warning  {warning}", style="yellow") for warning in report.warnings)
    facts = _facts(report)
    if facts:
        parts.append(Text(f"vLLM     {facts}"))
    parts.append(_end(report))
    return Group(*parts)


def _table(report: LogReport) -> Table:
    phases = [phase for phase in PHASES if any(phase in row.record.phases for row in report.rows)]
    hidden = report.training_steps - min(_SHOWN_ROWS, len(report.rows))
    table = Table(
        box=None, header_style="bold", pad_edge=False, title_justify="left", title_style="",
        title=f"{hidden} earlier steps are not shown" if hidden else None,
    )  # fmt: skip
    several = report.runs > 1
    for name in (*(("run",) if several else ()), "step", "seconds", *phases, "rest", "tok/s\n/GPU", "MFU\n%", "GiB"):
        table.add_column(name.replace("_", "\n", 1), justify="right", no_wrap=True)
    for row in report.rows[-_SHOWN_ROWS:]:
        table.add_row(*((str(row.run),) if several else ()), *_cells(row, phases))
    return table


def _cells(row: StepRow, phases: list[str]) -> list[str]:
    record = row.record
    return [
        str(record.step),
        words.number(record.seconds),
        *(words.number(record.phases.get(phase)) for phase in phases),
        words.number(record.rest_seconds),
        words.number(row.throughput),
        "–" if record.mfu is None else f"{record.mfu * 100:.1f}",
        words.number(record.memory_gb),
    ]


def _speed(report: LogReport) -> Text:
    score = report.score
    line = Text(f"speed    {sparkline(report.speeds)}  ")
    if score.throughput is None:
        return line.append("only the first step, which is warm-up: no score yet")
    mfu = "MFU not computable" if score.mfu is None else f"MFU {score.mfu * 100:.1f} %"
    derived = " (derived)" if score.derived else ""
    counted = "the one step" if score.steps_used == 1 else f"median of the {score.steps_used} steps"
    return line.append(
        f"{words.number(score.throughput)} tok/s/GPU{derived}, {mfu}: {counted} after the first", style="bold"
    )


def _facts(report: LogReport) -> str:
    said = {
        "kv_cache_tokens": "KV cache of {} tokens",
        "max_concurrency": "room for {} full-length sequences",
        "preemptions": "{} preemptions",
    }
    return ", ".join(text.format(report.hints[name]) for name, text in said.items() if name in report.hints)


def _end(report: LogReport) -> RenderableType:
    if report.failure is None:
        if report.finished:
            return Text("end      finished", style="green")
        planned = f" of {report.planned_steps}" if report.planned_steps else ""
        return Text(
            f"end      no failure in the log: {report.training_steps}{planned} steps, then it stops (unfinished, or still running)"
        )
    failure = report.failure
    again = "; not the settings' fault, run it again" if failure.retryable else ""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, width=8)
    table.add_column(overflow="fold")
    table.add_row(
        Text("failure", style="bold red"),
        Text(f"{failure.failure_class.value} in phase {failure.phase.value}{again}", style="bold red"),
    )
    quoted = failure.evidence if len(failure.evidence) <= _QUOTED else failure.evidence[: _QUOTED - 1] + "…"
    table.add_row("log", Text(quoted or "(the log is empty)"))
    table.add_row("remedy", Text(failure.remedy))
    return table


def sparkline(values: tuple[float, ...]) -> str:
    """The course of the values as a line of blocks, at most 60 wide; a dot where nothing is known."""
    size = max(1, math.ceil(len(values) / _SPARK_WIDTH))
    groups = [[v for v in values[at : at + size] if math.isfinite(v)] for at in range(0, len(values), size)]
    means = [sum(group) / len(group) if group else math.nan for group in groups]
    known = [mean for mean in means if not math.isnan(mean)]
    if not known:
        return ""
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    return "".join(
        "·" if math.isnan(mean) else _SPARK[round((mean - low) / span * (len(_SPARK) - 1))] for mean in means
    )
