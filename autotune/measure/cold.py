"""The cold runner: every Point gets a verl launch of its own."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from autotune.measure.gpu import GpuSampler, host_gpus, pinned_environment
from autotune.measure.interference import CPU_STOLEN, InterferenceWatch, Thresholds
from autotune.measure.leftovers import Leftovers
from autotune.measure.payload import Payload
from autotune.measure.process import JobProcess, NotStarted, SupervisorLost
from autotune.measure.runner import Event, Limits, Order, Outcome, Runner, StageSeen, StepSeen
from autotune.measure.watchdog import ERROR_LINE, OOM_LINE, overdue
from autotune.measure.window import enough, settled
from autotune.values import Failure, FailureClass, KnobValue, Measurement, Phase, StepRecord
from autotune.verl.config import FlatConfig
from autotune.verl.failures import diagnose_file
from autotune.verl.jsonl import MetricsTail
from autotune.verl.short_run import short_run_overrides

POLL_SECONDS = 0.25
_Ender = Literal["plan", "watchdog", "user"]
"""Who ended a launch that did not end by itself: its plan was fulfilled, it hung, or the user asked."""


@dataclass(frozen=True, slots=True)
class ColdJob:
    """The user's command, ready to be launched with more overrides behind it."""

    python: str
    entrypoint: str
    """Module name, or a `.py` file."""
    arguments: tuple[str, ...]
    """Hydra flags and overrides as the user's script passes them."""
    env: Mapping[str, str]
    """Whole environment of the launch, without what autotune adds."""
    cwd: str
    config: FlatConfig
    """The composed configuration of the user's command."""
    world_size: int
    gpus: tuple[int, ...]
    """NVML indices of the GPUs it uses; empty on the CPU."""
    payload: Payload
    hold: tuple[int, ...] = ()
    """Descriptors of the locks on those GPUs, for whatever outlives the tuner."""
    simulated: bool = False
    """True where `python` runs a double of verl."""

    def command(self, overrides: Sequence[str], *, steps: int, run_dir: Path, ray_dir: Path) -> list[str]:
        """The argv of one launch: the user's arguments, the Point's, then the short run's."""
        entry = [self.entrypoint] if self.entrypoint.endswith(".py") else ["-m", self.entrypoint]
        short = short_run_overrides(self.config, steps=steps, run_dir=run_dir, ray_dir=ray_dir)
        return [self.python, *entry, *self.arguments, *overrides, *short]


_LONGEST_SIGN = 60
"""Bytes of the longest text that tells of an error."""


class ErrorWatch:
    """Reads what was added to a growing log and remembers when an error was first seen without progress after it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        self._before = b""
        self.since: float | None = None
        self.out_of_memory: float | None = None
        """When a process first said that its GPU's memory ran out, without progress after it."""

    def look(self) -> None:
        """Reads on."""
        with self._log.open("rb") as source:
            source.seek(self._offset)
            added = source.read(1 << 20)
        self._offset += len(added)
        text = (self._before + added).decode(errors="replace")  # a line may have been written in two pieces
        self._before = (self._before + added)[-_LONGEST_SIGN:]
        if self.since is None and ERROR_LINE.search(text):
            self.since = time.monotonic()
        if self.out_of_memory is None and OOM_LINE.search(text):
            self.out_of_memory = time.monotonic()

    def progress(self) -> None:
        """A step was finished: what was logged before it did not stop the run."""
        self.since = self.out_of_memory = None
        self._before = b""


