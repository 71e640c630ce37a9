"""The live view of a running study, and the plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from autotune.cli.console import SIMULATED
from autotune.measure.runner import Event, StageSeen, StepSeen
from autotune.store.records import TrialRecord, gain_of
from autotune.tuner import wording as words
from autotune.tuner.listener import Listener
from autotune.values import Point, StepRecord, TrialKind, TrialState

if TYPE_CHECKING:  # `show` draws its bars, and prepares nothing
    from autotune.tuner.prepare import Prepared

_COLOURS = {
    "gen": "cyan",
    "old_log_prob": "yellow",
    "ref": "magenta",
    "values": "green",
    "update_critic": "red",
    "update_actor": "blue",
    "update_weights": "bright_black",
}


class Progress(Listener):
    """Shows the trial that runs, its steps by phase, what was measured so far, and the time left.

    On a terminal the view is redrawn in place; elsewhere a line says what is launched, since that takes minutes. Every trial
    leaves a line, and a failed one a second with its cause.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._prepared: Prepared | None = None
        self._begin = time.monotonic()
        self._trials: list[TrialRecord] = []
        self._points: dict[int, Point] = {}
        self._running: tuple[int, str, float] | None = None
        self._stage = ""
        self._step: StepRecord | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=2, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def study_started(self, name: str, prepared: Prepared) -> None:
        self._prepared = prepared
        badge = f" {SIMULATED}" if prepared.request.simulated else ""
        self._console.print(f"Study [bold]{escape(name)}[/]{badge}: {escape(prepared.job.label)}")
        for warning in prepared.warnings:
            self.said(warning)

    def trial_started(self, number: int, kind: TrialKind, point: Point, origin: str) -> None:
        self._points[number] = point
        self._running = (number, origin, time.monotonic())
        self._stage, self._step = "starting", None

    def trial_event(self, number: int, event: Event) -> None:
        if isinstance(event, StageSeen):
            self._stage = event.stage
            if event.stage == "starting" and self._live is None and self._running is not None:
                self._console.print(f"t{number:03d} starting verl: {escape(self._running[1])}", style="dim")
        elif isinstance(event, StepSeen):
            self._step = event.step

    def trial_finished(self, trial: TrialRecord) -> None:
        self._trials.append(trial)
        self._running = None
        self._console.print(self._line(trial))
        evidence = (trial.failure or {}).get("evidence")
        if evidence:
            self._console.print(f"     {escape(evidence)}", style="dim")

    def said(self, text: str) -> None:
        self._console.print(f"[yellow]note[/] {escape(text)}")

    def _line(self, trial: TrialRecord) -> Text:
        changed = self._changed(trial.number)
        if trial.state is TrialState.MEASURED:
            text = Text(f"t{trial.number:03d} ", style="bold")
            text.append(
                f"{words.number(trial.throughput):>9} tokens/s/GPU  {words.gain(self._against_baseline(trial)):>9}  "
            )
            text.append(f"{words.number(trial.step_seconds, 2):>7} s/step  ")
        else:
            text = Text(f"t{trial.number:03d} ", style="bold")
            reason = (trial.failure or {}).get("class", "")
            text.append(f"{trial.state.value}: {reason}  ", style="red")
        text.append(changed, style="dim")
        return text

    def _changed(self, number: int) -> str:
        if self._prepared is None:
            return ""
        changed = self._points[number].changes_from(self._prepared.space.baseline)
        return words.changes(changed)

    def _against_baseline(self, trial: TrialRecord) -> float | None:
        return gain_of(trial, self._trials)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = []
        elapsed = time.monotonic() - self._begin
        head = Text(f"{words.duration(elapsed)} · {len(self._trials)} trials done", style="bold")
        left = self._time_left()
        if left is not None:
            head.append(f" · about {words.duration(left)} left")
        best = max(
            (t for t in self._trials if t.throughput is not None), key=lambda t: t.throughput or 0.0, default=None
        )
        if best is not None:
            head.append(
                f" · best t{best.number:03d} {words.number(best.throughput)} tokens/s/GPU {words.gain(self._against_baseline(best))}"
            )
        parts.append(head)
        if self._running is not None:
            number, origin, since = self._running
            seconds = words.duration(time.monotonic() - since)
            step = f", step {self._step.step}" if self._step else ""
            parts.append(
                Text(
                    f"t{number:03d} {self._stage}{step} · {seconds} · {origin} · {self._changed(number)}",
                    overflow="ellipsis",
                    no_wrap=True,
                )
            )
        if self._step is not None:
            parts.append(phase_bars(self._step.phases, self._step.seconds))
        return Group(*parts)

    def _time_left(self) -> float | None:
        if self._prepared is None or not self._trials:
            return None
        request = self._prepared.request
        done = len({t.point for t in self._trials if t.kind is not TrialKind.CONFIRM})
        confirmed = sum(t.kind is TrialKind.CONFIRM for t in self._trials)
        launches = max(0, request.trials - done) + max(0, 2 * request.confirmations - confirmed)
        typical = (time.monotonic() - self._begin) / len(self._trials)
        left = launches * typical
        if request.time_budget is not None:
            left = min(left, request.time_budget - (time.monotonic() - self._begin))
        return max(0.0, left)


def phase_bars(phases: Mapping[str, float], total: float) -> RenderableType:
    """One bar per phase, its length the share of the step."""
    table = Table.grid(padding=(0, 1))
    for name, seconds in phases.items():
        if total <= 0 or seconds / total < 0.005:
            continue
        table.add_row(
            name,
            Bar(total, 0, seconds, width=40, color=_COLOURS.get(name, "white")),
            f"{seconds:.2f} s",
            f"{seconds / total:.0%}",
        )
    return table
