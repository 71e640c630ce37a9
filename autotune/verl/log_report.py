"""What a log of verl says as a whole: its steps, its speed, its end. Works on a log of any size, and on one that still grows."""

from __future__ import annotations

import math
import re
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from autotune.values import Failure, StepRecord
from autotune.verl.console import ConsoleReader
from autotune.verl.failures import Diagnosis, EndedBy
from autotune.verl.log_lines import LineScanner
from autotune.verl.metrics import (
    LoggedStep,
    finite_numbers,
    is_training_step,
    raw_mfu,
    step_record,
    throughput,
    tokens,
    uncovered_seconds,
)

_KEPT_ROWS = 400
_KEPT_NOTES = 20
_KV_TOKENS = re.compile(r"GPU KV cache size: (\d[\d,]{0,20}) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: (\d{1,12}(?:\.\d+)?)x")
_SLEEP = re.compile(r"Sleep mode freed [\d.]+ GiB memory, (\d{1,12}(?:\.\d+)?) GiB memory is still in use")
_PREEMPTED = re.compile(r"total_(?:num_)?cumulative_preemption[_a-z]*=(\d{1,12})\b")


@dataclass(frozen=True, slots=True)
class Score:
    """The speed of a run: medians over its training steps after the first one seen, validation and checkpoints taken out."""

    throughput: float | None
    """Tokens/s/GPU, prompt and response."""
    mfu: float | None
    """MFU of the actor update as a fraction; None: not computable."""
    steps_used: int
    derived: bool = False
    """True: verl wrote no throughput (before 0.3) and it was computed from the lengths and the step time."""

    def to_json(self) -> dict[str, object]:
        """The object of `score` in the JSON of `autotune logs`."""
        said: dict[str, object] = {
            "throughput_tok_s_gpu": self.throughput,
            "mfu_actor": self.mfu,
            "steps_used": self.steps_used,
        }
        return {**said, "derived": True} if self.derived else said


@dataclass(frozen=True, slots=True)
class StepRow:
    """A training step for display."""

    run: int
    """1 for the first run in the log."""
    record: StepRecord
    throughput: float | None


@dataclass(frozen=True, slots=True)
class LogReport:
    """All that a log says."""

    score: Score
    failure: Failure | None
    rows: tuple[StepRow, ...]
    """The latest training steps, a few hundred at most."""
    speeds: tuple[float, ...]
    """Throughput of every training step of the last run, the first step included."""
    training_steps: int
    runs: int
    finished: bool
    """verl printed its closing line or its last step."""
    planned_steps: int | None
    warnings: tuple[str, ...]
    hints: Mapping[str, object]
    """Facts that vLLM printed: `kv_cache_tokens`, `max_concurrency`, `preemptions`, `sleep_residual_gib`."""


@dataclass(slots=True)
class _Run:
    """What is kept of one run: a few numbers a step."""

    first_step: int
    speeds: array[float] = field(default_factory=lambda: array("d"))
    mfus: array[float] = field(default_factory=lambda: array("d"))
    rests: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    derived: bool = False

    def score(self) -> Score:
        speeds = [speed for speed in self.speeds[1:] if math.isfinite(speed)]
        mfus = [mfu for mfu in self.mfus[1:] if math.isfinite(mfu)]
        return Score(
            throughput=median(speeds) if speeds else None,
            mfu=median(mfus) if mfus else None,
            steps_used=max(0, len(self.speeds) - 1),
            derived=self.derived,
        )