class ColdRunner(Runner):
    """Launches verl once per Point, in its own process session, with a private Ray cluster and private temporary folders."""

    def __init__(self, job: ColdJob, *, limits: Limits | None = None) -> None:
        self._job = job
        self._limits = limits or Limits()
        self._stop_soon = threading.Event()
        self._stop_now = threading.Event()
        self._first_step_seconds = math.nan

    def stop(self, *, now: bool) -> None:
        (self._stop_now if now else self._stop_soon).set()

    def close(self) -> None:
        """Nothing outlives a measurement."""

    def measure(self, order: Order, watch: Callable[[Event], None]) -> Outcome:
        order.run_dir.mkdir(parents=True, exist_ok=True)
        echo_dir = order.run_dir / "echo"
        echo_dir.mkdir(exist_ok=True)
        metrics = order.run_dir / "metrics.jsonl"
        log = order.run_dir / "console.log"
        sampler = GpuSampler(self._job.gpus)
        begin = time.monotonic()
        job: JobProcess | None = None
        interference: InterferenceWatch | None = None
        try:
            job = JobProcess(hold=self._job.hold, patience=self._limits.terminate)
            leftovers = job.leftovers
            env = launch_environment(self._job, leftovers, metrics, echo_dir)
            command = self._job.command(
                order.overrides, steps=order.plan.most_steps, run_dir=order.run_dir, ray_dir=leftovers.ray
            )
            (order.run_dir / "command.json").write_text(json.dumps({"argv": command, "cwd": self._job.cwd}, indent=1))
            job.start(command, env=env, cwd=self._job.cwd, log=log)
            interference = watch_interference(self._job, job)
            watch(StageSeen("starting"))
            steps, ended_by, reason = self._follow(job, order, metrics, log, begin, watch, interference)
            last_step_at = time.monotonic()
            watch(StageSeen("stopping"))
            natural = ended_by is None and job.exit_code is None and job.await_end(self._limits.exit)
            job.stop(patience=self._limits.terminate)
            exit_code = job.exit_code
        except SupervisorLost as lost:
            return Failure(
                FailureClass.INTERRUPTED,
                Phase.UNKNOWN,
                "Nothing is left of the launch; the Point is measured again.",
                str(lost),
                True,
            )
        except NotStarted as problem:
            return Failure(
                FailureClass.UNKNOWN, Phase.UNKNOWN, "Check the interpreter and the folder.", str(problem), False
            )
        finally:
            if job is not None:
                job.stop(patience=self._limits.terminate)
            if interference is not None:
                interference.close()
            sampler.close()
        marked = settled(steps)
        rated = [step for step in marked if not step.settling and step.tokens is not None]
        counted = [step for step in rated if step.invalid is None]
        interrupted = ended_by == "user"
        crashed = ended_by is None and not natural and exit_code != 0 and not enough(steps, order.plan)
        if len(counted) >= order.plan.at_least and not interrupted and not crashed and ended_by != "watchdog":
            span = sum(step.seconds for step in counted)
            return Measurement(
                steps=marked,
                world_size=self._job.world_size,
                startup_seconds=self._first_step_seconds,
                wall_seconds=time.monotonic() - begin,
                echo={**read_echo(echo_dir), **host_echo(interference)},
                gpus=sampler.usage(last_step_at - span, last_step_at),
                simulated=self._job.simulated,
            )
        if interrupted:
            return Failure(
                FailureClass.INTERRUPTED,
                Phase.UNKNOWN,
                "Continue the study; the Point is measured again.",
                "stopped by the user",
                True,
            )
        if len(rated) >= order.plan.at_least > len(counted) and not crashed and ended_by != "watchdog":
            return disturbed(rated)
        failure = diagnose_file(
            log,
            exit_code=None if natural else exit_code,
            steps_seen=len(steps),
            ended_by=None if ended_by == "plan" else ended_by,
        )
        if failure is not None and not (failure.failure_class is FailureClass.UNKNOWN and reason):
            return failure
        kind = FailureClass.HANG_NO_PROGRESS if ended_by == "watchdog" else FailureClass.UNKNOWN
        remedy = "Look at the end of the log." if failure is None else failure.remedy
        return Failure(
            kind,
            Phase.UNKNOWN,
            f"{remedy} Log: {log}",
            reason or f"verl ended after {len(steps)} steps with exit status {exit_code}",
            False,
        )

    def _follow(
        self,
        job: JobProcess,
        order: Order,
        metrics: Path,
        log: Path,
        begin: float,
        watch: Callable[[Event], None],
        interference: InterferenceWatch | None,
    ) -> tuple[list[StepRecord], _Ender | None, str | None]:
        """Until there are steps enough, verl ended, or it has to be ended: the steps, who ended it, and why."""
        tail = MetricsTail(metrics)
        errors = ErrorWatch(log)
        steps: list[StepRecord] = []
        progress = begin
        self._first_step_seconds = math.nan
        while True:
            ended = job.exit_code is not None  # asked before reading, so that the last lines are not missed
            for step in tail.poll():
                progress = time.monotonic()
                if interference is not None:
                    thresholds = Thresholds(others=order.plan.crowding)
                    found = interference.between(progress - step.seconds, progress, thresholds=thresholds)
                    step = replace(step, invalid=found if steps else None)  # the first one settles, and never counts
                steps.append(step)
                errors.progress()
                if len(steps) == 1:
                    self._first_step_seconds = progress - begin
                    watch(StageSeen("stepping"))
                watch(StepSeen(settled(steps)[-1]))
                if self._stop_soon.is_set():
                    return steps, "user", None
            if enough(steps, order.plan):
                return steps, None if len(steps) >= order.plan.most_steps else "plan", None
            if ended:
                return steps, None, None
            if self._stop_now.is_set() or (self._stop_soon.is_set() and not steps):
                return steps, "user", None
            errors.look()
            now = time.monotonic()
            reason = overdue(
                self._limits,
                since_start=now - begin,
                since_progress=now - progress,
                longest_step=max((step.seconds for step in steps), default=None),
                since_error=None if errors.since is None else now - errors.since,
            )
            if reason is not None:
                return steps, "watchdog", reason
            time.sleep(POLL_SECONDS)


def watch_interference(job: ColdJob, process: JobProcess) -> InterferenceWatch | None:
    """What tells whether a step of this job was disturbed; None: nobody, since a double's seconds are computed."""
    if job.simulated:
        return None
    uuids = [gpu.uuid for gpu in host_gpus() if gpu.index in job.gpus] if job.gpus else []
    return InterferenceWatch(uuids, lambda: process.pids, on_cpu=not uuids)


def host_echo(interference: InterferenceWatch | None) -> dict[str, KnobValue]:
    """What is told of the host beside what verl's processes report: `CPU_STOLEN`."""
    share = 0.0 if interference is None else interference.theft
    return {CPU_STOLEN: round(share, 3)} if share > Thresholds().stolen else {}


def disturbed(steps: Sequence[StepRecord]) -> Failure:
    """The failure of a launch of which too many steps were disturbed."""
    reasons = Counter(step.invalid for step in steps if step.invalid is not None)
    told = "; ".join(reason for reason, _ in reasons.most_common(3))
    return Failure(
        FailureClass.INTERFERENCE,
        Phase.UNKNOWN,
        "Keep other programs off these GPUs and CPUs, or cool them, and measure the Point again.",
        f"{reasons.total()} of {len(steps)} steps were disturbed and do not count: {told}",
        True,
    )


def launch_environment(job: ColdJob, leftovers: Leftovers, metrics: Path, echo_dir: Path) -> dict[str, str]:
    """The whole environment of one launch: the user's, the job's GPUs and no other, private folders, the payload."""
    # Pinned, or the launch would run on other GPUs than those that are sampled and locked for it.
    env = pinned_environment(job.env, job.gpus)
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", f"/tmp/torchinductor_{os.environ.get('USER') or os.getuid()}")
    env.pop("RAY_ADDRESS", None)  # or ray.init joins the user's running cluster
    env.update(
        TMPDIR=str(leftovers.temporary),
        VERL_FILE_LOGGER_PATH=str(metrics.resolve()),
        HYDRA_FULL_ERROR="1",
        PYTHONUNBUFFERED="1",
        RAY_USAGE_STATS_ENABLED="0",
    )
    return job.payload.apply(env, echo_dir.resolve())


def read_echo(folder: Path) -> dict[str, KnobValue]:
    """The values in effect that the processes of a launch reported, by knob key (files of `autotune.inside.echo`).

    Where processes disagree about a value, it is reported as the sorted list of what was seen, as text, so that it
    equals no wanted value. `engine.kv_blocks` are the blocks that requests can have in the smallest cache (one of each is
    vLLM's null block).
    """
    reports, blocks = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            continue  # its process was killed while it wrote
        reports.append(report.get("values", {}))
        told = report.get("extra", {}).get("kv_blocks")
        if isinstance(told, int):
            blocks.append(told - 1)
    facts: dict[str, KnobValue] = {"engine.kv_blocks": min(blocks)} if blocks else {}
    return {**merged_echo(reports), **facts}


def merged_echo(reports: Iterable[Mapping[str, KnobValue]]) -> dict[str, KnobValue]:
    """One report of many; what they disagree about becomes a text that equals no wanted value."""
    seen: dict[str, list[KnobValue]] = {}
    for values in reports:
        for key, value in values.items():
            if value not in seen.setdefault(key, []):
                seen[key].append(value)
    return {
        key: values[0] if len(values) == 1 else " / ".join(sorted(map(str, values))) for key, values in seen.items()
    }