class LogReader:
    """Reads the bytes of a log as they come. `on_step` is called with every step, validations included, in the order of the log."""

    def __init__(self, on_step: Callable[[LoggedStep], None] | None = None) -> None:
        self._on_step = on_step
        self._scanner = LineScanner()
        self._lines = ConsoleReader()
        self._diagnosis = Diagnosis()
        self._runs = 0
        self._run: _Run | None = None
        self._before: Score | None = None
        self._last: LoggedStep | None = None
        self._last_training = 0
        self._training_steps = 0
        self._rows: deque[StepRow] = deque(maxlen=_KEPT_ROWS)
        self._notes: dict[str, list[str]] = {}
        self._hints: dict[str, object] = {}
        self._residues: array[float] = array("d")
        self._unterminated = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the log, of any number."""
        for line in self._scanner.feed(data):
            self._line(line)

    def settle(self) -> None:
        """Nothing has come for a while: a step that was waiting for its next line is complete."""
        for step in self._lines.flush():
            self._step(step)
        self._scanner.every_line = False

    def close(self) -> None:
        """The log ends here."""
        for line in self._scanner.flush():
            self._unterminated = True
            self._line(line)
        self.settle()

    def report(self, *, exit_code: int | None = None, ended_by: EndedBy | None = None) -> LogReport:
        """What has been read so far says this. `exit_code` and `ended_by` are what the caller knows of the end of the run."""
        return LogReport(
            score=self._score(),
            failure=self._diagnosis.result(exit_code=exit_code, ended_by=ended_by, last_line=self._scanner.last_line),
            rows=tuple(self._rows),
            speeds=tuple(self._run.speeds) if self._run else (),
            training_steps=self._training_steps,
            runs=self._runs,
            finished=self._diagnosis.finished,
            planned_steps=self._diagnosis.planned_steps,
            warnings=tuple(self._warnings()),
            hints=self._all_hints(),
        )

    # -- lines -----------------------------------------------------------------------------------------------------------

    def _line(self, line: str) -> None:
        for event in self._lines.feed(line):
            if isinstance(event, LoggedStep):
                self._step(event)
            else:
                self._diagnosis.feed(event)
                self._hint(event)
        self._scanner.every_line = self._lines.open

    def _hint(self, line: str) -> None:
        if (found := _KV_TOKENS.search(line)) is not None:
            self._hints["kv_cache_tokens"] = int(found[1].replace(",", ""))
        elif (found := _CONCURRENCY.search(line)) is not None:
            self._hints["max_concurrency"] = float(found[1])
        elif (found := _SLEEP.search(line)) is not None:
            if len(self._residues) < 10_000:
                self._residues.append(float(found[1]))
        elif (found := _PREEMPTED.search(line)) is not None:
            self._hints["preemptions"] = int(found[1])
        elif "MFU will always be zero" in line:
            self._notes.setdefault("model", [])
        elif "Error in _run_prompt" in line:
            self._note("generation", "1")

    def _step(self, step: LoggedStep) -> None:
        step = _without_torn_end(step) if self._unterminated else step
        if self._last is not None and step.step == self._last.step and _same(step.metrics, self._last.metrics):
            return  # printed twice: by Ray and by a shell that collects both streams
        self._last = step
        self._diagnosis.feed(step)
        if self._on_step is not None:
            self._on_step(step)
        metrics = finite_numbers(step.metrics.items())
        self._note_unusual(step, metrics)
        if not is_training_step(metrics):
            return
        if self._run is None or step.step <= self._last_training:
            self._begin_run(step.step)
        assert self._run is not None
        self._last_training = step.step
        self._training_steps += 1
        self._count(self._run, step.step, metrics)

    def _begin_run(self, step: int) -> None:
        if self._run is not None and (score := self._run.score()).steps_used:
            self._before = score
        self._runs += 1
        self._run = _Run(step)
        if step > 1:
            self._note("resumed", str(step))

    def _count(self, run: _Run, step: int, metrics: Mapping[str, float]) -> None:
        usual = median(run.rests) if run.rests else None
        record = step_record(step, metrics, release=None, usual_rest=usual)
        speed = throughput(metrics, seconds=record.seconds)
        if (rest := uncovered_seconds(metrics)) is not None:
            run.rests.append(rest)
        run.derived = run.derived or (speed is not None and speed[1])
        run.speeds.append(speed[0] if speed is not None else math.nan)
        run.mfus.append(record.mfu if record.mfu is not None else math.nan)
        self._rows.append(StepRow(self._runs, replace(record, metrics={}), speed[0] if speed is not None else None))

    # -- what is unusual --------------------------------------------------------------------------------------------------

    def _note(self, kind: str, what: str) -> None:
        notes = self._notes.setdefault(kind, [])
        if len(notes) < _KEPT_NOTES:
            notes.append(what)

    def _note_unusual(self, step: LoggedStep, finite: Mapping[str, float]) -> None:
        odd: dict[str, list[str]] = {}
        for name, value in step.metrics.items() if len(finite) < len(step.metrics) else ():
            if value is None:
                odd.setdefault("null", []).append(name)
            elif value != value:
                odd.setdefault("nan", []).append(name)
            elif value in (math.inf, -math.inf):
                odd.setdefault("inf", []).append(name)
        for kind, names in odd.items():
            self._note(kind, f"{', '.join(sorted(names)[:8])} at step {step.step}")
        mfu = raw_mfu(finite)
        if mfu is not None and mfu > 1.0:
            self._note("mfu_over_one", f"{mfu:.3g} at step {step.step}")
        elif mfu is not None and mfu <= 0.0:
            self._notes.setdefault("mfu_zero", [])

    def _warnings(self) -> list[str]:
        notes = self._notes
        said = []
        if "nan" in notes:
            said.append(f"nan_metrics: {'; '.join(notes['nan'])}")
        if "inf" in notes:
            said.append(f"inf_metrics: {'; '.join(notes['inf'])}")
        if "null" in notes:
            said.append(f"null_metrics: nan or inf was written as null: {'; '.join(notes['null'])}")
        if "mfu_zero" in notes:
            why = "the model type is not" if "model" in notes else "the GPU or the model type is not"
            said.append(f"mfu_unavailable: {why} in verl's table of FLOPs; 0 means unknown, not idle")
        if "mfu_over_one" in notes:
            said.append(
                f"mfu_refused: over 1, so verl assumed a wrong peak for this GPU: {'; '.join(notes['mfu_over_one'][:3])}"
            )
        if self._run is not None and self._run.derived:
            said.append(
                "throughput_derived: this release wrote no perf/throughput; global_seqlen/mean / step seconds was used"
            )
        if self._runs > 1:
            said.append(
                f"several_runs: {self._runs} runs in this log; the score is that of the last one with a counted step"
            )
        if "resumed" in notes:
            said.append(
                f"resumed: a run begins at step {notes['resumed'][0]}, so it continued a checkpoint; trials need trainer.resume_mode=disable"
            )
        if "generation" in notes:
            said.append(
                "failed_generations: a request failed and verl may have padded the batch with synthetic sequences; do not trust the speed"
            )
        if len(self._residues) > 1 and self._residues[-1] > 1.5 * self._residues[0] + 1.0:
            said.append(
                f"sleep_residue: memory still in use after sleep grew from {self._residues[0]:.2f} to {self._residues[-1]:.2f} GiB"
            )
        return said

    def _all_hints(self) -> dict[str, object]:
        return (
            {**self._hints, "sleep_residual_gib": list(self._residues[-20:])} if self._residues else dict(self._hints)
        )

    def _score(self) -> Score:
        score = self._run.score() if self._run is not None else Score(None, None, 0)
        return score if score.steps_used or self._before is None else self._before


def _same(left: Mapping[str, float | None], right: Mapping[str, float | None]) -> bool:
    return left.keys() == right.keys() and all(
        a == b or (a != a and b != b) for a, b in zip(left.values(), right.values(), strict=True)
    )


def _without_torn_end(step: LoggedStep) -> LoggedStep:
    """The step without a throughput of which the end of the file has cut off digits: tokens / (seconds * throughput) is the number of GPUs.

    verl prints the throughput last.
    """
    names = list(step.metrics)
    if not names or names[-1] != "perf/throughput":
        return step
    metrics = finite_numbers(step.metrics.items())
    speed, total, seconds = metrics.get("perf/throughput", 0.0), tokens(metrics), metrics.get("perf/time_per_step", 0.0)
    if not total or speed <= 0 or seconds <= 0:
        return step
    gpus = total / seconds / speed
    if round(gpus) >= 1 and abs(gpus - round(gpus)) < 1e-3 * gpus:
        return step
    return LoggedStep(step.step, {name: value for name, value in step.metrics.items() if name != "perf/throughput"})
